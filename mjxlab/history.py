"""Metrics on the host: rows, one an update, and the history that ``fit`` returns."""

from __future__ import annotations

import array
import json
import math
import os
from collections.abc import Iterable
from typing import Any

import jax
import numpy as np

Row = dict[str, Any]


class History(dict[str, np.ndarray]):
    """A dict of NumPy arrays. Training metrics go with ``history["step"]``, evaluations with ``history["eval/step"]``.

    A metric that a row lacks is NaN there. Rows of earlier starts of the same run are included where they were kept in
    ``metrics.jsonl``.

    Attributes:
      interrupted: the signal that ended the run early (``"SIGTERM"``), or None.
      compile_seconds: time spent compiling.
      traces: how often Python ran ``learner.update`` (once a phase).
      nonfinite: by metric (or ``state.PATH``), in how many rows (or calls) it was not finite.
      folder: the run folder as a string, or None.
    """

    interrupted: str | None = None
    compile_seconds: float = 0.0
    traces: int = 0
    folder: str | None = None

    def __init__(self, rows: Iterable[Row] = ()) -> None:
        super().__init__()
        self.nonfinite: dict[str, int] = {}
        self._columns = {"": _Columns(), "eval/": _Columns()}
        for row in rows:
            self.add(row)

    def add(self, row: Row) -> None:
        """Append a row; ``finish`` makes the arrays."""
        prefix = "eval/" if any(name.startswith("eval/") for name in row) else ""
        self._columns[prefix].add(row)

    def finish(self) -> None:
        """Make the arrays from all rows so far."""
        for prefix, columns in self._columns.items():
            for name, column in columns.arrays().items():
                if not prefix:
                    self[name] = column
                elif not name.startswith("time/"):
                    self[name if name.startswith(prefix) else prefix + name] = column


class _Columns:
    """Rows by column, eight bytes a float: a long run has millions of them."""

    def __init__(self) -> None:
        self._length = 0
        self._floats: dict[str, array.array[float]] = {}
        self._others: dict[str, list[Any]] = {}  # exact integers, vectors

    def add(self, row: Row) -> None:
        for name, value in row.items():
            if name in self._floats and not isinstance(value, int | float):
                self._others[name] = list(self._floats.pop(name))
            elif name not in self._floats and name not in self._others:
                if isinstance(value, float):
                    self._floats[name] = array.array("d", [math.nan]) * self._length
                else:
                    self._others[name] = [math.nan] * self._length
            (self._floats if name in self._floats else self._others)[name].append(value)
        self._length += 1
        for column in (*self._floats.values(), *self._others.values()):
            if len(column) < self._length:
                column.append(math.nan)

    def arrays(self) -> dict[str, np.ndarray]:
        made = {name: _column(values) for name, values in self._others.items()}  # the step among them
        return made | {name: np.asarray(column, np.float64) for name, column in self._floats.items()}


def _column(values: list[Any]) -> np.ndarray:
    if all(type(v) is int for v in values):
        return np.asarray(values, np.int64 if max(values, default=0) < 1 << 63 else object)
    try:
        return np.asarray(values, np.float64)
    except (ValueError, TypeError):  # vectors, in some rows only or of another length
        made = np.empty(len(values), object)
        made[:] = values
        return made


def rows_of(metrics: dict[str, Any], count: int) -> list[Row]:
    """One dict of Python numbers for each of ``count`` updates, from metrics with the updates on axis 0.

    A metric that knows ``int(…)`` (``rl.Counter``) becomes an exact integer, whatever its size.
    """
    columns = {}
    for name, value in metrics.items():
        if isinstance(value, np.ndarray):
            kept = value if value.dtype.kind in "biuf" else value.astype(np.float32)  # bfloat16 and its kin
            columns[name] = kept[:count].tolist()
        else:
            columns[name] = [_whole(jax.tree.map(lambda x: x[i], value)) for i in range(count)]  # noqa: B023
    return [{name: column[i] for name, column in columns.items()} for i in range(count)]


def one_row(metrics: dict[str, Any], prefix: str = "") -> Row:
    """A dict of Python numbers from metrics without a leading axis."""
    return {
        prefix + name: value
        for name, value in rows_of(jax.tree.map(lambda x: np.asarray(x)[None], metrics), 1)[0].items()
    }


def _whole(value: Any) -> Any:
    return int(value) if hasattr(value, "__int__") else jax.tree.map(lambda x: x.tolist(), value)


def is_finite(value: Any) -> bool:
    """Whether a metric holds finite numbers only."""
    if isinstance(value, list):
        return all(is_finite(v) for v in value)
    return not isinstance(value, float) or math.isfinite(value)


# --- JSON lines ------------------------------------------------------------------------------------------------------


def to_line(row: Row) -> str:
    """A row as valid JSON. NaN is ``null``; infinities, which are rarer, are ``"inf"`` and ``"-inf"``."""
    return json.dumps({name: _plain(value) for name, value in row.items()}, allow_nan=False)


def _plain(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else repr(value)
    return [_plain(v) for v in value] if isinstance(value, list) else value


def _back(value: Any) -> Any:
    if value is None or value in ("inf", "-inf"):
        return float(value or "nan")
    return [_back(v) for v in value] if isinstance(value, list) else value


def read_rows(path: str | os.PathLike[str], until: int | None = None) -> tuple[list[Row], int]:
    """The rows of a ``metrics.jsonl`` up to step ``until``, and the number of bytes that they fill.

    Reading ends at the first line that is no row: what follows was cut short by a crash.
    """
    rows: list[Row] = []
    size = 0
    try:
        with open(path, "rb") as file:
            for line in file:
                try:
                    row = json.loads(line)
                except ValueError:
                    break
                if not line.endswith(b"\n") or not isinstance(row, dict) or not isinstance(row.get("step"), int):
                    break
                if until is not None and row["step"] > until:
                    break
                rows.append({name: _back(value) for name, value in row.items()})
                size += len(line)
    except FileNotFoundError:
        pass
    return rows, size
