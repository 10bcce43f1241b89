"""What a study shows: its record for ``results.json``, tables on the terminal, and the plot."""

from __future__ import annotations

import hashlib
import io
import json
import math
import os
import pathlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from mjxlab.configs import to_json
from mjxlab.errors import WorkLostError
from mjxlab.study import FORMAT, Result, Study

COLOURS = ("#4c78a8", "#f58518", "#54a24b", "#b279a2", "#e45756", "#72b7b2", "#9d755d", "#bab0ac", "#eeca3b")


def to_record(study: Study, budget: str, seeds: Sequence[int], config: Any, result: Result) -> dict[str, Any]:
    """Everything that ``results.json`` holds. It follows from study, budget, seeds and config alone."""
    criteria = {
        c.name: {"text": c.text, "required": c.required, "holds": result.criteria[c.name]} for c in study.criteria
    }
    rows = [
        {
            **({"task": row.task} if row.task else {}),
            "method": row.method,
            "metric": row.metric,
            "mean": row.mean,
            "interval_95": [row.low, row.high],
            "n": row.n,
        }
        for row in result.rows
    ]
    return to_json(
        {
            "format": FORMAT,
            "study": study.name,
            "claim": study.claim,
            "source": study.source,
            "budget": budget,
            "judged": budget != "smoke",
            "seeds": list(seeds),
            "config": config,
            "criteria": criteria,
            "rows": rows,
            "tables": list(result.tables),
            "notes": list(result.notes),
            "curves": list(result.curves),
        }
    )


def label(record: dict[str, Any]) -> str:
    """A short name for a record's seeds and config: what its file is called."""
    what = json.dumps([record["seeds"], record["config"]], sort_keys=True)
    seeds = "-".join(map(str, record["seeds"][:6])) + ("-more" if len(record["seeds"]) > 6 else "")
    return f"seeds-{seeds}-{hashlib.sha256(what.encode()).hexdigest()[:8]}"


def others(folder: pathlib.Path, record: dict[str, Any]) -> list[dict[str, Any]]:
    """Records in the folder of the same config with other seeds."""
    found = []
    for file in sorted((folder / "results").glob("*.json")):
        try:
            other = json.loads(file.read_text())
            if other["config"] == record["config"] and other["seeds"] != record["seeds"]:
                found.append(other)
        except (OSError, ValueError, KeyError, TypeError):
            continue  # something else that lies there
    return found


def show(
    study: Study, record: dict[str, Any], beside: Sequence[dict[str, Any]], tell: Callable[[str], None] = print
) -> None:
    """Print the claim, the rows (other seeds' means beside), the study's own tables, the notes and each criterion."""
    from rich.console import Console
    from rich.table import Table

    screen = Console(file=io.StringIO(), width=max(100, min(Console().width, 160)), highlight=False)
    screen.print(f"[bold]{study.name}[/bold]: {study.claim}", soft_wrap=True)
    screen.print(f"budget {record['budget']}, seeds {' '.join(map(str, record['seeds']))}")

    tasks = any("task" in row for row in record["rows"])
    screen.print("means over seeds, 95 % intervals (Student's t)")
    table = Table()
    for name in [*["task"] * tasks, "method", "metric"]:
        table.add_column(name)
    for name in ("mean", "95 % interval", "n", *(f"seeds {_words(other)}" for other in beside)):
        table.add_column(name, justify="right")
    means = [{_key(row): row["mean"] for row in other["rows"]} for other in beside]
    before = None
    for row in record["rows"]:
        if tasks and before not in (None, row.get("task")):
            table.add_section()
        before = row.get("task")
        low, high = (number(x) for x in row["interval_95"])
        names = [*[row.get("task", "")] * tasks, row["method"], row["metric"]]
        figures = [number(row["mean"]), f"{low} … {high}", str(row["n"])]
        table.add_row(*names, *figures, *(number(other.get(_key(row))) for other in means))
    screen.print(table)

    for source in (record, *beside):
        for own in source["tables"]:
            also = "" if source is record else f" (seeds {_words(source)})"
            screen.print(own["title"] + also, markup=False)
            table = Table()
            for i, name in enumerate(own["columns"]):
                table.add_column(name, justify="left" if i == 0 else "right")
            for cells in own["rows"]:
                table.add_row(*(x if isinstance(x, str) else number(x) for x in cells))
            screen.print(table)
    for note in record["notes"]:
        screen.print(note, soft_wrap=True, markup=False)
    for name, criterion in record["criteria"].items():
        also = "".join(f", seeds {_words(o)}: {_holds(o, o['criteria'].get(name, {}))}" for o in beside)
        kind = "required" if criterion["required"] else "reported"
        line = f"{_holds(record, criterion):10} {kind}  {name}: {criterion['text']}{also}"
        screen.print(line, soft_wrap=True, markup=False)
    assert isinstance(screen.file, io.StringIO)
    tell(screen.file.getvalue().rstrip("\n"))


def _holds(record: dict[str, Any], criterion: dict[str, Any]) -> str:
    if not record["judged"] or criterion.get("holds") is None:
        return "not judged"
    return "holds" if criterion["holds"] else "FAILS"


def _words(record: dict[str, Any]) -> str:
    return " ".join(map(str, record["seeds"]))


def _key(row: dict[str, Any]) -> tuple[str, str, str]:
    return row.get("task", ""), row["method"], row["metric"]


def number(x: Any) -> str:
    """Three decimals for what is about 1, three digits for the rest."""
    if isinstance(x, dict) and "__float__" in x:
        x = float(x["__float__"])
    if x is None or (isinstance(x, float) and math.isnan(x)):
        return "-"
    if isinstance(x, bool) or not isinstance(x, int | float):
        return str(x)
    if isinstance(x, int):
        return f"{x:,}"
    return f"{x:.3f}" if 0.001 <= abs(x) < 10 or x == 0 else f"{x:.3g}"


def plot(result: Result, path: pathlib.Path, title: str = "") -> bool:
    """Draw the curves, a panel a task; without curves the rows of each metric.

    Returns:
      Whether there was anything to draw.

    Raises:
      WorkLostError: the file cannot be written.
    """
    if not result.curves and not result.rows:
        return False
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    groups = list(dict.fromkeys(c.task for c in result.curves) or dict.fromkeys(r.metric for r in result.rows))
    columns = min(4, len(groups))
    lines = -(-len(groups) // columns)
    figure = Figure(figsize=(4.2 * columns, 3.2 * lines + 0.5), dpi=130, layout="constrained")
    FigureCanvasAgg(figure)
    panels = np.atleast_1d(figure.subplots(lines, columns)).reshape(-1)
    methods = list(dict.fromkeys([c.method for c in result.curves] or [r.method for r in result.rows]))
    colours = {method: COLOURS[i % len(COLOURS)] for i, method in enumerate(methods)}
    for axes, group in zip(panels, groups, strict=False):
        if result.curves:
            _lines(axes, result, group, colours)
        else:
            _bars(axes, result, group, colours)
        axes.set_title(group, fontsize=10)
        axes.grid(alpha=0.25, linewidth=0.6)
        axes.spines[["top", "right"]].set_visible(False)
    for axes in panels[len(groups) :]:
        axes.set_visible(False)
    if result.curves:
        handles = {h.get_label(): h for axes in panels for h in axes.get_legend_handles_labels()[0]}
        figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=6, frameon=False, fontsize=9)
    if title:
        figure.suptitle(title, fontsize=11)
    hidden = path.with_suffix(".tmp.png")
    try:
        figure.savefig(hidden)
        os.replace(hidden, path)
    except OSError as error:
        hidden.unlink(missing_ok=True)
        raise WorkLostError(f"{path}: could not be written ({error.strerror or error})") from error
    return True


def _lines(axes: Any, result: Result, task: str, colours: dict[str, str]) -> None:
    from matplotlib.ticker import EngFormatter

    for curve in result.curves:
        if curve.task == task:
            colour = colours[curve.method]
            axes.plot(curve.x, curve.y, color=colour, linewidth=1.5, label=curve.method)
            if curve.low and curve.high:
                axes.fill_between(curve.x, curve.low, curve.high, color=colour, alpha=0.15, linewidth=0)
    axes.set_xlabel(result.axes[0], fontsize=9)
    axes.set_ylabel(result.axes[1], fontsize=9)
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))


def _bars(axes: Any, result: Result, metric: str, colours: dict[str, str]) -> None:
    rows = [row for row in result.rows if row.metric == metric and math.isfinite(row.mean)]
    for place, row in enumerate(rows):
        reach = [[row.mean - row.low], [row.high - row.mean]] if math.isfinite(row.low) else None
        axes.bar(place, row.mean, yerr=reach, color=colours[row.method], capsize=3, width=0.7)
    names = [" ".join(filter(None, (row.task, row.method))) for row in rows]
    axes.set_xticks(range(len(rows)), names, rotation=30, ha="right", fontsize=8)
