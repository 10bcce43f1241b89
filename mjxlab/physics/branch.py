"""Many futures of one state."""

from __future__ import annotations

from typing import TypeVar

import jax
import jax.numpy as jnp

from mjxlab.errors import ConfigError

T = TypeVar("T")


def branch(state: T, n: int, key: jax.Array | None = None) -> T:
    """``n`` copies of one world's state, along a new axis 0, each with randomness of its own.

    Works on any PyTree: an environment's ``State`` (whose ``key`` then differs between copies), or a ``Data``, which
    has none. The simulations are equal bit for bit, so copies given equal actions stay equal. For a batch of worlds
    use ``jax.vmap(lambda s: branch(s, n))``: axes are then (worlds, n).

    Args:
      state: one world.
      n: number of copies, static, at least 1.
      key: where the copies' keys come from; None to split the state's own.

    Raises:
      ConfigError: ``n`` is not a positive integer, or ``key`` was given and the state has no ``key`` to replace.
    """
    if isinstance(n, bool) or not isinstance(n, int) or n < 1:
        raise ConfigError(f"n: expected an integer of at least 1, got {n!r}")
    copies = jax.tree.map(lambda x: jnp.broadcast_to(x, (n, *jnp.shape(x))), state)
    if "key" in getattr(type(state), "__dataclass_fields__", ()):
        own = state.key if key is None else key  # type: ignore[attr-defined]
        return copies.replace(key=jax.random.split(own, n))  # type: ignore[attr-defined]
    if key is not None:
        raise ConfigError(f"key: {type(state).__name__} has no field 'key' to give each copy its own")
    return copies
