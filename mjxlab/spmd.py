"""Collectives that are identities outside the training loop.

The loop runs one program per device under ``jax.shard_map`` over the mesh axis ``"device"``. A learner reduces
through these functions, so that the same ``update`` works called plainly, under ``jit`` or ``vmap``, and in the loop.
"""

from __future__ import annotations

from typing import TypeVar

import jax
import jax.numpy as jnp
from jax import lax

AXIS = "device"
T = TypeVar("T")


def bound() -> bool:
    """Whether the ``"device"`` axis is bound where we are being traced."""
    try:
        lax.axis_index(AXIS)
    except NameError:
        return False
    return True


def pmean(tree: T) -> T:
    """Mean of every leaf over devices; the tree itself where no device axis is bound."""
    return lax.pmean(tree, AXIS) if bound() else tree


def psum(tree: T) -> T:
    """Sum of every leaf over devices; the tree itself where no device axis is bound."""
    return lax.psum(tree, AXIS) if bound() else tree


def axis_size() -> int:
    """Number of devices that the program is split over (1 outside the loop)."""
    return lax.axis_size(AXIS) if bound() else 1


def axis_index() -> jax.Array:
    """int32 index of this device along the axis (0 outside the loop)."""
    return lax.axis_index(AXIS) if bound() else jnp.int32(0)


def fold_in(key: jax.Array) -> jax.Array:
    """A key of this device's own; the key itself where no device axis is bound."""
    return jax.random.fold_in(key, lax.axis_index(AXIS)) if bound() else key


def global_index(local: int) -> jax.Array:
    """int32[local]: the global indices of this device's share of an axis of ``local * axis_size()`` elements.

    Fold keys with these (one key per world), and results do not depend on the number of devices.
    """
    return axis_index() * local + jnp.arange(local, dtype=jnp.int32)
