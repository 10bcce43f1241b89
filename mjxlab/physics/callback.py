"""The C engine by ``jax.pure_callback``: for programs on a GPU, whose compiler cannot call the CPU handler.

Callbacks cost more than the FFI route and their programs are never cached on disk. On a CPU that JAX splits into
several devices they can also deadlock: the callbacks occupy every thread of JAX's CPU client while they wait for
copies of their arguments, which need a thread. ``PJRT_NPROC`` of at least four threads a device prevents it, if it is
set before JAX starts the client.
"""

from __future__ import annotations

import importlib.util
import os
import re
import sys
import threading
import time
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from mjxlab.errors import EngineError
from mjxlab.physics import host

#: Threads of JAX's CPU client needed for each device.
THREADS_PER_DEVICE = 4
#: Seconds that a callback may wait for its arguments before the process is given up for deadlocked.
PATIENCE = 120.0


def _started() -> bool:
    """Whether JAX has started its backends: only then does it refuse a new number of CPU devices."""
    old = jax.config.jax_num_cpu_devices
    try:
        jax.config.update("jax_num_cpu_devices", max(old, 0) + 1)
    except RuntimeError:
        return True
    jax.config.update("jax_num_cpu_devices", old)
    return False


def _configured_devices() -> int:
    flag = re.search(r"xla_force_host_platform_device_count=(\d+)", os.environ.get("XLA_FLAGS", ""))
    return max(jax.config.jax_num_cpu_devices, int(flag.group(1)) if flag else 1)


def _threads() -> int | None:
    text = os.environ.get("PJRT_NPROC", "")
    return int(text) if text.isdigit() else None


def prepare(certain: bool) -> None:
    """Set ``PJRT_NPROC`` for several CPU devices, if JAX has not started and the user has not set it.

    Args:
      certain: the callback route was asked for. Otherwise nothing is done where JAX can have no backend but the CPU,
        since the FFI route will serve there.
    """
    if not certain and importlib.util.find_spec("jax_plugins") is None:
        return
    devices = _configured_devices()
    if devices > 1 and "PJRT_NPROC" not in os.environ and not _started():
        os.environ["PJRT_NPROC"] = str(THREADS_PER_DEVICE * devices)


def check() -> None:
    """Refuse a callback engine that would deadlock.

    Raises:
      EngineError: several CPU devices without enough threads; one line with what to set.
    """
    devices = len(jax.local_devices(backend="cpu"))
    threads = _threads()
    needed = THREADS_PER_DEVICE * devices
    if devices > 1 and (threads is None or threads < needed):
        raise EngineError(
            f"engine 'mujoco' by callback on {devices} CPU devices needs PJRT_NPROC of at least {needed}, set before "
            f"JAX starts, or it deadlocks (it is {os.environ.get('PJRT_NPROC', 'not set')}); "
            f"start Python with PJRT_NPROC={needed}"
        )


class _Watchdog:
    """Ends a process whose callbacks have waited too long for their arguments, and says why.

    The waiting threads are inside JAX and cannot be interrupted; without this the process would hang for ever.
    """

    def __init__(self) -> None:
        self._waiting: dict[int, float] = {}
        self._lock = threading.Lock()
        self._running = False

    def __enter__(self) -> None:
        with self._lock:
            self._waiting[threading.get_ident()] = time.monotonic()
            if not self._running:
                self._running = True
                threading.Thread(target=self._watch, name="mjxlab-watchdog", daemon=True).start()

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._waiting.pop(threading.get_ident(), None)

    def _watch(self) -> None:
        while True:
            time.sleep(min(PATIENCE / 4, 5.0))
            with self._lock:
                oldest = min(self._waiting.values(), default=None)
            if oldest is None or time.monotonic() - oldest < PATIENCE:
                continue
            print(
                f"mjxlab: a simulation callback has waited {PATIENCE:.0f} s for its arguments: JAX's CPU threads are "
                f"exhausted (PJRT_NPROC={os.environ.get('PJRT_NPROC', 'not set')}); start Python with PJRT_NPROC of "
                f"at least {THREADS_PER_DEVICE} times the number of CPU devices. Ending the process.",
                file=sys.stderr,
                flush=True,
            )
            os._exit(1)


_watchdog = _Watchdog()


def serve(
    plan: host.Plan, arrays: Sequence[Any], rank: int, results: Sequence[jax.ShapeDtypeStruct]
) -> list[np.ndarray]:
    """The host function: what the FFI handler does, on arrays.

    Args:
      arrays: the operands, with equal leading axes (worlds) before those of one world.
      rank: number of axes of operand 0 for one world.
      results: shapes and dtypes for one world.
    """
    with _watchdog:
        operands = [np.ascontiguousarray(a) for a in arrays]
    lead = operands[0].shape[: operands[0].ndim - rank] if operands else ()
    made = [np.empty(lead + r.shape, r.dtype) for r in results]
    nsim = int(np.prod(lead, dtype=np.int64))
    if nsim:
        addresses = [[a.ctypes.data for a in arrays] for arrays in (operands, made)]
        host.find_host(plan.engine).run(plan, nsim, *addresses)
    return made
