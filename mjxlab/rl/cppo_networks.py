"""CPPO's networks as pure functions, made to a goal task's measure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from gymnasium import spaces
from jaxtyping import Array, Float

from mjxlab.errors import ConfigError
from mjxlab.nn.contrastive import ContrastiveCritic, Tower
from mjxlab.rl import distributions, goals, normalise
from mjxlab.rl.cppo_config import Config, Scalar

LOG_STD = (-5.0, 2.0)  # the range of the policy's log standard deviation


class GoalNetworks(NamedTuple):
    """Policy and critic as pure functions of batches with any leading axes.

    Attributes:
      spec: sizes of the observation.
      discrete: whether actions are choices.
      actions: number of choices, or of components.
      init: ``key -> {"actor": …, "critic": …}``.
      policy: ``(actor, obs, mask) -> distribution`` of raw actions; obs is ``[features, achieved, commanded]``.
      phi: ``(critic, state, action, commanded) -> representation``; action as ``encode`` gives it.
      psi: ``(critic, goal) -> representation``.
      encode: a raw action as the critic takes it: one-hot, or squashed.
    """

    spec: goals.GoalSpec
    discrete: bool
    actions: int
    init: Callable[[Array], dict[str, Any]]
    policy: Callable[[Any, Array, Any], distributions.Distribution]
    phi: Callable[[Any, Array, Array, Array], Array]
    psi: Callable[[Any, Array], Array]
    encode: Callable[[Array], Array]


def log_std(raw: Float[Array, "*batch size"], init_std: Scalar) -> Float[Array, "*batch size"]:
    """A log standard deviation within [-5, 2], by a tanh; that of ``init_std`` where ``raw`` is 0."""
    low, high = LOG_STD
    middle, half = (low + high) / 2, (high - low) / 2
    start = jnp.arctanh((jnp.log(jnp.asarray(init_std, raw.dtype)) - middle) / half)
    return middle + half * jnp.tanh(raw + start)


def make_networks(env: Any, config: Config) -> GoalNetworks:
    """Networks for a goal task.

    Raises:
      ConfigError: the environment is no goal task, or has actions of another kind.
    """
    spec, space = goals.goal_spec(env), env.action_space
    discrete = isinstance(space, spaces.Discrete)
    if not discrete and not (isinstance(space, spaces.Box) and len(space.shape) == 1):
        raise ConfigError(f"action_space: got {space}, expected a Discrete space or a Box of rank 1")
    actions = int(space.n) if discrete else int(space.shape[0])
    actor = Tower(
        config.policy_widths,
        actions if discrete else 2 * actions,
        config.policy_layer_norm,
        config.skip,
        out_scale=config.final_scale,
    )
    critic = ContrastiveCritic(
        config.critic_widths, config.repr_dim, config.layer_norm, config.skip, config.film, config.state_only
    )

    def init(key: Array) -> dict[str, Any]:
        actor_key, critic_key = jax.random.split(key)

        def zeros(size: int) -> Array:
            return jnp.zeros((1, size), jnp.result_type(float))

        return {
            "actor": actor.init(actor_key, zeros(spec.obs_size)),
            "critic": critic.init(critic_key, zeros(spec.state_size), zeros(actions), zeros(spec.goal_size)),
        }

    def policy(params: Any, obs: Array, mask: Any = None) -> distributions.Distribution:
        out: Any = actor.apply(params, obs)
        if discrete:
            return distributions.Categorical(out, mask)
        return distributions.TanhNormal(out[..., :actions], jnp.exp(log_std(out[..., actions:], config.init_std)))

    def phi(params: Any, state: Array, action: Array, commanded: Array) -> Array:
        found: Any = critic.apply(params, state, action, commanded, method="phi")
        return found

    def psi(params: Any, goal: Array) -> Array:
        found: Any = critic.apply(params, goal, method="psi")
        return found

    def encode(raw: Array) -> Array:
        return jax.nn.one_hot(raw, actions, dtype=jnp.result_type(float)) if discrete else jnp.tanh(raw)

    return GoalNetworks(spec, discrete, actions, init, policy, phi, psi, encode)


def see(
    config: Config, stats: normalise.RunningStatistics, obs: Float[Array, "*rows obs"]
) -> Float[Array, "*rows obs"]:
    """Flat observations as the networks take them; the commanded goal is scaled as the achieved one is.

    Args:
      stats: of ``[features, achieved]``.
      obs: ``[features, achieved, commanded]``.
    """
    if not config.normalise_obs:
        return obs
    size = obs.shape[-1] - stats.mean.shape[-1]
    state, commanded = goals.split(obs, size)
    seen = (normalise.normalise(stats, state, clip=config.obs_clip), see_goal(config, stats, commanded))
    return jnp.concatenate(seen, -1)


def see_goal(
    config: Config, stats: normalise.RunningStatistics, goal: Float[Array, "*rows goal"]
) -> Float[Array, "*rows goal"]:
    """Goals as the networks take them, in the units of the achieved ones."""
    if not config.normalise_obs:
        return goal
    size = goal.shape[-1]
    tail = {name: getattr(stats, name)[-size:] for name in ("mean", "var", "mean_rest", "var_rest")}
    return normalise.normalise(stats.replace(**tail), goal, clip=config.obs_clip)
