"""Environments of this suite for code that speaks Gymnasium: one world, or many at once."""

from __future__ import annotations

from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces as gym_spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from mjxlab.envs import spaces
from mjxlab.envs.base import env_name
from mjxlab.envs.registry import make
from mjxlab.envs.vectorize import vectorize
from mjxlab.errors import ConfigError
from mjxlab.physics import jit


def to_gymnasium(env: Any, *, seed: int | None = None, episode_length: int | None = None) -> gymnasium.Env:
    """One world as a ``gymnasium.Env``: NumPy in, NumPy out, a compiled step in between.

    ``truncated`` is set at the time limit, so no ``TimeLimit`` wrapper is needed. Every call waits for the device:
    for speed use ``to_gymnasium_vector``, or stay in JAX.

    Args:
      env: an environment, or the name of one.
      seed: of the first episode, where ``reset`` is called without one. All later episodes follow from it.
      episode_length: the time limit in steps; default: the environment's own.

    Raises:
      ConfigError: a team's environment (a reward per agent), which Gymnasium has no place for.
    """
    return _GymnasiumEnv(env, seed, episode_length)


def to_gymnasium_vector(
    env: Any,
    num_envs: int,
    seed: int | None = None,
    *,
    reset: str = "pool",
    episode_length: int | None = None,
) -> VectorEnv:
    """Many worlds as a ``gymnasium.vector.VectorEnv``: one compiled program a step.

    A world whose episode ends starts the next one in the same step (``AutoresetMode.SAME_STEP``): the observation
    returned is then the new episode's, the last one of the old is ``infos["final_obs"][i]``, its metrics are in
    ``infos["final_info"]``, together with ``episode``: ``r`` (return) and ``l`` (length).

    Args:
      env: an environment, or the name of one.
      num_envs: how many worlds.
      seed: of the first ``reset`` that is called without one.
      reset, episode_length: as for ``vectorize``.

    Raises:
      ConfigError: a team's environment, or an argument that ``vectorize`` refuses.
    """
    return _GymnasiumVectorEnv(env, num_envs, seed, reset, episode_length)


def to_numpy(space: gym_spaces.Space, x: Any, batch: int | None = None) -> Any:
    """An element of ``space`` (or, with ``batch``, of that many) as Gymnasium wants it: NumPy, in the space's dtype."""
    if isinstance(space, gym_spaces.Dict):
        return {name: to_numpy(part, x[name], batch) for name, part in space.spaces.items()}
    if isinstance(space, gym_spaces.Tuple):
        return tuple(to_numpy(part, y, batch) for part, y in zip(space.spaces, x, strict=True))
    array = np.array(x, dtype=space.dtype)  # a copy, which the caller may write to
    return array[()] if batch is None and isinstance(space, gym_spaces.Discrete) else array


class _Base:
    """What one world and many have in common."""

    def _open(self, env: Any) -> Any:
        env = make(env) if isinstance(env, str) else env
        reward = jax.eval_shape(env.reset, jax.random.key(0)).reward
        if reward.ndim:
            raise ConfigError(f"{env_name(env)} gives {reward.shape[0]} rewards, one per agent; Gymnasium takes one")
        return env

    @staticmethod
    def _action(space: gym_spaces.Space, action: Any) -> Any:
        return jnp.asarray(np.asarray(action), jnp.int32 if spaces.is_discrete(space) else jnp.result_type(float))


class _GymnasiumEnv(_Base, gymnasium.Env):
    metadata = {"render_modes": []}  # noqa: RUF012 (Gymnasium's own way)

    def __init__(self, env: Any, seed: int | None, episode_length: int | None) -> None:
        self.world = self._open(env)
        self.observation_space = self.world.observation_space
        self.action_space = self.world.action_space
        self.episode_length = self.world.episode_length if episode_length is None else episode_length
        self._reset, self._step = jit(self.world.reset), jit(self.world.step)
        self._seed = seed
        self._state: Any = None
        self._elapsed = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        if seed is None and self._state is None:
            seed = self._seed
        super().reset(seed=seed)
        self._state = self._reset(jax.random.key(int(self.np_random.integers(2**31))))
        self._elapsed = 0
        return to_numpy(self.observation_space, self._state.obs), self._info()

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if self._state is None:
            raise ConfigError(f"{env_name(self.world)}: step was called before reset")
        self._state = self._step(self._state, self._action(self.action_space, action))
        self._elapsed += 1
        state = jax.device_get(
            {name: getattr(self._state, name) for name in ("obs", "reward", "terminated", "truncated")}
        )
        truncated = bool(state["truncated"]) or self._elapsed >= self.episode_length
        obs = to_numpy(self.observation_space, state["obs"])
        return obs, float(state["reward"]), bool(state["terminated"]), truncated, self._info()

    def _info(self) -> dict[str, Any]:
        info = {name: float(x) for name, x in jax.device_get(self._state.metrics).items()}
        if self._state.success is not None:
            info["is_success"] = bool(self._state.success)
        return info


class _GymnasiumVectorEnv(_Base, VectorEnv):
    def __init__(self, env: Any, num_envs: int, seed: int | None, reset: str, episode_length: int | None) -> None:
        self.world = self._open(env)
        self.vec = vectorize(self.world, num_envs, reset=reset, episode_length=episode_length)
        self.num_envs = num_envs
        self.single_observation_space = self.world.observation_space
        self.single_action_space = self.world.action_space
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self.metadata = {"render_modes": [], "autoreset_mode": AutoresetMode.SAME_STEP}
        self.render_mode = None
        self._reset, self._step = jit(self.vec.reset), jit(self.vec.step)
        self._first_seed = seed
        self._worlds: Any = None

    def reset(
        self, *, seed: int | list[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        if seed is not None and (isinstance(seed, bool) or not isinstance(seed, int | np.integer)):
            raise ConfigError(f"seed is {seed!r}; expected one integer, from which all worlds are seeded")
        if options and "reset_mask" in options:
            raise ConfigError(
                "options has reset_mask; worlds of this vector environment reset by themselves (SAME_STEP)"
            )
        if seed is None and self._worlds is None:
            seed = self._first_seed
        super().reset(seed=None if seed is None else int(seed))
        self._worlds = self._reset(jax.random.key(int(self.np_random.integers(2**31))))
        return self._obs(self._worlds.obs), self._infos(self._worlds.metrics, np.ones(self.num_envs, bool))

    def step(self, actions: Any) -> tuple[Any, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        if self._worlds is None:
            raise ConfigError(f"{env_name(self.world)}: step was called before reset")
        self._worlds = self._step(self._worlds, self._action(self.single_action_space, actions))
        fields = "obs reward terminated truncated metrics final_success".split()
        now = jax.device_get({name: getattr(self._worlds, name) for name in fields})
        done = now["terminated"] | now["truncated"]
        # where an episode ended, what the new one says of itself
        infos = self._infos(self._worlds.state.metrics, np.ones(self.num_envs, bool))
        if done.any():
            infos |= self._final(now, done)
        reward = np.array(now["reward"], np.float64)
        return self._obs(now["obs"]), reward, np.array(now["terminated"]), np.array(now["truncated"]), infos

    def _final(self, now: dict[str, Any], done: np.ndarray) -> dict[str, Any]:
        last = jax.device_get((self._worlds.final_obs, self._worlds.episode_return, self._worlds.episode_length))
        obs, returns, lengths = last
        final_obs = np.full(self.num_envs, None, dtype=object)
        for i in np.flatnonzero(done):
            final_obs[i] = to_numpy(self.single_observation_space, jax.tree.map(lambda x, i=i: x[i], obs))
        info = self._infos(now["metrics"], done)
        if now["final_success"] is not None:
            info |= {"is_success": now["final_success"] & done, "_is_success": done.copy()}
        episode = {
            "r": np.where(done, returns, 0),
            "_r": done.copy(),
            "l": np.where(done, lengths, 0),
            "_l": done.copy(),
        }
        info |= {"episode": episode, "_episode": done.copy()}
        return {"final_obs": final_obs, "_final_obs": done.copy(), "final_info": info, "_final_info": done.copy()}

    def _obs(self, obs: Any) -> Any:
        return to_numpy(self.observation_space, jax.device_get(obs), self.num_envs)

    @staticmethod
    def _infos(metrics: dict[str, Any], where: np.ndarray) -> dict[str, Any]:
        infos: dict[str, Any] = {}
        for name, x in jax.device_get(metrics).items():
            infos[name] = np.where(where, np.asarray(x), 0)
            infos[f"_{name}"] = where.copy()
        return infos
