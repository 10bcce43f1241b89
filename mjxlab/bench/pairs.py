"""Interleaved pairs and their ratio.

On a shared machine a single run swings by a factor of two. Two sides that take turns meet the same weather, so the ratio
within a pair is steady where the speeds are not; the median over pairs, with quartiles, is what is reported.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np

from mjxlab.errors import ConfigError

MIN_PAIRS = 10  # fewer make no ratio that may be quoted


@dataclasses.dataclass(frozen=True)
class Speed:
    """One measurement: control steps of all worlds, the seconds they took, and seconds of compiling before them."""

    steps: int
    seconds: float
    compile: float = 0.0

    @property
    def per_second(self) -> float:
        """Control steps per second."""
        return self.steps / self.seconds


@dataclasses.dataclass(frozen=True)
class Quartiles:
    """25, 50 and 75 per cent of some numbers."""

    low: float
    median: float
    high: float

    def __str__(self) -> str:
        return f"{self.median:.2f} [{self.low:.2f}, {self.high:.2f}]"


def quartiles(values: list[float]) -> Quartiles:
    """Quartiles by linear interpolation."""
    if not values:
        raise ConfigError("quartiles: got no values, expected at least one")
    return Quartiles(*(float(x) for x in np.percentile(np.asarray(values, float), (25, 50, 75))))


@dataclasses.dataclass(frozen=True)
class Comparison:
    """Ours against theirs, pair by pair, in the order in which they were measured."""

    ours: list[Speed]
    theirs: list[Speed]

    @property
    def ratio(self) -> Quartiles:
        """Quartiles of (our steps per second) / (theirs), each within its pair."""
        return quartiles([a.per_second / b.per_second for a, b in zip(self.ours, self.theirs, strict=True)])

    def to_json(self) -> dict[str, object]:
        """Every pair, and the quartiles."""
        pairs = [
            {"ours": dataclasses.asdict(a), "theirs": dataclasses.asdict(b)}
            for a, b in zip(self.ours, self.theirs, strict=True)
        ]
        return {"ratio": dataclasses.asdict(self.ratio), "pairs": pairs}


def interleave(ours: Callable[[], Speed], theirs: Callable[[], Speed], pairs: int) -> Comparison:
    """``pairs`` pairs, one side at a time; who goes first alternates, so that a drift favours nobody.

    Both sides are called once before, so that neither compiles within a pair.

    Raises:
      ConfigError: ``pairs`` is not positive. Whatever a side raises goes through.
    """
    if pairs < 1:
        raise ConfigError(f"pairs: got {pairs}, expected at least 1")
    ours(), theirs()
    mine: list[Speed] = []
    other: list[Speed] = []
    for i in range(pairs):
        if i % 2 == 0:
            mine.append(ours())
            other.append(theirs())
        else:
            other.append(theirs())
            mine.append(ours())
    return Comparison(mine, other)
