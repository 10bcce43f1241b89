"""Lights out: each press switches a light and its neighbours; the order of presses does not matter, only their parity."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces
from jaxtyping import Array, Float, Int, Key

from mjxlab.envs import grid
from mjxlab.envs.base import State
from mjxlab.envs.grid import MOVES, Board, GridGoal


class LightsOutLite(GridGoal):
    """Bring a board of lights into a given pattern.

    The goal is the pattern itself: -1 for each dark light, 1 for each lit one. The start is any pattern, all equally
    likely; the goal is what a random set of presses makes of it (its size is uniform in 1 … ``presses``), so it can
    always be reached. The shortest way is found by linear algebra over the field of two elements. Action i presses light i
    (row by row), the last one presses none.

    Observation (27 at size 3): lights as 0 and 1; lights; goal (both -1 and 1). The misleading dense reward
    (``dense="euclid"``) grows with the number of lights that are wrong.

    ``data``: ``lights`` (bool[n, n]). ``params``: ``goal`` (bool[n, n]).

    Args:
      size: lights in a row and in a column.
      presses: how many presses the start is from the goal at most (fewer where another set does the same).
    """

    name = "lights_out_lite"
    episode_length = 20
    tolerance = 1.0

    def __init__(self, *, size: int = 3, presses: int = 4, **common: Any) -> None:
        self.size = grid.count("size", size, 2, 7)
        self.presses = grid.count("presses", presses, 1, size**2)
        self.goal_size = size**2
        super().__init__(**common)
        self.action_space = spaces.Discrete(size**2 + 1)
        self._solver, self._quiet = solver(size)
        self.longest = size**2

    @property
    def shape(self) -> tuple[int, int]:
        return self.size, self.size

    def draw(self, key: Key[Array, ""]) -> tuple[dict[str, Array], dict[str, Array]]:
        start_key, count_key, set_key = jax.random.split(key, 3)
        lights = jax.random.bernoulli(start_key, 0.5, self.shape)
        number = jax.random.randint(count_key, (), 1, self.presses + 1, jnp.int32)
        order = jax.random.permutation(set_key, jnp.arange(self.size**2, dtype=jnp.int32))
        presses = order < number
        # a set that changes nothing makes way for its first press alone
        idle = ~jnp.any(switch(presses.reshape(self.shape)))
        presses = jnp.where(idle, order == 0, presses)
        return {"lights": lights}, {"goal": lights ^ switch(presses.reshape(self.shape))}

    def move(self, data: Mapping[str, Array], params: Mapping[str, Array], action: Int[Array, ""]) -> dict[str, Array]:
        press = (jnp.arange(self.size**2, dtype=jnp.int32) == action).reshape(self.shape)
        return {"lights": data["lights"] ^ switch(press)}

    def achieved(self, data: Mapping[str, Array], params: Mapping[str, Array]) -> Float[Array, " goal"]:
        return signs(data["lights"])

    def commanded(self, params: Mapping[str, Array]) -> Float[Array, " goal"]:
        return signs(params["goal"])

    def features(self, data: Mapping[str, Array], params: Mapping[str, Array]) -> Float[Array, " features"]:
        return data["lights"].ravel().astype(jnp.result_type(float))

    def steps_to_go(self, data: Mapping[str, Array], params: Mapping[str, Array]) -> Int[Array, ""]:
        wrong = (data["lights"] ^ params["goal"]).ravel()
        one = jnp.sum(jnp.asarray(self._solver) & wrong[None], axis=1, dtype=jnp.int32) % 2 == 1
        all_sets = jnp.asarray(self._quiet) ^ one[None]
        return jnp.min(jnp.sum(all_sets, axis=1, dtype=jnp.int32))

    def layers(self, state: State) -> dict[str, Board]:
        lights = state.data["lights"]
        return {"dark": ~lights, "lit": lights, "wanted": state.params["goal"]}


def signs(pattern: Board) -> Float[Array, " lights"]:
    """-1 for each dark light, 1 for each lit one."""
    return 2 * pattern.ravel().astype(jnp.result_type(float)) - 1


def switch(presses: Board) -> Board:
    """The lights that a set of presses switches: those with an odd number of presses on themselves and their neighbours."""
    one = presses.astype(jnp.int32)
    return functools.reduce(lambda a, b: a ^ b, [grid.shifted(one, move, 0) for move in MOVES]) > 0


@functools.cache
def solver(n: int) -> tuple[np.ndarray, np.ndarray]:
    """How to undo patterns on a board of n x n, by Gauss-Jordan elimination over the field of two elements.

    Returns:
      bool[n², n²]: a matrix that turns a pattern into a set of presses that makes it (if any set does), modulo 2.
      bool[2^k, n²]: all sets of presses that change nothing; added to a solution they give all solutions.
    """
    size = n * n
    rows, columns = np.divmod(np.arange(size), n)
    reach = np.abs(rows[:, None] - rows) + np.abs(columns[:, None] - columns)
    # [A | I] becomes [reduced A | how its rows were made]
    matrix = np.concatenate([reach <= 1, np.eye(size, dtype=bool)], axis=1)
    pivots: list[int] = []
    for column in range(size):
        rank = len(pivots)
        below = np.flatnonzero(matrix[rank:, column])
        if not below.size:
            continue
        matrix[[rank, rank + below[0]]] = matrix[[rank + below[0], rank]]
        others = np.flatnonzero(matrix[:, column])
        matrix[others[others != rank]] ^= matrix[rank]
        pivots.append(column)
    inverse = np.zeros((size, size), bool)
    inverse[pivots] = matrix[: len(pivots), size:]
    basis = []
    for column in sorted(set(range(size)) - set(pivots)):
        quiet = np.zeros(size, bool)
        quiet[column] = True
        quiet[pivots] = matrix[: len(pivots), column]
        basis.append(quiet)
    sets = [
        np.bitwise_xor.reduce([np.zeros(size, bool), *some])
        for k in range(len(basis) + 1)
        for some in itertools.combinations(basis, k)
    ]
    return inverse, np.stack(sets)
