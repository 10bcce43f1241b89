"""Measure tasks against their rivals; what comes out is plain data, ready for ``json``."""

from __future__ import annotations

import json
import os
import pathlib
import statistics
from collections.abc import Callable, Sequence
from typing import Any

from mjxlab.bench import venvs
from mjxlab.bench.ours import Ours
from mjxlab.bench.pairs import Speed, interleave, quartiles
from mjxlab.bench.tasks import Rival, Task
from mjxlab.bench.worker import Worker, WorkerError, script
from mjxlab.runs import machine

SCHEMA = 1
Tell = Callable[[str], None]


def bench(
    tasks: Sequence[Task],
    *,
    columns: Sequence[str],
    folder: pathlib.Path | None,
    rivals: Sequence[str] | None = None,
    pairs: int = 10,
    seconds: float = 1.0,
    timeout: float = 300.0,
    engine: str = "auto",
    seeds: Sequence[int] = (),
    env_steps: int = 200_000,
    tell: Tell = print,
) -> dict[str, Any]:
    """All tasks, one after the other.

    Args:
      tasks: see ``tasks``.
      columns: of ``tasks.COLUMNS``.
      folder: where the rivals' virtual environments lie (``venvs.build``); None: no rival is there.
      rivals: names; None: all.
      pairs: interleaved pairs per ratio. seconds: of each half of a pair.
      timeout: seconds a rival may take to start or to compile.
      engine: of our physics.
      seeds: if any, returns after ``env_steps`` steps of training are compared as well, where the rival can.
      tell: gets a line for each thing done.

    Returns:
      ``{"schema", "machine", "cores", "pairs", "seconds", "tasks": […]}``; each task has ours, each rival either
      ``columns`` with every pair or the ``reason`` why it was not compared.
    """
    found = [
        _task(task, columns, folder, rivals, pairs, seconds, timeout, engine, seeds, env_steps, tell) for task in tasks
    ]
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return {
        "schema": SCHEMA,
        "machine": machine(),
        "cores": cores,
        "pairs": pairs,
        "seconds": seconds,
        "tasks": found,
    }


def failures(result: dict[str, Any]) -> list[str]:
    """Rivals that are installed and failed all the same, one line each."""
    return [
        rival["reason"]
        for task in result["tasks"]
        for rival in task["rivals"]
        if rival["installed"] and rival["reason"]
    ]


def _task(
    task: Task,
    columns: Sequence[str],
    folder: pathlib.Path | None,
    names: Sequence[str] | None,
    pairs: int,
    seconds: float,
    timeout: float,
    engine: str,
    seeds: Sequence[int],
    env_steps: int,
    tell: Tell,
) -> dict[str, Any]:
    ours = Ours(task, engine)
    speeds: dict[str, list[Speed]] = {column: [] for column in columns}
    returns: dict[str, Any] = {}
    found = []
    for rival in task.rivals:
        if names is not None and rival.name not in names:
            continue
        record: dict[str, Any] = {"name": rival.name, "env": rival.env, "alike": rival.alike, "versions": {}}
        record |= {"columns": {}, "compile": {}, "reason": "", "installed": False}
        found.append(record)
        python = venvs.python_of(folder, rival.name)
        if python is None:
            where = "no folder was given (--venvs)" if folder is None else f"not in {folder}"
            record["reason"] = f"{rival.name}: its virtual environment is missing: {where}"
            tell(f"{task.name}: not compared: {record['reason']}")
            continue
        record["installed"] = True
        try:
            with Worker(rival.name, _command(python, task, rival), timeout=timeout) as worker:
                record["versions"] = worker.versions
                for column in [c for c in columns if c in rival.columns]:
                    done = interleave(
                        lambda c=column: ours.measure(c, seconds),  # type: ignore[misc]
                        lambda c=column, w=worker: w.measure(c, seconds),  # type: ignore[misc]
                        pairs,
                    )
                    speeds[column] += done.ours
                    record["columns"][column] = done.to_json()
                    record["compile"] = dict(worker.compiled)
                    tell(f"{task.name} {column}: ours / {rival.name} = {done.ratio} over {pairs} pairs")
                if seeds and rival.name == "rejax":
                    theirs = [
                        worker.ask({"measure": "return", "env_steps": env_steps, "seed": s}, 600.0) for s in seeds
                    ]
                    record["returns"] = theirs
        except WorkerError as error:
            record["reason"] = str(error)
            tell(f"{task.name}: not compared: {error}")
    for column in columns:
        if not speeds[column]:  # nobody to take turns with
            ours.measure(column, seconds)
            speeds[column] = [ours.measure(column, seconds) for _ in range(pairs)]
    if seeds:
        returns = {"env_steps": env_steps, "seeds": list(seeds), "ours": [ours.learned(env_steps, s) for s in seeds]}
    return {
        "task": task.name,
        "env": task.env,
        "sizes": task.sizes,
        **ours.about(),
        "ours": {
            column: {
                "steps_per_second": statistics.median(s.per_second for s in some),
                "quartiles": [*vars(quartiles([s.per_second for s in some])).values()],
                "compile": ours.compiled[column],
            }
            for column, some in speeds.items()
        },
        "rivals": found,
        "returns": returns,
    }


def _command(python: pathlib.Path, task: Task, rival: Rival) -> list[str]:
    settings = task.sizes | {"env": rival.env} | rival.extra
    path = script(rival.script or rival.name)
    return [os.fspath(python), os.fspath(path.with_name("_start.py")), os.fspath(path), json.dumps(settings)]
