"""Cells: pieces of work that are done once. What a study or a sweep is made of, so that it can be stopped at any moment.

A cell is a function of a module with arguments that JSON can hold. Its value is kept in
``FOLDER/cells/NAME-HASH.json``, where the hash is of everything that determines it: the function, the arguments (config,
seeds, …), the study and its budget, the version of mjxlab, and whether x64 is on. A cell that is there is read, never
computed again; the value that a caller gets has always been through JSON, so that it cannot tell the difference.

Cells may be spread over worker processes. A worker stores its cell itself, and ends when the process that started it does.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import json
import os
import pathlib
import queue
import re
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from mjxlab import errors
from mjxlab.configs import to_json
from mjxlab.errors import ConfigError, WorkLostError

FORMAT = 1


class Cell(NamedTuple):
    """A piece of work.

    Attributes:
      name: for people; letters, digits and a few signs become part of a file's name.
      function: of a module's top level, or its ``"module:name"``.
      arguments: passed by name. Numbers, strings, lists, dicts of them, and dataclasses of them (which arrive as dicts).
    """

    name: str
    function: Callable[..., Any] | str
    arguments: dict[str, Any]


class Cells:
    """The cells of one folder.

    Args:
      folder: where they are kept; None: nowhere.
      identity: what all of them depend on besides their arguments, e.g. ``{"study": …, "budget": …}``.
      workers: number of processes; 1: this one.
      tell: takes a line for people.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str] | None,
        identity: dict[str, Any] | None = None,
        *,
        workers: int = 1,
        tell: Callable[[str], None] | None = None,
    ) -> None:
        if isinstance(workers, bool) or not isinstance(workers, int) or workers < 1:
            raise ConfigError(f"workers: got {workers!r}, expected an integer of at least 1")
        self.folder = None if folder is None else pathlib.Path(folder) / "cells"
        self.identity = identity or {}
        self.workers = workers
        self._tell = tell or (lambda line: None)

    def __call__(self, name: str, function: Callable[..., Any] | str, **arguments: Any) -> Any:
        """The value of one cell."""
        return self.all([Cell(name, function, arguments)])[0]

    def all(self, cells: Sequence[Cell]) -> list[Any]:
        """The values of many cells, in order; those that are not there yet are computed, ``workers`` at a time.

        Raises:
          ConfigError: a function that cannot be found again, or what a cell raises.
          WorkLostError: a value could not be stored, or a worker died. What is finished is kept.
        """
        jobs = [self._job(cell) for cell in cells]
        values: dict[str, Any] = {}
        for job in jobs:
            found = self._read(job)
            if found is not None:
                values[job["hash"]] = found["value"]
        missing = list({job["hash"]: job for job in jobs if job["hash"] not in values}.values())
        if values and missing:
            self._tell(f"{len(values)} of {len(values) + len(missing)} cells are there already")
        # one worker for one cell would only add the time that it takes to start
        alone = self.workers == 1 or len(missing) < 2 or self.folder is None
        for job, record in self._here(missing) if alone else self._in_workers(missing):
            values[job["hash"]] = record["value"]
            self._tell(f"{job['name']} · {record['seconds']:.0f} s · {len(values)} of {len({j['hash'] for j in jobs})}")
        return [decode(values[job["hash"]]) for job in jobs]

    def _job(self, cell: Cell) -> dict[str, Any]:
        what = {
            "format": FORMAT,
            **self.identity,
            "name": cell.name,
            "function": _path(cell.function),
            "arguments": _to_json(cell.arguments),
            "mjxlab": _version(),
            "x64": bool(jax.config.jax_enable_x64),
        }
        digest = hashlib.sha256(json.dumps(what, sort_keys=True, allow_nan=False).encode()).hexdigest()[:12]
        slug = re.sub(r"[^A-Za-z0-9_.-]+", "-", cell.name)[:80].strip(".-")
        file = None if self.folder is None else str(self.folder.resolve() / f"{slug}-{digest}.json")
        return what | {"hash": digest, "file": file}

    def _read(self, job: dict[str, Any]) -> dict[str, Any] | None:
        if job["file"] is None:
            return None
        try:
            record = json.loads(pathlib.Path(job["file"]).read_text())
            if record["hash"] == job["hash"] and "value" in record:
                return record
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError):
            pass
        self._tell(f"{job['file']}: not a finished cell, computed anew")
        return None

    def _here(self, jobs: Sequence[dict[str, Any]]) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
        for job in jobs:
            yield job, _execute(job)

    def _in_workers(self, jobs: Sequence[dict[str, Any]]) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
        todo: queue.Queue[dict[str, Any]] = queue.Queue()
        done: queue.Queue[Any] = queue.Queue()
        for job in jobs:
            todo.put(job)
        with contextlib.ExitStack() as stack:
            for _ in range(min(self.workers, len(jobs))):
                worker = stack.enter_context(_worker())
                threading.Thread(target=_feed, args=(worker, todo, done), daemon=True).start()
            for _ in jobs:
                found = done.get()
                if isinstance(found, Exception):
                    raise found
                record = self._read(found)
                if record is None:
                    raise WorkLostError(f"cell {found['name']}: {found['file']} is not there, expected it to be stored")
                yield found, record


def decode(value: Any) -> Any:
    """What ``configs.to_json`` wrote, as Python lists, dicts, numbers and NumPy arrays."""
    if isinstance(value, dict):
        if set(value) == {"__float__"}:
            return float(value["__float__"])
        if set(value) == {"__array__", "dtype"}:
            return np.asarray(decode(value["__array__"]), value["dtype"])
        return {k: decode(v) for k, v in value.items()}
    return [decode(v) for v in value] if isinstance(value, list) else value


def write_json(file: str | os.PathLike[str], record: Any) -> None:
    """Write JSON, whole or not at all.

    Raises:
      WorkLostError: it cannot be written.
    """
    path = pathlib.Path(file)
    hidden = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with hidden.open("w") as out:
            out.write(json.dumps(record, indent=1, allow_nan=False) + "\n")
            out.flush()
            os.fsync(out.fileno())
        os.replace(hidden, path)
    except OSError as error:
        with contextlib.suppress(OSError):
            hidden.unlink(missing_ok=True)
        raise WorkLostError(f"{path}: could not be written ({error.strerror or error})") from error


def _execute(job: dict[str, Any]) -> dict[str, Any]:
    """Compute a cell, and store it."""
    function = _find(job["function"])
    started = time.perf_counter()
    value = _to_json(function(**decode(job["arguments"])))
    record = job | {"value": value, "seconds": round(time.perf_counter() - started, 3)}
    if job["file"] is not None:
        write_json(job["file"], record)
    return record


def _to_json(value: Any) -> Any:
    """As ``configs.to_json``, with the NaN and infinities of arrays, which JSON lacks, spelt out."""
    return _spell(to_json(value))


def _spell(value: Any) -> Any:
    if isinstance(value, float):
        return to_json(value)
    if isinstance(value, dict):
        return {k: _spell(v) for k, v in value.items()}
    return [_spell(v) for v in value] if isinstance(value, list) else value


def _path(function: Callable[..., Any] | str) -> str:
    path = function if isinstance(function, str) else f"{function.__module__}:{function.__qualname__}"
    found = _find(path)
    if not isinstance(function, str) and found is not function and getattr(found, "__wrapped__", None) is not function:
        raise ConfigError(f"cell function {path}: found another one under that name")
    return path


def _find(path: str) -> Callable[..., Any]:
    module, _, name = path.partition(":")
    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError):
        raise ConfigError(f"cell function {path}: not found, expected one of a module's top level") from None


def _version() -> str:
    import mjxlab

    return mjxlab.__version__


# --- worker processes ------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _worker() -> Iterator[subprocess.Popen[str]]:
    """A process that computes cells: a job a line on its standard input, an answer a line on its output."""
    own = {
        "PYTHONPATH": os.pathsep.join(p or os.getcwd() for p in sys.path),
        "JAX_ENABLE_X64": "1" if jax.config.jax_enable_x64 else "0",
    }
    process = subprocess.Popen(
        [sys.executable, "-m", "mjxlab.cells"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=os.environ | own,
        text=True,
    )
    try:
        yield process
    finally:
        assert process.stdin is not None
        with contextlib.suppress(OSError):
            process.stdin.close()  # which ends it, whatever it is doing
        process.wait()


def _feed(process: subprocess.Popen[str], todo: queue.Queue[Any], done: queue.Queue[Any]) -> None:
    """Give a worker one job after the other, until none is left or one fails."""
    assert process.stdin is not None and process.stdout is not None
    with process.stdout:
        try:
            _feed_all(process, process.stdin, process.stdout, todo, done)
        except Exception as error:  # whoever waits for this thread must hear of it
            done.put(error)


def _feed_all(process: subprocess.Popen[str], jobs: Any, answers: Any, todo: Any, done: Any) -> None:
    while True:
        try:
            job = todo.get_nowait()
        except queue.Empty:
            return
        try:
            jobs.write(json.dumps(job) + "\n")
            jobs.flush()
            line = answers.readline()
        except (OSError, ValueError):
            line = ""
        answer = json.loads(line) if line else {}
        if answer.get("ok"):
            done.put(job)
            continue
        if not line:
            text = f"cell {job['name']}: its process died (exit code {process.wait()}); finished cells are kept"
            done.put(WorkLostError(text))
        else:
            kind = getattr(errors, answer["kind"], None)
            done.put(kind(answer["message"]) if kind else RuntimeError(f"cell {job['name']}: {answer['trace']}"))
        return


def _work() -> None:
    """The loop of a worker."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever a library prints must not be taken for an answer
    jobs: queue.Queue[str] = queue.Queue()

    def read() -> None:
        for line in sys.stdin:
            jobs.put(line)
        os._exit(0)  # the one who asked is gone, or has all answers

    threading.Thread(target=read, daemon=True).start()
    while True:
        job = json.loads(jobs.get())
        try:
            _execute(job)
            answer: dict[str, Any] = {"ok": True}
        except KeyboardInterrupt:
            os._exit(130)
        except Exception as error:
            answer = {"kind": type(error).__name__, "message": str(error), "trace": traceback.format_exc()}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


if __name__ == "__main__":
    from mjxlab.cells import _work as work  # the module by its own name, so that errors are of one class

    work()
