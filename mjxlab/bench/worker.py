"""Our side of the line protocol: a rival as a subprocess."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import queue
import signal
import subprocess
import tempfile
import threading
from collections.abc import Sequence
from typing import Any

from mjxlab.bench.pairs import Speed
from mjxlab.errors import MjxlabError


class WorkerError(MjxlabError, RuntimeError):
    """A rival that is missing, does not start, crashes, does not answer in time, or answers something else."""


class Worker:
    """A started rival. A context manager: leaving it ends the process and whatever that started.

    Attributes:
      name: of the rival.
      measures: what it can measure. versions: of its packages.
      compiled: by measure, the seconds until its first use was ready.
    """

    def __init__(self, name: str, command: Sequence[str | os.PathLike[str]], *, timeout: float = 300.0) -> None:
        """Start, and wait until it says that it is ready.

        Args:
          name: of the rival, for messages.
          command: program and arguments.
          timeout: seconds to wait for an answer, beyond the seconds that are measured.
        """
        self.name, self.timeout = name, timeout
        self.compiled: dict[str, float] = {}
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 (closed by `close`)
        environment = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")}
        try:
            self._process = subprocess.Popen(
                [os.fspath(word) for word in command],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._log,
                text=True,
                env=environment,
                start_new_session=True,
            )
        except OSError as error:
            self._log.close()
            raise WorkerError(f"{name}: {os.fspath(command[0])} cannot be started: {error.strerror}") from error
        self._lines: queue.Queue[str | None] = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        try:
            ready = self._answer(timeout)
            if ready.get("ready") is not True:
                raise WorkerError(f"{name}: began with {json.dumps(ready)[:80]}, expected that it is ready")
            self.measures: list[str] = list(ready.get("measures", []))
            self.versions: dict[str, str] = dict(ready.get("versions", {}))
        except BaseException:
            self.close()
            raise

    def measure(self, measure: str, seconds: float) -> Speed:
        """One measurement of about ``seconds`` seconds."""
        answer = self.ask({"measure": measure, "seconds": seconds}, seconds)
        try:
            speed = Speed(int(answer["steps"]), float(answer["seconds"]), float(answer["compile"]))
        except (KeyError, TypeError, ValueError):
            raise self._odd(json.dumps(answer)) from None
        if speed.steps < 1 or not speed.seconds > 0:
            raise self._odd(json.dumps(answer))
        if speed.compile:
            self.compiled[measure] = speed.compile
        return speed

    def ask(self, request: dict[str, Any], seconds: float = 0.0) -> dict[str, Any]:
        """Send a request, and wait ``seconds`` plus the timeout for the answer.

        Raises:
          WorkerError: there is no proper answer, or the answer is an error.
        """
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
        except (OSError, ValueError):
            raise self._ended() from None
        answer = self._answer(seconds + self.timeout)
        if "error" in answer:
            raise WorkerError(f"{self.name}: {request['measure']}: {answer['error']}")
        return answer

    def close(self) -> None:
        """End the process (and its children). May be called twice."""
        with contextlib.suppress(OSError, ValueError):
            if self._process.stdin is not None:
                self._process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(2.0)
        with contextlib.suppress(OSError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._reader.join(5.0)  # the pipe has no writer any more
        if self._process.stdout is not None and not self._reader.is_alive():
            self._process.stdout.close()
        if not self._log.closed:
            self._log.close()

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _read(self) -> None:
        assert self._process.stdout is not None
        with contextlib.suppress(ValueError):
            for line in self._process.stdout:
                self._lines.put(line)
        self._lines.put(None)

    def _answer(self, seconds: float) -> dict[str, Any]:
        try:
            line = self._lines.get(timeout=seconds)
        except queue.Empty:
            raise WorkerError(f"{self.name}: no answer within {seconds:.0f} s") from None
        if line is None:
            raise self._ended()
        try:
            answer = json.loads(line)
        except ValueError:
            raise self._odd(line) from None
        if not isinstance(answer, dict):
            raise self._odd(line)
        return answer

    def _odd(self, text: str) -> WorkerError:
        return WorkerError(f"{self.name}: answered {' '.join(text.split())[:80]!r}, which is no line of the protocol")

    def _ended(self) -> WorkerError:
        """The process is gone: its last words say why."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(5.0)
        code = self._process.poll()
        self._log.seek(0)
        words = self._log.read().decode(errors="replace").strip().splitlines()
        last = f": {words[-1].strip()[:200]}" if words else ""
        return WorkerError(f"{self.name}: ended with exit code {code}{last}")


def script(name: str) -> pathlib.Path:
    """Path of a rival's script."""
    return pathlib.Path(__file__).parent / "rivals" / f"run_{name}.py"
