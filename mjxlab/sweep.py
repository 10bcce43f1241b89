"""Sweeps: many seeds and settings of one agent on one environment.

Settings that differ in float fields alone run together with all seeds in one program (``mjxlab.seeds``). Static fields
(widths, numbers of worlds, choices) make another program each, and these may be spread over processes. Every program is
a cell (``mjxlab.cells``), so that a sweep that was stopped goes on.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from mjxlab import catalogue, stats
from mjxlab.cells import Cell, Cells, write_json
from mjxlab.configs import from_json, to_json
from mjxlab.errors import ConfigError
from mjxlab.seeds import tail, train_many

#: what a run is judged by, the first one that it measures; larger is better
METRICS = ("reached", "success", "episode_return")
RECORD = "sweep.json"


@dataclasses.dataclass(frozen=True)
class Setting:
    """One point of the grid.

    Attributes:
      values: of the fields that are swept.
      scores: one a seed: the mean of the metric over the last 15 % of training.
      evaluation: by name, one a seed, of the trained policies; empty without an evaluation.
      curve: [seeds, updates] of the metric.
    """

    values: dict[str, Any]
    scores: list[float]
    evaluation: dict[str, list[float]]
    curve: np.ndarray


@dataclasses.dataclass(frozen=True)
class Sweep:
    """What ``sweep`` returns: the settings in the order of the grid, and the metric that they were judged by."""

    settings: list[Setting]
    metric: str
    seeds: tuple[int, ...]
    programs: int

    def best(self) -> Setting:
        """The setting with the highest mean score; one without a finite score is the worst."""
        return max(self.settings, key=lambda s: -math.inf if np.isnan(np.mean(s.scores)) else np.mean(s.scores))

    def record(self) -> dict[str, Any]:
        """For ``results.json``."""
        rows = []
        for setting in self.settings:
            found = stats.mean_interval(setting.scores)
            rows.append(
                {
                    "setting": setting.values,
                    "mean": found.mean,
                    "interval_95": [found.low, found.high],
                    "scores": setting.scores,
                    "evaluation": setting.evaluation,
                }
            )
        return {"metric": self.metric, "seeds": list(self.seeds), "programs": self.programs, "settings": rows}


def sweep(
    agent: str,
    env_name: str,
    *,
    seeds: Sequence[int],
    grid: Mapping[str, Sequence[Any]],
    updates: int,
    fixed: Mapping[str, Any] | None = None,
    env_options: Mapping[str, Any] | None = None,
    episodes: int = 0,
    metric: str | None = None,
    out: str | pathlib.Path | None = None,
    workers: int = 1,
    tell: Callable[[str], None] | None = None,
) -> Sweep:
    """Every combination of the grid's values with every seed.

    Args:
      agent, env_name: by name.
      seeds: of each setting.
      grid: values by field of the agent's config.
      updates: of each run.
      fixed: other fields to set.
      env_options: for ``mjxlab.make``.
      episodes: of an evaluation at the end; 0: none.
      metric: what to judge by; ``METRICS`` says the default.
      out: folder for the cells; None: nothing is kept.
      workers: processes.
      tell: takes lines of progress.

    Raises:
      ConfigError: an argument or a value that cannot work. UnknownNameError: no such agent or environment.
    """
    from mjxlab import envs

    module = catalogue.system(agent).load()
    envs.spec(env_name)
    if not seeds or len(set(seeds)) != len(seeds):
        raise ConfigError(f"seeds: got {list(seeds)}, expected different ones, at least one")
    if out is not None:
        _start(pathlib.Path(out), {"agent": agent, "env": env_name})
    base = module.config_for(env_name)
    points = [dict(zip(grid, combination, strict=True)) for combination in itertools.product(*grid.values())]
    configs = [_config(base, {**(fixed or {}), **point}) for point in points]
    groups: dict[Any, list[int]] = {}
    for i, config in enumerate(configs):
        groups.setdefault(jax.tree.structure(config), []).append(i)  # static fields are part of the structure
    shared = {
        "agent": agent,
        "env_name": env_name,
        "env_options": dict(env_options or {}),
        "seeds": list(seeds),
        "updates": updates,
        "episodes": episodes,
        "metric": metric,
    }
    jobs = [
        Cell(f"{agent}-{env_name}-{number}", run_group, shared | {"configs": [to_json(configs[i]) for i in members]})
        for number, members in enumerate(groups.values())
    ]
    found = Cells(out, {"sweep": 1}, workers=workers, tell=tell).all(jobs)
    settings: list[Any] = [None] * len(points)
    for members, group in zip(groups.values(), found, strict=True):
        for i, own in zip(members, group["settings"], strict=True):
            curve = np.asarray(own["curve"], np.float64)
            settings[i] = Setting(points[i], tail(curve).tolist(), own["evaluation"], curve)
    return Sweep(settings, found[0]["metric"], tuple(seeds), len(groups))


def run_group(
    agent: str,
    env_name: str,
    env_options: dict[str, Any],
    configs: list[dict[str, Any]],
    seeds: list[int],
    updates: int,
    episodes: int,
    metric: str | None,
) -> dict[str, Any]:
    """One cell: all settings of one program with all seeds."""
    from mjxlab import envs

    module = catalogue.system(agent).load()
    kind = type(module.config_for(env_name))
    made = [from_json(kind, to_json(config)) for config in configs]
    env = envs.make(env_name, **env_options)
    pairs = [(config, seed) for config in made for seed in seeds]
    trained = train_many(module.make, env, [c for c, _ in pairs], [s for _, s in pairs], updates, episodes=episodes)
    name = metric or next((m for m in METRICS if m in trained.metrics), None)
    if name not in trained.metrics:
        raise ConfigError(f"metric: got {name!r}, expected one of {', '.join(sorted(trained.metrics))}")
    curves = np.asarray(trained.metrics[name], np.float64).reshape(len(made), len(seeds), updates)
    evaluation = {k: np.asarray(v, np.float64).reshape(len(made), len(seeds)) for k, v in trained.evaluation.items()}
    return {
        "metric": name,
        "settings": [
            {"curve": curves[i], "evaluation": {k: v[i].tolist() for k, v in evaluation.items()}}
            for i in range(len(made))
        ],
    }


def _config(base: Any, values: Mapping[str, Any]) -> Any:
    """``base`` with some fields set, each checked for its type and then by the config itself."""
    data = to_json(base)
    for name in values:
        if name not in data:
            raise ConfigError(f"{name}: {type(base).__name__} has no such field, expected one of {', '.join(data)}")
    made = from_json(type(base), data | {name: to_json(value) for name, value in values.items()})
    made.validate()
    return made


def _start(folder: pathlib.Path, identity: dict[str, str]) -> None:
    """Make the folder, or see that it is of a sweep of the same agent and environment."""
    file = folder / RECORD
    try:
        if folder.exists() and not folder.is_dir():
            raise ConfigError(f"out: {folder} is a file, expected a folder")
        if file.exists():
            found = json.loads(file.read_text())
            if found != identity:
                raise ConfigError(f"out: {folder} holds a sweep of {found}, expected {identity} or a new folder")
            return
        if folder.is_dir() and any(folder.iterdir()):
            raise ConfigError(f"out: {folder} holds other files and no {RECORD}, expected a new or empty folder")
    except json.JSONDecodeError:
        raise ConfigError(f"out: {file} cannot be read, expected JSON") from None
    except OSError as error:
        raise ConfigError(f"out: {folder} cannot be read ({error.strerror}), expected a folder") from None
    write_json(file, identity)
