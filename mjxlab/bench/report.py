"""The tables of a benchmark."""

from __future__ import annotations

import statistics
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

_TITLES = {"env": "env only", "inference": "+ inference", "training": "+ training"}


def show(result: dict[str, Any], console: Console | None = None) -> None:
    """Print a table for each task: control steps per second, compile seconds, ratios with quartiles."""
    console = console or Console(highlight=False)
    versions = result["machine"]["versions"]
    device = result["machine"]["device"]
    console.print(
        f"{device['platform']} ({result['cores']} cores), jax {versions.get('jax')}, mujoco {versions.get('mujoco')}; "
        f"control steps per second of all worlds together; ratios: median [quartiles] of {result['pairs']} pairs",
        soft_wrap=True,
        markup=False,
    )
    for task in result["tasks"]:
        _table(task, console)


def _table(task: dict[str, Any], console: Console) -> None:
    sizes = task["sizes"]
    physics = ""
    if task["engine"] is not None:
        physics = f"; engine {task['engine']}, {task['substeps']} substeps, outputs {', '.join(task['outputs'])}"
    columns = list(task["ours"])
    table = Table(
        title=f"{task['task']} ({task['env']}): {sizes['num_envs']} worlds{physics}",
        title_justify="left",
    )
    table.add_column("", no_wrap=True, min_width=10)
    for column in columns:
        table.add_column(_TITLES[column], justify="right", min_width=12)
    table.add_column("compile (s)", justify="right")
    compiled = "\n".join(f"{task['ours'][c]['compile']:.1f}" for c in columns)
    table.add_row("ours", *(f"{task['ours'][c]['steps_per_second']:,.0f}" for c in columns), compiled)
    for rival in task["rivals"]:
        cells: list[Text | str] = []
        for column in columns:
            done = rival["columns"].get(column)
            if done is None:
                cells.append("-")
                continue
            speed = statistics.median(p["theirs"]["steps"] / p["theirs"]["seconds"] for p in done["pairs"])
            ratio = done["ratio"]
            cells.append(Text(f"{speed:,.0f}\nours x {ratio['median']:.2f}\n[{ratio['low']:.2f}, {ratio['high']:.2f}]"))
        took = "\n".join(f"{rival['compile'][c]:.1f}" for c in columns if c in rival["compile"])
        table.add_row(rival["name"], *cells, took or "-")
    console.print(table)
    console.print(
        f"training: {sizes['rollout_length']} steps of each world per update, {sizes['epochs']} epochs of "
        f"{sizes['num_minibatches']} minibatches, widths {tuple(sizes['policy_widths'])} and {tuple(sizes['value_widths'])}",
        soft_wrap=True,
    )
    for rival in task["rivals"]:
        if rival["reason"]:
            console.print(f"not compared: {rival['reason']}", soft_wrap=True, markup=False)
        else:
            console.print(f"{rival['name']}: {rival['alike']}", soft_wrap=True, markup=False)
    if task["returns"]:
        _returns(task, console)


def _returns(task: dict[str, Any], console: Console) -> None:
    sides = {"ours": task["returns"]["ours"]} | {r["name"]: r["returns"] for r in task["rivals"] if "returns" in r}
    for name, runs in sides.items():
        values = [run["return"] for run in runs]
        each = ", ".join(f"{v:.1f}" for v in values)
        console.print(
            f"return of {name} after {runs[0]['env_steps']:,} steps: mean {statistics.fmean(values):.1f} ({each})",
            soft_wrap=True,
            markup=False,
        )
