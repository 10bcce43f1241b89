"""Intervals, comparisons, Holm, slopes and conformal thresholds against closed forms and simulated coverage."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.stats

from mjxlab import stats
from mjxlab.errors import ConfigError


def test_t_interval_in_closed_form() -> None:
    # the distribution of t with 2 degrees of freedom is 1/2 + t / (2 sqrt(2 + t^2)); the standard error is 1 / sqrt(3)
    found = stats.mean_interval([1.0, 2.0, 3.0])
    reach = 0.95 * math.sqrt(2 / (1 - 0.95**2)) / math.sqrt(3)
    np.testing.assert_allclose([found.mean, found.low, found.high], [2, 2 - reach, 2 + reach], rtol=1e-9)
    assert (found.n, found.level, found.method) == (3, 0.95, "t")
    other = scipy.stats.ttest_1samp([1.0, 4.0, 2.0, 8.0], 0).confidence_interval(0.9)
    np.testing.assert_allclose(other.low, stats.mean_interval([1, 4, 2, 8], level=0.9).low, rtol=1e-9)


def coverage(draw, truth: float, runs: int, **how) -> float:
    rng = np.random.default_rng(0)
    found = [stats.mean_interval(draw(rng), **how) for _ in range(runs)]
    return float(np.mean([i.low <= truth <= i.high for i in found]))


@pytest.mark.parametrize("n", [3, 5])
def test_t_interval_holds_its_level_with_few_seeds(n: int) -> None:
    # 4,000 runs: standard error 0.0034; 4 of them
    assert abs(coverage(lambda rng: rng.normal(1, 2, n), 1, 4_000) - 0.95) < 0.014


def test_percentile_interval_does_not_with_three() -> None:
    # the smallest mean that three values can be resampled to is their minimum, so at most 1 - 2 / 2^3 = 0.75 is covered
    how = {"method": "percentile", "resamples": 999}
    assert coverage(lambda rng: rng.normal(0, 1, 3), 0, 400, **how) < 0.75 + 4 * 0.022


def test_bca_holds_its_level_with_skewed_values() -> None:
    how = {"resamples": 999}
    runs, draw = 400, lambda rng: rng.exponential(1, 30)  # standard error 0.011
    bca = coverage(draw, 1, runs, method="bca", **how)
    assert 0.89 <= bca <= 0.98


def test_bootstrap_is_reproducible_and_near_t_for_many_normal_values() -> None:
    x = np.random.default_rng(1).normal(0, 1, 200)
    t = stats.mean_interval(x)
    for method in ("bca", "percentile"):
        found = stats.mean_interval(x, method=method)
        assert found == stats.mean_interval(x, method=method)
        assert found != stats.mean_interval(x, method=method, seed=1)
        np.testing.assert_allclose([found.low, found.high], [t.low, t.high], atol=0.01)


def test_pairs_cancel_what_they_share() -> None:
    rng = np.random.default_rng(2)
    shared = rng.normal(0, 10, 6)
    a, b = shared + 1 + rng.normal(0, 0.1, 6), shared + rng.normal(0, 0.1, 6)
    paired = stats.paired_interval(a, b)
    assert 0.8 < paired.low < 1 < paired.high < 1.2
    assert paired == stats.mean_interval(a - b)
    # the one-sided p-value is 0.025 where the lower 95 % bound is 0
    shift = a - paired.low
    np.testing.assert_allclose(stats.paired_p_value(shift, b, alternative="greater"), 0.025, rtol=1e-9)


@pytest.mark.parametrize(
    ("difference", "spread", "verdict"),
    [
        (0.5, 0.01, "better"),
        (-0.5, 0.01, "worse"),
        (0.0, 0.01, "equal"),
        (0.02, 0.001, "equal"),  # real, and too small to matter
        (0.06, 0.001, "better"),
        (0.04, 0.01, "better"),  # some of it lies beyond the margin, all of it above 0
        (0.1, 1.0, "unclear"),
        (0.0, 0.1, "unclear"),  # no evidence of equality
    ],
)
def test_verdicts(difference: float, spread: float, verdict: str) -> None:
    b = np.array([0.3, 0.5, 0.9])
    found = stats.compare(b + difference + spread * np.array([-1, 0, 1]), b, margin=0.05)
    assert found.verdict == verdict
    np.testing.assert_allclose(found.difference.mean, difference, atol=1e-12)


def test_equality_is_said_wrongly_in_one_case_of_forty_at_most() -> None:
    rng, runs = np.random.default_rng(3), 4_000  # standard error 0.0025
    wrong = [stats.compare(rng.normal(0.05, 0.02, 4), np.zeros(4), margin=0.05).verdict == "equal" for _ in range(runs)]
    assert np.mean(wrong) < 0.025 + 0.0075


def test_values_that_give_no_interval() -> None:
    one = stats.mean_interval([0.4])
    assert one.mean == 0.4 and math.isnan(one.low) and one.n == 1
    assert stats.compare([0.4], [0.1]).verdict == "unclear"
    assert math.isnan(stats.mean_interval([0.4, math.nan]).mean)
    for method in ("t", "bca", "percentile"):
        same = stats.mean_interval([0.25, 0.25, 0.25], method=method)
        assert same.low == same.high == 0.25
    assert stats.paired_p_value([2.0, 3.0], [1.0, 2.0]) == 0 and stats.paired_p_value([2.0, 3.0], [2.0, 3.0]) == 1


def test_holm() -> None:
    np.testing.assert_allclose(stats.holm([0.01, 0.04, 0.03, 0.005]), [0.03, 0.06, 0.06, 0.02], rtol=1e-12)
    np.testing.assert_allclose(stats.holm([0.9, 0.8]), [1, 1])
    np.testing.assert_allclose(stats.holm([0.02]), [0.02])
    # the family-wise error rate under the global null, strongly dependent tests among them
    rng = np.random.default_rng(4)
    z = rng.normal(size=(20_000, 8)) + 0.7 * rng.normal(size=(20_000, 1))
    p = 2 * scipy.stats.norm.sf(np.abs(z) / np.sqrt(1.49))
    rejected = np.mean([(stats.holm(row) <= 0.05).any() for row in p[:4_000]])
    assert 0.01 < rejected <= 0.05 + 0.014


def test_loglog_slope() -> None:
    x = np.array([10.0, 30.0, 100.0, 300.0, 1_000.0])
    exact = stats.loglog_slope(x, 3 * x**-0.5)
    np.testing.assert_allclose([exact.mean, exact.low, exact.high], -0.5, rtol=1e-6)
    rng = np.random.default_rng(5)
    noisy = [stats.loglog_slope(x, 3 * x**-0.5 * np.exp(rng.normal(0, 0.2, 5))) for _ in range(2_000)]
    assert abs(np.mean([i.low <= -0.5 <= i.high for i in noisy]) - 0.95) < 0.02
    seeds = 3 * x**-0.5 * np.exp(rng.normal(0, 0.2, (8, 1)))  # a factor of its own leaves a seed's slope as it is
    over = stats.loglog_slope(x, seeds)
    np.testing.assert_allclose([over.low, over.high], -0.5, rtol=1e-6)
    assert over.n == 8


def test_conformal_threshold_covers_as_often_as_it_must() -> None:
    # exact: P(new <= threshold) = ceil((n + 1)(1 - alpha)) / (n + 1)
    rng, n, alpha, runs = np.random.default_rng(6), 19, 0.1, 20_000
    scores = rng.gumbel(size=(runs, n + 1))
    inside = np.mean([row[-1] <= stats.conformal_threshold(row[:-1], alpha) for row in scores])
    assert abs(inside - 18 / 20) < 4 * math.sqrt(0.09 / runs)
    assert stats.conformal_threshold(np.arange(1, 20), 0.1) == 18
    assert stats.conformal_threshold([1.0, 2.0], 0.1) == math.inf


def test_conformal_risk_is_controlled() -> None:
    rng, alpha, grid = np.random.default_rng(7), 0.2, np.linspace(0, 1, 101)
    risks = []
    for _ in range(500):
        easy = rng.random(40)  # the loss of an example is 1 below its own threshold
        threshold = stats.conformal_risk_threshold(easy[:, None] > grid, grid, alpha)
        risks.append(1 - threshold)
    assert alpha - 0.05 < np.mean(risks) <= alpha + 2 * np.std(risks) / math.sqrt(500)
    assert stats.conformal_risk_threshold([[1.0, 0.0]], [0.0, 1.0], 0.4) == math.inf  # one example promises little


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: stats.mean_interval([]), "values: has shape"),
        (lambda: stats.mean_interval([1.0, 2.0], method="magic"), "method: got 'magic', expected one of t, percentile"),
        (lambda: stats.mean_interval([1.0, 2.0], level=95), "level: got 95, expected a number between 0 and 1"),
        (lambda: stats.paired_interval([1.0, 2.0], [1.0]), "b: got 1 values, expected 2"),
        (lambda: stats.holm([0.5, 1.5]), "expected numbers from 0 to 1"),
        (lambda: stats.loglog_slope([1.0, 2.0], [0.0, 1.0]), "y: got .*0.0.* expected positive numbers"),
        (lambda: stats.conformal_threshold([1.0], 0), "alpha: got 0"),
        (lambda: stats.conformal_risk_threshold([[0.0, 1.0]], [0.0, 1.0], 0.1), "losses: rise"),
        (lambda: stats.compare([1.0], [1.0], margin=-1), "margin: got -1"),
    ],
)
def test_refusals(call, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        call()
