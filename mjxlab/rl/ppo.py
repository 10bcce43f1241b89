"""Proximal policy optimisation (Schulman et al. 2017, arXiv:1707.06347), as one ``Learner``.

One update: a rollout of all worlds, advantages by GAE, some epochs of minibatch gradient steps, and at last the
observation statistics. The details on which implementations differ, and how they are here:

* the log-probability is of the action as it was sampled, before clipping or tanh;
* observations are normalised with the same statistics in the rollout and in the loss; what the rollout saw enters
  the statistics after the epochs;
* a truncated episode bootstraps from the value of ``final_obs``, a terminated one does not;
* the value targets are the GAE returns, computed once per rollout;
* advantages are normalised per minibatch, over the minibatch of all devices together;
* gradients are clipped by their global norm; a gradient that is not finite changes nothing and is counted.
"""

from __future__ import annotations

from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
import optax
from gymnasium import spaces
from jax import lax
from jaxtyping import Array, Bool, Float, Int, Key

from mjxlab import spmd
from mjxlab._compat import lenient
from mjxlab.envs.vectorize import VecEnv, VecState, vectorize
from mjxlab.errors import ConfigError
from mjxlab.learner import Learner
from mjxlab.memory import refuse_if_larger, tree_bytes
from mjxlab.rl import distributions, losses, normalise, returns, shuffle
from mjxlab.rl.counter import Counter
from mjxlab.rl.ppo_config import Config, Scalar, schedule
from mjxlab.rl.ppo_networks import Networks, action_mask, make_networks
from mjxlab.rl.rollout import EpisodeSums, Transition, episode_sums, rollout

__all__ = [
    "Config",
    "Networks",
    "PPOState",
    "Samples",
    "collect",
    "loss",
    "make",
    "make_networks",
    "memory_bytes",
    "policy",
    "prepare",
    "see",
]


@flax.struct.dataclass
class PPOState:
    """The whole training state. Fields marked ``device`` are split over devices along their axis 0.

    Attributes:
      params: of the networks.
      opt_state: Adam's, over the flattened parameters.
      normaliser: statistics of observations (unused, but kept, without ``normalise_obs``).
      reward_stats: statistics of the discounted returns that rewards are scaled by.
      lr_factor: what ``target_kl`` has made of the step size.
      update: number of updates made.
      env_steps: control steps of all worlds together.
      skipped: gradient steps left out because they were not finite.
      nonfinite: worlds that the guard has ended.
      recent: means over the episodes that ended in the last update in which any did; NaN before the first.
      worlds: where the worlds are.
      running_return: each world's discounted return so far, for ``reward_stats``.
    """

    params: Any
    opt_state: Any
    normaliser: normalise.RunningStatistics
    reward_stats: normalise.RunningStatistics
    lr_factor: Float[Array, ""]
    update: Int[Array, ""]
    env_steps: Counter
    skipped: Counter
    nonfinite: Counter
    recent: dict[str, Float[Array, ""]]
    worlds: VecState = flax.struct.field(metadata={"axis": "device"})
    running_return: Float[Array, " envs"] = flax.struct.field(metadata={"axis": "device"})


@flax.struct.dataclass
class Samples:
    """What the loss needs of each step: the rollout's ``Transition``s, digested by ``prepare``.

    Attributes:
      obs: as the networks see it, normalised with the rollout's statistics.
      action: raw. log_prob: its log-probability under the rollout's policy.
      noise: the standard normal draw behind it (tanh policies; an empty array otherwise).
      advantage, target, value: of GAE; targets of the critic; the critic's values before the epochs.
      mask: allowed actions, or None.
    """

    obs: Any
    action: Any
    log_prob: Float[Array, "*rows"]
    noise: Array
    advantage: Float[Array, "*rows"]
    target: Float[Array, "*rows"]
    value: Float[Array, "*rows"]
    mask: Bool[Array, "*rows choices"] | None


def see(config: Config, stats: normalise.RunningStatistics, obs: Any) -> Any:
    """Observations as the networks take them."""
    return normalise.normalise(stats, obs, clip=config.obs_clip) if config.normalise_obs else obs


def policy(networks: Networks, config: Config, state: PPOState, obs: Any) -> distributions.Distribution:
    """The distribution of raw actions for a batch of observations."""
    return networks.policy(state.params, see(config, state.normaliser, obs), action_mask(obs))


def collect(
    vec: VecEnv, networks: Networks, config: Config, state: PPOState, key: Key[Array, ""]
) -> tuple[VecState, Transition]:
    """The rollout of one update, with ``log_prob`` and ``noise`` of the raw actions in ``extras``."""

    def act(obs: Any, keys: Array) -> tuple[Any, Any, Any]:
        dist = policy(networks, config, state, obs)
        raw = jax.vmap(lambda d, k: d.sample(k))(dist, keys)
        if isinstance(dist, distributions.TanhNormal):
            noise = dist.noise(raw)
        else:
            noise = jnp.zeros((raw.shape[0], 0), jnp.result_type(float))
        return dist.action(raw), raw, {"log_prob": dist.log_prob(raw), "noise": noise}

    # no vec.refill: it changes no result, a step fills its pool when need be, and each use is one more copy of the
    # reset (for MJX: of a whole physics pipeline) to compile
    return rollout(vec, act, state.worlds, key, config.rollout_length)


def optimiser(config: Config) -> optax.GradientTransformation:
    """Adam without its step size, on all parameters as one vector: a few large operations, not a few per layer."""
    return optax.flatten(optax.scale_by_adam(eps=config.adam_eps))


def loss(
    networks: Networks, config: Config, params: Any, batch: Samples, entropy_cost: Scalar
) -> tuple[Float[Array, ""], dict[str, Array]]:
    """The objective on one minibatch, to be minimised: policy loss + value_coef value loss - entropy_cost entropy.

    Inside the training loop it is the device's share: average value and gradient over devices.

    Returns:
      The loss, and its parts.
    """
    dist, values = networks.both(params, batch.obs, batch.mask)
    log_ratio = dist.log_prob(batch.action) - batch.log_prob
    advantages = losses.normalise_advantages(batch.advantage) if config.normalise_advantages else batch.advantage
    policy_loss = losses.clipped_surrogate(log_ratio, advantages, config.clip)
    value_loss = losses.value_loss(values, batch.target, batch.value, config.value_clip)
    entropy = dist.entropy(batch.noise if isinstance(dist, distributions.TanhNormal) else None).mean()
    total = policy_loss + config.value_coef * value_loss - entropy_cost * entropy
    return total, {
        "loss": total,
        "policy_loss": policy_loss,
        "value_loss": value_loss,
        "entropy": entropy,
        "kl": losses.approx_kl(log_ratio),
        "clip_fraction": losses.clip_fraction(log_ratio, config.clip),
    }


def prepare(
    networks: Networks,
    config: Config,
    params: Any,
    stats: normalise.RunningStatistics,
    transitions: Transition,
    last_obs: Any,
    reward_scale: Scalar,
) -> Samples:
    """Turns a rollout into samples: normalised observations, values, advantages, targets. Axes (time, envs) stay."""

    def value(obs: Any) -> Array:
        return networks.value(params, obs)

    seen = jax.tree.map(lambda rows, last: jnp.concatenate([rows, last[None]]), transitions.obs, last_obs)
    seen = see(config, stats, seen)
    # one row of worlds at a time: the activations stay in the cache, which in a pass over all rows they would not
    values = lax.map(value, seen)
    bootstrapped = transitions.truncated & ~transitions.terminated
    final_values = returns.values_where(lambda obs: value(see(config, stats, obs)), transitions.final_obs, bootstrapped)
    advantages, targets = returns.gae(
        transitions.reward * reward_scale,
        values[:-1],
        returns.next_values(values, transitions.done, final_values),
        transitions.terminated,
        transitions.truncated,
        discount=config.discount,
        lam=config.gae_lambda,
    )
    return Samples(
        obs=jax.tree.map(lambda x: x[:-1], seen),
        action=transitions.action,
        log_prob=transitions.extras["log_prob"],
        noise=transitions.extras["noise"],
        advantage=advantages,
        target=targets,
        value=values[:-1],
        mask=action_mask(transitions.obs),
    )


def memory_bytes(env: Any, config: Config) -> dict[str, int]:
    """Bytes that training takes over all devices together, from shapes alone: worlds, parameters, rollout, minibatch.

    An estimate of the large arrays; what the compiler adds is not in it.
    """
    networks = make_networks(env, config)
    key = jax.eval_shape(lambda: jax.random.key(0))
    state = jax.eval_shape(env.reset, key)
    params = tree_bytes(jax.eval_shape(networks.init, key))
    obs, word = tree_bytes(state.obs), jnp.dtype(jnp.result_type(float)).itemsize
    size = 1 if isinstance(env.action_space, spaces.Discrete) else env.action_space.shape[0]
    rows = config.num_envs * config.rollout_length
    # raw, final, normalised and packed observations; action and noise twice; a dozen scalars
    row = 4 * obs + (4 * size + 12) * word
    widths = sum(config.policy_widths) + (0 if config.shared else sum(config.value_widths))
    return {
        "worlds": config.num_envs * tree_bytes(state) * (1 if config.reset == "fresh" else 2),
        "parameters": 4 * params,  # with Adam's two moments and the gradient
        "rollout": rows * row,
        "minibatch": rows // config.num_minibatches * (row + 3 * widths * word),
    }


def make(env: Any, config: Config) -> Learner:
    """PPO on one environment.

    Args:
      env: the environment of one world, with a discrete or a box action space.
      config: its floats may be traced; call ``config.validate()`` on concrete values first.
    """
    vec = vectorize(env, config.num_envs, reset=config.reset, episode_length=config.episode_length)
    networks = make_networks(env, config)
    adam = optimiser(config)
    dtype = jnp.result_type(float)

    def init(key: Key[Array, ""]) -> PPOState:
        refuse_if_larger(memory_bytes(env, config), "PPO", "num_envs or rollout_length")
        params_key, env_key = jax.random.split(key)
        devices = spmd.axis_size()
        if config.num_envs % devices:
            raise ConfigError(f"num_envs: got {config.num_envs}, expected a multiple of the {devices} devices")
        worlds = vec.reset(env_key, spmd.global_index(config.num_envs // devices))
        if worlds.reward.ndim != 1:
            raise ConfigError(
                f"environment {vec.name}: a reward of shape {worlds.reward.shape[1:]}, expected one number"
            )
        params = networks.init(params_key)
        recent = {"episode_return": jnp.full((), jnp.nan, dtype), "episode_length": jnp.full((), jnp.nan, dtype)}
        if worlds.success is not None:
            recent |= {name: jnp.full((), jnp.nan, dtype) for name in ("success", "reached")}
        return PPOState(
            params=params,
            opt_state=adam.init(params),
            normaliser=normalise.init(jax.tree.map(lambda x: x[0], worlds.obs)),
            reward_stats=normalise.init(jnp.zeros((), dtype)),
            lr_factor=jnp.ones((), dtype),
            update=jnp.zeros((), jnp.int32),
            env_steps=Counter.of(0),
            skipped=Counter.of(0),
            nonfinite=Counter.of(0),
            recent=recent,
            worlds=worlds,
            running_return=jnp.zeros(worlds.terminated.shape, dtype),
        )

    def update(state: PPOState, key: Key[Array, ""], batch: Any = None) -> tuple[PPOState, dict[str, Any]]:
        del batch  # it collects its own
        rollout_key, epochs_key = jax.random.split(key)
        worlds, transitions = collect(vec, networks, config, state, rollout_key)
        length, envs = transitions.reward.shape

        reward_stats, running, reward_scale = state.reward_stats, state.running_return, config.reward_scale
        if config.normalise_rewards:
            running, totals = normalise.accumulate_returns(
                running, transitions.reward, transitions.done, config.discount
            )
            reward_stats = normalise.update(reward_stats, totals)
            reward_scale = reward_scale / normalise.std(reward_stats)
        samples = prepare(networks, config, state.params, state.normaliser, transitions, worlds.obs, reward_scale)

        fraction = state.update.astype(dtype) / (config.total_updates or 1)
        lr = config.lr * schedule(config.lr_schedule, fraction, config.lr_end)
        entropy_cost = config.entropy_cost * schedule(config.entropy_schedule, fraction, config.entropy_end)
        trained, parts = _epochs(networks, config, adam, state, samples, epochs_key, lr, entropy_cost)
        normaliser = normalise.update(state.normaliser, transitions.obs) if config.normalise_obs else state.normaliser

        sums = spmd.psum(episode_sums(transitions))
        recent = _means(sums, state.recent)
        state = trained.replace(
            normaliser=normaliser,
            reward_stats=reward_stats,
            update=state.update + jnp.ones_like(state.update),
            env_steps=state.env_steps + length * envs * spmd.axis_size(),
            nonfinite=state.nonfinite + sums.nonfinite.astype(jnp.uint32),
            recent=recent,
            worlds=worlds,
            running_return=running,
        )
        metrics = (
            parts
            | recent
            | {
                "episodes": sums.episodes,
                "reward": spmd.pmean(transitions.reward.mean()),
                "explained_variance": losses.explained_variance(samples.value, samples.target),
                "lr": lr * state.lr_factor,
                "entropy_cost": jnp.asarray(entropy_cost, dtype),
                "nonfinite_worlds": state.nonfinite,
                "skipped_updates": state.skipped,
                "env_steps": state.env_steps,
            }
        )
        return state, metrics

    def carry(state: PPOState, key: Key[Array, ""]) -> tuple[()]:
        del state, key
        return ()

    def act(
        state: PPOState, carry: tuple[()], obs: Any, key: Key[Array, ""], deterministic: bool
    ) -> tuple[Any, tuple[()]]:
        batch = jax.tree.map(lambda x: x[None], obs)
        dist = jax.tree.map(lambda x: x[0], policy(networks, config, state, batch))
        return dist.action(dist.mode() if deterministic else dist.sample(key)), carry

    return Learner(init, update, carry, act)


# what the loss reports of each minibatch, and the gradient's norm
_PARTS = ("loss", "policy_loss", "value_loss", "entropy", "kl", "clip_fraction", "grad_norm")


def _means(sums: EpisodeSums, before: dict[str, Array]) -> dict[str, Array]:
    """Means over the episodes that ended; where none did, those of before."""
    count = jnp.maximum(sums.episodes, 1)
    return {k: jnp.where(sums.episodes > 0, getattr(sums, k) / count, old) for k, old in before.items()}


def _epochs(
    networks: Networks,
    config: Config,
    adam: optax.GradientTransformation,
    state: PPOState,
    samples: Samples,
    key: Array,
    lr: Array,
    entropy_cost: Array,
) -> tuple[PPOState, dict[str, Array]]:
    """All gradient steps of an update. Returns the state with new parameters, and the means of the loss's parts."""
    length, envs = samples.advantage.shape
    packed = shuffle.Packed(jax.tree.map(lambda x: x.reshape((length * envs, *x.shape[2:])), samples))
    index = shuffle.minibatch_indices(key, length, envs, config.num_minibatches, config.epochs)

    def step(carry: tuple[Any, ...], rows: Array) -> tuple[tuple[Any, ...], Array]:
        params, opt_state, factor, skipped = carry
        batch = packed.take(rows)
        grads, parts = jax.grad(lambda p: loss(networks, config, p, batch, entropy_cost), has_aux=True)(params)
        grads, parts = spmd.pmean((grads, parts))
        grads, norm = losses.clip_by_global_norm(grads, config.max_grad_norm)
        sound = jnp.isfinite(norm) & jnp.isfinite(parts["loss"])
        with lenient():  # optax raises a float to an integer power
            change, moved = adam.update(grads, opt_state, params)
        size = lr * factor
        params = jax.tree.map(lambda p, c: jnp.where(sound, p - size.astype(p.dtype) * c, p), params, change)
        opt_state = jax.tree.map(lambda new, old: jnp.where(sound, new, old), moved, opt_state)
        if config.target_kl is not None:
            factor = jnp.where(sound, _adapt(factor, parts["kl"], config.target_kl), factor)
        skipped = skipped + (~sound).astype(jnp.uint32)
        parts = parts | {"grad_norm": norm}
        return (params, opt_state, factor, skipped), jnp.stack([parts[name] for name in _PARTS])

    start = (state.params, state.opt_state, state.lr_factor, state.skipped)
    (params, opt_state, factor, skipped), parts = lax.scan(step, start, index)
    state = state.replace(params=params, opt_state=opt_state, lr_factor=factor, skipped=skipped)
    return state, dict(zip(_PARTS, parts.mean(0), strict=True))


def _adapt(factor: Array, kl: Array, target: Scalar) -> Array:
    """The step size follows the KL (as in rsl_rl): smaller above twice the target, larger below half of it."""
    change = jnp.where(kl > 2 * target, 1 / 1.5, jnp.where(kl < target / 2, 1.5, 1.0))
    return jnp.clip(factor * change.astype(factor.dtype), 1e-2, 10)
