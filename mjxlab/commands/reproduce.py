"""``mjxlab reproduce``."""

from __future__ import annotations

import dataclasses
import pathlib
from typing import Annotated, Literal

import tyro

from mjxlab.commands.parse import parse
from mjxlab.errors import ConfigError


@dataclasses.dataclass
class Options:
    """Run a study: the table, each criterion, results.json and a plot. The same command goes on with one that was stopped.

    Exit code 0: all required criteria hold; 1: one does not; 2: usage error. `mjxlab list studies` names them.

    examples: mjxlab reproduce cppo | mjxlab reproduce cppo --budget smoke | mjxlab reproduce cppo --seeds 3 4 5
    """

    name: Annotated[str, tyro.conf.Positional]
    """The study; module:NAME for one of your own."""
    budget: Literal["smoke", "cpu", "full"] = "cpu"
    """smoke: does every part run? (judges nothing); cpu: up to an hour and a half on two cores; full: for accelerators."""
    seeds: tuple[int, ...] | None = None
    """Seeds; those of the budget by default. Results of other seeds in the folder are printed beside."""
    set: tuple[str, ...] = ()
    """Fields of the study's config, NAME=VALUE."""
    out: pathlib.Path | None = None
    """Folder; runs/study-NAME-BUDGET by default."""
    workers: int | None = None
    """Processes; on a CPU two where there are as many cores, else one."""


def main(words: list[str]) -> int:
    """Run the study; returns the exit code."""
    options = parse(Options, words, "reproduce")
    from mjxlab import catalogue
    from mjxlab.configs import check_seed
    from mjxlab.study import configure, reproduce

    for seed in options.seeds or ():
        check_seed(seed, "seeds")
    study = catalogue.study(options.name)
    default = study.config(options.budget)
    outcome = reproduce(
        study,
        budget=options.budget,
        seeds=options.seeds,
        config=configure(default, options.set),
        out=options.out,
        workers=default_workers(options.workers),
        tell=lambda line: print(line, flush=True),
    )
    return outcome.code


def default_workers(asked: int | None) -> int:
    """As asked; else two on a CPU with as many cores. An accelerator's memory is not shared between processes."""
    if asked is not None:
        if asked < 1:
            raise ConfigError(f"workers: got {asked}, expected at least 1")
        return asked
    import os

    import jax

    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(2, cores) if jax.default_backend() == "cpu" else 1
