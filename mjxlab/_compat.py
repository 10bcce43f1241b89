"""Calls into libraries that promote dtypes and ranks freely (mjx, brax, gymnax, distrax).

mjxlab itself runs with ``jax_numpy_dtype_promotion=strict`` and ``jax_numpy_rank_promotion=raise`` in its tests. The
libraries below it do not, so every call into them goes through ``lenient``.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import jax


@contextlib.contextmanager
def lenient() -> Iterator[None]:
    """Allow JAX's standard type and rank promotion inside the block, whatever the global settings.

    Also a decorator: ``@lenient()`` on a function covers each of its calls. The settings matter while a function is
    traced, so wrap the call that is traced, not the call of the compiled program.

    Example:
      >>> import jax.numpy as jnp
      >>> with lenient():
      ...     total = jnp.float32(1) + jnp.arange(3)
    """
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield
