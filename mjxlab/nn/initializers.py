"""Initialisers of weights that Flax lacks, or has in a form that vmapped programs cannot use."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array

from mjxlab import linalg
from mjxlab.errors import ConfigError


def orthogonal(scale: float = 1.0) -> Callable[..., Array]:
    """Uniformly random (semi-)orthogonal matrices times ``scale`` (Saxe, McClelland & Ganguli 2014).

    As ``jax.nn.initializers.orthogonal`` bit for bit, for two axes; vmapped over seeds it does not hang on a CPU (see
    ``mjxlab.linalg``).
    """

    def init(key: Array, shape: tuple[int, ...], dtype: Any = float) -> Array:
        if len(shape) != 2:
            raise ConfigError(f"orthogonal: got the shape {shape}, expected two axes")
        rows, columns = shape
        normal = jax.random.normal(key, (max(shape), min(shape)), dtype)
        q, r = linalg.qr(normal)
        diagonal = jnp.diag(r)
        q = q * (diagonal / jnp.abs(diagonal))[None, :]
        return jnp.asarray(scale, q.dtype) * (q if rows >= columns else q.T)

    return init
