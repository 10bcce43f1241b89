"""Contrastive PPO: a goal-conditioned policy, trained by PPO without reward and without replay, as one ``Learner``.

Source: Osman et al. 2026, "Self-Supervised On-Policy Reinforcement Learning via Contrastive Proximal Policy Optimisation"
(arXiv:2605.13554); the critic is that of Eysenbach et al. 2022 (arXiv:2206.07568).

One update:

1. a rollout of all worlds, each with its commanded goal;
2. for the critic alone, goals in hindsight: what the same episode achieved later, a geometric time ahead;
3. advantages f - V for the *commanded* goals, with critic and policy as they are before the update; standardised over
   the whole batch of all devices, and then fixed;
4. epochs of gradient steps: the critic by a contrastive loss, the policy by PPO's clipped ratio and an entropy bonus.

What the policy's loss is right about, and where it would go wrong unnoticed: the ratio compares the same conditional,
so it never sees hindsight goals; f is asked about (s, a) alone, without the command (``state_only``); the default loss needs
``rho`` > 0, or f holds an arbitrary c(s, a) that the advantage takes for real (see ``mjxlab.rl.contrastive``).

The reward never enters: the environment is wrapped in ``goals.Rewardless``. But a task that ends its episodes on
success (``terminate_on_success``) tells the learner of success that way, and shorter episodes change the law of goals.
"""

from __future__ import annotations

from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
import optax
from jax import lax
from jaxtyping import Array, Bool, Float, Int, Key

from mjxlab import spmd
from mjxlab._compat import lenient
from mjxlab.envs.vectorize import VecEnv, VecState, vectorize
from mjxlab.errors import ConfigError
from mjxlab.learner import Learner
from mjxlab.memory import refuse_if_larger, tree_bytes
from mjxlab.rl import goals, losses, normalise, shuffle
from mjxlab.rl.counter import Counter
from mjxlab.rl.cppo_config import Config, Scalar, entropy_cost, target_entropy
from mjxlab.rl.cppo_losses import CriticRows, PolicyRows, critic_loss, critic_rows, policy_rows, ppo_loss
from mjxlab.rl.cppo_networks import GoalNetworks, make_networks, see
from mjxlab.rl.ppo_config import schedule
from mjxlab.rl.rollout import Transition, episode_sums, rollout

__all__ = [
    "CPPOState",
    "Config",
    "CriticRows",
    "GoalNetworks",
    "PolicyRows",
    "collect",
    "critic_loss",
    "critic_rows",
    "make",
    "make_networks",
    "memory_bytes",
    "policy_rows",
    "ppo_loss",
]


@flax.struct.dataclass
class CPPOState:
    """The whole training state; no replay. Fields marked ``device`` are split over devices along their axis 0.

    Attributes:
      params, opt_state: of ``"actor"`` and ``"critic"``, which share nothing.
      normaliser: statistics of ``[features, achieved]`` (unused, but kept, without ``normalise_obs``).
      log_entropy_cost: logarithm of the entropy bonus's weight, which ``adaptive_entropy`` moves.
      update: number of updates made.
      env_steps: control steps of all worlds together.
      skipped: gradient steps of either network left out because they were not finite.
      nonfinite: worlds that the guard has ended.
      recent: means over the episodes that ended in the last update in which any did; NaN before the first.
      worlds: where the worlds are.
      stale: the last rollouts' ``CriticRows``, worlds first, then the lag (``critic_data="stale"`` only, else empty).
    """

    params: dict[str, Any]
    opt_state: dict[str, Any]
    normaliser: normalise.RunningStatistics
    log_entropy_cost: Float[Array, ""]
    update: Int[Array, ""]
    env_steps: Counter
    skipped: Counter
    nonfinite: Counter
    recent: dict[str, Float[Array, ""]]
    worlds: VecState = flax.struct.field(metadata={"axis": "device"})
    stale: Any = flax.struct.field(metadata={"axis": "device"})


def collect(
    vec: VecEnv, networks: GoalNetworks, config: Config, state: CPPOState, key: Key[Array, ""]
) -> tuple[VecState, Transition]:
    """The rollout of one update, with ``log_prob`` of the raw actions in ``extras``."""

    def act(obs: Any, keys: Array) -> tuple[Any, Any, Any]:
        x, mask = goals.flat(networks.spec, obs)
        dist = networks.policy(state.params["actor"], see(config, state.normaliser, x), mask)
        raw = jax.vmap(lambda d, k: d.sample(k))(dist, keys)
        return dist.action(raw), raw, {"log_prob": dist.log_prob(raw)}

    return rollout(vec, act, state.worlds, key, config.rollout_length)


def memory_bytes(env: Any, config: Config) -> dict[str, int]:
    """Bytes that training takes over all devices together, from shapes alone. An estimate of the large arrays."""
    networks = make_networks(env, config)
    key = jax.eval_shape(lambda: jax.random.key(0))
    word = jnp.dtype(jnp.result_type(float)).itemsize
    rows = config.num_envs * config.rollout_length
    spec = networks.spec
    # raw and final observations, both kinds of rows, and these packed; a dozen scalars
    row = (6 * spec.obs_size + 2 * spec.goal_size + 4 * networks.actions + 12) * word
    largest = max(config.batch_size, config.critic_batch_size or 0)
    widths = sum(config.critic_widths) + max(config.policy_widths)
    parts = {
        "worlds": config.num_envs * tree_bytes(jax.eval_shape(env.reset, key)) * (1 if config.reset == "fresh" else 2),
        "parameters": 4 * tree_bytes(jax.eval_shape(networks.init, key)),  # with Adam's two moments and the gradient
        "rollout": rows * row,
        "minibatch": largest * (row + 3 * widths * word) + 4 * largest**2 * word,
    }
    if config.critic_data == "stale":
        parts["stale rollouts"] = config.stale_lag * rows * (spec.obs_size + spec.goal_size + networks.actions) * word
    return parts


def make(env: Any, config: Config) -> Learner:
    """CPPO on one goal task.

    Args:
      env: the environment of one world; observations ``[features, achieved, commanded]`` (see ``mjxlab.rl.goals``).
      config: its floats may be traced; call ``config.validate()`` on concrete values first.

    Raises:
      ConfigError: the environment is no goal task, or the rollout does not split into whole minibatches.
    """
    vec = vectorize(goals.Rewardless(env), config.num_envs, reset=config.reset, episode_length=config.episode_length)
    networks = make_networks(env, config)
    config.check_batches()
    # one Adam each, on all parameters as one vector: a few large operations, not a few per layer
    adam = optax.flatten(optax.scale_by_adam(eps=config.adam_eps))
    dtype = jnp.result_type(float)
    aim = target_entropy(config, networks.discrete, networks.actions)

    def init(key: Key[Array, ""]) -> CPPOState:
        refuse_if_larger(memory_bytes(env, config), "CPPO", "num_envs or rollout_length")
        params_key, env_key = jax.random.split(key)
        devices = spmd.axis_size()
        if config.num_envs % devices:
            raise ConfigError(f"num_envs: got {config.num_envs}, expected a multiple of the {devices} devices")
        local = config.num_envs // devices
        worlds = vec.reset(env_key, spmd.global_index(local))
        params = networks.init(params_key)
        names = ("episode_length",) + (() if worlds.success is None else ("success", "reached"))
        start = jnp.asarray(entropy_cost(config, networks.discrete), dtype)
        bounds = (jnp.asarray(config.entropy_min, dtype), jnp.asarray(config.entropy_max, dtype))
        return CPPOState(
            params=params,
            opt_state={name: adam.init(part) for name, part in params.items()},
            normaliser=normalise.init(jnp.zeros((networks.spec.state_size,), dtype)),
            log_entropy_cost=jnp.log(jnp.clip(start, *bounds)),
            update=jnp.zeros((), jnp.int32),
            env_steps=Counter.of(0),
            skipped=Counter.of(0),
            nonfinite=Counter.of(0),
            recent={name: jnp.full((), jnp.nan, dtype) for name in names},
            worlds=worlds,
            stale=_no_rows(networks, config, local) if config.critic_data == "stale" else (),
        )

    def update(state: CPPOState, key: Key[Array, ""], batch: Any = None) -> tuple[CPPOState, dict[str, Any]]:
        del batch  # it collects its own
        rollout_key, goal_key, value_key, critic_key, policy_key = jax.random.split(key, 5)
        worlds, transitions = collect(vec, networks, config, state, rollout_key)
        length, envs = transitions.reward.shape
        rows = critic_rows(networks, config, state.normaliser, transitions, goal_key)
        stale = state.stale
        if config.critic_data == "stale":
            stale, rows = _delay(stale, rows, state.update == 0)
        samples, found = policy_rows(networks, config, state.params, state.normaliser, transitions, value_key)

        factor = schedule(config.lr_schedule, state.update.astype(dtype) / (config.total_updates or 1), config.lr_end)
        lr = {"actor": config.lr * factor}
        lr["critic"] = lr["actor"] if config.critic_lr is None else config.critic_lr * factor
        trained, parts = _train(networks, config, adam, aim, state, (rows, samples), (critic_key, policy_key), lr)

        normaliser = state.normaliser
        if config.normalise_obs:
            seen = goals.split(goals.flat(networks.spec, transitions.obs)[0], networks.spec.goal_size)[0]
            normaliser = normalise.update(normaliser, seen)
        sums = spmd.psum(episode_sums(transitions))
        count = jnp.maximum(sums.episodes, 1)
        recent = {k: jnp.where(sums.episodes > 0, getattr(sums, k) / count, old) for k, old in state.recent.items()}
        state = trained.replace(
            normaliser=normaliser,
            update=state.update + jnp.ones_like(state.update),
            env_steps=state.env_steps + length * envs * spmd.axis_size(),
            nonfinite=state.nonfinite + sums.nonfinite.astype(jnp.uint32),
            recent=recent,
            worlds=worlds,
            stale=stale,
        )
        metrics = (
            parts
            | recent
            | found
            | {
                "episodes": sums.episodes,
                "lr": jnp.asarray(lr["actor"], dtype),
                "critic_lr": jnp.asarray(lr["critic"], dtype),
                "entropy_cost": _bonus(networks, config, state),
                "nonfinite_worlds": state.nonfinite,
                "skipped_updates": state.skipped,
                "env_steps": state.env_steps,
            }
        )
        return state, metrics

    def carry(state: CPPOState, key: Key[Array, ""]) -> tuple[()]:
        del state, key
        return ()

    def act(
        state: CPPOState, carry: tuple[()], obs: Any, key: Key[Array, ""], deterministic: bool
    ) -> tuple[Any, tuple[()]]:
        x, mask = goals.flat(networks.spec, obs)
        dist = networks.policy(state.params["actor"], see(config, state.normaliser, x), mask)
        return dist.action(dist.mode() if deterministic else dist.sample(key)), carry

    return Learner(init, update, carry, act)


def _bonus(networks: GoalNetworks, config: Config, state: CPPOState) -> Float[Array, ""]:
    """The entropy bonus's weight now."""
    if config.adaptive_entropy:
        return jnp.exp(state.log_entropy_cost)
    return jnp.asarray(entropy_cost(config, networks.discrete), state.log_entropy_cost.dtype)


# what each loss reports of a minibatch, and the gradients' norms
_CRITIC_PARTS = ("critic_loss", "accuracy", "positive", "negative", "logsumexp", "critic_grad_norm")
_POLICY_PARTS = ("policy_loss", "entropy", "kl", "clip_fraction", "policy_grad_norm")


def _train(
    networks: GoalNetworks,
    config: Config,
    adam: optax.GradientTransformation,
    aim: Scalar,
    state: CPPOState,
    rows: tuple[CriticRows, PolicyRows],
    keys: tuple[Array, Array],
    lr: dict[str, Any],
) -> tuple[CPPOState, dict[str, Array]]:
    """All gradient steps of an update. Returns the state with new parameters, and the means of the losses' parts."""
    length, envs = rows[1].advantage.shape
    packs = [shuffle.Packed(jax.tree.map(lambda x: x.reshape((length * envs, *x.shape[2:])), r)) for r in rows]
    counts = (
        (config.critic_minibatches, config.critic_epochs or config.epochs),
        (config.policy_minibatches, config.epochs),
    )
    index = [shuffle.minibatch_indices(k, length, envs, *c) for k, c in zip(keys, counts, strict=True)]

    def descend(name: str, carry: tuple[Any, ...], grads: Any, loss: Array) -> tuple[tuple[Any, ...], Array, Array]:
        """One step of Adam, unless the gradient is not finite."""
        params, opt_state, skipped, *rest = carry
        grads, norm = losses.clip_by_global_norm(grads, config.max_grad_norm)
        sound = jnp.isfinite(norm) & jnp.isfinite(loss)
        with lenient():  # optax raises a float to an integer power
            change, moved = adam.update(grads, opt_state, params)
        params = jax.tree.map(lambda p, c: jnp.where(sound, p - jnp.asarray(lr[name], p.dtype) * c, p), params, change)
        opt_state = jax.tree.map(lambda new, old: jnp.where(sound, new, old), moved, opt_state)
        return (params, opt_state, skipped + (~sound).astype(jnp.uint32), *rest), norm, sound

    def critic_step(carry: tuple[Any, ...], places: Array) -> tuple[tuple[Any, ...], Array]:
        batch = packs[0].take(places)
        grads, parts = jax.grad(lambda p: critic_loss(networks, config, p, batch), has_aux=True)(carry[0])
        grads, parts = spmd.pmean((grads, parts))
        carry, norm, _ = descend("critic", carry, grads, parts["critic_loss"])
        parts["critic_grad_norm"] = norm
        return carry, jnp.stack([parts[name] for name in _CRITIC_PARTS])

    def policy_step(carry: tuple[Any, ...], places: Array) -> tuple[tuple[Any, ...], Array]:
        batch, log_cost = packs[1].take(places), carry[3]
        fixed = jnp.asarray(entropy_cost(config, networks.discrete), log_cost.dtype)
        bonus = jnp.exp(log_cost) if config.adaptive_entropy else fixed
        grads, parts = jax.grad(lambda p: ppo_loss(networks, config, p, batch, bonus), has_aux=True)(carry[0])
        grads, parts = spmd.pmean((grads, parts))
        carry, norm, sound = descend("actor", carry, grads, parts["policy_loss"] - bonus * parts["entropy"])
        if config.adaptive_entropy:
            moved = log_cost + config.entropy_lr * (aim - parts["entropy"])
            low, high = (jnp.log(jnp.asarray(x, moved.dtype)) for x in (config.entropy_min, config.entropy_max))
            log_cost = jnp.where(sound, jnp.clip(moved, low, high), log_cost)
        parts["policy_grad_norm"] = norm
        return (*carry[:3], log_cost), jnp.stack([parts[name] for name in _POLICY_PARTS])

    none = Counter.of(0)
    critic: Any = (state.params["critic"], state.opt_state["critic"], none)
    policy: Any = (state.params["actor"], state.opt_state["actor"], none, state.log_entropy_cost)
    if config.loop == "decoupled":
        critic, critic_parts = lax.scan(critic_step, critic, index[0])
        policy, policy_parts = lax.scan(policy_step, policy, index[1])
    else:

        def both(carry: Any, places: Any) -> Any:
            (critic, a), (policy, b) = critic_step(carry[0], places[0]), policy_step(carry[1], places[1])
            return (critic, policy), (a, b)

        (critic, policy), (critic_parts, policy_parts) = lax.scan(both, (critic, policy), tuple(index))

    parts = dict(zip(_CRITIC_PARTS, critic_parts.mean(0), strict=True))
    parts |= dict(zip(_POLICY_PARTS, policy_parts.mean(0), strict=True))
    state = state.replace(
        params={"actor": policy[0], "critic": critic[0]},
        opt_state={"actor": policy[1], "critic": critic[1]},
        log_entropy_cost=policy[3],
        skipped=state.skipped.merge(critic[2]).merge(policy[2]),
    )
    return state, parts


def _no_rows(networks: GoalNetworks, config: Config, envs: int) -> CriticRows:
    """Room for the rollouts that the stale critic waits for, worlds first."""
    spec, lead = networks.spec, (envs, config.stale_lag, config.rollout_length)

    def zeros(size: int) -> Array:
        return jnp.zeros((*lead, size), jnp.result_type(float))

    return CriticRows(
        state=zeros(spec.state_size),
        commanded=zeros(spec.goal_size),
        action=zeros(networks.actions),
        goal=zeros(spec.goal_size),
        valid=jnp.zeros(lead, bool),
    )


def _delay(stale: CriticRows, rows: CriticRows, empty: Bool[Array, ""]) -> tuple[CriticRows, CriticRows]:
    """The store with ``rows`` at its end, and the rows that have waited longest (``rows``, where it was empty)."""

    def one(store: Array, new: Array) -> tuple[Array, Array]:
        new = jnp.moveaxis(new, 0, 1)[:, None]  # (envs, 1, time, …)
        store = jnp.where(empty, jnp.broadcast_to(new, store.shape), store)
        return jnp.concatenate([store[:, 1:], new], 1), jnp.moveaxis(store[:, 0], 1, 0)

    pairs = [one(a, b) for a, b in zip(jax.tree.leaves(stale), jax.tree.leaves(rows), strict=True)]
    shape = jax.tree.structure(rows)
    return jax.tree.unflatten(shape, [p[0] for p in pairs]), jax.tree.unflatten(shape, [p[1] for p in pairs])
