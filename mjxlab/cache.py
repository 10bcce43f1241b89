"""JAX's persistent compilation cache: on by default, in a place that is named, and counted."""

from __future__ import annotations

import hashlib
import os
import pathlib
import platform
from typing import Any, NamedTuple

import jax

from mjxlab.errors import ConfigError


class Programs(NamedTuple):
    """Programs that XLA was asked for so far in this process: compiled anew, and read from the cache."""

    compiled: int
    cached: int

    def __sub__(self, other: Programs) -> Programs:
        return Programs(self.compiled - other.compiled, self.cached - other.cached)

    def __str__(self) -> str:
        return f"compiled {self.compiled} program{'s' * (self.compiled != 1)}, {self.cached} from cache"


_requested = 0
_hits = 0
_listening = False


def _on_event(event: str, **_: Any) -> None:
    global _hits
    if event == "/jax/compilation_cache/cache_hits":
        _hits += 1


def _on_duration(event: str, duration_secs: float, **_: Any) -> None:
    global _requested
    if event == "/jax/core/compile/backend_compile_duration":
        _requested += 1


def _listen() -> None:
    global _listening
    if not _listening:
        jax.monitoring.register_event_listener(_on_event)
        jax.monitoring.register_event_duration_secs_listener(_on_duration)
        _listening = True


def programs() -> Programs:
    """The counts since ``enable`` (or this function) was first called; subtract two to count a stretch."""
    _listen()
    return Programs(_requested - _hits, _hits)


def _processor() -> str:
    """A short mark of this machine's kind of processor: its instruction set is part of a CPU program."""
    try:
        lines = pathlib.Path("/proc/cpuinfo").read_text().splitlines()
        flags = next(line for line in lines if line.startswith(("flags", "Features")))
    except (OSError, StopIteration):
        flags = platform.processor()
    return f"{platform.machine()}-{hashlib.sha256(flags.encode()).hexdigest()[:8]}"


def default_directory() -> pathlib.Path:
    """``$MJXLAB_CACHE_DIR``, or ``$XDG_CACHE_HOME/mjxlab/jax/PROCESSOR`` (``~/.cache`` where that is not set)."""
    own = os.environ.get("MJXLAB_CACHE_DIR")
    if own:
        return pathlib.Path(own).expanduser()
    root = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return pathlib.Path(root).expanduser() / "mjxlab" / "jax" / _processor()


def enable() -> pathlib.Path | None:
    """Switch the cache on and count programs. Every program is kept, however small or quick to compile.

    A directory that you have set yourself, by ``JAX_COMPILATION_CACHE_DIR`` or in ``jax.config``, stays, and so do
    your thresholds. ``MJXLAB_CACHE_DIR=off`` leaves the cache as it is.

    Returns:
      The directory; None if there is no cache.

    Raises:
      ConfigError: the directory that ``MJXLAB_CACHE_DIR`` names cannot be made.
    """
    _listen()
    config = jax.config
    chosen = config.jax_compilation_cache_dir
    if (
        os.environ.get("MJXLAB_CACHE_DIR", "").lower() in ("off", "0", "none")
        or not config.jax_enable_compilation_cache
    ):
        return pathlib.Path(chosen) if chosen and config.jax_enable_compilation_cache else None
    if not chosen:
        directory = default_directory()
        try:
            directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            if not os.environ.get("MJXLAB_CACHE_DIR"):
                return None  # a home that cannot be written to: go on without
            raise ConfigError(
                f"MJXLAB_CACHE_DIR: cannot make {directory} ({error.strerror}), expected a directory to write to, or off"
            ) from None
        chosen = str(directory)
        config.update("jax_compilation_cache_dir", chosen)
        # A program compiled before this line has made JAX remember that there is no cache.
        from jax.experimental.compilation_cache import compilation_cache

        compilation_cache.reset_cache()
    if "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS" not in os.environ:
        config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    if "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES" not in os.environ:
        config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    return pathlib.Path(chosen)
