"""Where metrics go. One interface: ``open(run)``, ``write(step, metrics)``, ``close()``.

``fit(sinks=("console", "jsonl"))`` takes names and objects. A sink of your own derives from ``Sink``. Only process 0
has sinks. What a metrics *file* cannot hold is lost work and raises ``WorkLostError``; TensorBoard and W&B are views:
where they fail, one line says so and training goes on.
"""

from __future__ import annotations

import contextlib
import csv
import dataclasses
import io
import logging
import math
import os
import pathlib
import secrets
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from mjxlab.errors import ConfigError, UnknownNameError, WorkLostError
from mjxlab.history import read_rows, to_line


@dataclasses.dataclass(frozen=True)
class RunInfo:
    """What a sink is told at the start.

    Attributes:
      name: short title, such as ``"ppo on ant"``.
      folder: the run folder, or None.
      start: the step that the run goes on from; rows after it, left by a crash, are to be forgotten. None: the run
        begins, and any row is.
      steps: the step at which it ends.
      header: lines for people: what runs on what.
      config: the config as plain JSON.
      tell: shows a line to people.
    """

    name: str
    folder: pathlib.Path | None
    start: int | None
    steps: int
    header: Sequence[str] = ()
    config: Any = None
    tell: Callable[[str], None] = logging.getLogger("mjxlab").warning

    @property
    def last(self) -> int:
        """The last step whose rows are to be kept; -1: none."""
        return -1 if self.start is None else self.start

    def need_folder(self, sink: str) -> pathlib.Path:
        """The run folder; a ``ConfigError`` where there is none."""
        if self.folder is None:
            raise ConfigError(f"sinks: {sink} writes files, expected a run_dir")
        return self.folder


class Sink:
    """A sink that ignores everything: override what you need."""

    def open(self, run: RunInfo) -> None:
        """Start, or go on after ``run.start``."""

    def write(self, step: int, metrics: dict[str, Any]) -> None:
        """Metrics of one update or evaluation (names begin with ``eval/``) as Python numbers.

        Names that begin with ``time/`` depend on the clock. Called once a row, some rows at a time.
        """

    def message(self, text: str) -> None:
        """One line for people."""

    def flush(self, sync: bool = False) -> None:
        """Hand over what was written; ``sync``: to the disk itself, as a checkpoint is about to be made."""

    def close(self) -> None:
        """The end, also after an error."""


class _File(Sink):
    """A text file in the run folder that is cut back to the checkpoint when a run resumes."""

    name = ""

    def __init__(self) -> None:
        self._file: Any = None
        self.path = pathlib.Path()

    def _guard(self, action: Callable[[], Any]) -> Any:
        try:
            return action()
        except OSError as error:
            raise WorkLostError(f"{self.path}: could not be written ({error.strerror or error})") from error

    def flush(self, sync: bool = False) -> None:
        def act() -> None:
            self._file.flush()
            if sync:
                os.fsync(self._file.fileno())

        if self._file is not None:
            self._guard(act)

    def close(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            self._guard(file.close)


class JSONL(_File):
    """``metrics.jsonl``: a JSON object a line. NaN is ``null``, infinities are the strings ``"inf"`` and ``"-inf"``."""

    name = "metrics.jsonl"

    def open(self, run: RunInfo) -> None:
        self.path = run.need_folder("jsonl") / self.name

        def act() -> None:
            _, size = read_rows(self.path, until=run.last)
            if self.path.exists():
                os.truncate(self.path, size)
            self._file = self.path.open("a")

        self._guard(act)

    def write(self, step: int, metrics: dict[str, Any]) -> None:
        self._guard(lambda: self._file.write(to_line({"step": step, **metrics}) + "\n"))


class CSV(_File):
    """``metrics.csv``. A metric that appears later adds a column at the end; earlier rows leave it empty."""

    name = "metrics.csv"

    def open(self, run: RunInfo) -> None:
        self.path = run.need_folder("csv") / self.name
        self._columns: list[str] = ["step"]

        def act() -> None:
            kept = []
            if self.path.exists():
                with self.path.open(newline="", errors="replace") as file:
                    reader = csv.reader(file)
                    self._columns = next(reader, ["step"])
                    for row in reader:
                        # the last line may have been cut short
                        if len(row) != len(self._columns) or not row[0].isdigit() or int(row[0]) > run.last:
                            break
                        kept.append(row)
            self._rewrite(kept)

        self._guard(act)

    def _rewrite(self, rows: list[list[str]]) -> None:
        """The whole file anew under another name, then in place of the old one."""
        hidden = self.path.with_name(f".{self.name}")
        try:
            with hidden.open("w", newline="") as file:
                csv.writer(file).writerows([self._columns, *rows])
            os.replace(hidden, self.path)
        finally:
            hidden.unlink(missing_ok=True)
        if self._file is not None:
            self._file.close()
        self._file = self.path.open("a", newline="")

    def write(self, step: int, metrics: dict[str, Any]) -> None:
        row = {"step": step, **metrics}
        new = [name for name in row if name not in self._columns]

        def act() -> None:
            if new:
                self._file.flush()
                with self.path.open(newline="") as file:
                    rows = list(csv.reader(file))[1:]
                self._columns += new
                self._rewrite([r + [""] * (len(self._columns) - len(r)) for r in rows])
            line = io.StringIO()
            csv.writer(line).writerow([row.get(name, "") for name in self._columns])
            self._file.write(line.getvalue())

        self._guard(act)


class TensorBoard(Sink):
    """Event files in ``tensorboard/``, for ``tensorboard --logdir RUN``. Scalars only."""

    def __init__(self) -> None:
        self._writer: Any = None

    def open(self, run: RunInfo) -> None:
        from tensorboardX import SummaryWriter

        folder = run.need_folder("tensorboard") / "tensorboard"
        self._writer = SummaryWriter(str(folder), purge_step=run.last + 1)

    def write(self, step: int, metrics: dict[str, Any]) -> None:
        for name, value in metrics.items():
            if isinstance(value, int | float):
                self._writer.add_scalar(name, value, step)

    def flush(self, sync: bool = False) -> None:
        if self._writer is not None:
            self._writer.flush()

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()


class WandB(Sink):
    """Weights & Biases. Offline (files in ``wandb/``, for ``wandb sync``) unless you are logged in.

    ``WANDB_MODE``, ``WANDB_PROJECT`` and W&B's other variables hold. A resumed run goes on under its id; W&B ignores
    the steps that it has seen.
    """

    def __init__(self, project: str | None = None, timeout: float = 20.0) -> None:
        """``timeout``: seconds to wait for the server before going offline."""
        self._project, self._timeout, self._run = project, timeout, None

    def open(self, run: RunInfo) -> None:
        folder = run.need_folder("wandb")
        with _quiet():
            import wandb

            note = folder / "wandb_id.txt"
            identity = note.read_text().strip() if note.exists() else secrets.token_hex(4)
            note.write_text(identity + "\n")
            mode = os.environ.get("WANDB_MODE") or ("online" if _logged_in(wandb) else "offline")
            try:
                self._run = self._start(wandb, run, folder, mode, identity)
            except Exception as error:  # whatever it raises for a server that it cannot reach, or a key that is none
                if mode != "online":
                    raise
                text = " ".join(str(error).split())[:120]
                run.tell(
                    f"warning: W&B cannot be reached ({text}); its files stay in {folder / 'wandb'} for `wandb sync`"
                )
                # the first attempt holds on to its id
                self._run = self._start(wandb, run, folder, "offline", f"{identity}-{secrets.token_hex(2)}")

    def _start(self, wandb: Any, run: RunInfo, folder: pathlib.Path, mode: str, identity: str) -> Any:
        return wandb.init(
            project=self._project or os.environ.get("WANDB_PROJECT", "mjxlab"),
            name=run.name,
            id=identity,
            resume="allow" if mode == "online" else None,
            dir=str(folder),
            config=run.config if isinstance(run.config, dict) else None,
            mode=mode,
            settings=wandb.Settings(init_timeout=self._timeout, silent=True, console="off"),
        )

    def write(self, step: int, metrics: dict[str, Any]) -> None:
        if self._run is not None:
            finite = {k: v for k, v in metrics.items() if isinstance(v, int | float)}
            self._run.log(finite, step=step)

    def close(self) -> None:
        run, self._run = self._run, None
        if run is not None:
            run.finish()


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """W&B prints on standard error, among our own lines."""
    log, before = logging.getLogger("wandb"), os.environ.get("WANDB_SILENT")
    level = log.level
    log.setLevel(logging.CRITICAL)
    os.environ["WANDB_SILENT"] = "true"
    try:
        yield
    finally:
        log.setLevel(level)
        if before is None:
            del os.environ["WANDB_SILENT"]
        else:
            os.environ["WANDB_SILENT"] = before


def _logged_in(wandb: Any) -> bool:
    return bool(os.environ.get("WANDB_API_KEY") or getattr(wandb.api, "api_key", None))


NAMES = ("console", "jsonl", "csv", "tensorboard", "wandb")


def make(kind: str | Sink) -> Sink:
    """A sink by name (``console jsonl csv tensorboard wandb``), or the object itself."""
    if isinstance(kind, Sink):
        return kind
    if kind == "console":
        from mjxlab.console import Console

        return Console()
    made: dict[str, Callable[[], Sink]] = {"jsonl": JSONL, "csv": CSV, "tensorboard": TensorBoard, "wandb": WandB}
    if kind not in made:
        raise UnknownNameError(f"sinks: got {kind!r}, expected some of {', '.join(NAMES)}")
    return made[kind]()


class Sinks:
    """All sinks of a run behind one. Views that fail are dropped with one line; files that fail raise."""

    def __init__(self, kinds: Sequence[str | Sink]) -> None:
        if isinstance(kinds, str):
            raise ConfigError(f"sinks: got {kinds!r}, expected a tuple such as ({kinds!r},)")
        self.all = [make(kind) for kind in kinds]
        self._views = tuple(s for s in self.all if isinstance(s, TensorBoard | WandB))

    def _each(self, action: Callable[[Sink], None]) -> None:
        for sink in list(self.all):
            if sink not in self._views:
                action(sink)
                continue
            try:
                action(sink)
            except ConfigError:
                raise
            except Exception as error:  # whatever a library raises, it is not worth the run
                self.all.remove(sink)
                text = " ".join(str(error).split())[:160] or type(error).__name__
                self.message(f"warning: {type(sink).__name__} failed and was switched off ({text}); training goes on")

    def open(self, run: RunInfo) -> None:
        """Open all."""
        run = dataclasses.replace(run, tell=self.message)
        self._each(lambda sink: sink.open(run))

    def write(self, step: int, metrics: dict[str, Any]) -> None:
        """One row to all."""
        self._each(lambda sink: sink.write(step, metrics))

    def flush(self, sync: bool = False) -> None:
        """Flush all."""
        self._each(lambda sink: sink.flush(sync))

    def message(self, text: str) -> None:
        """One line to those that show lines; to the ``mjxlab`` logger if none does (warnings as such, the rest as info)."""
        told = [s for s in self.all if type(s).message is not Sink.message]
        for sink in told:
            sink.message(text)
        if not told:
            level = logging.WARNING if text.startswith("warning: ") else logging.INFO
            logging.getLogger("mjxlab").log(level, text.removeprefix("warning: "))

    def close(self) -> None:
        """Close all, whatever happens; the first error is raised when all are closed."""
        first: Exception | None = None
        for sink in self.all:
            try:
                sink.close()
            except WorkLostError as error:
                first = first or error
            except Exception as error:
                self.message(f"warning: {type(sink).__name__} could not be closed ({error})")
        if first is not None:
            raise first


def shown(value: Any) -> str:
    """A number for people: ``0.0123``, ``1,234,567``, ``123.4``."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    if isinstance(value, int):
        return f"{value:,}"
    if not math.isfinite(value):
        return str(value)
    size = abs(value)
    if size >= 1000:
        return f"{value:,.0f}"
    if size >= 100:
        return f"{value:.1f}"
    return f"{value:.3g}" if size < 1 else f"{value:.2f}"
