"""The environment contract: one world, pure, without autoreset."""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

import flax.struct
import jax
import jax.numpy as jnp
from gymnasium import spaces
from jaxtyping import Array, Bool, Float, Key


@flax.struct.dataclass
class State:
    """Everything about one world after a reset or a step.

    Attributes:
      data: the simulation (``mjxlab.physics`` Data, or a PyTree of the environment's own).
      obs: observation, any PyTree of arrays.
      reward: scalar of the step that led here; 0 after a reset. (A team may give one number per member.)
      terminated: the episode ended by the rules of the task (the future is worth nothing).
      truncated: the episode was cut (the future is worth something). The raw environment leaves it False unless
        the task itself cuts; the time limit is ``vectorize``'s.
      key: the world's own randomness, for use within the episode.
      params: what varies between worlds (model fields, layout, task, robot); drawn anew at each reset.
      metrics: scalars to be logged, the same keys at reset and step.
      info: arrays for a caller who wants more, the same structure at reset and step.
      achieved, commanded, success: goal tasks only, else None.
    """

    data: Any
    obs: Any
    reward: Float[Array, ""]
    terminated: Bool[Array, ""]
    truncated: Bool[Array, ""]
    key: Key[Array, ""]
    params: Any
    metrics: dict[str, Array]
    info: dict[str, Any]
    achieved: Any = None
    commanded: Any = None
    success: Any = None


@runtime_checkable
class Env(Protocol):
    """One world. ``jax.vmap`` its methods for many, or use ``vectorize``.

    An environment may also have: ``name`` (for messages and run headers), ``engine`` (the physics engine, or None),
    ``pose(state)`` (MuJoCo environments) or ``render_frame(state)`` (others) for pictures.
    """

    observation_space: spaces.Space
    action_space: spaces.Space
    episode_length: int

    def reset(self, key: jax.Array) -> State:
        """A fresh episode; all randomness comes from ``key``."""
        ...

    def step(self, state: State, action: jax.Array) -> State:
        """One control step. ``action``: in [-1, 1] for a box, an integer for a discrete space."""
        ...


def fresh_state(
    data: Any,
    obs: Any,
    key: jax.Array,
    *,
    params: Any = (),
    metrics: dict[str, Array] | None = None,
    info: dict[str, Any] | None = None,
    achieved: Any = None,
    commanded: Any = None,
    success: Any = None,
) -> State:
    """A ``State`` as ``reset`` returns it: reward 0 and both flags False, in the dtypes that ``step`` must keep."""
    return State(
        data=data,
        obs=obs,
        reward=jnp.zeros((), jnp.result_type(float)),
        terminated=jnp.zeros((), bool),
        truncated=jnp.zeros((), bool),
        key=key,
        params=params,
        metrics={} if metrics is None else metrics,
        info={} if info is None else info,
        achieved=achieved,
        commanded=commanded,
        success=success,
    )


def env_name(env: Any) -> str:
    """What to call an environment in a message: its ``name``, or its class."""
    return str(getattr(env, "name", None) or type(env).__name__)
