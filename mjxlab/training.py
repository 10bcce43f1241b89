"""The machinery of ``fit``: phases of updates on a mesh, with evaluations, metrics, checkpoints and signals."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import pathlib
import signal
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from mjxlab import batches as feeds
from mjxlab import cache, checkpoint, runs, spmd
from mjxlab.configs import to_json
from mjxlab.errors import CheckpointError, ConfigError, WorkLostError
from mjxlab.history import History, Row, read_rows
from mjxlab.learner import Learner
from mjxlab.memory import refuse_if_larger, tree_bytes
from mjxlab.program import Evaluation, Updates, compile_once
from mjxlab.report import Report, header
from mjxlab.sinks import RunInfo, Sink

SECONDS_PER_CALL = 2.0  # what the number of updates in a call aims at
_ENTER, _INIT, _EVAL = 2**32 - 3, 2**32 - 2, 2**32 - 1  # no update has such a number


def update_key(key: jax.Array, update: int) -> jax.Array:
    """The key of update number ``update`` (from 0) of a run."""
    return jax.random.fold_in(key, update)


def init_key(key: jax.Array) -> jax.Array:
    """The key that a run's ``learner.init`` is given."""
    return jax.random.fold_in(key, _INIT)


def evaluation_key(key: jax.Array, step: int) -> jax.Array:
    """The key of the evaluation after ``step`` updates: another one each time."""
    return jax.random.fold_in(jax.random.fold_in(key, _EVAL), step)


@dataclasses.dataclass(frozen=True)
class Phase:
    """A stretch of a run with one learner.

    Attributes:
      name: for people, and for checkpoints.
      learner: its ``init`` is used in the first phase only.
      steps: number of updates.
      enter: ``enter(state, key) -> state``, at the start, from the phase before; None: the state goes on as it is.
      batches, evaluate: as for ``fit``.
    """

    name: str
    learner: Learner
    steps: int
    enter: Callable[[Any, Any], Any] | None = None
    batches: feeds.Batches | None = None
    evaluate: Callable[[Any, Any], dict[str, Any]] | None = None


@dataclasses.dataclass(frozen=True)
class Settings:
    """All that ``fit`` was told besides the phases; see there."""

    key: jax.Array
    evaluate_every: int | None = None
    run_dir: str | os.PathLike[str] | None = None
    config: Any = None
    env: Any = None
    env_options: dict[str, Any] | None = None
    agent: str | None = None
    sinks: Sequence[str | Sink] | None = None
    checkpoint_every: int | None = None
    checkpoint_seconds: float | None = 300.0
    keep: int = 3
    updates_per_call: int | None = None
    log_every: int = 1
    devices: Any = None
    resume: str | int = "auto"
    state: Any = None
    matmul_precision: str = "float32"
    until: Callable[[dict[str, Any]], bool] | None = None


class _Signals:
    """While active, the first SIGTERM or SIGINT is only noted; a second SIGINT interrupts at once."""

    def __init__(self) -> None:
        self.seen: str | None = None

    def __enter__(self) -> _Signals:
        self._old: dict[int, Any] = {}
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT):
                self._old[number] = signal.signal(number, self._note)
        return self

    def _note(self, number: int, frame: Any) -> None:
        if self.seen is not None and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.seen = signal.Signals(number).name
        if number == signal.SIGINT:  # not by print, which the signal may have interrupted
            os.write(2, b"\nstopping after this call; once more to leave at once, unsaved\n")

    def __exit__(self, *_: object) -> None:
        for number, handler in self._old.items():
            signal.signal(number, handler)


class Training:
    """One call of ``fit``."""

    def __init__(self, phases: Sequence[Phase], settings: Settings) -> None:
        self.phases, self.settings, self.key = phases, settings, settings.key
        self.ends = np.cumsum([phase.steps for phase in phases]).tolist()
        self.cache = cache.enable()
        self.mesh = spmd.make_mesh(settings.devices)
        default = ("console", "jsonl") if settings.run_dir is not None else ("console",)
        self.report = Report(default if settings.sinks is None else settings.sinks, settings.log_every)
        self.history = self.report.history
        self.last_saved: int | None = None
        self.run: runs.Run | None = None
        self.saver: checkpoint.Saver | None = None
        self.manifest: dict[str, Any] | None = None
        self.stopped = False
        self._held = contextlib.ExitStack()  # the run folder

    # --- start -------------------------------------------------------------------------------------------------------

    def execute(self) -> tuple[Any, History]:
        """Start or resume, train, and leave everything in order."""
        with self._held:
            return self._execute()

    def _execute(self) -> tuple[Any, History]:
        settings = self.settings
        step, notes = self._open_run()
        with jax.default_matmul_precision(settings.matmul_precision), _Signals() as self.signals:
            index, state, saved_batches = self._first_state(step)
            try:
                self._open_sinks(step, notes)
                state = self._phases(index, state, step, saved_batches)
                self._draw()
            finally:
                self._close()
            self.history.interrupted = self.signals.seen if self.stopped else None
        return state, self.history

    def _open_run(self) -> tuple[int | None, list[str]]:
        """The step to go on from (None: from the start), and lines to tell once the console is open."""
        settings = self.settings
        if settings.run_dir is None:
            return None, []
        folder = pathlib.Path(settings.run_dir)
        self.record = self._record()
        started = spmd.on_main(lambda: runs.Run.start(folder, self.record))
        self.run = run = started or runs.Run(folder, self.record)
        spmd.on_main(lambda: self._held.enter_context(run.hold()))
        self.saver = checkpoint.Saver(self.run.checkpoints, keep=settings.keep)
        self.history.folder = str(folder)
        found = spmd.on_main(self._find_checkpoint) or (-1, [])
        step = int(spmd.agree([found[0]])[0, 0])
        return (None if step < 0 else step), found[1]

    def _find_checkpoint(self) -> tuple[int, list[str]]:
        assert self.run is not None
        there, resume = checkpoint.steps(self.run.checkpoints), self.settings.resume
        if resume == "never" and there:
            raise ConfigError(
                f"resume: got 'never', but {self.run.folder} holds checkpoints up to step {there[-1]}; "
                "expected a new folder, or resume='auto'"
            )
        if isinstance(resume, int):
            self.manifest = checkpoint.verify(self.run.checkpoints / str(resume))
            self.run.check(resume, self.manifest["meta"])
            return resume, []
        step, self.manifest, complaints = checkpoint.newest_intact(self.run.checkpoints)
        if step is not None and self.manifest is not None:
            self.run.check(step, self.manifest["meta"])
            return step, [f"warning: {line}; going on from the newest intact one, {step}" for line in complaints]
        if complaints:
            raise CheckpointError(
                f"{complaints[0]}; there is no intact one (remove {self.run.checkpoints} to start anew)"
            )
        if resume == "must":
            raise CheckpointError(f"{self.run.checkpoints}: holds no checkpoint, expected one as resume is 'must'")
        return -1, []

    def _record(self) -> dict[str, Any]:
        settings = self.settings
        env = settings.env
        name = env if isinstance(env, str) or env is None else getattr(env, "name", type(env).__name__)
        engine = getattr(env, "engine", None)
        return {
            "format": runs.FORMAT,
            "agent": settings.agent,
            "env": name,
            "env_options": to_json(settings.env_options or {}),
            "engine": getattr(engine, "kind", engine),
            "reset": getattr(settings.config, "reset", None),
            "config": to_json(settings.config),
            "key": _key_json(self.key),
            "steps": self.ends[-1],
            "matmul_precision": settings.matmul_precision,
            "x64": bool(jax.config.jax_enable_x64),
        }

    def _first_state(self, step: int | None) -> tuple[int, Any, Any]:
        """The phase to be in, its state on the mesh, and the saved position of its batches."""
        first = self.phases[0].learner
        key = init_key(self.key)
        device = self.mesh.local_mesh.devices.flat[0]
        with jax.default_device(device):
            if self.settings.state is not None:
                made, shapes = None, jax.eval_shape(lambda: self.settings.state)
            else:
                made = jax.jit(first.init).trace(key)
                shapes = _strong(made.out_info)
            self._check_memory(shapes)
            if step is not None:
                assert self.run is not None
                index = int(spmd.agree([self.manifest["meta"]["phase"] if self.manifest else 0])[0, 0])
                if index >= len(self.phases):
                    raise CheckpointError(f"checkpoint {step}: is of phase {index}, there are {len(self.phases)}")
                for i, phase in enumerate(self.phases[1 : index + 1], 1):
                    if phase.enter is not None:
                        shapes = _strong(jax.eval_shape(phase.enter, shapes, self._enter_key(i)))
                restored = checkpoint.restore(self.run.checkpoints, shapes, step, manifest=self.manifest)
                self.last_saved = step
                rows = read_rows(self.run.metrics, until=step)[0] if spmd.is_main() else []
                self.report.resume(rows, restored.meta["seconds"], restored.meta["env_steps"])
                return index, self._place(restored.state), feeds.decode(restored.meta["batches"])
            whole = self.settings.state if made is None else compile_once(made)(key)
        return 0, self._place(whole), None

    def _place(self, state: Any) -> Any:
        specs = spmd.partition_specs(state)
        spmd.check_divisible(state, specs, self.mesh.size)
        return spmd.place(state, self.mesh, specs, fresh=True)

    def _enter_key(self, index: int) -> jax.Array:
        return jax.random.fold_in(jax.random.fold_in(self.key, _ENTER), index)

    def _check_memory(self, shapes: Any) -> None:
        specs = jax.tree.leaves(spmd.partition_specs(shapes), is_leaf=lambda x: isinstance(x, jax.P))
        split = tree_bytes([x for x, s in zip(jax.tree.leaves(shapes), specs, strict=True) if spmd.AXIS in s])
        whole = tree_bytes(shapes) - split
        self.bytes = (whole, split)
        refuse_if_larger(
            {"replicated": whole * self.mesh.size, "split over devices": split}, "the training state", "its size"
        )

    def _open_sinks(self, step: int | None, notes: list[str]) -> None:
        record, start = self._record(), step or 0
        lines = header(record, self.mesh.size, self.bytes, self.cache)
        if self.run is not None:
            lines.append(f"run folder {self.run.folder}" + (f" · goes on from step {start:,}" if start else ""))
        name = " on ".join(str(x) for x in (self.settings.agent, record["env"]) if x) or "training"
        folder = self.run.folder if self.run else None
        self.report.open(RunInfo(name, folder, step, self.ends[-1], lines, record["config"]), notes)
        if self.run is not None:
            run = self.run
            spmd.on_main(lambda: run.started(start, {**runs.machine(), "devices_used": self.mesh.size}))

    # --- the loop ----------------------------------------------------------------------------------------------------

    def _phases(self, index: int, state: Any, start: int | None, saved_batches: Any) -> Any:
        step = start or 0
        if step >= self.ends[-1]:
            self.report.message(f"the run has its {self.ends[-1]:,} updates already; ask for more steps to go on")
        for i in range(index, len(self.phases)):
            phase, end = self.phases[i], self.ends[i]
            if i > index:
                if phase.enter is not None:
                    state = self._enter(phase.enter, state, i)
                self.report.message(f"phase {phase.name} begins at step {step:,}")
                saved_batches = None
            state, step = self._phase(i, phase, state, step, end, saved_batches)
            if self.stopped:
                break
        if self.saver is not None and step != self.last_saved:
            self._save(i, state, step)
        if self.saver is not None:
            spmd.on_main(self.saver.wait)
        if self.signals.seen and self.stopped:
            kept = (
                f", saved in {self.run.checkpoints / str(step)}" if self.run else ", not saved as there is no run_dir"
            )
            self.report.message(f"{self.signals.seen}: stopped at step {step:,}{kept}")
        return state

    def _enter(self, enter: Callable[[Any, Any], Any], state: Any, index: int) -> Any:
        host = jax.tree.map(_as_keys, spmd.to_host(state), state)
        with jax.default_device(self.mesh.local_mesh.devices.flat[0]):
            key = self._enter_key(index)
            return self._place(compile_once(jax.jit(enter).trace(host, key))(host, key))

    def _phase(self, i: int, phase: Phase, state: Any, step: int, end: int, saved_batches: Any) -> tuple[Any, int]:
        settings, begin = self.settings, end - phase.steps
        if step >= end:
            return state, step
        feed = feeds.Feed(phase.batches)
        feed.seek(step - begin, saved_batches)
        self.feed = feed
        self.report.message("compiling …")
        before = cache.programs()
        updates = Updates(
            phase.learner,
            self.mesh,
            state,
            key=self.key,
            batch=feed.first(),
            capacity=settings.updates_per_call,
            precision=settings.matmul_precision,
        )
        evaluation = None
        if phase.evaluate is not None:
            evaluation = Evaluation(phase.evaluate, self.mesh, state, key=self.key, precision=settings.matmul_precision)
        spent = updates.compile_seconds + (evaluation.compile_seconds if evaluation else 0.0)
        self.history.compile_seconds += spent
        self.history.traces += updates.traces
        self.report.message(f"compiled in {spent:.1f} s ({cache.programs() - before})")
        every = settings.evaluate_every or max(self.ends[-1] // 20, 1)
        if evaluation is not None and step == 0 and self.last_saved is None:
            self._evaluate(evaluation, state, step)
        if self._done(self.report.last):  # a run that until() had ended
            return state, step
        pace = min(settings.updates_per_call or 1, updates.capacity)
        saved_at = time.monotonic()
        while step < end:
            count = min(pace, end - step)
            for boundary in (every if evaluation else None, settings.checkpoint_every if self.saver else None):
                if boundary:
                    count = min(count, boundary - step % boundary)
            late = settings.checkpoint_seconds is not None and time.monotonic() - saved_at > settings.checkpoint_seconds
            told = spmd.agree([count, self.signals.seen is not None, late])
            count = int(told[0, 0])
            if told[:, 1].any():
                self.stopped = True
                self.signals.seen = self.signals.seen or "SIGTERM"
                break
            begun = time.perf_counter()
            state, metrics, finite = updates(state, self.key, step, count, feed.take(count))
            took = time.perf_counter() - begun
            step += count
            self.report.updates(metrics, count, step, took)
            self.report.watch(updates.checked, finite)
            if settings.updates_per_call is None:
                # in steps, as the first calls also pay for warming up
                pace = max(1, min(updates.capacity, 4 * pace, int(SECONDS_PER_CALL * count / max(took, 1e-6))))
            row = None
            if evaluation is not None and (step % every == 0 or step == end):
                row = self._evaluate(evaluation, state, step)
            self.report.flush()
            due = settings.checkpoint_every and step % settings.checkpoint_every == 0
            if self.saver is not None and (due or told[0, 2]):
                self._save(i, state, step)
                saved_at = time.monotonic()
            if row is not None and self._done(row):
                break
        return state, step

    def _done(self, row: Row) -> bool:
        until = self.settings.until
        if until is not None and any(name.startswith("eval/") for name in row) and until(row):
            self.stopped = True
            self.report.message(f"step {row['step']:,}: until() holds, training ends here")
        return self.stopped

    def _evaluate(self, evaluation: Evaluation, state: Any, step: int) -> Row:
        begun = time.perf_counter()
        metrics = evaluation(state, evaluation_key(self.key, step))
        return self.report.evaluation(metrics, step, time.perf_counter() - begun)

    def _save(self, index: int, state: Any, step: int) -> None:
        assert self.saver is not None
        self.report.flush(sync=True)
        config = to_json(self.settings.config)
        meta = {
            "phase": index,
            "phase_name": self.phases[index].name,
            "config": config,
            "fingerprint": checkpoint.fingerprint(config),
            "key": _key_json(self.key),
            "batches": feeds.encode(self.feed.state()) if hasattr(self, "feed") else None,
            "seconds": self.report.seconds,
            "env_steps": self.report.env_steps,
        }
        self.saver.save(step, state, meta=meta)
        self.last_saved = step

    def _draw(self) -> None:
        self.history.finish()
        if self.run is None or not spmd.is_main():
            return
        from mjxlab import plots

        try:
            plots.curve(self.history, self.run.curve, title=self.run.folder.name)
        except WorkLostError:
            raise
        except Exception as error:  # a picture is not worth a run
            self.report.message(f"warning: {self.run.curve.name} could not be drawn ({error})")

    def _close(self) -> None:
        with contextlib.ExitStack() as stack:
            if self.saver is not None:
                stack.callback(self.saver.close)
            stack.callback(self.report.sinks.close)


# --- small things --------------------------------------------------------------------------------------------------------


def _strong(shapes: Any) -> Any:
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), shapes)


def _as_keys(host: np.ndarray, was: Any) -> Any:
    """Typed keys again, from what ``to_host`` made of them."""
    return jax.random.wrap_key_data(jnp.asarray(host), impl=jax.random.key_impl(was)) if spmd.is_key(was) else host


def _key_json(key: jax.Array) -> dict[str, Any]:
    return {"data": np.asarray(jax.random.key_data(key)).tolist(), "impl": str(jax.random.key_impl(key))}
