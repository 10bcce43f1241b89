"""The sink for people: a header, a progress bar with speed and time left, and a line for each evaluation."""

from __future__ import annotations

import io
import time
from collections.abc import Callable
from typing import IO, Any, cast

from mjxlab.sinks import RunInfo, Sink, shown

_FIRST = ("return_mean", "episode_return", "success", "loss", "return_std", "episode_length")
SHOWN = 3  # metrics beside the bar


class Console(Sink):
    """Writes to standard output. Where that is no terminal: plain lines, at most one in ``interval`` seconds."""

    def __init__(self, file: io.TextIOBase | None = None, interval: float = 10.0) -> None:
        self._file, self._interval = file, interval
        self._bar: Any = None
        self._latest: dict[str, Any] = {}
        self._told = 0.0
        self._step = 0

    def open(self, run: RunInfo) -> None:
        from rich.console import Console as Rich

        self._run, self._step = run, run.start or 0
        self._rich = Rich(file=cast(IO[str] | None, self._file), highlight=False, soft_wrap=True)
        self.message(f"mjxlab · {run.name}")
        for line in run.header:
            self.message(f"  {line}")
        self._told = time.monotonic()
        if self._rich.is_terminal:
            from rich.progress import BarColumn, Progress, TextColumn

            self._bar = Progress(
                TextColumn("step {task.completed:,.0f}/{task.total:,.0f}"),
                BarColumn(bar_width=24),
                TextColumn("{task.percentage:>3.0f} %"),
                TextColumn("{task.fields[facts]}"),
                console=self._rich,
                auto_refresh=False,
            )
            self._task = self._bar.add_task("", total=run.steps, completed=self._step, facts="")
            self._bar.start()

    def message(self, text: str) -> None:
        from rich.text import Text

        self._attempt(lambda: self._rich.print(Text(text)))

    def _attempt(self, action: Callable[[], object]) -> None:
        """Lines that nobody can read any more (``| head``, a full disk) are not worth the run: it goes on in silence."""
        try:
            action()
        except (OSError, SystemExit):  # rich leaves the program where a pipe is broken
            self._rich.quiet = True

    def write(self, step: int, metrics: dict[str, Any]) -> None:
        evaluated = {k: v for k, v in metrics.items() if k.startswith("eval/")}
        self._latest.update(metrics)
        self._step = max(self._step, step)
        if evaluated:
            first = [f"eval/{name}" for name in _FIRST if f"eval/{name}" in evaluated]
            names = [*first, *(k for k in evaluated if k not in first)]
            facts = " · ".join(f"{k.removeprefix('eval/')} {shown(evaluated[k])}" for k in names)
            self.message(f"step {step:,} · evaluation · {facts}")

    def flush(self, sync: bool = False) -> None:
        if self._bar is not None:
            bar, facts = self._bar, self._facts()
            self._attempt(lambda: bar.update(self._task, completed=self._step, facts=facts, refresh=True))
        elif time.monotonic() - self._told >= self._interval:
            self._line()

    def _line(self) -> None:
        self._told = time.monotonic()
        share = self._step / max(self._run.steps, 1)
        facts = self._facts()
        self.message(f"step {self._step:,}/{self._run.steps:,} · {share:.0%}" + (f" · {facts}" if facts else ""))

    def _facts(self) -> str:
        """Speed, time left, and the few metrics that matter most."""
        m = self._latest
        parts = []
        if "env_steps" in m:
            parts.append(f"{m['env_steps']:,} env steps")
        if speed := m.get("time/env_steps_per_second"):
            parts.append(f"{speed:,.0f} env steps/s")
        elif speed := m.get("time/updates_per_second"):
            parts.append(f"{shown(speed)} updates/s")
        if speed := m.get("time/updates_per_second"):
            parts.append(f"ETA {clock((self._run.steps - self._step) / speed)}")
        plain = [k for k in m if "/" not in k and k not in ("step", "env_steps")]
        chosen = [k for k in _FIRST if k in plain] or plain
        parts += [f"{k} {shown(m[k])}" for k in chosen[:SHOWN] if not isinstance(m[k], list)]
        return " · ".join(parts)

    def close(self) -> None:
        if self._bar is not None:
            self.flush()
            self._attempt(self._bar.stop)
            self._bar = None
        elif self._latest:
            self._line()


def clock(seconds: float) -> str:
    """``3725 -> "1:02:05"``, ``65 -> "1:05"``."""
    whole = max(round(seconds), 0)
    hours, rest = divmod(whole, 3600)
    minutes, rest = divmod(rest, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
