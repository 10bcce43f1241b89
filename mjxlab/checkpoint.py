"""Checkpoints: the whole training state, written so that what is visible is intact, and checked when read.

A checkpoint is a folder ``checkpoints/STEP/`` with the arrays (written by Orbax) and ``manifest.json``: each leaf's path,
shape and dtype, the size and SHA-256 of each file, what else the run must know to go on (``meta``), and a seal over all
of that. It is written under a hidden name, synced, and renamed: a killed run leaves no half checkpoint.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import errno
import hashlib
import json
import logging
import os
import pathlib
import shutil
import sys
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from mjxlab import spmd
from mjxlab.errors import CheckpointError, ConfigError, WorkLostError

FORMAT = 1
MANIFEST = "manifest.json"
ARRAYS = "arrays"


class Restored(NamedTuple):
    """What ``restore`` gives: the state in host arrays (typed keys as JAX arrays), its step and its ``meta``."""

    state: Any
    step: int
    meta: dict[str, Any]


def steps(directory: str | os.PathLike[str]) -> list[int]:
    """The steps that have a checkpoint in the folder, intact or not, in rising order."""
    path = pathlib.Path(directory)
    if not path.is_dir():
        return []
    return sorted(int(p.name) for p in path.iterdir() if p.name.isdigit() and p.is_dir())


def fingerprint(value: Any) -> str:
    """A short hash of something that JSON can hold."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]


# --- writing -----------------------------------------------------------------------------------------------------------


def save(directory: str | os.PathLike[str], step: int, state: Any, *, meta: dict[str, Any], keep: int = 3) -> None:
    """Write the checkpoint of ``step``, then remove all but the ``keep`` newest.

    Every process of a run must call this; process 0 writes.

    Args:
      directory: the folder of all checkpoints; made if it is not there.
      step: number of updates made.
      state: PyTree of arrays.
      meta: anything that JSON can hold.
      keep: at least 1.

    Raises:
      WorkLostError: it could not be written. Earlier checkpoints are as they were.
    """
    leaves = _describe(state)
    arrays = jax.tree.leaves(spmd.to_host(state))
    if spmd.is_main():
        _write(pathlib.Path(directory), step, leaves, arrays, meta, keep)


class Saver:
    """Saves in the background, so that training goes on while the disk is busy; one checkpoint at a time.

    The state is copied to the host before ``save`` returns. What fails is raised by the next ``save`` or ``wait``.
    """

    def __init__(self, directory: str | os.PathLike[str], *, keep: int = 3) -> None:
        if isinstance(keep, bool) or not isinstance(keep, int) or keep < 1:
            raise ConfigError(f"keep: got {keep!r}, expected an integer of at least 1")
        self.directory, self.keep = pathlib.Path(directory), keep
        self._thread = concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix="mjxlab-checkpoint")
        self._pending: concurrent.futures.Future[None] | None = None

    def save(self, step: int, state: Any, *, meta: dict[str, Any]) -> None:
        """Start to save, once the save before has ended."""
        self.wait()
        leaves = _describe(state)
        arrays = jax.tree.leaves(spmd.to_host(state))
        if spmd.is_main():
            self._pending = self._thread.submit(_write, self.directory, step, leaves, arrays, meta, self.keep)

    def wait(self) -> None:
        """Until nothing is being written any more."""
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.result()

    def close(self) -> None:
        """Wait, and give the thread back."""
        try:
            self.wait()
        finally:
            self._thread.shutdown()


def _describe(state: Any) -> list[dict[str, Any]]:
    found = []
    for path, leaf in jax.tree.leaves_with_path(state):
        entry: dict[str, Any] = {"path": _path(path), "shape": list(leaf.shape), "dtype": leaf.dtype.name}
        if spmd.is_key(leaf) and isinstance(leaf, jax.Array):
            entry["impl"] = str(jax.random.key_impl(leaf))
        found.append(entry)
    return found


def _path(path: Any) -> str:
    return jax.tree_util.keystr(path, simple=True, separator=".") or "state"


def _write(
    directory: pathlib.Path,
    step: int,
    leaves: list[dict[str, Any]],
    arrays: list[np.ndarray],
    meta: dict[str, Any],
    keep: int,
) -> None:
    hidden = directory / f".writing-{step}"
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for leftover in directory.glob(".*-*"):  # of a run that was killed while it wrote
            shutil.rmtree(leftover, ignore_errors=True)
        hidden.mkdir()
        _reserve(hidden / "room", sum(x.nbytes for x in arrays) + (64 << 10))
        # Orbax cannot write arrays without elements; the manifest alone is enough for them.
        named = {_name(i): x for i, x in enumerate(arrays) if x.size}
        if named:
            with _orbax() as checkpointer:
                checkpointer.save((hidden / ARRAYS).absolute(), named)
        files = {
            str(p.relative_to(hidden)): {"size": p.stat().st_size, "sha256": _hash(p)}
            for p in sorted(hidden.rglob("*"))
            if p.is_file()
        }
        manifest = {
            "format": FORMAT,
            "step": step,
            "leaves": leaves,
            "files": files,
            "meta": meta,
            "versions": {"jax": jax.__version__, "python": sys.version.split()[0]},
        }
        manifest["seal"] = _seal(manifest)
        (hidden / MANIFEST).write_text(json.dumps(manifest, indent=1))
        for p in hidden.rglob("*"):
            _sync(p)
        _sync(hidden)
        target = directory / str(step)
        if target.exists():  # a run that started again from an earlier step, or a damaged checkpoint
            os.rename(target, directory / f".old-{step}")
        os.rename(hidden, target)
        _sync(directory)
    except Exception as error:  # Orbax and TensorStore raise kinds of their own for a full disk
        _remove(hidden)
        raise WorkLostError(
            f"checkpoint {step}: could not be written to {directory} ({_reason(error)}); {_still_there(directory)}"
        ) from error
    shutil.rmtree(directory / f".old-{step}", ignore_errors=True)
    for old in steps(directory)[:-keep]:
        # under a hidden name first, so that no half removed one is ever seen
        with contextlib.suppress(OSError):
            os.rename(directory / str(old), directory / f".old-{old}")
            shutil.rmtree(directory / f".old-{old}", ignore_errors=True)


def _reserve(path: pathlib.Path, size: int) -> None:
    """Raise ``OSError`` now if so many bytes have no room: TensorStore's threads are noisy about it, and slow to end."""
    with path.open("wb") as file:
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(file.fileno(), 0, size)
        elif shutil.disk_usage(path.parent).free < size:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    path.unlink()


def _reason(error: Exception) -> str:
    """What the system said, also where a library wrapped it in words of its own."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    text = " ".join(str(error).split()) or repr(error)
    usual = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EACCES, errno.EPERM, errno.EROFS, errno.EIO)
    return next((os.strerror(n) for n in usual if os.strerror(n) in text), _one_line(text))


def _remove(folder: pathlib.Path) -> None:
    """Remove what an error left. Orbax's threads go on for a moment, and may make the folder anew."""
    gone = 0
    for _ in range(50):
        shutil.rmtree(folder, ignore_errors=True)
        time.sleep(0.05)
        gone = 0 if folder.exists() else gone + 1
        if gone == 4:
            return


def _still_there(directory: pathlib.Path) -> str:
    last = steps(directory)[-1:]
    return f"the newest one that is there is {last[0]}" if last else "there is no earlier one"


def _one_line(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= 160 else text[:157] + "..."


def _name(index: int) -> str:
    return f"leaf{index:06d}"


@contextlib.contextmanager
def _orbax() -> Iterator[Any]:
    """An Orbax checkpointer that waits for no other process: process 0 alone writes and reads."""
    import orbax.checkpoint as ocp

    alone = ocp.options.MultiprocessingOptions(primary_host=0, active_processes={0}, barrier_sync_key_prefix="mjxlab")
    log = logging.getLogger("absl")
    level = log.level
    log.setLevel(logging.CRITICAL)  # its errors are raised as well, and become our one line
    try:
        handler = ocp.PyTreeCheckpointHandler(multiprocessing_options=alone)
        with ocp.Checkpointer(handler, multiprocessing_options=alone) as checkpointer:
            yield checkpointer
    finally:
        log.setLevel(level)


def _hash(path: pathlib.Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _seal(manifest: dict[str, Any]) -> str:
    open_part = {k: v for k, v in manifest.items() if k != "seal"}
    return hashlib.sha256(json.dumps(open_part, sort_keys=True).encode()).hexdigest()


def _sync(path: pathlib.Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


# --- reading -----------------------------------------------------------------------------------------------------------


def verify(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The manifest of one checkpoint (``checkpoints/STEP``), every file of which was hashed and found intact.

    Raises:
      CheckpointError: it is missing, truncated, or altered.
    """
    folder = pathlib.Path(path)
    name = f"checkpoint {folder.name}"
    try:
        manifest = json.loads((folder / MANIFEST).read_text())
    except FileNotFoundError:
        raise CheckpointError(f"{name}: {folder / MANIFEST} is not there, expected a checkpoint") from None
    except (OSError, ValueError):
        raise CheckpointError(f"{name}: {folder / MANIFEST} cannot be read, expected JSON; it was cut short") from None
    if not isinstance(manifest, dict) or manifest.get("seal") != _seal(manifest):
        raise CheckpointError(f"{name}: {folder / MANIFEST} is damaged, its seal does not fit")
    if manifest["format"] != FORMAT:
        raise CheckpointError(f"{name}: has format {manifest['format']}, expected {FORMAT}; it is of another mjxlab")
    for member, told in manifest["files"].items():
        file = folder / member
        if not file.resolve().is_relative_to(folder.resolve()):
            raise CheckpointError(f"{name}: names a file outside its folder, {member}")
        if not file.is_file():
            raise CheckpointError(f"{name}: {member} is missing")
        if (size := file.stat().st_size) != told["size"]:
            raise CheckpointError(f"{name}: {member} has {size} bytes, expected {told['size']}; it was cut short")
        if _hash(file) != told["sha256"]:
            raise CheckpointError(f"{name}: {member} is damaged, its SHA-256 does not fit")
    return manifest


class Newest(NamedTuple):
    """The newest intact checkpoint: its step and manifest (None: there is none), and a line on each newer one."""

    step: int | None
    manifest: dict[str, Any] | None
    complaints: list[str]


def newest_intact(directory: str | os.PathLike[str]) -> Newest:
    """The newest checkpoint whose files are all as they were written."""
    complaints: list[str] = []
    for step in reversed(steps(directory)):
        try:
            return Newest(step, verify(pathlib.Path(directory) / str(step)), complaints)
        except CheckpointError as error:
            complaints.append(str(error))
    return Newest(None, None, complaints)


def restore(
    directory: str | os.PathLike[str], like: Any, step: int | None = None, *, manifest: dict[str, Any] | None = None
) -> Restored:
    """Read a checkpoint, and check it against the tree that is expected.

    Where there are several processes, all call this; process 0 reads, and sends what it read to the others.

    Args:
      directory: the folder of all checkpoints.
      like: a PyTree of arrays or ``jax.ShapeDtypeStruct``, such as ``jax.eval_shape(learner.init, key)``.
      step: which; by default the newest, and no other one silently in its place.
      manifest: what ``verify`` gave for it, to spare hashing it again.

    Raises:
      CheckpointError: there is none, it is damaged, or its tree is another one (names up to five paths).
    """
    folder = pathlib.Path(directory)
    named: dict[str, np.ndarray] = {}
    problem = ""
    if spmd.is_main():
        try:
            manifest, named = _read(folder, like, step, manifest)
        except CheckpointError as error:
            problem = str(error)
    if jax.process_count() > 1:
        problem, manifest = _broadcast_json((problem, manifest))
    if problem:
        raise CheckpointError(problem)
    assert manifest is not None
    leaves = []
    for i, entry in enumerate(manifest["leaves"]):
        shape, dtype = _stored(entry)
        value = named.get(_name(i))
        if value is None:  # without elements, or on a process that has not read
            value = np.zeros(shape, dtype)
        if jax.process_count() > 1 and value.size:
            value = _broadcast(value)
        leaves.append(jax.random.wrap_key_data(jnp.asarray(value), impl=entry["impl"]) if "impl" in entry else value)
    return Restored(jax.tree.unflatten(jax.tree.structure(like), leaves), manifest["step"], manifest["meta"])


def _read(
    folder: pathlib.Path, like: Any, step: int | None, manifest: dict[str, Any] | None
) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    there = steps(folder)
    if not there or (step is not None and step not in there):
        what = "" if step is None else f" of step {step}"
        listed = f", there are {', '.join(map(str, there))}" if there else ""
        raise CheckpointError(f"{folder}: holds no checkpoint{what}{listed}")
    chosen = there[-1] if step is None else step
    manifest = verify(folder / str(chosen)) if manifest is None else manifest
    difference = _difference(manifest["leaves"], _describe(like))
    if difference:
        raise CheckpointError(f"checkpoint {chosen}: is of another training state: {difference}")
    named: dict[str, np.ndarray] = {}
    if (folder / str(chosen) / ARRAYS).is_dir():
        try:
            with _orbax() as checkpointer:
                named = checkpointer.restore((folder / str(chosen) / ARRAYS).absolute())
        except Exception as error:
            raise CheckpointError(f"checkpoint {chosen}: cannot be read ({_one_line(str(error))})") from error
    read = {}
    for i, entry in enumerate(manifest["leaves"]):
        shape, dtype = _stored(entry)
        if 0 in shape:
            continue
        value = np.asarray(named.get(_name(i)))
        if value.shape != shape or value.dtype != dtype:
            raise CheckpointError(f"checkpoint {chosen}: its array for {entry['path']} is not what its manifest says")
        read[_name(i)] = value
    return manifest, read


def _stored(entry: dict[str, Any]) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """Shape and dtype of a leaf as it lies on disk."""
    if "impl" not in entry:
        return tuple(entry["shape"]), jnp.dtype(entry["dtype"])
    data = jax.eval_shape(lambda: jax.random.key_data(jax.random.key(0, impl=entry["impl"])))
    return (*entry["shape"], *data.shape), np.dtype(data.dtype)


def _difference(saved: list[dict[str, Any]], expected: list[dict[str, Any]]) -> str:
    """Up to five paths that differ, in one line; empty if none does."""

    def kinds(entries: list[dict[str, Any]]) -> dict[str, str]:
        return {e["path"]: f"{e['dtype']}{e['shape']}" for e in entries}

    old, new = kinds(saved), kinds(expected)
    paths = [p for p in [*old, *(q for q in new if q not in old)] if old.get(p) != new.get(p)]
    lines = [f"{p} (saved {old.get(p, 'nothing')}, expected {new.get(p, 'nothing')})" for p in paths[:5]]
    if len(paths) > 5:
        lines.append(f"and {len(paths) - 5} more")
    return ", ".join(lines)


def _broadcast(value: np.ndarray) -> np.ndarray:
    """Process 0's array, bit for bit, on all processes."""
    from jax.experimental import multihost_utils

    raw = np.frombuffer(np.ascontiguousarray(value).tobytes(), np.uint8)
    sent = np.asarray(multihost_utils.broadcast_one_to_all(raw), np.uint8)
    return np.frombuffer(sent.tobytes(), value.dtype).reshape(value.shape)


def _broadcast_json(value: Any) -> Any:
    text = json.dumps(value).encode() if spmd.is_main() else b""
    length = int(_broadcast(np.asarray(len(text), np.int64)))
    return json.loads(_broadcast(np.frombuffer(text.ljust(length, b" ")[:length], np.uint8)).tobytes())
