"""Jumanji environments."""

from __future__ import annotations

import math
from typing import Any

import jax.numpy as jnp
import numpy as np
from gymnasium import spaces as gym_spaces

from mjxlab.envs.adapters._native import Adapted, Outcome, action_box, check_name, making, need, plain, tree_space
from mjxlab.errors import ConfigError


@making()
def from_jumanji(
    name_or_env: Any,
    *,
    episode_length: int | None = None,
    flatten_actions: bool | None = None,
    native_bounds: bool = True,
    **options: Any,
) -> Adapted:
    """A Jumanji environment as an ``Env``.

    Jumanji marks the last step of an episode, and its discount tells how it ended: 0 is ``terminated``, anything else
    ``truncated`` (a team's discounts must all be 0). Most of its environments give 0 at their own time limit too.
    Observations become dicts by field; ``action_mask`` keeps its name, which is what PPO masks by.

    Args:
      name_or_env: a Jumanji name (``"Maze-v0"``) or an environment without wrappers.
      episode_length: the time limit; default: the environment's ``time_limit``, else 1000.
      flatten_actions: turn an action of several integers into one, and its mask with it (row-major). Default: where
        the mask is over whole actions (Tetris, Minesweeper, Sudoku …), not where it is per agent.
      native_bounds: take the bounds of observations from Jumanji. A few of its environments leave them at times (TSP):
        False gives up on bounds.
      **options: go to the environment, which must then be given by name.

    Raises:
      UnknownNameError: Jumanji knows no such environment.
      ConfigError: the package is missing, or an action space cannot be adapted.
    """
    if isinstance(name_or_env, str):
        jumanji = need("jumanji", "from_jumanji", "peers")
        check_name(name_or_env, jumanji.registered_environments(), "Jumanji")
        name = f"jumanji:{name_or_env}"
        try:
            native = jumanji.make(name_or_env, **options)
        except TypeError as error:
            raise ConfigError(f"{name} does not take these options: {error}") from error
        except OSError as error:  # a few fetch their levels
            raise ConfigError(f"{name} cannot be made: {' '.join(str(error).split())}") from error
    else:
        if options:
            raise ConfigError(f"option {next(iter(options))!r} was given together with an environment; expected a name")
        native, name = name_or_env, f"jumanji:{type(name_or_env).__name__}"
        if "Wrapper" in type(native).__name__:
            raise ConfigError(f"{name} is wrapped; expected the environment alone (env.unwrapped)")
    if episode_length is None:
        episode_length = int(getattr(native, "time_limit", None) or 1000)
    return _Jumanji(native, name, episode_length, flatten_actions, native_bounds)


class _Jumanji(Adapted):
    def __init__(self, native: Any, name: str, episode_length: int, flatten: bool | None, native_bounds: bool) -> None:
        spec = native.action_spec
        if not hasattr(spec, "shape") or not hasattr(spec, "minimum"):
            raise ConfigError(f"{name}: its action spec is {spec}; expected one bounded array")
        shape, bounds = tuple(spec.shape), None
        low = np.broadcast_to(np.asarray(spec.minimum), shape)
        sizes = np.broadcast_to(np.asarray(spec.maximum), shape) - low + 1
        discrete = np.issubdtype(spec.dtype, np.integer)
        mask = getattr(getattr(native.observation_spec, "action_mask", None), "shape", None)
        joint = discrete and len(shape) == 1 and mask == tuple(sizes)
        self.joint: tuple[int, ...] | None = None
        if flatten and not (discrete and len(shape) == 1):
            raise ConfigError(f"{name}: flatten_actions is True, but its actions are {spec}; expected several integers")
        space: gym_spaces.Space
        if (joint and flatten is not False) or flatten:
            self.joint = tuple(int(n) for n in sizes)
            if math.prod(self.joint) >= 2**31:
                raise ConfigError(
                    f"{name}: flatten_actions gives {math.prod(self.joint)} actions; expected below 2**31"
                )
            space = gym_spaces.Discrete(math.prod(self.joint))
        elif discrete and shape == ():
            space = gym_spaces.Discrete(int(sizes), start=int(low))
        elif discrete:
            space = gym_spaces.MultiDiscrete(sizes.astype(np.int64), start=low.astype(np.int64))
        else:
            space, bounds = action_box(spec.minimum, spec.maximum, shape, name)
        self._low, self._dtype, self._shape = low, spec.dtype, shape
        super().__init__(native, name, space, episode_length, native_range=bounds)
        self.observation_space = tree_space(self.types().obs, self._bounds if native_bounds else None)

    def _bounds(self, path: tuple[Any, ...]) -> Any:
        spec = self.native.observation_spec
        for step in path:
            spec = getattr(spec, str(step), None)
        return getattr(spec, "minimum", None), getattr(spec, "maximum", None)

    def _observe(self, obs: Any) -> Any:
        obs = plain(obs)
        if self.joint is not None and isinstance(obs, dict) and "action_mask" in obs:
            if obs["action_mask"].shape == self.joint:
                obs = {**obs, "action_mask": obs["action_mask"].reshape(-1)}
        return obs

    def _start(self, key: Any) -> Outcome:
        state, timestep = self.native.reset(key)
        return Outcome(state, self._observe(timestep.observation), info=_extras(timestep))

    def _advance(self, key: Any, data: Any, action: Any, params: Any) -> Outcome:
        if self.joint is not None:
            action = jnp.stack(jnp.unravel_index(action, self.joint)) + self._low
        action = action.reshape(self._shape).astype(self._dtype)
        state, timestep = self.native.step(data, action)
        last, dead = timestep.last(), (timestep.discount == 0).all()
        return Outcome(
            state,
            self._observe(timestep.observation),
            timestep.reward,
            last & dead,
            last & ~dead,
            info=_extras(timestep),
        )


def _extras(timestep: Any) -> dict[str, Any]:
    return {str(name): plain(x) for name, x in (timestep.extras or {}).items()}
