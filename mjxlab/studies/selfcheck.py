"""A study of the study harness: a winner that is known to win. Seconds.

Two ways to pull the arms of a Bernoulli bandit: UCB1, whose expected regret grows with the logarithm of the pulls (Auer,
Cesa-Bianchi, Fischer 2002), and pulling arms evenly, whose regret is exactly the mean gap times the pulls. With
``--set gap=0`` all arms are equal, both have no regret, and the claim that UCB1 has less is false: the command must exit
with 1.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from mjxlab import stats
from mjxlab.cells import Cell, Cells
from mjxlab.errors import ConfigError
from mjxlab.study import Criterion, Curve, Result, Row, Study, Table

METHODS = ("ucb", "even")
PULLS = {"smoke": 50, "cpu": 2_000, "full": 20_000}


@dataclasses.dataclass(frozen=True)
class Config:
    """Attributes:
    arms: how many. gap: by how much the best arm's chance of a reward lies above the others', which is 0.4.
    pulls: of each run.
    """

    arms: int = 4
    gap: float = 0.3
    pulls: int = 2_000

    def validate(self) -> None:
        """Raise ``ConfigError`` for the first field that cannot work."""
        if self.arms < 2:
            raise ConfigError(f"arms: got {self.arms}, expected at least 2")
        if not 0 <= self.gap <= 0.6:
            raise ConfigError(f"gap: got {self.gap}, expected a number from 0 to 0.6")
        if self.pulls < self.arms:
            raise ConfigError(f"pulls: got {self.pulls}, expected at least one for each of the {self.arms} arms")


def pull(method: str, arms: int, gap: float, pulls: int, seed: int) -> list[float]:
    """The cumulative expected regret after each pull, of one run."""
    rng = np.random.default_rng(seed)
    chance = np.full(arms, 0.4)
    chance[rng.integers(arms)] += gap
    rewards = rng.random((pulls, arms)) < chance  # of every arm at every time: both methods meet the same luck
    counts, sums, chosen = np.zeros(arms), np.zeros(arms), np.zeros(pulls, int)
    for t in range(pulls):
        if t < arms or method == "even":
            arm = t % arms
        else:
            arm = int(np.argmax(sums / counts + np.sqrt(2 * np.log(t) / counts)))
        counts[arm] += 1
        sums[arm] += rewards[t, arm]
        chosen[t] = arm
    return np.cumsum(chance.max() - chance[chosen]).tolist()


def run(config: Config, budget: str, seeds: tuple[int, ...], cells: Cells) -> Result:
    """Both methods, all seeds."""
    jobs = [
        Cell(f"{method}-{seed}", pull, dataclasses.asdict(config) | {"method": method, "seed": seed})
        for method in METHODS
        for seed in seeds
    ]
    curves = np.asarray(cells.all(jobs)).reshape(len(METHODS), len(seeds), config.pulls)
    regret = dict(zip(METHODS, curves[:, :, -1], strict=True))
    found = stats.compare(-regret["ucb"], -regret["even"], margin=0) if len(seeds) > 1 else None
    exact = config.gap * (config.arms - 1) / config.arms * (config.pulls - config.pulls % config.arms)
    at = np.unique(np.linspace(0, config.pulls - 1, 50).astype(int))
    return Result(
        rows=tuple(Row.of(method, "regret", regret[method]) for method in METHODS),
        criteria={
            "ucb_wins": None if found is None else found.verdict == "better",
            "even_is_exact": bool(np.all(np.abs(regret["even"] - exact) <= config.gap * config.arms)),
        },
        tables=()
        if found is None
        else (
            Table(
                "regret of even pulls minus UCB1's",
                ("verdict", "mean", "low", "high"),
                ((found.verdict, *_bounds(found)),),
            ),
        ),
        curves=tuple(
            Curve(method, tuple(map(float, at + 1)), tuple(curve.mean(0)[at].tolist()))
            for method, curve in zip(METHODS, curves, strict=True)
        ),
        axes=("pulls", "regret"),
    )


def _bounds(found: stats.Comparison) -> tuple[float, float, float]:
    return found.difference.mean, found.difference.low, found.difference.high


STUDY = Study(
    name="selfcheck",
    claim="UCB1 has less regret than pulling all arms evenly",
    criteria=(
        Criterion("ucb_wins", "the paired 95 % interval of the difference lies on UCB1's side of 0"),
        Criterion(
            "even_is_exact", "even pulling's regret is the mean gap times the pulls, up to one round", required=False
        ),
    ),
    run=run,
    config=lambda budget: Config(pulls=PULLS[budget]),
    seeds={"smoke": (0, 1), "cpu": (0, 1, 2, 3, 4), "full": tuple(range(20))},
    expects=lambda config: [("", method, "regret") for method in METHODS],
    source="Auer, Cesa-Bianchi, Fischer 2002",
)
