"""``mjxlab bench``."""

from __future__ import annotations

import dataclasses
import pathlib
from typing import Annotated

import tyro

from mjxlab.commands.parse import parse
from mjxlab.errors import ConfigError


@dataclasses.dataclass
class Options:
    """Speed side by side: environment alone, with a policy, with learning; ours, and rivals in their own environments.

    Ratios are medians over interleaved pairs, with quartiles. Tasks with rivals: cartpole, ant, cartpole_physics; any other
    environment is measured alone. Exit code 1: an installed rival failed (one that is missing is "not compared").

    examples: mjxlab bench --build-venvs ~/rivals | mjxlab bench cartpole --venvs ~/rivals --out bench.json |
    mjxlab bench cartpole --venvs ~/rivals --rivals rejax --columns training --seeds 0 1 2
    """

    tasks: Annotated[tuple[str, ...], tyro.conf.Positional] = ()
    """Tasks, or names of environments; cartpole and ant by default."""
    venvs: pathlib.Path | None = None
    """The folder of the rivals' virtual environments."""
    build_venvs: pathlib.Path | None = None
    """Build them in this folder (of --rivals, or all), and do nothing else."""
    rivals: tuple[str, ...] | None = None
    """Only these."""
    columns: tuple[str, ...] = ("env", "inference", "training")
    """Which of the three."""
    pairs: int = 10
    """Interleaved pairs per ratio; at least 10 where the ratio is to be quoted."""
    seconds: float = 1.0
    """Seconds of each half of a pair."""
    timeout: float = 300.0
    """Seconds that a rival may take to start, or to compile."""
    engine: str = "auto"
    """Our physics engine."""
    seeds: tuple[int, ...] = ()
    """If given: returns after --env-steps of training as well, where the rival can (rejax)."""
    env_steps: int = 262_144
    """For the returns."""
    out: pathlib.Path | None = None
    """Write everything, each pair included, to this JSON file."""


def main(words: list[str]) -> int:
    """Build environments, or measure and print; returns the exit code."""
    options = parse(Options, words, "bench")
    from mjxlab.bench import venvs

    for name in options.rivals or ():
        if name not in venvs.REQUIREMENTS:
            raise ConfigError(f"rivals: got {name!r}, expected some of {', '.join(venvs.REQUIREMENTS)}")
    if options.build_venvs is not None:
        failed = venvs.build(options.build_venvs, options.rivals or (), tell=lambda line: print(line, flush=True))
        return int(bool(failed))
    _check(options)

    import json

    from mjxlab.bench import report
    from mjxlab.bench.run import bench, failures
    from mjxlab.bench.tasks import task

    result = bench(
        [task(name) for name in options.tasks or ("cartpole", "ant")],
        columns=options.columns,
        folder=options.venvs,
        rivals=options.rivals,
        pairs=options.pairs,
        seconds=options.seconds,
        timeout=options.timeout,
        engine=options.engine,
        seeds=options.seeds,
        env_steps=options.env_steps,
        tell=lambda line: print(line, flush=True),
    )
    report.show(result)
    if options.out is not None:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(result, indent=1) + "\n")
        print(f"written: {options.out}")
    return int(bool(failures(result)))


def _check(options: Options) -> None:
    from mjxlab.bench.tasks import check_columns

    check_columns(options.columns)
    for name in ("seconds", "timeout"):
        if not 0 < getattr(options, name) < float("inf"):
            raise ConfigError(f"{name}: got {getattr(options, name)!r}, expected a positive number")
    for name in ("pairs", "env_steps"):
        if getattr(options, name) < 1:
            raise ConfigError(f"{name}: got {getattr(options, name)!r}, expected at least 1")
    if options.venvs is not None and not options.venvs.is_dir():
        raise ConfigError(f"venvs: {options.venvs} is no folder; build it: mjxlab bench --build-venvs {options.venvs}")
