"""Goal-conditioned experience: how observations carry goals, and goals in hindsight.

A goal task's observation is one flat array ``[features, achieved, commanded]``: its last ``goal_size`` numbers are the
commanded goal, those before them the achieved one, and nothing but the end depends on the command. So a goal can be cut
off, or replaced by another, without asking the environment.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int, Key

from mjxlab.envs.base import State, env_name
from mjxlab.errors import ConfigError
from mjxlab.rl.rollout import world_keys

Scalar = float | Float[Array, ""]

__all__ = [
    "GoalBatch",
    "GoalSpec",
    "Rewardless",
    "achieved",
    "flat",
    "future_goal_indices",
    "geometric",
    "goal_spec",
    "relabel",
    "split",
    "trajectory_ids",
    "with_goal",
]


@dataclasses.dataclass(frozen=True)
class GoalSpec:
    """Sizes of a goal task's observation.

    Attributes:
      obs_size: all of it, ``[features, achieved, commanded]``.
      goal_size: of a goal.
      entry: observations that also hold an ``action_mask`` are a dict; the name of the flat array in it. Else None.
    """

    obs_size: int
    goal_size: int
    entry: str | None = None

    @property
    def state_size(self) -> int:
        """Of ``[features, achieved]``: what there is without the command."""
        return self.obs_size - self.goal_size


def goal_spec(env: Any) -> GoalSpec:
    """The sizes, from the shapes that ``env.reset`` gives; nothing is computed.

    Raises:
      ConfigError: the environment is no goal task, or its observations are laid out in another way.
    """
    name = f"environment {env_name(env)}"
    state = jax.eval_shape(env.reset, jax.eval_shape(lambda: jax.random.key(0)))
    if state.achieved is None or state.commanded is None:
        lacking = "achieved" if state.achieved is None else "commanded"
        raise ConfigError(f"{name}: its states have no {lacking} goal, expected a goal task")
    size = getattr(env, "goal_size", state.commanded.shape[-1] if state.commanded.ndim else 0)
    for field, goal in (("achieved", state.achieved), ("commanded", state.commanded)):
        if goal.shape != (size,) or size < 1:
            raise ConfigError(f"{name}: {field} has the shape {goal.shape}, expected ({size},), the size of its goals")
    obs, entry = state.obs, None
    if isinstance(obs, dict) and "action_mask" in obs and len(obs) == 2:
        entry = next(key for key in obs if key != "action_mask")
        obs = obs[entry]
    if not hasattr(obs, "shape"):
        kind = f"a dict of {', '.join(map(str, obs))}" if isinstance(obs, dict) else f"a {type(obs).__name__}"
        raise ConfigError(f"{name}: its observations are {kind}, expected one array [features, achieved, commanded]")
    if obs.ndim != 1 or obs.shape[0] < 2 * size:
        raise ConfigError(
            f"{name}: its observations have the shape {obs.shape}, expected one axis of at least {2 * size} numbers, "
            "[features, achieved, commanded]"
        )
    return GoalSpec(int(obs.shape[0]), int(size), entry)


def flat(spec: GoalSpec, obs: Any) -> tuple[Float[Array, "*rows obs"], Any]:
    """The flat array of an observation in the default float type, and its action mask (None if there is none)."""
    dtype = jnp.result_type(float)
    if spec.entry is None:
        return obs.astype(dtype), None
    return obs[spec.entry].astype(dtype), obs["action_mask"].astype(bool)


def split(
    obs: Float[Array, "*rows obs"], goal_size: int
) -> tuple[Float[Array, "*rows state"], Float[Array, "*rows goal"]]:
    """``([features, achieved], commanded)``."""
    return obs[..., :-goal_size], obs[..., -goal_size:]


def achieved(obs: Float[Array, "*rows obs"], goal_size: int) -> Float[Array, "*rows goal"]:
    """The achieved goal of an observation."""
    return obs[..., -2 * goal_size : -goal_size]


def with_goal(obs: Float[Array, "*rows obs"], goal: Float[Array, "*rows goal"]) -> Float[Array, "*rows obs"]:
    """The observation, had ``goal`` been commanded."""
    return jnp.concatenate([obs[..., : -goal.shape[-1]], goal.astype(obs.dtype)], -1)


def trajectory_ids(done: Bool[Array, "time *worlds"]) -> Int[Array, "time *worlds"]:
    """Number of the episode that each step belongs to, from 0 for the first of the rollout, in every world."""
    ends = done.astype(jnp.int32)
    return jnp.cumsum(ends, 0, dtype=jnp.int32) - ends


def geometric(u: Float[Array, "*rows"], count: Int[Array, "*rows"], gamma: Scalar) -> Int[Array, "*rows"]:
    """A number k in 0 … count - 1 (0 if count is 0), P(k) proportional to gamma^k, from a uniform draw u in [0, 1)."""
    n = jnp.maximum(count, 1).astype(u.dtype)
    rate = jnp.log(jnp.asarray(gamma, u.dtype))
    level = rate > -1e-6  # gamma so near 1 that the law is uniform; the formula would divide 0 by 0
    safe = jnp.where(level, -jnp.ones_like(rate), jnp.maximum(rate, -80))  # exp(-80) is as good as 0
    ahead = jnp.where(level, u * n, jnp.log1p(u * jnp.expm1(n * safe)) / safe)
    return jnp.clip(jnp.floor(ahead).astype(jnp.int32), 0, jnp.maximum(count - 1, 0))


def future_goal_indices(
    key: Key[Array, ""], traj_id: Int[Array, " time"], gamma: Scalar, *, first: int = 1
) -> Int[Array, " time"]:
    """For each step t a later step t' of the same trajectory, P(t') proportional to gamma^(t' - t), t' - t >= ``first``.

    The law is the geometric one, truncated where the trajectory ends in this array. A step with nothing later gets
    itself (in a table of weights: a diagonal of 1e-5), and should not be learnt from where ``first`` is 1:
    ``index > t`` tells. By the inverse of the distribution function, so memory is linear in the length.

    Args:
      key: of all draws.
      traj_id: one world's trajectory numbers; equal neighbours belong together.
      gamma: in [0, 1]; 1 is uniform.
      first: 1 if what is looked up at t' is the state *before* step t' (a state is no future of itself); 0 if it is
        the state *after* step t'.
    """
    size = traj_id.shape[0]
    step = jnp.arange(size, dtype=jnp.int32)
    is_last = jnp.concatenate([traj_id[1:] != traj_id[:-1], jnp.ones((1,), bool)])
    end = lax.cummin(jnp.where(is_last, step, size), reverse=True)
    count = end - step + (1 - first)  # how many later steps there are
    u = jax.random.uniform(key, (size,), jnp.result_type(float))
    ahead = geometric(u, count, gamma)
    return jnp.where(count > 0, step + first + ahead, step)


@flax.struct.dataclass
class GoalBatch:
    """Steps of many worlds as contrastive learning takes them; axes (time, worlds), then a team's if there is one.

    Attributes:
      state: ``[features, achieved]`` before the step.
      action: as the critic takes it.
      achieved: the goal achieved by the state that a goal index points at (before or after the step, see
        ``future_goal_indices``).
      goal: commanded, or in hindsight.
      traj_id: number of the trajectory, in every world for itself.
      valid: whether the row has a goal that lies in its future.
    """

    state: Float[Array, "time worlds *team state"]
    action: Any
    achieved: Float[Array, "time worlds *team goal"]
    goal: Float[Array, "time worlds *team goal"]
    traj_id: Int[Array, "time worlds"]
    valid: Bool[Array, "time worlds"]


def relabel(batch: GoalBatch, key: Key[Array, ""], gamma: Scalar, *, first: int = 1) -> GoalBatch:
    """The batch with goals in hindsight: ``goal`` becomes what is achieved at a later step of the same trajectory.

    Randomness of a world is folded from its global number: the result does not depend on the number of devices.

    Args:
      batch: its ``goal`` is not looked at.
      key: the same on all devices.
      gamma, first: see ``future_goal_indices``. With ``first=1`` a trajectory's last step is marked invalid.
    """
    length, worlds = batch.traj_id.shape
    keys = world_keys(key, worlds)
    pick = jax.vmap(lambda k, ids: future_goal_indices(k, ids, gamma, first=first), in_axes=(0, 1), out_axes=1)
    index = pick(keys, batch.traj_id)
    goal = jax.vmap(lambda x, i: x[i], in_axes=1, out_axes=1)(batch.achieved, index)
    step = jnp.arange(length, dtype=jnp.int32)[:, None]
    return batch.replace(goal=goal, valid=index >= step + first)


class Rewardless:
    """An environment whose reward is always 0: what learns on it cannot have looked.

    ``vectorize`` ends a world whose reward is not finite, so it is not enough not to read the reward.
    """

    def __init__(self, env: Any) -> None:
        self.env = env

    def __getattr__(self, name: str) -> Any:
        if name == "env":  # not there yet while a copy is being made
            raise AttributeError(name)
        return getattr(self.env, name)

    def reset(self, key: jax.Array) -> State:
        """As the environment's own, without reward."""
        return self._blank(self.env.reset(key))

    def step(self, state: State, action: jax.Array) -> State:
        """As the environment's own, without reward."""
        return self._blank(self.env.step(state, action))

    def _blank(self, state: State) -> State:
        return state.replace(reward=jnp.zeros((), jnp.result_type(float)))
