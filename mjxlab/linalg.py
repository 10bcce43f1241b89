"""Matrix factorisations that are safe under ``vmap`` on a CPU.

jaxlib's LAPACK kernels spread a batch over the thread pool that runs the program, and wait on one of its threads. Two
such calls that are ready at once (the orthogonal initialisers of two layers, vmapped over seeds) can hold every thread,
each waiting for work that no thread is left to do: the program hangs (seen with jaxlib 0.10.2 on two cores). A single
matrix is factored where it stands, so on a CPU a batch is factored one matrix after the other; elsewhere in one call.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

__all__ = ["one_by_one", "qr"]


def one_by_one(function: Callable[..., Any]) -> Callable[..., Any]:
    """``function`` of arrays, whose batches run one after the other on a CPU and as one batched call elsewhere.

    For LAPACK calls inside programs that are vmapped. Every output is batched if any input is. Not differentiable in
    reverse mode.
    """
    wrapped = jax.custom_batching.custom_vmap(function)

    @wrapped.def_vmap
    def _(size: int, batched: list[Any], *args: Any) -> tuple[Any, Any]:
        full = [
            jax.tree.map(lambda x, b: x if b else jnp.broadcast_to(x, (size, *jnp.shape(x))), arg, flags)
            for arg, flags in zip(args, batched, strict=True)
        ]
        out = jax.lax.platform_dependent(
            *full, cpu=lambda *a: jax.lax.map(lambda b: wrapped(*b), a), default=jax.vmap(function)
        )
        return out, jax.tree.map(lambda _: True, out)

    return functools.wraps(function)(lambda *args: wrapped(*args))


@one_by_one
def qr(a: Float[Array, "rows columns"]) -> tuple[Float[Array, "rows k"], Float[Array, "k columns"]]:
    """Reduced QR factorisation, ``k = min(rows, columns)``; signs as LAPACK leaves them."""
    q, r = jnp.linalg.qr(a)
    return q, r
