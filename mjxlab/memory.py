"""Memory estimated from shapes, before anything is allocated."""

from __future__ import annotations

import math
import pathlib
from typing import Any

import jax
import jax.numpy as jnp

from mjxlab.errors import ConfigError


def tree_bytes(tree: Any) -> int:
    """Bytes of all arrays of a PyTree; arrays, tracers and ``jax.ShapeDtypeStruct`` alike."""
    total = 0
    for leaf in jax.tree.leaves(tree):
        if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            leaf = jax.eval_shape(jax.random.key_data, leaf)
        total += math.prod(leaf.shape) * jnp.dtype(leaf.dtype).itemsize
    return total


def _read_int(path: str) -> int | None:
    try:
        return int(pathlib.Path(path).read_text().strip())
    except (OSError, ValueError):  # no such file, or "max"
        return None


def _host_available() -> int | None:
    """Bytes that this process may still take: the machine's, or its control group's where that is tighter."""
    bounds = []
    try:
        lines = pathlib.Path("/proc/meminfo").read_text().splitlines()
        bounds += [int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")]
    except OSError:
        pass
    limit, used = _read_int("/sys/fs/cgroup/memory.max"), _read_int("/sys/fs/cgroup/memory.current")
    if limit is not None and used is not None:
        bounds.append(max(limit - used, 0))
    return min(bounds) if bounds else None


def available_bytes() -> int | None:
    """Bytes that are free on all devices together; None where nobody says.

    Host memory for CPU devices, which share it (taken to be the same on every process); else each device's limit less
    what is in use, times the number of devices.
    """
    device = jax.local_devices()[0]
    if device.platform == "cpu":
        host = _host_available()
        return None if host is None else host * jax.process_count()
    stats = device.memory_stats()
    if not stats or "bytes_limit" not in stats:
        return None
    return (stats["bytes_limit"] - stats.get("bytes_in_use", 0)) * jax.device_count()


def human(size: float) -> str:
    """``1536 -> "1.5 KiB"``."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"


def refuse_if_larger(parts: dict[str, int], what: str, advice: str, available: int | None = None) -> None:
    """Raise ``ConfigError``, with numbers, if the parts together do not fit.

    Args:
      parts: bytes by name.
      what: the thing that needs them, for the message.
      advice: what to lower, for the message.
      available: bytes there are; by default what ``available_bytes`` finds.
    """
    available = available_bytes() if available is None else available
    need = sum(parts.values())
    if available is None or need <= available:
        return
    shares = ", ".join(f"{name} {human(size)}" for name, size in parts.items())
    raise ConfigError(
        f"memory: {what} needs {human(need)} ({shares}), expected at most the {human(available)} available; "
        f"lower {advice}"
    )
