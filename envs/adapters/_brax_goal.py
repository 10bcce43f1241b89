"""Brax environments as goal tasks, the way JaxGCRL has them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, get_args

import jax
import jax.numpy as jnp
import numpy as np

from mjxlab.envs import spaces
from mjxlab.envs.adapters._brax import BraxLike, load
from mjxlab.envs.adapters._native import Outcome, key_like, making
from mjxlab.errors import ConfigError

RewardKind = Literal["native", "dense", "sparse"]


@making()
def from_brax_goal(
    name_or_env: Any,
    goal_indices: Sequence[int],
    *,
    goals: tuple[Any, Any] | Callable[[Any], Any] | None = None,
    radius: float = 0.5,
    reward: RewardKind | str = "sparse",
    terminate_on_success: bool = False,
    backend: str | None = None,
    episode_length: int = 1000,
    **options: Any,
) -> BraxLike:
    """A Brax environment as a goal task: ``State`` gets ``achieved``, ``commanded`` and ``success``.

    The observation is ``[features, achieved, commanded]``, as in the goal tasks of this suite: the native observation
    without the achieved (and, if it holds them, the commanded) coordinates, then those.

    Args:
      name_or_env: as for ``from_brax``.
      goal_indices: which numbers of the native observation are the achieved goal, in metres or whatever they are in.
      goals: where the commanded goal comes from. None: it stands at the end of the native observation (JaxGCRL's layout).
        ``(low, high)``: uniform in that box, drawn anew at each reset. A function of a raw key: what it returns.
      radius: success is to be nearer to the commanded goal than this (Euclidean distance).
      reward: ``"sparse"``: 1 at every step that ends in success, else 0; ``"dense"``: minus the distance; ``"native"``:
        Brax's own.
      terminate_on_success: end the episode at the first success.
      backend, episode_length, options: as for ``from_brax``.

    Raises:
      ConfigError: indices outside of the observation or repeated, bounds that do not fit, and all of ``from_brax``.
    """
    kinds = get_args(RewardKind)
    if reward not in kinds:
        raise ConfigError(f"reward is {reward!r}; expected one of {', '.join(map(repr, kinds))}")
    if not radius > 0:
        raise ConfigError(f"radius is {radius!r}; expected a number above 0")
    native, name = load(name_or_env, backend, options)
    return _BraxGoal(native, name, episode_length, goal_indices, goals, radius, str(reward), terminate_on_success)


class _BraxGoal(BraxLike):
    def __init__(
        self,
        native: Any,
        name: str,
        episode_length: int,
        goal_indices: Sequence[int],
        goals: Any,
        radius: float,
        reward: str,
        terminate_on_success: bool,
    ) -> None:
        size = native.observation_size
        if not isinstance(size, int | np.integer):
            raise ConfigError(f"{name}: its observation is a dict; expected a vector")
        index = np.asarray(goal_indices, np.int32)
        self.goal_size = index.size
        held = goals is None  # the native observation ends with the commanded goal
        if index.ndim != 1 or index.size == 0 or len(set(index.tolist())) < index.size:
            raise ConfigError(f"goal_indices are {list(goal_indices)}; expected a list of different integers")
        inner = int(size) - (index.size if held else 0)
        if index.min() < 0 or index.max() >= inner:
            raise ConfigError(f"goal_indices are {index.tolist()}; expected integers from 0 to {inner - 1} for {name}")
        self.goal_indices = tuple(index.tolist())
        self._features = np.setdiff1d(np.arange(inner), index).astype(np.int32)
        self._draw = None if held else _sampler(goals, index.size, name)
        self.radius, self.reward_kind, self.terminate_on_success = float(radius), reward, terminate_on_success
        super().__init__(native, name, episode_length, mark=getattr(native, "backend", None) == "mjx")
        self.observation_space = spaces.unbounded(len(self._features) + 2 * index.size)

    def _start(self, key: Any) -> Outcome:
        drawn: Any = ()
        if self._draw is not None:
            key, of_goal = jax.random.split(key)
            drawn = self._draw(of_goal)
        return self._as_goal(super()._start(key)._replace(params=drawn))

    def _advance(self, key: Any, data: Any, action: Any, params: Any) -> Outcome:
        return self._as_goal(super()._advance(key, data, action, params)._replace(params=params))

    def _as_goal(self, out: Outcome) -> Outcome:
        achieved = out.obs[np.asarray(self.goal_indices)]
        commanded = out.obs[-self.goal_size :] if self._draw is None else out.params.astype(achieved.dtype)
        distance = jnp.linalg.norm(achieved - commanded)
        success = distance < self.radius
        reward = {"native": out.reward, "dense": -distance, "sparse": success.astype(achieved.dtype)}[self.reward_kind]
        return out._replace(
            obs=jnp.concatenate([out.obs[self._features], achieved, commanded]),
            reward=reward,
            terminated=jnp.asarray(out.terminated) | (success if self.terminate_on_success else False),
            metrics={**out.metrics, "distance": distance},
            goal=(achieved, commanded, success),
        )


def _sampler(goals: Any, size: int, name: str) -> Callable[[Any], Any]:
    if callable(goals):
        shape = jax.eval_shape(goals, key_like()).shape
        if shape != (size,):
            raise ConfigError(f"{name}: goals returns shape {shape}; expected ({size},), as many as goal_indices")
        return lambda key: jnp.asarray(goals(key), jnp.result_type(float))
    try:
        low, high = (np.broadcast_to(np.asarray(x, np.float64), (size,)) for x in goals)
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"goals is {goals!r}; expected (low, high) with {size} numbers each, or a function"
        ) from error
    if not (np.isfinite(low).all() and np.isfinite(high).all() and (low <= high).all()):
        raise ConfigError(f"goals is {goals!r}; expected finite low <= high")

    def draw(key: Any) -> Any:
        dtype = jnp.result_type(float)
        return jax.random.uniform(key, (size,), dtype, jnp.asarray(low, dtype), jnp.asarray(high, dtype))

    return draw
