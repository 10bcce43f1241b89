"""``mjxlab sweep``."""

from __future__ import annotations

import dataclasses
import pathlib
from typing import Any, Literal

from mjxlab.commands.parse import parse
from mjxlab.errors import ConfigError

HELP = """\
usage: mjxlab sweep AGENT ENV [--FIELD VALUE VALUE …]… [flags]

Train every combination of the values given, with every seed. Fields are those of the agent's config (`mjxlab train AGENT
ENV --help` lists them). Settings that differ in floats alone run together, with all seeds, in one program; static fields
make another program each, in processes of their own. The same command goes on with a sweep that was stopped.

flags:
  --seeds 0 1 2 …          seeds of each setting (0 1 2)
  --steps N                updates of each run
  --env-steps N            the same in steps of the environment (1,000,000)
  --eval-episodes N        episodes of an evaluation of each trained policy (0: none)
  --metric NAME            what to judge by (reached, success or episode_return, the first that there is)
  --engine NAME            physics engine
  --workers N              processes for programs; two on a CPU with as many cores
  --out DIR                folder; runs/sweep-AGENT-ENV by default

example: mjxlab sweep ppo pendulum --seeds 0 1 2 --lr 1e-4 3e-4 1e-3 --env-steps 200000"""


@dataclasses.dataclass
class Options:
    """Flags of a sweep besides the fields."""

    seeds: tuple[int, ...] = (0, 1, 2)
    steps: int | None = None
    env_steps: int | None = None
    eval_episodes: int = 0
    metric: str | None = None
    engine: Literal["auto", "mujoco", "mjx", "warp"] = "auto"
    workers: int | None = None
    out: pathlib.Path | None = None


def main(words: list[str]) -> int:
    """Sweep; returns the exit code."""
    if set(words) & {"-h", "--help"}:
        print(HELP)
        return 0
    if len(words) < 2 or words[0].startswith("-") or words[1].startswith("-"):
        raise ConfigError("sweep: expected mjxlab sweep AGENT ENV (see mjxlab sweep --help)")
    agent, env_name = words[:2]
    options, fields = read_flags(words[2:])

    from mjxlab import catalogue, envs
    from mjxlab.cells import write_json
    from mjxlab.commands.reproduce import default_workers
    from mjxlab.commands.train import length
    from mjxlab.configs import check_seed, to_json
    from mjxlab.sweep import sweep

    for seed in options.seeds:
        check_seed(seed, "seeds")
    module = catalogue.system(agent).load()
    envs.spec(env_name)
    updates, planned = length(options, module.config_for(env_name, **_lengths(fields)))
    scheduled = getattr(planned, "total_updates", None) is not None
    fixed = {"total_updates": updates} if scheduled else {}
    folder = options.out or pathlib.Path("runs") / f"sweep-{agent}-{env_name}"
    found = sweep(
        agent,
        env_name,
        seeds=options.seeds,
        grid=fields,
        updates=updates,
        fixed=fixed,
        env_options={} if options.engine == "auto" else {"engine": options.engine},
        episodes=options.eval_episodes,
        metric=options.metric,
        out=folder,
        workers=default_workers(options.workers),
        tell=lambda line: print(line, flush=True),
    )
    record = {"agent": agent, "env": env_name, "updates": updates, **found.record()}
    write_json(folder / "results.json", to_json(record))
    show(found, fields)
    print(f"{folder}: results.json, cells")
    return 0


def read_flags(words: list[str]) -> tuple[Options, dict[str, list[Any]]]:
    """The flags of the sweep, and the values of each field of the config."""
    from mjxlab.study import parse_value

    own = {f.name for f in dataclasses.fields(Options)}
    flags: list[str] = []
    fields: dict[str, list[Any]] = {}
    current: list[Any] = flags
    for word in words:
        if word.startswith("--"):
            head, sign, value = word[2:].partition("=")
            name = head.replace("-", "_").removeprefix("config.")
            if name in own:
                current = flags
                flags.append(word)
                continue
            if name in fields:
                raise ConfigError(f"--{head}: given twice, expected all its values after one")
            current = fields[name] = []
            if sign:
                current.append(parse_value(value))
        else:
            current.append(word if current is flags else parse_value(word))
    for name, values in fields.items():
        if not values:
            raise ConfigError(f"--{name}: got no value, expected one or more")
    return parse(Options, flags, "sweep"), fields


def _lengths(fields: dict[str, list[Any]]) -> dict[str, Any]:
    """What an update's number of steps follows from, where it is the same in all settings."""
    for name in ("num_envs", "rollout_length"):
        if len(fields.get(name, [])) > 1:
            raise ConfigError(f"--{name}: got several values, expected one: runs of a sweep make equally many steps")
    names = ("num_envs", "rollout_length", "batch_size", "num_minibatches")
    return {name: fields[name][0] for name in names if len(fields.get(name, [])) == 1}


def show(found: Any, fields: dict[str, list[Any]]) -> None:
    """Print the settings, best first."""
    import numpy as np
    from rich.console import Console
    from rich.table import Table

    from mjxlab import stats
    from mjxlab.study_report import number

    table = Table()
    for name in fields:
        table.add_column(name)
    names = sorted({name for setting in found.settings for name in setting.evaluation} & {"reached", "return_mean"})
    for name in (found.metric, "95 % interval", *(f"evaluation {name}" for name in names)):
        table.add_column(name, justify="right")
    ranked = sorted(found.settings, key=lambda s: np.nan_to_num(np.mean(s.scores), nan=-np.inf), reverse=True)
    for setting in ranked:
        interval = stats.mean_interval(setting.scores)
        figures = [number(interval.mean), f"{number(interval.low)} … {number(interval.high)}"]
        figures += [number(float(np.mean(setting.evaluation[name]))) for name in names]
        table.add_row(*(f"{v:g}" if isinstance(v, float) else str(v) for v in setting.values.values()), *figures)
    Console().print(table)
    runs = len(found.settings) * len(found.seeds)
    print(f"{found.metric} over the last 15 % of training; {runs} runs in {found.programs} program(s)")
