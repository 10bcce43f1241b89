"""The oracle against plain sums and enumeration, and contrastive critics against the oracle."""

from __future__ import annotations

import itertools
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import minimize

from mjxlab.errors import ConfigError
from mjxlab.rl import contrastive
from mjxlab.theory import tabular

GAMMA = 0.8


def random_process(seed: int = 0, states: int = 5, actions: int = 3):
    rng = np.random.default_rng(seed)
    P = rng.dirichlet(np.ones(states), (states, actions))
    return P, rng.normal(size=(states, actions)), rng.dirichlet(np.ones(actions), states)


def test_occupancies_are_the_series() -> None:
    P, _, pi = random_process()
    density = tabular.occupancy_density(P, pi, GAMMA)
    step, series = tabular.policy_transitions(P, pi), np.zeros_like(P)
    later = P
    for k in range(200):
        series += (1 - GAMMA) * GAMMA**k * later
        later = later @ step
    np.testing.assert_allclose(density, series, atol=1e-12)
    np.testing.assert_allclose(density.sum(-1), 1, rtol=1e-12)
    for g in range(5):
        _, Q = tabular.policy_evaluation(P, tabular.goal_reward(P, GAMMA)[..., g], pi, GAMMA)
        np.testing.assert_allclose(density[..., g], Q, rtol=1e-10)
    goal_of = np.array([0, 1, 1, 0, 2])
    by_goal = tabular.of_goals(density, goal_of)
    np.testing.assert_allclose(by_goal[..., 1], density[..., 1] + density[..., 2])


def test_stationary_and_discounted_laws() -> None:
    P, R, pi = random_process(1)
    d = tabular.stationary_distribution(P, pi)
    np.testing.assert_allclose(d @ tabular.policy_transitions(P, pi), d, atol=1e-12)
    start = np.array([0.5, 0.5, 0, 0, 0])
    visits = tabular.discounted_visits(P, pi, start, GAMMA)
    np.testing.assert_allclose(visits.sum(), 1, rtol=1e-12)
    V, _ = tabular.policy_evaluation(P, R, pi, GAMMA)
    np.testing.assert_allclose((visits * R).sum(), (1 - GAMMA) * start @ V, rtol=1e-10)


def test_policy_iteration_finds_the_best_of_all_policies() -> None:
    P, R, _ = random_process(2, states=4, actions=3)
    V, Q, pi = tabular.policy_iteration(P, R, GAMMA)
    every = [np.eye(3)[list(choice)] for choice in itertools.product(range(3), repeat=4)]
    best = np.max([tabular.policy_evaluation(P, R, p, GAMMA)[0] for p in every], 0)
    np.testing.assert_allclose(V, best, rtol=1e-12)
    np.testing.assert_array_equal(pi, tabular.greedy(Q))
    np.testing.assert_allclose(tabular.value_iteration(P, R, GAMMA)[0], V, atol=1e-11)
    np.testing.assert_array_equal(tabular.improve(P, R, pi, GAMMA), pi.argmax(1))


def test_soft_value_iteration() -> None:
    P, R, prior = random_process(3)
    for weights in (None, prior):
        V, Q, pi = tabular.soft_value_iteration(P, R, GAMMA, 0.3, prior=weights)
        np.testing.assert_allclose(pi.sum(1), 1, rtol=1e-12)
        # the value of the policy itself, with what its divergence costs, is V ...
        base = np.ones_like(prior) if weights is None else weights

        def worth(p, base=base):
            cost = 0.3 * (p * np.log(p / base)).sum(1, keepdims=True)
            return tabular.policy_evaluation(P, R - cost, p, GAMMA)[0]

        np.testing.assert_allclose(worth(pi), V, atol=1e-10)
        # ... and no policy near it does better
        rng = np.random.default_rng(0)
        for _ in range(20):
            other = pi * np.exp(0.1 * rng.normal(size=pi.shape))
            assert (worth(other / other.sum(1, keepdims=True)) <= V + 1e-12).all()
        np.testing.assert_allclose(Q, tabular.q_from_values(P, R, V, GAMMA))
    hard, _, _ = tabular.policy_iteration(P, R, GAMMA)
    np.testing.assert_allclose(tabular.soft_value_iteration(P, R, GAMMA, 1e-5)[0], hard, atol=1e-4)
    np.testing.assert_allclose(tabular.soft_value_iteration(P, R, GAMMA, 0.0)[0], hard, atol=1e-10)
    # a prior that rules actions out is obeyed at any temperature
    only = np.eye(3)[np.zeros(5, int)]
    for temperature in (0.0, 0.5):
        found = tabular.soft_value_iteration(P, R, GAMMA, temperature, prior=only)
        np.testing.assert_allclose(found[0], tabular.policy_evaluation(P, R, only, GAMMA)[0], atol=1e-10)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda P, pi: tabular.occupancy_density(P, pi, 1.0), "gamma: got 1.0, expected a number of at least 0"),
        (lambda P, pi: tabular.occupancy_density(2 * P, pi, 0.9), "P: got rows that are no distributions"),
        (lambda P, pi: tabular.occupancy_density(P, 1 - pi, 0.9), "pi: got rows that are no distributions"),
        (lambda P, pi: tabular.soft_value_iteration(P, pi, 0.9, -1.0), "temperature: got -1.0"),
    ],
)
def test_bad_arguments_give_one_clear_line(call, message: str) -> None:
    P, _, pi = random_process()
    with pytest.raises(ConfigError, match=message) as error:
        call(P, pi)
    assert "\n" not in str(error.value)


# --- critics ------------------------------------------------------------------------------------------------------------

ROWS = 480
PROCESSES = {"chain": tabular.chain(4, 0.1), "cycle": tabular.cycle(4, 0.1)}
PI = np.array([[0.6, 0.4], [0.3, 0.7], [0.5, 0.5], [0.4, 0.6]])


def batch_of(P: np.ndarray, pi: np.ndarray):
    """A batch in which every (s, a, g) stands as often as it is likely: expectations over it are exact.

    Returns (number of (s, a), number of g) of each row, and the table of counts, which rounding moves from
    ROWS p(s, a, g) by less than 1.
    """
    S, A, _ = P.shape
    joint = (pi[:, :, None] / S * tabular.occupancy_density(P, pi, GAMMA)).reshape(S * A, S)
    counts = np.floor(ROWS * joint).astype(int)
    rest = np.argsort((counts - ROWS * joint).ravel())[: ROWS - counts.sum()]
    counts.ravel()[rest] += 1
    x, g = np.unravel_index(np.repeat(np.arange(counts.size), counts.ravel()), counts.shape)
    return x, g, counts


def converged(loss: str, rho: float, x, g, shape, start=None) -> np.ndarray:
    """The table f[(s, a), g] that minimises the loss of the batch."""

    @jax.jit
    def value_and_grad(f):
        def objective(f):
            return contrastive.contrastive_loss(loss, f.reshape(shape)[x][:, g], rho)

        return jax.value_and_grad(objective)(f)

    start = np.zeros(shape) if start is None else start
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", contrastive.IdentifiabilityWarning)
        found = minimize(
            lambda f: tuple(np.asarray(v, np.float64) for v in value_and_grad(jnp.asarray(f))),
            start.ravel(),
            jac=True,
            method="L-BFGS-B",
            options={"maxiter": 3000, "ftol": 1e-15, "gtol": 1e-9},
        )
    return found.x.reshape(shape)


def ratio_of(counts: np.ndarray) -> np.ndarray:
    """p(g | s, a) / p(g) in the batch."""
    return counts * counts.sum() / counts.sum(1, keepdims=True) / counts.sum(0, keepdims=True)


@pytest.mark.x64
@pytest.mark.parametrize("process", PROCESSES)
@pytest.mark.parametrize(
    ("loss", "rho"),
    [("fwd", 0.0), ("fwd", 0.1), ("bwd", 0.0), ("bwd", 0.1), ("sym", 0.0), ("sym", 0.1), ("binary", 0.0)],
)
def test_critics_converge_to_the_log_density_ratio(process: str, loss: str, rho: float) -> None:
    P = PROCESSES[process]
    x, g, counts = batch_of(P, PI)
    f = converged(loss, rho, x, g, counts.shape)
    gap = f - np.log(ratio_of(counts))
    if loss == "binary":
        # pairs (i, i) are positives only, which leaves a trace of the order of 1 / batch
        gap = gap - np.log((ROWS - 1) / (ROWS - ratio_of(counts)))
        np.testing.assert_allclose(gap, 0, atol=1e-3)
    elif loss == "fwd" and rho == 0:
        gap = gap - gap.mean(1, keepdims=True)  # c(s, a)
    elif loss == "bwd":
        gap = gap - gap.mean(0, keepdims=True)  # c(g)
    else:
        gap = gap - gap.mean()
    np.testing.assert_allclose(gap, 0, atol=3e-3)

    # the action with the largest advantage is that of a step of policy iteration, for every state and goal
    S, A, _ = P.shape
    f = f.reshape(S, A, S)
    advantage = f - np.einsum("sa,sag->sg", PI, f)[:, None]
    if not (loss == "fwd" and rho == 0):
        reward = tabular.goal_reward(P, GAMMA)
        best = np.stack([tabular.improve(P, reward[..., goal], PI, GAMMA) for goal in range(S)], 1)
        np.testing.assert_array_equal(advantage.argmax(1), best)


@pytest.mark.x64
def test_without_rho_an_arbitrary_c_flips_actions() -> None:
    P = PROCESSES["cycle"]
    x, g, counts = batch_of(P, PI)
    right = np.log(ratio_of(counts))
    c = np.zeros((4, 2))
    c[:, 0] = 3.0  # in favour of staying
    wrong = right + c.reshape(8, 1)

    def loss(f, rho: float) -> float:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", contrastive.IdentifiabilityWarning)
            return float(contrastive.contrastive_loss("fwd", jnp.asarray(f)[x][:, g], rho))

    def actions(f):
        return f.reshape(4, 2, 4).argmax(1)

    # the loss cannot tell, but the policy would stay for ever
    np.testing.assert_allclose(loss(wrong, 0.0), loss(right, 0.0), rtol=1e-12)
    assert (actions(wrong) == 0).all() and (actions(right) == 1).any()
    # trained on from there it stays wrong; with rho it is found out
    np.testing.assert_array_equal(actions(converged("fwd", 0.0, x, g, counts.shape, wrong)), actions(wrong))
    assert loss(wrong, 0.1) > loss(right, 0.1) + 0.1
    np.testing.assert_array_equal(actions(converged("fwd", 0.1, x, g, counts.shape, wrong)), actions(right))
