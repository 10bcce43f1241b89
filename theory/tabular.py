"""Exact answers for small Markov decision processes: the oracle that learners are tested against.

Everything is NumPy in float64. A process is its transition tensor ``P[s, a, s']``, a policy ``pi[s, a]``, a reward
``R[s, a]``. Sources: Puterman 1994, "Markov Decision Processes"; for occupancies Dayan 1993 (the successor
representation); for the soft backups Ziebart 2010 and Haarnoja et al. 2017 (arXiv:1702.08165).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from jaxtyping import Float, Int

from mjxlab.errors import ConfigError

Transitions = Float[np.ndarray, "s a s"]
Policy = Float[np.ndarray, "s a"]
Reward = Float[np.ndarray, "s a"]
Values = Float[np.ndarray, " s"]

__all__ = [
    "chain",
    "cycle",
    "discounted_visits",
    "goal_reward",
    "greedy",
    "improve",
    "occupancy_density",
    "of_goals",
    "policy_evaluation",
    "policy_iteration",
    "policy_transitions",
    "q_from_values",
    "soft_value_iteration",
    "stationary_distribution",
    "uniform_policy",
    "value_iteration",
]


def _check(P: Any, pi: Any = None, gamma: float = 0.0) -> None:
    shape = np.shape(P)
    if len(shape) != 3 or shape[0] != shape[2]:
        raise ConfigError(f"P: got the shape {shape}, expected (states, actions, states)")
    if np.min(P) < 0 or not np.allclose(np.sum(P, -1), 1, atol=1e-9):
        raise ConfigError("P: got rows that are no distributions, expected numbers of at least 0 with sum 1")
    if pi is not None:
        if np.shape(pi) != shape[:2]:
            raise ConfigError(f"pi: got the shape {np.shape(pi)}, expected {shape[:2]}")
        if np.min(pi) < 0 or not np.allclose(np.sum(pi, -1), 1, atol=1e-9):
            raise ConfigError("pi: got rows that are no distributions, expected numbers of at least 0 with sum 1")
    if not 0 <= gamma < 1:
        raise ConfigError(f"gamma: got {gamma!r}, expected a number of at least 0 and below 1")


# --- processes --------------------------------------------------------------------------------------------------------


def chain(states: int, slip: float = 0.0) -> Transitions:
    """A line: action 0 steps left, 1 right, and the ends hold. With probability ``slip`` the other direction is taken."""
    P = np.zeros((states, 2, states))
    for s in range(states):
        left, right = max(s - 1, 0), min(s + 1, states - 1)
        P[s, 0, left] += 1 - slip
        P[s, 0, right] += slip
        P[s, 1, right] += 1 - slip
        P[s, 1, left] += slip
    return P


def cycle(states: int, slip: float = 0.0) -> Transitions:
    """A ring: action 0 stays, 1 steps on. With probability ``slip`` the other of the two happens."""
    P = np.zeros((states, 2, states))
    for s in range(states):
        P[s, :, s] = 1 - slip, slip
        P[s, :, (s + 1) % states] += slip, 1 - slip
    return P


def uniform_policy(P: Transitions) -> Policy:
    """All actions equally likely."""
    return np.full(P.shape[:2], 1 / P.shape[1])


# --- where a policy goes ----------------------------------------------------------------------------------------------


def policy_transitions(P: Transitions, pi: Policy) -> Float[np.ndarray, "s s"]:
    """The Markov chain that the policy makes of the process: sum_a pi(a | s) P(s' | s, a)."""
    return np.einsum("sa,sat->st", pi, P)


def occupancy_density(P: Transitions, pi: Policy, gamma: float) -> Float[np.ndarray, "s a s"]:
    """p_gamma(s+ | s, a): the law of the state a geometric time after (s, a), the policy acting from then on.

    ::

        p_gamma(s+ | s, a) = (1 - gamma) sum_{k >= 1} gamma^(k-1) P(s_k = s+ | s_0 = s, a_0 = a)
                           = (1 - gamma) [P (I - gamma P_pi)^-1](s, a, s+)

    It is what a contrastive critic estimates (over the density of goals), and Q^pi of the reward ``goal_reward``.
    """
    _check(P, pi, gamma)
    S = P.shape[0]
    resolvent = np.linalg.inv(np.eye(S) - gamma * policy_transitions(P, pi))
    return (1 - gamma) * np.asarray(P, np.float64) @ resolvent


def of_goals(density: Float[np.ndarray, "*lead s"], goal_of: Int[np.ndarray, " s"]) -> Float[np.ndarray, "*lead g"]:
    """Probabilities of states summed by goal. ``goal_of``: number of the goal that each state achieves, from 0."""
    member = np.eye(int(np.max(goal_of)) + 1)[goal_of]
    return density @ member


def goal_reward(P: Transitions, gamma: float) -> Float[np.ndarray, "s a g"]:
    """For each state g as the goal the reward R(s, a) = (1 - gamma) P(g | s, a), whose Q^pi is p_gamma(g | s, a)."""
    return (1 - gamma) * np.asarray(P, np.float64)


def stationary_distribution(P: Transitions, pi: Policy) -> Values:
    """The law d = d P_pi of the state in the long run (the chain must have one recurrent class)."""
    _check(P, pi)
    S = P.shape[0]
    A = np.vstack([policy_transitions(P, pi).T - np.eye(S), np.ones((1, S))])
    d, *_ = np.linalg.lstsq(A, np.append(np.zeros(S), 1.0), rcond=None)
    return np.maximum(d, 0) / np.maximum(d, 0).sum()


def discounted_visits(P: Transitions, pi: Policy, start: Values, gamma: float) -> Float[np.ndarray, "s a"]:
    """(1 - gamma) sum_{t >= 0} gamma^t P(s_t = s, a_t = a) from the start law: sums to 1."""
    _check(P, pi, gamma)
    d = np.linalg.solve(np.eye(P.shape[0]) - gamma * policy_transitions(P, pi).T, (1 - gamma) * np.asarray(start))
    return d[:, None] * pi


# --- what it is worth -------------------------------------------------------------------------------------------------


def q_from_values(P: Transitions, R: Reward, values: Values, gamma: float) -> Float[np.ndarray, "s a"]:
    """One Bellman backup: R(s, a) + gamma sum_s' P(s' | s, a) V(s')."""
    return R + gamma * P @ values


def policy_evaluation(P: Transitions, R: Reward, pi: Policy, gamma: float) -> tuple[Values, Float[np.ndarray, "s a"]]:
    """(V, Q) of a policy, by solving the linear system."""
    _check(P, pi, gamma)
    V = np.linalg.solve(np.eye(P.shape[0]) - gamma * policy_transitions(P, pi), np.einsum("sa,sa->s", pi, R))
    return V, q_from_values(P, R, V, gamma)


def greedy(Q: Float[np.ndarray, "s a"]) -> Policy:
    """All probability on the best action, the first of them where several are."""
    return np.eye(Q.shape[1])[np.argmax(Q, 1)]


def improve(P: Transitions, R: Reward, pi: Policy, gamma: float) -> Int[np.ndarray, " s"]:
    """The action of each state that one step of policy iteration takes after evaluating ``pi``."""
    return np.argmax(policy_evaluation(P, R, pi, gamma)[1], 1)


def policy_iteration(P: Transitions, R: Reward, gamma: float) -> tuple[Values, Float[np.ndarray, "s a"], Policy]:
    """(V, Q, pi) of an optimal policy (Howard 1960): exact, in finitely many steps.

    An action is changed only for one that is better by more than rounding, so ties do not make it run for ever.
    """
    _check(P, None, gamma)
    actions = np.argmax(R, 1)
    while True:
        pi = np.eye(P.shape[1])[actions]
        V, Q = policy_evaluation(P, R, pi, gamma)
        here = np.take_along_axis(Q, actions[:, None], 1)[:, 0]
        better = Q.max(1) > here + 1e-12 * np.maximum(1, np.abs(here))
        if not better.any():
            return V, Q, pi
        actions = np.where(better, Q.argmax(1), actions)


def value_iteration(
    P: Transitions, R: Reward, gamma: float, tolerance: float = 1e-12
) -> tuple[Values, Float[np.ndarray, "s a"]]:
    """(V, Q) of an optimal policy, within ``tolerance`` of the fixed point in every state."""
    V, Q, _ = soft_value_iteration(P, R, gamma, 0.0, tolerance=tolerance)
    return V, Q


def soft_value_iteration(
    P: Transitions,
    R: Reward,
    gamma: float,
    temperature: float,
    *,
    prior: Policy | None = None,
    tolerance: float = 1e-12,
) -> tuple[Values, Float[np.ndarray, "s a"], Policy]:
    """(V, Q, pi) that are best when the policy's divergence from a prior costs ``temperature`` per nat.

    ::

        V(s) = temperature log sum_a prior(a | s) exp(Q(s, a) / temperature)  (the maximum, at 0)
        Q    = R + gamma P V,      pi(a | s) = prior(a | s) exp((Q(s, a) - V(s)) / temperature)

    Args:
      temperature: at least 0.
      prior: None for weights of 1 (not a distribution): V is then the largest return plus ``temperature`` times the
        entropy of the policy, as in maximum-entropy reinforcement learning.
      tolerance: bound on the distance of V from the fixed point, in every state.
    """
    _check(P, prior, gamma)
    if not temperature >= 0:
        raise ConfigError(f"temperature: got {temperature!r}, expected a number of at least 0")
    with np.errstate(divide="ignore"):
        log_prior = np.zeros(P.shape[:2]) if prior is None else np.log(prior)

    def backup(V: Any) -> tuple[Any, Any]:
        Q = q_from_values(P, R, V, gamma)
        if temperature == 0:
            return np.where(np.isfinite(log_prior), Q, -np.inf).max(1), Q
        z = Q / temperature + log_prior
        top = z.max(1, keepdims=True)
        return temperature * (top[:, 0] + np.log(np.exp(z - top).sum(1))), Q

    V = np.zeros(P.shape[0])
    while True:
        new, Q = backup(V)
        # |V' - V*| <= gamma / (1 - gamma) |V' - V|
        done = gamma * np.abs(new - V).max() <= (1 - gamma) * tolerance + 4 * np.finfo(float).eps * np.abs(new).max()
        V = new
        if done:
            break
    Q = q_from_values(P, R, V, gamma)
    if temperature == 0:
        return V, Q, greedy(np.where(np.isfinite(log_prior), Q, -np.inf))
    z = Q / temperature + log_prior
    weights = np.exp(z - z.max(1, keepdims=True))
    return V, Q, weights / weights.sum(1, keepdims=True)
