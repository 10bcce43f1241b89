"""The statistics that studies share: intervals over seeds, paired comparisons, Holm, slopes, conformal thresholds.

Everything is NumPy on the host and deterministic: resampling draws from a generator with a fixed seed. The unit is the
seed; what was measured within one (episodes, states, steps) is averaged before it comes here.

Which interval? ``"t"`` (the default) is exact for normal means at any n, and the only one here that holds its level with
three or five seeds. ``"bca"`` and ``"percentile"`` resample the seeds (``scipy.stats.bootstrap``): they need no normality
but some 15 seeds; with three, the percentile interval covers 75 % where it says 95.
"""

from __future__ import annotations

import dataclasses
import math
import warnings
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import scipy.stats

from mjxlab.errors import ConfigError

Method = Literal["t", "percentile", "bca"]
Verdict = Literal["better", "equal", "worse", "unclear"]
Values = Sequence[float] | np.ndarray


@dataclasses.dataclass(frozen=True)
class Interval:
    """An estimate and a two-sided interval for it.

    Attributes:
      mean: the estimate.
      low, high: bounds; NaN where there are too few values for any (a single seed), or one is not finite.
      n: number of values.
      level: confidence.
      method: how it was computed.
    """

    mean: float
    low: float
    high: float
    n: int
    level: float = 0.95
    method: str = "t"

    def __str__(self) -> str:
        return f"{self.mean:.3g} [{self.low:.3g}, {self.high:.3g}]"


class Comparison(NamedTuple):
    """What ``compare`` found.

    Attributes:
      verdict: "better", "equal", "worse", or "unclear" where the interval is too wide for any of them.
      difference: first minus second.
    """

    verdict: Verdict
    difference: Interval


def mean_interval(
    values: Values, *, level: float = 0.95, method: Method | str = "t", resamples: int = 9_999, seed: int = 0
) -> Interval:
    """The mean of independent values, and an interval for what it estimates.

    Args:
      values: one a seed.
      level: confidence, e.g. 0.95.
      method: "t" (Student), "percentile" or "bca" (bootstrap; Efron 1987).
      resamples: of the bootstrap.
      seed: of the bootstrap.

    Raises:
      ConfigError: no values, or an argument that cannot work.
    """
    x = _vector("values", values)
    _check(level, method)
    n = len(x)
    if not np.isfinite(x).all():
        return Interval(math.nan, math.nan, math.nan, n, level, method)
    mean = float(x.mean())
    if n == 1:
        return Interval(mean, math.nan, math.nan, n, level, method)
    if np.ptp(x) == 0:  # nothing varies: the bootstrap would divide by zero
        return Interval(mean, mean, mean, n, level, method)
    if method == "t":
        reach = float(scipy.stats.t.ppf((1 + level) / 2, n - 1) * x.std(ddof=1) / math.sqrt(n))
        return Interval(mean, mean - reach, mean + reach, n, level, method)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", scipy.stats.DegenerateDataWarning)
        found = scipy.stats.bootstrap(
            (x,),
            np.mean,
            confidence_level=level,
            n_resamples=resamples,
            method="BCa" if method == "bca" else "percentile",
            rng=np.random.default_rng(seed),
        ).confidence_interval
    return Interval(mean, float(found.low), float(found.high), n, level, method)


def paired_interval(
    a: Values, b: Values, *, level: float = 0.95, method: Method | str = "t", resamples: int = 9_999, seed: int = 0
) -> Interval:
    """The mean of ``a - b``, seed by seed, and an interval for it. What both share with a seed (a layout, the goals)
    cancels; the bootstrap resamples pairs.

    Raises:
      ConfigError: different numbers of values, or as ``mean_interval``.
    """
    x, y = _vector("a", a), _vector("b", b)
    if len(x) != len(y):
        raise ConfigError(f"b: got {len(y)} values, expected {len(x)}, one for each of a")
    return mean_interval(x - y, level=level, method=method, resamples=resamples, seed=seed)


def compare(
    a: Values, b: Values, *, margin: float = 0.05, level: float = 0.95, method: Method | str = "t"
) -> Comparison:
    """Is ``a`` better than ``b``? By the bounds of the paired interval of ``a - b``:

    * "equal": all of it lies within ``[-margin, margin]`` (two one-sided tests of equivalence), also where it leaves
      out 0: a difference that is real and too small to matter;
    * "better": all of it lies above 0; "worse": below 0;
    * "unclear": none of these. With few seeds that is no evidence of equality.

    Args:
      a, b: one value a seed, in the same order; larger is better.
      margin: largest difference that does not matter, in the values' unit.
    """
    if not (isinstance(margin, int | float) and margin >= 0):
        raise ConfigError(f"margin: got {margin!r}, expected a number of at least 0")
    difference = paired_interval(a, b, level=level, method=method)
    low, high = difference.low, difference.high
    if -margin <= low and high <= margin:
        return Comparison("equal", difference)
    if low > 0:
        return Comparison("better", difference)
    if high < 0:
        return Comparison("worse", difference)
    return Comparison("unclear", difference)


def paired_p_value(
    a: Values, b: Values, *, alternative: Literal["two-sided", "greater", "less"] = "two-sided"
) -> float:
    """p-value of the paired t-test: of no difference against "two-sided", ``a`` "greater" or "less" than ``b``."""
    x, y = _vector("a", a), _vector("b", b)
    if len(x) != len(y):
        raise ConfigError(f"b: got {len(y)} values, expected {len(x)}, one for each of a")
    difference = x - y
    if len(x) > 1 and np.ptp(difference) == 0:
        mean = float(difference[0])
        against = {"two-sided": mean != 0, "greater": mean > 0, "less": mean < 0}[alternative]
        return 0.0 if against else 1.0
    return float(scipy.stats.ttest_rel(x, y, alternative=alternative).pvalue)


def holm(p_values: Values) -> np.ndarray:
    """Holm's step-down adjustment (Holm 1979): reject those that stay at or below alpha, and the chance of even one
    false rejection among all is at most alpha, however they depend on each other.

    Args:
      p_values: one a hypothesis.

    Returns:
      float64[hypotheses]: adjusted p-values, in the order given.
    """
    p = _vector("p_values", p_values)
    if not ((p >= 0) & (p <= 1)).all():
        raise ConfigError(f"p_values: got {p.tolist()}, expected numbers from 0 to 1")
    order = np.argsort(p, kind="stable")
    scaled = p[order] * np.arange(len(p), 0, -1)
    adjusted = np.empty_like(p)
    adjusted[order] = np.minimum(np.maximum.accumulate(scaled), 1.0)
    return adjusted


def loglog_slope(x: Values, y: Any, *, level: float = 0.95, method: Method | str = "t") -> Interval:
    """The exponent b of ``y ~ c x^b``: the slope of log y over log x by least squares.

    Args:
      x: positive, at least two different ones.
      y: positive; ``[points]``, where the interval is that of the regression (t, n - 2 degrees of freedom; points
        independent), or ``[seeds, points]``, where a slope is fitted to each seed and the interval is over seeds.
      level, method: of the interval; one of the regression is always "t".

    Raises:
      ConfigError: values that have no logarithm, or shapes that do not fit.
    """
    _check(level, method)
    points, values = _vector("x", x), np.asarray(y, np.float64)
    if values.ndim not in (1, 2) or values.shape[-1] != len(points):
        raise ConfigError(f"y: has shape {values.shape}, expected [{len(points)}] or [seeds, {len(points)}]")
    for name, array in (("x", points), ("y", values)):
        if not (array > 0).all():
            raise ConfigError(f"{name}: got {array.min()!r} among its values, expected positive numbers")
    if len(np.unique(points)) < 2:
        raise ConfigError(f"x: got {len(np.unique(points))} different values, expected at least 2")
    u, v = np.log(points), np.log(values)
    if values.ndim == 2:
        centred = u - u.mean()
        return mean_interval(v @ centred / (centred @ centred), level=level, method=method)
    fit = scipy.stats.linregress(u, v)
    reach = scipy.stats.t.ppf((1 + level) / 2, len(u) - 2) * fit.stderr if len(u) > 2 else math.nan
    slope = float(fit.slope)
    return Interval(slope, float(slope - reach), float(slope + reach), len(u), level, "t")


def conformal_threshold(scores: Values, alpha: float) -> float:
    """The split-conformal threshold (Vovk et al. 2005): a new score, exchangeable with ``scores``, lies above it with a
    probability of at most ``alpha``.

    It is the ``ceil((n + 1)(1 - alpha))``-th smallest score; infinite where n is too small for that rank.

    Args:
      scores: nonconformity of held-out calibration examples; larger is stranger.
      alpha: miscoverage, between 0 and 1.
    """
    x = np.sort(_vector("scores", scores))
    if not 0 < alpha < 1:
        raise ConfigError(f"alpha: got {alpha!r}, expected a number between 0 and 1")
    # (n + 1)(1 - alpha) may be a whole number that floating point puts just above itself
    rank = math.ceil((len(x) + 1) * (1 - alpha) - 1e-9)
    return float(x[rank - 1]) if rank <= len(x) else math.inf


def conformal_risk_threshold(losses: Any, thresholds: Values, alpha: float, bound: float = 1.0) -> float:
    """Conformal risk control (Angelopoulos et al. 2022): the smallest threshold at which the expected loss of a new
    example is at most ``alpha``.

    Args:
      losses: float[examples, thresholds], each row non-increasing in the threshold.
      thresholds: ascending.
      alpha: bound on the expected loss.
      bound: largest possible loss.

    Returns:
      The first threshold with ``(n mean loss + bound) / (n + 1) <= alpha``; infinite if none has.
    """
    table, grid = np.asarray(losses, np.float64), _vector("thresholds", thresholds)
    if table.ndim != 2 or table.shape[1] != len(grid) or not len(table):
        raise ConfigError(f"losses: has shape {table.shape}, expected [examples, {len(grid)}]")
    if (np.diff(grid) <= 0).any():
        raise ConfigError("thresholds: not ascending, expected each above the one before")
    if (np.diff(table, axis=1) > 0).any():
        raise ConfigError("losses: rise with the threshold, expected each row to fall or stay")
    good = (table.sum(0) + bound) / (len(table) + 1) <= alpha
    return float(grid[np.argmax(good)]) if good.any() else math.inf


def _vector(name: str, values: Any) -> np.ndarray:
    x = np.asarray(values, np.float64)
    if x.ndim != 1 or not len(x):
        raise ConfigError(f"{name}: has shape {x.shape}, expected a list of at least one number")
    return x


def _check(level: float, method: str) -> None:
    if not 0 < level < 1:
        raise ConfigError(f"level: got {level!r}, expected a number between 0 and 1")
    if method not in get_args(Method):
        raise ConfigError(f"method: got {method!r}, expected one of {', '.join(get_args(Method))}")
