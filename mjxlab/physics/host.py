"""The C engine on the host: batches of worlds, stepped on threads, given raw buffers.

A ``Host`` belongs to one model and one choice of outputs; ``host_for`` keeps one for each content hash, so that a
compiled program, which knows only the hash, finds its engine in every process. Batches are kept in a free list (pop,
step, push): they must not be used by two threads at once, nor live in thread-local storage, since XLA's threads lose
their Python state between calls.
"""

from __future__ import annotations

import ctypes
import dataclasses
import functools
import os
import sys
import threading
import warnings
from collections.abc import Sequence

import mujoco
import numpy as np
from mujoco import batch as mjbatch

from mjxlab.errors import EngineError
from mjxlab.physics import names

_ACC = mujoco.mjtStage.mjSTAGE_ACC.value
_W = mujoco.mjtWarning
_BAD = [int(w) for w in (_W.mjWARN_BADQPOS, _W.mjWARN_BADQVEL, _W.mjWARN_BADQACC, _W.mjWARN_BADCTRL)]
_FULL = [int(w) for w in (_W.mjWARN_CONTACTFULL, _W.mjWARN_CNSTRFULL)]


@dataclasses.dataclass(frozen=True)
class Plan:
    """What one call does. Travels inside the compiled program as text.

    Attributes:
      engine: content hash of model and outputs.
      op: "init" (from the model's defaults), "set" or "step" (both from the first operand, the state).
      substeps: physics steps of a "step".
      values: names of the state fields written before the call, one operand each.
      fields: names of the per-world model fields, one operand each, after the values.
      width: bytes of a float operand or result, 4 or 8.
    """

    engine: str
    op: str
    substeps: int
    values: tuple[str, ...]
    fields: tuple[str, ...]
    width: int

    def text(self) -> str:
        values, fields = ",".join(self.values), ",".join(self.fields)
        return f"{self.engine}|{self.op}|{self.substeps}|{values}|{fields}|{self.width}"

    @staticmethod
    @functools.lru_cache(maxsize=4096)
    def parse(text: bytes) -> Plan:
        engine, op, substeps, values, fields, width = text.decode().split("|")
        split = lambda s: tuple(s.split(",")) if s else ()  # noqa: E731
        return Plan(engine, op, int(substeps), split(values), split(fields), int(width))


class _Reader:
    """Views of XLA's memory as an array of one shape, without a copy."""

    def __init__(self, dtype: np.dtype, shape: tuple[int, ...]) -> None:
        self.dtype, self.shape = dtype, shape
        self.type = ctypes.c_char * (int(np.prod(shape, dtype=np.int64)) * dtype.itemsize)
        self.empty = 0 in shape

    def at(self, address: int) -> np.ndarray:
        return np.frombuffer(memoryview(self.type.from_address(address)), self.dtype).reshape(self.shape)


class _Fields:
    """Per-world values of some model fields of a batch; remembers what was written last, and writes what changed."""

    def __init__(self, host: Host, batch: mjbatch.Batch, fields: tuple[str, ...], width: int) -> None:
        self.batch, nsim = batch, batch.nsim
        self.targets, self.readers, self.last, self.constant, self.kept = [], [], [], [], []
        for name in fields:
            spec = names.field_spec(host.model, name)
            target = batch.expand(name)
            kind = np.dtype(np.int32 if spec.kind == "i" else f"f{width}")
            # bits are compared, so that a NaN equals itself and is not written at every call
            reader = _Reader(np.dtype(f"u{kind.itemsize}"), (nsim, spec.size))
            self.targets.append(target.reshape(nsim, -1))
            self.readers.append((reader, kind))
            self.last.append(np.zeros((nsim, spec.size), reader.dtype))
            self.constant.append(name in host.constant_inputs)
            self.kept.append(name in host.constant_outputs)
        self.fresh = True

    def begins_with(self, addresses: Sequence[int]) -> bool:
        """Whether world 0 has these rows already: a cheap sign that this batch served the same worlds last."""
        if self.fresh:
            return False
        for last, address in zip(self.last, addresses, strict=True):
            n = last.shape[1] * last.dtype.itemsize
            if n and ctypes.string_at(address, n) != last[0].tobytes():
                return False
        return True

    def write(self, addresses: Sequence[int]) -> None:
        constants, nsim = None, self.batch.nsim
        for i, address in enumerate(addresses):
            reader, kind = self.readers[i]
            if reader.empty:
                continue
            rows = reader.at(address)
            if self.fresh:
                changed = np.ones(nsim, bool)
            else:
                changed = (rows != self.last[i]).any(axis=1)
                if not changed.any():
                    continue
            self.targets[i][changed] = rows[changed].view(kind)
            self.last[i][changed] = rows[changed]
            if self.constant[i]:
                constants = changed if constants is None else constants | changed
        if constants is not None:
            self.batch.set_const(constants)
            # mj_setConst completes some of its own inputs (the second anchor of a connect): the caller's values win
            for i, kept in enumerate(self.kept):
                if kept:
                    self.targets[i][constants] = self.last[i][constants].view(self.readers[i][1])
        self.fresh = False


class _Slot:
    """One batch and everything about it that can be prepared before a call."""

    def __init__(self, host: Host, nsim: int, fields: tuple[str, ...], width: int) -> None:
        self.host, self.nsim = host, nsim
        self.batch = mjbatch.Batch(host.model, nsim, nthread=max(1, min(host.threads, nsim)))
        self.state = self.batch.state
        self.address, self.nbytes = self.state.ctypes.data, self.state.nbytes
        floating = np.dtype(f"f{width}")
        self.floating = floating
        self.outputs = []
        for name, spec in host.outputs.items():
            source = self.batch.bind(name)
            dtype = {"f": floating, "i": np.dtype(np.int32), "b": np.dtype(bool)}[spec.kind]
            self.outputs.append((_Reader(dtype, source.shape), source))
        self.finite = _Reader(np.dtype(bool), (nsim,))
        self.fields = _Fields(host, self.batch, fields, width) if fields else None
        self.inputs: dict[str, tuple[_Reader, np.ndarray]] = {}
        self.sums = np.empty(nsim)

    def input(self, name: str) -> tuple[_Reader, np.ndarray]:
        if name not in self.inputs:
            target = self.batch.bind(name)
            self.inputs[name] = (_Reader(self.floating, target.shape), target)
        return self.inputs[name]

    def call(self, plan: Plan, operands: Sequence[int], results: Sequence[int]) -> None:
        batch, first = self.batch, 0
        if plan.op == "init":
            self.state[:] = self.host.row
        else:
            ctypes.memmove(self.address, operands[0], self.nbytes)
            first = 1
        for name, address in zip(plan.values, operands[first:], strict=False):
            reader, target = self.input(name)
            if not reader.empty:
                np.copyto(target, reader.at(address))
        if self.fields is not None:
            self.fields.write(operands[first + len(plan.values) :])
        if plan.op == "step":
            # a stage at the end makes positions, velocities and their sensors those of the new state
            batch.step(nstep=plan.substeps, stage=self.host.stage)
            ctypes.memmove(results[0], self.address, self.nbytes)
        else:
            ctypes.memmove(results[0], self.address, self.nbytes)
            if self.host.start_stage:
                batch.forward(stage=self.host.start_stage)
        # a sum is finite only if its terms are; einsum, unlike sum, says nothing of an overflow
        np.einsum("ij->i", self.state, out=self.sums)
        finite = self.finite.at(results[1])
        np.isfinite(self.sums, out=finite)
        if batch.warning.any():
            counts = batch.warning[:, :, 1] > 0
            finite &= ~counts[:, _BAD].any(axis=1)
            if counts[:, _FULL].any():
                self.host.warn_full()
            batch.warning[:] = 0
        for (reader, source), address in zip(self.outputs, results[2:], strict=True):
            if not reader.empty:
                np.copyto(reader.at(address), source, casting="unsafe")


class Host:
    """One model and one choice of outputs, with its batches. Thread-safe."""

    def __init__(self, model: mujoco.MjModel, outputs: dict[str, names.Spec]) -> None:
        self.model, self.outputs = model, outputs
        self.threads = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        # eq_data is an input of mj_setConst only for itself; a weld made at a grasp must not cost a set_const
        self.constant_inputs = frozenset(model._setconst_inputs) - {"eq_data"}
        if model.nflex:  # the implicit factor of soft bodies depends on the time step
            self.constant_inputs |= {"opt.timestep", "opt.integrator"}
        self.constant_outputs = frozenset(model._setconst_outputs) & frozenset(model._setconst_inputs)
        self.stage = names.fresh_stage(model, outputs)
        self.start_stage = _ACC if names.acceleration_outputs(model, outputs) else self.stage
        self.row = self._default_row()
        self._free: dict[tuple[int, tuple[str, ...], int], list[_Slot]] = {}
        self._lock = threading.Lock()
        self._warned = False

    def _default_row(self) -> np.ndarray:
        batch = mjbatch.Batch(self.model, 1, nthread=1)
        batch.reset(stage=mujoco.mjtStage.mjSTAGE_NONE.value)
        return batch.state[0].copy()

    @property
    def nstate(self) -> int:
        return self.row.size

    def run(self, plan: Plan, nsim: int, operands: Sequence[int], results: Sequence[int]) -> None:
        """Run ``plan`` for ``nsim`` worlds on buffers given by address: results are state, finite, then outputs."""
        key = (nsim, plan.fields, plan.width)
        slot = self._pop(key, operands[len(operands) - len(plan.fields) :])
        try:
            with _quiet:
                slot.call(plan, operands, results)
        except mjbatch.SimulationError as error:
            if slot.fields is not None:  # a failed set_const leaves constants half written
                slot.fields.fresh = True
            slot.batch.warning[:] = 0
            self._push(key, slot)
            raise EngineError(f"engine 'mujoco': {error}") from None
        self._push(key, slot)  # after any other exception the batch is dropped: its state is unknown

    def _pop(self, key: tuple[int, tuple[str, ...], int], fields: Sequence[int]) -> _Slot:
        with self._lock:
            free = self._free.setdefault(key, [])
            if free:
                if len(free) > 1 and key[1]:  # several devices: take the batch that had these worlds, if it is there
                    for i, slot in enumerate(free):
                        if slot.fields is not None and slot.fields.begins_with(fields):
                            return free.pop(i)
                return free.pop()
        return _Slot(self, key[0], key[1], key[2])

    def _push(self, key: tuple[int, tuple[str, ...], int], slot: _Slot) -> None:
        with self._lock:
            self._free[key].append(slot)

    def warn_full(self) -> None:
        """Say once that contacts or constraints were dropped for want of memory."""
        if self._warned:
            return
        self._warned = True
        warnings.warn(
            "engine 'mujoco': contacts or constraints were dropped, the arena is full; raise <size memory> in the model",
            RuntimeWarning,
            stacklevel=2,
        )


class _Quiet:
    """While any batch runs, MuJoCo's warnings are not printed (they are counted, and show in ``data.finite``).

    Without it MuJoCo prints each and appends it to MUJOCO_LOG.TXT in the working directory. Outside our calls a
    user's own warnings are printed as before.
    """

    def __init__(self) -> None:
        self._running, self._lock, self._installed = 0, threading.Lock(), False

    def __enter__(self) -> None:
        with self._lock:
            self._running += 1
            if not self._installed:
                self._previous = mujoco.get_mju_user_warning()
                mujoco.set_mju_user_warning(self._on_warning)
                self._installed = True

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._running -= 1

    def _on_warning(self, message: str) -> None:
        if self._running:
            return
        if self._previous is not None:
            self._previous(message)
        else:
            print(f"WARNING: {message}", file=sys.stderr)


_quiet = _Quiet()
_hosts: dict[str, Host] = {}
_hosts_lock = threading.Lock()


def host_for(digest: str, model: mujoco.MjModel, outputs: dict[str, names.Spec]) -> Host:
    """The host of this content hash, made at first."""
    with _hosts_lock:
        if digest not in _hosts:
            _hosts[digest] = Host(model, outputs)
        return _hosts[digest]


def find_host(digest: str) -> Host:
    """The host that a compiled program asks for.

    Raises:
      EngineError: this process has not made the engine (a program was exported and loaded elsewhere).
    """
    try:
        return _hosts[digest]
    except KeyError:
        raise EngineError(
            f"no engine {digest[:12]}… in this process: call make_engine with the same model and outputs first"
        ) from None
