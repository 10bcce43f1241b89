"""The one protocol of everything that learns."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax

Key = jax.Array  # a typed key, as jax.random.key makes it
State = Any  # the whole training state: a flax.struct PyTree
Carry = Any  # what acting remembers between steps; () if nothing
Metrics = dict[str, jax.Array]


class Learner(NamedTuple):
    """Four pure functions, in optax's manner.

    Attributes:
      init: ``init(key) -> state``. Builds the whole training state, that of all devices together. Fields that are marked
        ``flax.struct.field(metadata={"axis": "device"})`` are split over devices along their axis 0;
        all others are replicated.
      update: ``update(state, key, batch) -> (state, metrics)``. One iteration; structure, shapes and dtypes of the
        state stay. Metrics are a dict of scalars (or small arrays, or ``rl.Counter``), the same on every device. With
        ``batch=None`` the learner collects its own data. Works called plainly, under ``jit``, under ``vmap`` over
        seeds, and inside the SPMD loop, where it sees its device's share of the split fields and reduces through
        ``mjxlab.spmd``.
      carry: ``carry(state, key) -> carry``. What acting remembers at the start of an episode (one world).
      act: ``act(state, carry, obs, key, deterministic) -> (action, carry)``. One world; ``vmap`` it for more.
        ``deterministic`` is a Python bool.
    """

    init: Callable[[Key], State]
    update: Callable[[State, Key, Any], tuple[State, Metrics]]
    carry: Callable[[State, Key], Carry]
    act: Callable[[State, Carry, Any, Key, bool], tuple[Any, Carry]]
