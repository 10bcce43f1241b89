"""An exact counter beyond 2^31, with or without x64."""

from __future__ import annotations

from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int, UInt32


@flax.struct.dataclass
class Counter:
    """An unsigned 64-bit integer in two uint32 words: environment steps do not fit in JAX's default int32.

    ``int(counter)`` gives the exact value on the host; inside a program use ``counter + n``.

    Attributes:
      high, low: the words.
    """

    high: UInt32[Array, "..."]
    low: UInt32[Array, "..."]

    @classmethod
    def of(cls, value: int = 0) -> Counter:
        """A counter that starts at ``value`` (0 to 2^64 - 1)."""
        high, low = divmod(int(value), 1 << 32)
        return cls(high=jnp.uint32(high), low=jnp.uint32(low))

    def __add__(self, n: int | Int[Array, ""] | UInt32[Array, ""]) -> Counter:
        """The counter advanced by ``n``, a Python integer >= 0 or an int32/uint32 scalar >= 0."""
        if isinstance(n, int):
            high, low = divmod(n, 1 << 32)
            step = Counter(high=jnp.uint32(high), low=jnp.uint32(low))
        else:
            step = Counter(high=jnp.zeros((), jnp.uint32), low=n.astype(jnp.uint32))
        low_sum = self.low + step.low
        carry = (low_sum < self.low).astype(jnp.uint32)
        return Counter(high=self.high + step.high + carry, low=low_sum)

    def merge(self, other: Counter) -> Counter:
        """The sum of two counters."""
        low = self.low + other.low
        return Counter(high=self.high + other.high + (low < self.low).astype(jnp.uint32), low=low)

    def to_float(self, dtype: Any = None) -> Array:
        """The value as a floating-point number, rounded; for ratios inside a program."""
        dtype = jax.dtypes.canonicalize_dtype(float) if dtype is None else dtype
        return self.high.astype(dtype) * (2.0**32) + self.low.astype(dtype)

    def numpy(self) -> np.ndarray:
        """The exact value(s) as uint64, on the host; stacked counters give an array."""
        high, low = np.asarray(self.high, np.uint64), np.asarray(self.low, np.uint64)
        return np.asarray((high << np.uint64(32)) | low)

    def __int__(self) -> int:
        return int(self.numpy())
