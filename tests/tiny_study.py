"""A study whose cells take their time, for tests that stop it, and functions for cells that misbehave."""

from __future__ import annotations

import dataclasses
import os
import pathlib
import signal
import time

import numpy as np

from mjxlab.errors import ConfigError
from mjxlab.study import Criterion, Result, Row, Study


@dataclasses.dataclass(frozen=True)
class Inner:
    scale: float = 1.0
    sizes: tuple[int, ...] = (1, 2)


@dataclasses.dataclass(frozen=True)
class Config:
    log: str = ""
    pause: float = 0.0
    methods: tuple[str, ...] = ("good", "bad")
    inner: Inner = Inner()
    break_row: bool = False


def cell(method: str, seed: int, log: str, pause: float) -> dict[str, float]:
    """Leaves a line in ``log`` for every time that it is computed."""
    if log:
        with pathlib.Path(log).open("a") as file:
            file.write(f"{method} {seed}\n")
    time.sleep(pause)
    value = np.random.default_rng(seed).normal() / 3 + (method == "good")
    return {"score": value, "nothing": float("nan")}


def run(config, budget, seeds, cells) -> Result:
    scores = {
        method: [
            cells(f"{method} {seed}", cell, method=method, seed=seed, log=config.log, pause=config.pause)["score"]
            for seed in seeds
        ]
        for method in config.methods
    }
    rows = [Row.of(method, "score", values, "only") for method, values in scores.items()]
    if config.break_row:
        rows[0] = dataclasses.replace(rows[0], mean=float("nan"))
    return Result(tuple(rows), {"wins": np.mean(scores["good"]) > np.mean(scores.get("bad", 0)), "odd": None})


STUDY = Study(
    name="tiny",
    claim="good is better than bad",
    criteria=(Criterion("wins", "the mean is larger"), Criterion("odd", "is never judged", required=False)),
    run=run,
    config=lambda budget: Config(),
    seeds={"smoke": (0,), "cpu": (0, 1, 2), "full": (0, 1, 2, 3)},
    expects=lambda config: [("only", "good", "score"), ("only", "bad", "score")],
)


def refuse(value: int) -> None:
    raise ConfigError(f"value: got {value}, expected another")


def crash(value: int) -> None:
    raise ZeroDivisionError(f"{value}")


def die(value: int) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def echo(**things):
    return things
