"""gymnax environments (1.0 and newer)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from gymnasium import spaces as gym_spaces

from mjxlab.envs.adapters._native import (
    Adapted,
    Outcome,
    action_box,
    array_space,
    check_name,
    making,
    need,
    plain,
    tree_space,
)
from mjxlab.errors import ConfigError


@making()
def from_gymnax(
    name_or_env: Any,
    params: Any = None,
    *,
    episode_length: int | None = None,
    native_bounds: bool = True,
) -> Adapted:
    """A gymnax environment as an ``Env``.

    Its ``step_env`` is used, not its ``step``, which would reset. Termination is gymnax's own; so is truncation
    (``is_truncated``), which falls on the same step as ``vectorize``'s time limit.

    Args:
      name_or_env: a gymnax name (``"CartPole-v1"``) or a ``gymnax`` environment.
      params: its ``EnvParams``, default: its own; or a function of a (raw) key that returns them, which is called at each
        reset: randomisation. ``State.params`` holds what was drawn.
      episode_length: the time limit; default: ``max_steps_in_episode`` of its params, else 1000.
      native_bounds: take the bounds of observations from gymnax. Some of its environments leave them at times: False
        gives up on bounds.

    Raises:
      UnknownNameError: gymnax knows no such environment.
      ConfigError: gymnax is older than 1.0, or an action space cannot be adapted.
    """
    if isinstance(name_or_env, str):
        gymnax = need("gymnax", "from_gymnax", None)
        check_name(name_or_env, gymnax.registered_envs, "gymnax")
        name = f"gymnax:{name_or_env}"
        try:
            native, default = gymnax.make(name_or_env)
        except OSError as error:  # one of them fetches its data
            raise ConfigError(f"{name} cannot be made: {error}") from error
    else:
        native, name = name_or_env, f"gymnax:{getattr(name_or_env, 'name', type(name_or_env).__name__)}"
        default = native.default_params
    if not hasattr(native, "is_truncated"):
        raise ConfigError(f"{name}: its environment has no is_truncated; expected gymnax 1.0 or newer")
    return _Gymnax(native, name, default, params, episode_length, native_bounds)


class _Gymnax(Adapted):
    def __init__(
        self, native: Any, name: str, default: Any, params: Any, episode_length: int | None, native_bounds: bool
    ) -> None:
        self.draw: Callable[[Any], Any] | None = params if callable(params) else None
        self.native_params = default if params is None or self.draw else params
        if episode_length is None:
            episode_length = int(getattr(self.native_params, "max_steps_in_episode", 1000))
        space, bounds = _actions(native.action_space(self.native_params), name)
        super().__init__(native, name, space, episode_length, native_range=bounds)
        self._scalar = bounds is not None and native.action_space(self.native_params).shape == ()
        known = native.observation_space(self.native_params) if native_bounds else None
        self.observation_space = _observations(self.types().obs, known)

    def _start(self, key: Any) -> Outcome:
        params: Any = ()
        if self.draw is not None:
            key, drawn = jax.random.split(key)
            params = jax.tree.map(jnp.asarray, self.draw(drawn))
        obs, state = self.native.reset_env(key, self._params(params))
        return Outcome(state, plain(obs), params=params)

    def _advance(self, key: Any, data: Any, action: Any, params: Any) -> Outcome:
        used = self._params(params)
        if self._scalar:
            action = action[0]
        obs, state, reward, terminated, info = self.native.step_env(key, data, action, used)
        return Outcome(
            state,
            plain(obs),
            jnp.asarray(reward).reshape(()),
            jnp.asarray(terminated, bool).reshape(()),
            jnp.asarray(self.native.is_truncated(state, used), bool).reshape(()),
            info={name: jnp.asarray(x) for name, x in info.items()},
        )

    def _params(self, drawn: Any) -> Any:
        return self.native_params if self.draw is None else drawn


def _actions(native: Any, name: str) -> tuple[gym_spaces.Space, Any]:
    kind = type(native).__name__
    if kind == "Discrete":
        return gym_spaces.Discrete(int(native.n)), None
    if kind == "Box":
        return action_box(native.low, native.high, tuple(native.shape), name)
    raise ConfigError(f"{name}: its action space is {native}; expected a Discrete or a Box")


def _observations(like: Any, native: Any) -> gym_spaces.Space:
    """Shapes from what a reset gives, since a few of gymnax's spaces say something else."""

    def bounds(path: tuple[Any, ...]) -> Any:
        space = native
        for step in path:
            space = getattr(space, "spaces", {})
            try:
                space = space[step]
            except (KeyError, IndexError, TypeError):
                return None
        if hasattr(space, "n"):
            return 0, int(space.n) - 1
        return getattr(space, "low", None), getattr(space, "high", None)

    if not isinstance(like, dict | tuple) and type(native).__name__ == "Discrete" and like.shape == ():
        if jnp.issubdtype(like.dtype, jnp.integer):
            return gym_spaces.Discrete(int(native.n))
        return array_space(like, 0, int(native.n) - 1)
    return tree_space(like, bounds)
