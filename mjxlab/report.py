"""What a run tells: rows of metrics to the history and the sinks, warnings once, the header."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from mjxlab import spmd
from mjxlab.history import History, Row, is_finite, one_row, rows_of
from mjxlab.memory import human
from mjxlab.sinks import RunInfo, Sink, Sinks

MOST_WARNINGS = 5


class Report:
    """Everything that leaves the training loop, in the order in which it happens.

    Every process keeps the history; process 0 alone has sinks.

    Attributes:
      history: all rows.
      seconds: time spent in device calls, earlier starts of the run included.
      env_steps: the last value of the metric of that name.
      last: the last row.
    """

    def __init__(self, sinks: Sequence[str | Sink], log_every: int) -> None:
        self.sinks = Sinks(sinks if spmd.is_main() else ())
        self.log_every = log_every
        self.history, self.last = History(), Row()
        self.seconds, self.env_steps = 0.0, 0
        self._warned: set[str] = set()
        self._healthy: set[str] = set()

    def open(self, info: RunInfo, notes: Sequence[str]) -> None:
        """Open the sinks, and tell the notes."""
        spmd.on_main(lambda: self.sinks.open(info))
        for note in notes:
            self.message(note)

    def message(self, text: str) -> None:
        """A line for people, from process 0."""
        if spmd.is_main():
            self.sinks.message(text)

    def flush(self, sync: bool = False) -> None:
        """Hand over all rows; ``sync``: to the disk."""
        spmd.on_main(lambda: self.sinks.flush(sync))

    def resume(self, rows: Sequence[Row], seconds: float, env_steps: int) -> None:
        """Take over what earlier starts of the run have told."""
        self.seconds, self.env_steps = seconds, env_steps
        for row in rows:
            self._keep(row)

    def _keep(self, row: Row) -> None:
        self.history.add(row)
        self.last = row

    def updates(self, metrics: dict[str, Any], count: int, step: int, took: float) -> None:
        """Metrics of a call of ``count`` updates that ended at ``step`` and took so many seconds."""
        rows = rows_of(metrics, count)
        before, self.seconds = self.env_steps, self.seconds + took
        if isinstance(rows[-1].get("env_steps"), int | float):
            self.env_steps = int(rows[-1]["env_steps"])
        clocks = {"time/seconds": self.seconds, "time/updates_per_second": count / took}
        if self.env_steps > before > 0:
            clocks["time/env_steps_per_second"] = (self.env_steps - before) / took
        kept = []
        for number, row in enumerate(rows, step - count + 1):
            self._notice(number, row)
            if number % self.log_every == 0:
                kept.append((number, row | clocks))
                self._keep({"step": number, **row, **clocks})

        def write() -> None:
            for number, row in kept:
                self.sinks.write(number, row)

        spmd.on_main(write)

    def evaluation(self, metrics: dict[str, Any], step: int, took: float) -> Row:
        """Metrics of an evaluation. Returns the row, with its step."""
        row = one_row(metrics, "eval/")
        self._notice(step, row)
        known = {"env_steps": self.env_steps} if self.env_steps or step == 0 else {}
        full = known | row | {"time/evaluation_seconds": took}
        self._keep({"step": step, **full})
        spmd.on_main(lambda: self.sinks.write(step, full))
        return self.last

    def watch(self, names: Sequence[str], finite: np.ndarray) -> None:
        """Which arrays of the state were finite before (row 0) and after (row 1) a call."""
        for name, before, after in zip(names, *finite, strict=True):
            if before or after:
                self._healthy.add(name)
            if not after and name in self._healthy:
                self._warn(f"state.{name}", f"the training state's {name} is not finite any more")

    def _notice(self, step: int, row: Row) -> None:
        """Count metrics that are not finite. Before any episode has ended NaN is right."""
        for name, value in row.items():
            if is_finite(value):
                self._healthy.add("metric " + name)
            elif "metric " + name in self._healthy or not name.startswith(("episode", "success", "reached", "eval/")):
                self._warn(name, f"{name} is not finite at step {step:,}")

    def _warn(self, name: str, text: str) -> None:
        self.history.nonfinite[name] = self.history.nonfinite.get(name, 0) + 1
        if name not in self._warned and len(self._warned) < MOST_WARNINGS:
            self._warned.add(name)
            self.message(f"warning: {text} (said once, counted in history.nonfinite)")


def header(record: dict[str, Any], devices: int, state_bytes: tuple[int, int], cache: Any) -> list[str]:
    """Lines on what runs on what.

    Args:
      record: as in ``run.json``.
      devices: number of devices in use.
      state_bytes: bytes of the state on each device, and split over all.
      cache: directory of the compilation cache, or None.
    """
    device = jax.devices()[0]
    kind = device.platform if device.device_kind == device.platform else device.device_kind
    facts = [
        f"engine {record['engine'] or 'none'}",
        *([f"reset {record['reset']}"] if record["reset"] else []),
        f"{devices} {kind} device{'s' * (devices > 1)}",
        f"{jax.process_count()} process{'es' * (jax.process_count() > 1)}",
        f"matmul {record['matmul_precision']}",
        f"x64 {'on' if record['x64'] else 'off'}",
    ]
    whole, split = state_bytes
    return [
        " · ".join(facts),
        f"state {human(whole)} on each device, {human(split)} split over them · jax {jax.__version__}",
        f"compilation cache {cache or 'off'}",
    ]
