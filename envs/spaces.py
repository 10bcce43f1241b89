"""gymnasium's spaces, with what JAX code needs of them: pure sampling, flat sizes, checks, action scaling."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces
from jaxtyping import Array, Float

from mjxlab.errors import ConfigError

Space = spaces.Space


def box(low: Any, high: Any, shape: tuple[int, ...] | None = None) -> spaces.Box:
    """A float32 box; ``low`` and ``high`` are numbers or arrays.

    Observations may come in float64 where JAX runs in double precision: a box fixes shape and bounds, not precision.
    """
    return spaces.Box(np.float32(low), np.float32(high), shape, np.float32)


def unit_box(size: int) -> spaces.Box:
    """``size`` numbers in [-1, 1]: what continuous actions are."""
    return box(-1.0, 1.0, (size,))


def unbounded(*shape: int) -> spaces.Box:
    """Any numbers of this shape: what most observations are."""
    return box(-np.inf, np.inf, shape)


def is_discrete(space: Space) -> bool:
    """Whether actions of this space are integers (``Discrete`` or ``MultiDiscrete``)."""
    return isinstance(space, spaces.Discrete | spaces.MultiDiscrete)


def flat_size(space: Space) -> int:
    """How many numbers an element has: a box's size, 1 for ``Discrete``; the sum for dicts and tuples."""
    if isinstance(space, spaces.Dict):
        return sum(flat_size(part) for part in space.spaces.values())
    if isinstance(space, spaces.Tuple):
        return sum(flat_size(part) for part in space.spaces)
    if space.shape is None:
        raise ConfigError(
            f"space {space} has no fixed size; expected boxes, discrete spaces, and dicts or tuples of them"
        )
    return math.prod(space.shape)


def sample(space: Space, key: jax.Array) -> Any:
    """One element at random, pure and traceable.

    Uniform where the space is bounded, standard normal where it is not, and exponential above (below) a lone bound.
    Numbers have JAX's default float type, discrete ones int32.

    Raises:
      ConfigError: a kind of space that is none of Box, Discrete, MultiDiscrete, MultiBinary, Dict, Tuple.
    """
    if isinstance(space, spaces.Dict):
        keys = jax.random.split(key, len(space.spaces))
        return {name: sample(part, k) for (name, part), k in zip(space.spaces.items(), keys, strict=True)}
    if isinstance(space, spaces.Tuple):
        keys = jax.random.split(key, len(space.spaces))
        return tuple(sample(part, k) for part, k in zip(space.spaces, keys, strict=True))
    if isinstance(space, spaces.Discrete):
        return int(space.start) + jax.random.randint(key, (), 0, int(space.n), jnp.int32)
    if isinstance(space, spaces.MultiDiscrete):
        return jnp.asarray(space.start, jnp.int32) + jax.random.randint(
            key, space.shape, 0, jnp.asarray(space.nvec, jnp.int32), jnp.int32
        )
    if isinstance(space, spaces.MultiBinary):
        return jax.random.bernoulli(key, 0.5, space.shape).astype(jnp.int8)
    if isinstance(space, spaces.Box):
        return _sample_box(space, key)
    raise ConfigError(
        f"cannot sample from {space}; expected a Box, Discrete, MultiDiscrete, MultiBinary, Dict or Tuple"
    )


def _sample_box(space: spaces.Box, key: jax.Array) -> jax.Array:
    if not np.issubdtype(space.dtype, np.floating):
        info = np.iinfo(np.int32)
        low, high = (np.clip(x, info.min, info.max - 1).astype(np.int32) for x in (space.low, space.high))
        return jax.random.randint(key, space.shape, low, high + np.int32(1), jnp.int32).astype(space.dtype)
    dtype = jnp.result_type(float)
    uniform, normal, tail = jax.random.split(key, 3)
    below, above = np.isfinite(space.low), np.isfinite(space.high)
    low = jnp.asarray(np.where(below, space.low, 0), dtype)
    high = jnp.asarray(np.where(above, space.high, 0), dtype)
    far = jax.random.exponential(tail, space.shape, dtype)
    inside = low + (high - low) * jax.random.uniform(uniform, space.shape, dtype)
    return jnp.where(
        below & above,
        inside,
        jnp.where(below, low + far, jnp.where(above, high - far, jax.random.normal(normal, space.shape, dtype))),
    )


def problem(space: Space, x: Any, name: str = "obs") -> str | None:
    """Why ``x`` (concrete arrays) is not an element of ``space``, in one line that begins with the field; or None.

    Dtypes are compared by kind: a float64 array may lie in a float32 box.
    """
    if isinstance(space, spaces.Dict):
        if not isinstance(x, dict) or set(x) != set(space.spaces):
            found = sorted(x) if isinstance(x, dict) else type(x).__name__
            return f"{name} has keys {found}; expected {sorted(space.spaces)}"
        parts = [(part, x[key], f"{name}[{key!r}]") for key, part in space.spaces.items()]
        return next((p for p in (problem(*part) for part in parts) if p), None)
    if isinstance(space, spaces.Tuple):
        if not isinstance(x, tuple) or len(x) != len(space.spaces):
            return f"{name} is {type(x).__name__}; expected a tuple of {len(space.spaces)}"
        found = [problem(part, y, f"{name}[{i}]") for i, (part, y) in enumerate(zip(space.spaces, x, strict=True))]
        return next((p for p in found if p), None)
    value = np.asarray(x)
    kind = np.floating if space.dtype is not None and np.issubdtype(space.dtype, np.floating) else np.integer
    if not (np.issubdtype(value.dtype, kind) or (kind is np.integer and value.dtype == bool)):
        return f"{name} is {value.dtype}; expected {space.dtype}"
    if value.shape != space.shape:
        return f"{name} has shape {value.shape}; expected {space.shape}"
    low, high = _bounds(space)
    slack = 1e-6 * (1 + np.abs(np.where(np.isfinite(low), low, 0))) if kind is np.floating else 0
    bad = (value < low - slack) | (value > high + slack) | (value != value)
    if bad.any():
        at = tuple(int(i) for i in np.argwhere(bad)[0])
        where = f"{name}[{', '.join(map(str, at))}]" if at else name
        return f"{where} is {value[at]}; expected a number in [{low[at]}, {high[at]}]"
    return None


def _bounds(space: Space) -> tuple[Any, Any]:
    """Lowest and highest element, entry by entry."""
    if isinstance(space, spaces.Box):
        return space.low, space.high
    if isinstance(space, spaces.Discrete):
        return np.asarray(space.start), np.asarray(int(space.start) + int(space.n) - 1)
    if isinstance(space, spaces.MultiDiscrete):
        start, sizes = (np.asarray(x, np.int64) for x in (space.start, space.nvec))
        return start, start + sizes - 1
    return np.zeros(space.shape or ()), np.ones(space.shape or ())


def scale_action(action: Float[Array, "..."], low: Any, high: Any) -> Float[Array, "..."]:
    """From [-1, 1] (clipped) to [low, high]: what an environment does before it calls its engine.

    Args:
      action: shape (..., n).
      low, high: shape (n,), finite.
    """
    low, high = jnp.asarray(low, action.dtype), jnp.asarray(high, action.dtype)
    lead = (1,) * (action.ndim - low.ndim)
    low, high = low.reshape(lead + low.shape), high.reshape(lead + high.shape)
    return low + (jnp.clip(action, -1, 1) + 1) * (high - low) / 2


def unscale_action(ctrl: Float[Array, "..."], low: Any, high: Any) -> Float[Array, "..."]:
    """From [low, high] to [-1, 1]: the inverse of ``scale_action``."""
    low, high = jnp.asarray(low, ctrl.dtype), jnp.asarray(high, ctrl.dtype)
    lead = (1,) * (ctrl.ndim - low.ndim)
    low, high = low.reshape(lead + low.shape), high.reshape(lead + high.shape)
    return 2 * (ctrl - low) / (high - low) - 1
