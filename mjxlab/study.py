"""Studies: a claim, criteria that are fixed before the run, and a run that may show them false.

``reproduce`` runs a study at a budget, prints its tables and each criterion, and leaves ``results.json`` and ``plot.png``
in its folder. Finished cells are kept (``mjxlab.cells``): a study that was stopped at any moment goes on where it was when
the same command is given again, and ends with the same ``results.json``, which therefore holds no clock times.
"""

from __future__ import annotations

import dataclasses
import json
import math
import pathlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, get_args

from mjxlab import stats
from mjxlab.cells import Cells, write_json
from mjxlab.configs import from_json, to_json
from mjxlab.errors import ConfigError

Budget = Literal["smoke", "cpu", "full"]
RESULTS, PLOT, RECORD = "results.json", "plot.png", "study.json"
FORMAT = 1


@dataclasses.dataclass(frozen=True)
class Criterion:
    """Something that must hold (required), or whose truth is reported.

    Attributes:
      name: its key in ``Result.criteria``.
      text: what it says, for people.
      required: whether the study fails without it.
    """

    name: str
    text: str
    required: bool = True


@dataclasses.dataclass(frozen=True)
class Row:
    """A figure of one method.

    Attributes:
      method, metric: whose, and of what.
      mean, low, high: over seeds, with a 95 % interval (NaN where there is a single seed).
      n: number of seeds.
      task: where, in studies of several tasks.
    """

    method: str
    metric: str
    mean: float
    low: float
    high: float
    n: int
    task: str = ""

    @classmethod
    def of(cls, method: str, metric: str, values: stats.Values, task: str = "") -> Row:
        """The mean and Student's 95 % interval of one value a seed."""
        found = stats.mean_interval(values)
        return cls(method, metric, found.mean, found.low, found.high, found.n, task)

    @property
    def key(self) -> tuple[str, str, str]:
        """What the row is of: task, method, metric."""
        return self.task, self.method, self.metric


@dataclasses.dataclass(frozen=True)
class Table:
    """A table of the study's own: cells are strings or numbers."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]


@dataclasses.dataclass(frozen=True)
class Curve:
    """A line of the plot: ``y`` over ``x``, with a band from ``low`` to ``high``."""

    method: str
    x: tuple[float, ...]
    y: tuple[float, ...]
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()
    task: str = ""


@dataclasses.dataclass(frozen=True)
class Result:
    """What a study found.

    Attributes:
      rows: the figures.
      criteria: whether each holds; None: could not be judged, which for a required one counts as not.
      tables: further tables.
      notes: lines for people.
      curves: for the plot; without any it shows the rows.
      axes: names of the plot's axes.
    """

    rows: tuple[Row, ...]
    criteria: dict[str, bool | None]
    tables: tuple[Table, ...] = ()
    notes: tuple[str, ...] = ()
    curves: tuple[Curve, ...] = ()
    axes: tuple[str, str] = ("environment steps", "")


@dataclasses.dataclass(frozen=True)
class Study:
    """A claim and how it is tested.

    Attributes:
      name: what the command line calls it.
      claim: one sentence.
      criteria: fixed here, before any run.
      run: ``run(config, budget, seeds, cells) -> Result``. All work goes through ``cells``; all randomness follows from the
        seeds and the config. It need not care for "smoke", where criteria are not judged.
      config: ``config(budget)``, a dataclass; ``--set`` changes its fields.
      seeds: those of each budget.
      expects: ``expects(config)``: the (task, method, metric) of every row that has to be there.
      source: the paper.
    """

    name: str
    claim: str
    criteria: tuple[Criterion, ...]
    run: Callable[[Any, str, tuple[int, ...], Cells], Result]
    config: Callable[[str], Any]
    seeds: Mapping[str, tuple[int, ...]]
    expects: Callable[[Any], Iterable[tuple[str, str, str]]]
    source: str = ""


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What ``reproduce`` returns.

    Attributes:
      result: the study's.
      folder: where everything lies.
      code: 0: all required criteria hold (smoke: every row is there and finite); 1: not so.
      problems: why not, a line each.
    """

    result: Result
    folder: pathlib.Path
    code: int
    problems: tuple[str, ...]


def reproduce(
    study: Study,
    *,
    budget: Budget | str = "cpu",
    seeds: Sequence[int] | None = None,
    config: Any = None,
    out: str | pathlib.Path | None = None,
    workers: int = 1,
    tell: Callable[[str], None] = print,
) -> Outcome:
    """Run a study, or go on with one.

    Args:
      study: which.
      budget: "smoke" (does every part run?), "cpu" (minutes to an hour and a half on two cores), "full" (accelerators).
      seeds: by default the study's own for that budget. Results of other seeds in the same folder are shown beside.
      config: by default the study's own for that budget; see ``configure``.
      out: the folder; ``runs/study-NAME-BUDGET`` by default.
      workers: processes that compute cells.
      tell: takes lines of progress, and at the end the report.

    Raises:
      ConfigError: an argument that cannot work, or a folder that holds something else.
    """
    from mjxlab import runs, study_report

    if budget not in get_args(Budget):
        raise ConfigError(f"budget: got {budget!r}, expected one of {', '.join(get_args(Budget))}")
    config = study.config(budget) if config is None else config
    if hasattr(config, "validate"):
        config.validate()
    chosen = _seeds(study.seeds[budget] if seeds is None else seeds, budget)
    folder = pathlib.Path("runs") / f"study-{study.name}-{budget}" if out is None else pathlib.Path(out)
    _start(folder, {"study": study.name, "budget": budget}, {"config": to_json(config), "seeds": list(chosen)}, runs)
    cells = Cells(folder, {"study": study.name, "budget": budget}, workers=workers, tell=tell)
    result = _checked(study, study.run(config, budget, chosen, cells))
    if budget == "smoke":
        result = dataclasses.replace(result, criteria=dict.fromkeys(result.criteria))
    problems = _missing(study, config, result) if budget == "smoke" else _failed(study, result)
    record = study_report.to_record(study, budget, chosen, config, result)
    beside = study_report.others(folder, record)
    write_json(folder / "results" / f"{study_report.label(record)}.json", record)
    write_json(folder / RESULTS, record)
    study_report.plot(result, folder / PLOT, f"{study.name} · {budget}")
    study_report.show(study, record, beside, tell)
    for problem in problems:
        tell(problem)
    tell(f"{folder}: {RESULTS}, {PLOT}, cells")
    return Outcome(result, folder, 1 if problems else 0, tuple(problems))


def configure(config: Any, settings: Sequence[str]) -> Any:
    """``config`` with fields set by ``"name=value"``; ``a.b`` is a field, or a key, of the field ``a``.

    Values are JSON, or plain words: ``3e-4``, ``true``, ``none``, ``ppo``, ``[1, 2]`` or ``1,2``.

    Raises:
      ConfigError: no such field, or a value of the wrong type.
    """
    data = to_json(config)
    for setting in settings:
        name, sign, text = setting.partition("=")
        if not sign or not name:
            raise ConfigError(f"--set: got {setting!r}, expected NAME=VALUE")
        *path, last = name.replace("-", "_").split(".")
        place = data
        for step in path:
            if not isinstance(place, dict) or step not in place:
                raise ConfigError(f"{name}: {type(config).__name__} has no {step!r}")
            place = place[step]
        if not isinstance(place, dict) or last not in place:
            known = ", ".join(place) if isinstance(place, dict) else "nothing"
            raise ConfigError(f"{name}: {type(config).__name__} has no such field, expected one of {known}")
        place[last] = parse_value(text)
    return from_json(type(config), data)


def parse_value(text: str) -> Any:
    """A value from the command line: JSON if it is, else a list by its commas, else the words themselves."""
    try:
        return to_json(json.loads(text))
    except ValueError:
        pass
    word = text.strip()
    if "," in word:
        return [parse_value(part) for part in word.strip("()").split(",") if part.strip()]
    names = {"true": True, "false": False, "none": None, "null": None}
    return names.get(word.lower(), word)


def _seeds(seeds: Sequence[int], budget: str) -> tuple[int, ...]:
    chosen = tuple(seeds)
    for seed in chosen:
        if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < 2**31:
            raise ConfigError(f"seeds: got {seed!r}, expected integers of at least 0 (and below 2^31)")
    if len(set(chosen)) != len(chosen) or not chosen:
        raise ConfigError(f"seeds: got {list(chosen)}, expected different ones, at least one")
    if budget != "smoke" and len(chosen) < 2:
        raise ConfigError(f"seeds: got {list(chosen)}, expected at least 2, as one seed has no interval to judge by")
    return chosen


def _start(folder: pathlib.Path, identity: dict[str, str], what: dict[str, Any], runs: Any) -> None:
    """Make the folder, or see that it is one of the same study; note in ``study.json`` that it was started."""
    file = folder / RECORD
    starts: list[Any] = []
    try:
        if folder.exists() and not folder.is_dir():
            raise ConfigError(f"out: {folder} is a file, expected a folder")
        if file.exists():
            record = json.loads(file.read_text())
            found = {name: record.get(name) for name in identity}
            if found != identity:
                raise ConfigError(
                    f"out: {folder} holds the study {found['study']!r} at budget {found['budget']!r}, expected "
                    f"{identity['study']!r} at {identity['budget']!r} or a new folder"
                )
            starts = record.get("starts", [])
        elif folder.is_dir() and any(folder.iterdir()):
            raise ConfigError(f"out: {folder} holds other files and no {RECORD}, expected a new or empty folder")
    except ConfigError:  # which is a ValueError
        raise
    except (ValueError, AttributeError):
        raise ConfigError(f"out: {file} cannot be read, expected JSON") from None
    except OSError as error:
        raise ConfigError(f"out: {folder} cannot be read ({error.strerror}), expected a folder") from None
    write_json(file, {"format": FORMAT, **identity, "starts": [*starts, what | runs.machine()]})


def _checked(study: Study, result: Result) -> Result:
    names = {criterion.name for criterion in study.criteria}
    if set(result.criteria) != names:
        raise ConfigError(
            f"study {study.name!r}: judged {', '.join(sorted(result.criteria))}, expected {', '.join(sorted(names))}"
        )
    criteria = {name: None if holds is None else bool(holds) for name, holds in result.criteria.items()}
    return dataclasses.replace(result, criteria=criteria)


def _failed(study: Study, result: Result) -> list[str]:
    words = {False: "does not hold", None: "could not be judged"}
    return [
        f"required, and {words[result.criteria[c.name]]}: {c.name}"  # type: ignore[index]
        for c in study.criteria
        if c.required and not result.criteria[c.name]
    ]


def _missing(study: Study, config: Any, result: Result) -> list[str]:
    rows = {row.key: row for row in result.rows}
    wanted = list(study.expects(config))
    absent = [key for key in wanted if key not in rows]
    unsound = [key for key in wanted if key in rows and not math.isfinite(rows[key].mean)]
    return [f"no row of {' · '.join(filter(None, key))}" for key in absent] + [
        f"not finite: {' · '.join(filter(None, key))}" for key in unsound
    ]
