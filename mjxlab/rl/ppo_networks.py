"""PPO's networks as pure functions, made to an environment's measure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from gymnasium import spaces
from jaxtyping import Array

from mjxlab.errors import ConfigError
from mjxlab.nn.mlp import ActorCritic
from mjxlab.rl import distributions
from mjxlab.rl.ppo_config import Config


class Networks(NamedTuple):
    """The policy and the critic as pure functions of batches (rows on axis 0) of network inputs."""

    init: Callable[[Array], Any]
    policy: Callable[[Any, Any, Any], distributions.Distribution]  # params, inputs, mask
    value: Callable[[Any, Any], Array]  # params, inputs
    both: Callable[[Any, Any, Any], tuple[distributions.Distribution, Array]]  # params, inputs, mask


def action_mask(obs: Any) -> Any:
    """Allowed actions, from observations that are a mapping with the key ``"action_mask"``; else None."""
    return obs["action_mask"].astype(bool) if isinstance(obs, dict) and "action_mask" in obs else None


def make_networks(env: Any, config: Config) -> Networks:
    """Networks for the environment's observations and actions."""
    space = env.action_space
    discrete = isinstance(space, spaces.Discrete)
    if not discrete and not (isinstance(space, spaces.Box) and len(space.shape) == 1):
        raise ConfigError(f"action_space: got {space}, expected a Discrete space or a Box of rank 1")
    module = ActorCritic(
        size=int(space.n) if discrete else space.shape[0],
        discrete=discrete,
        policy_widths=config.policy_widths,
        value_widths=config.value_widths,
        shared=config.shared,
        activation=config.activation,
        layer_norm=config.layer_norm,
        kernel_init=config.kernel_init,
        final_scale=config.final_scale,
        state_std=config.state_std,
        init_std=config.init_std,
        min_std=config.min_std,
    )

    def distribution(out: Any, mask: Any) -> distributions.Distribution:
        if discrete:
            return distributions.Categorical(out, mask)
        kind = distributions.TanhNormal if config.squash == "tanh" else distributions.Normal
        return kind(*out)

    def init(key: Array) -> Any:
        obs = jax.eval_shape(env.reset, key).obs
        return module.init(key, jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), obs))

    def apply(params: Any, x: Any, method: str) -> Any:
        return jax.vmap(lambda o: module.apply(params, o, method=method))(x)

    def policy(params: Any, x: Any, mask: Any = None) -> distributions.Distribution:
        return distribution(apply(params, x, "policy"), mask)

    def value(params: Any, x: Any) -> Array:
        return apply(params, x, "value")

    def both(params: Any, x: Any, mask: Any = None) -> tuple[distributions.Distribution, Array]:
        out, values = apply(params, x, "__call__")
        return distribution(out, mask), values

    return Networks(init, policy, value, both)
