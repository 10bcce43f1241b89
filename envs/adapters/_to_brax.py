"""Environments of this suite for Brax's wrappers and trainers."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
from gymnasium import spaces as gym_spaces

from mjxlab.envs import _trees
from mjxlab.envs.adapters._native import need
from mjxlab.envs.base import env_name
from mjxlab.envs.registry import make
from mjxlab.errors import ConfigError


def to_brax(env: Any) -> Any:
    """An environment as a ``brax.envs.base.Env``, which ``brax.envs.training.wrap`` and Brax's PPO and SAC accept.

    ``done`` is ``terminated | truncated`` of the raw environment; the time limit is that of Brax's ``EpisodeWrapper``,
    whose ``episode_length`` is best set to ``env.episode_length``. Brax has no flag for an episode that the task itself
    cuts, so such a cut counts as an end there. Brax's ``AutoResetWrapper`` repeats each world's first start for ever;
    that is Brax's choice, not this environment's.

    Args:
      env: an environment with a box of actions, or the name of one.

    Raises:
      ConfigError: actions are no box of rank 1, or rewards are per agent.
    """
    env = make(env) if isinstance(env, str) else env
    name = env_name(env)
    space = env.action_space
    if not isinstance(space, gym_spaces.Box) or len(space.shape) != 1:
        raise ConfigError(f"{name}: action_space is {space}; Brax takes vectors only")
    start = jax.eval_shape(env.reset, jax.random.key(0))
    if start.reward.ndim:
        raise ConfigError(f"{name} gives {start.reward.shape[0]} rewards, one per agent; Brax takes one")
    if not isinstance(start.obs, dict) and not hasattr(start.obs, "shape"):
        raise ConfigError(f"{name}: observations are {type(start.obs).__name__}; Brax takes a vector or a dict")
    sizes = {k: x.shape for k, x in start.obs.items()} if isinstance(start.obs, dict) else start.obs.shape[-1]
    return _brax_class()(env, name, sizes)


@functools.cache
def _brax_class() -> Any:
    """The class itself, made when Brax is imported."""
    base = need("brax.envs.base", "to_brax", None)

    class BraxEnv(base.Env):  # type: ignore[name-defined,misc]
        """See ``to_brax``."""

        def __init__(self, world: Any, name: str, sizes: Any) -> None:
            self.world, self.name, self._sizes = world, name, sizes

        def reset(self, rng: jax.Array) -> Any:
            typed = jnp.issubdtype(rng.dtype, jax.dtypes.prng_key)
            state = _trees.strong(self.world.reset(rng if typed else jax.random.wrap_key_data(rng)))
            zero = jnp.zeros((), jnp.result_type(float))
            return base.State(_pack(state), state.obs, zero, zero, dict(state.metrics), {})

        def step(self, state: Any, action: jax.Array) -> Any:
            new = _trees.strong(self.world.step(_unpack(state.pipeline_state), action))
            done = (new.terminated | new.truncated).astype(state.done.dtype)
            # wrappers keep things of their own in metrics and info
            metrics = {**state.metrics, **new.metrics}
            return state.replace(pipeline_state=_pack(new), obs=new.obs, reward=new.reward, done=done, metrics=metrics)

        @property
        def observation_size(self) -> Any:
            return self._sizes

        @property
        def action_size(self) -> int:
            return int(self.world.action_space.shape[0])

        @property
        def backend(self) -> str:
            return str(getattr(getattr(self.world, "engine", None), "kind", "jax"))

    return BraxEnv


def _pack(state: Any) -> Any:
    """Our state as Brax may carry it: arrays only, typed keys as their words."""
    leaves, structure = jax.tree.flatten(state)
    keys = tuple(jnp.issubdtype(x.dtype, jax.dtypes.prng_key) for x in leaves)
    arrays = [jax.random.key_data(x) if key else x for x, key in zip(leaves, keys, strict=True)]
    return _Carried(tuple(arrays), keys, structure)


def _unpack(carried: Any) -> Any:
    leaves = [jax.random.wrap_key_data(x) if key else x for x, key in zip(carried.arrays, carried.keys, strict=True)]
    return jax.tree.unflatten(carried.structure, leaves)


@jax.tree_util.register_pytree_node_class
class _Carried:
    """The leaves of our state, with what is needed to put it together again."""

    def __init__(self, arrays: tuple[Any, ...], keys: tuple[bool, ...], structure: Any) -> None:
        self.arrays, self.keys, self.structure = arrays, keys, structure

    def tree_flatten(self) -> tuple[Any, Any]:
        return (self.arrays,), (self.keys, self.structure)

    @classmethod
    def tree_unflatten(cls, aux: Any, children: Any) -> _Carried:
        return cls(children[0], *aux)
