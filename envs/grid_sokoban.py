"""Sokoban with one box: pushing cannot be undone, so some moves lose the game.

A board is small enough that every situation (player and box anywhere) is solved exactly when an episode is drawn: the
start is one of those that can be solved, and the dense reward and the scripted player know the fewest moves.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Int8, Key

from mjxlab.envs import grid
from mjxlab.envs.base import State
from mjxlab.envs.grid import MOVES, Board, Cell, GridGoal
from mjxlab.errors import ConfigError

#: stands for "cannot be solved" among numbers of moves, which all are below
LOST = 127


class SokobanLite(GridGoal):
    """Push the box to the goal; the goal is a cell of the box, wherever the player is.

    A room with a few pillars, new in every episode. The goal is any cell that a box can be pushed into, all equally
    likely; then player and box are drawn from all situations that can be solved and are not solved yet, all equally
    likely. A box in a corner stays there. Actions: up, down, left, right, stay; walking into the box pushes it, if the
    cell behind it is free.

    Observation (51 at size 7): the room's pillars (25), row and column one-hot of player and box (10 each), box minus player
    (2 numbers, scaled); box; goal.

    ``data``: cells ``agent`` and ``box``. ``params``: ``free`` (the board), ``goal`` (a cell), ``moves`` (fewest moves from
    every situation, int8[player, box], inner cells row by row; 127: lost).

    Args:
      size: rows and columns of the board, walls included.
      pillars: inner walls, at most.
    """

    name = "sokoban_lite"

    def __init__(self, *, size: int = 7, pillars: int = 3, **common: Any) -> None:
        self.size = grid.count("size", size, 5, 9)
        self.pillars = grid.count("pillars", pillars, 0)
        if pillars > size - 4:
            raise ConfigError(f"pillars is {pillars!r}; expected at most {size - 4} on a board of size {size}")
        # more than any situation took in 4,096 random rooms (37 at size 7)
        self.longest = 8 * (size - 2)
        self.episode_length = 10 * (size - 2)
        super().__init__(**common)
        self.tolerance = 1 / (size - 1)

    @property
    def shape(self) -> tuple[int, int]:
        return self.size, self.size

    def draw(self, key: Key[Array, ""]) -> tuple[dict[str, Array], dict[str, Array]]:
        pillar_key, goal_key, start_key = jax.random.split(key, 3)
        inner = self.size - 2
        # drawn with replacement: two may coincide
        at = jax.random.randint(pillar_key, (self.pillars,), 0, inner**2, jnp.int32)
        room = ~jnp.any(jnp.arange(inner**2, dtype=jnp.int32)[None] == at[:, None], axis=0).reshape(inner, inner)
        goal = grid.choose_cell(goal_key, pushable(room))
        moves = solve(room, goal)
        start = grid.choose(start_key, (moves > 0) & (moves < LOST))
        player, box = start // inner**2, start % inner**2
        data = {"agent": self._cell(player), "box": self._cell(box)}
        return data, {"free": jnp.pad(room, 1), "goal": goal + 1, "moves": moves}

    def _cell(self, index: Int[Array, ""]) -> Cell:
        inner = self.size - 2
        return jnp.stack([1 + index // inner, 1 + index % inner])

    def _index(self, cell: Cell) -> Int[Array, ""]:
        return (cell[0] - 1) * (self.size - 2) + cell[1] - 1

    def move(self, data: Mapping[str, Array], params: Mapping[str, Array], action: Int[Array, ""]) -> dict[str, Array]:
        agent, box, free = data["agent"], data["box"], params["free"]
        step = grid.delta(action)
        there, behind = agent + step, box + step
        push = jnp.all(there == box) & jnp.any(step != 0)
        able = jnp.where(push, grid.at(free, behind), grid.at(free, there))
        return {"agent": jnp.where(able, there, agent), "box": jnp.where(push & able, behind, box)}

    def achieved(self, data: Mapping[str, Array], params: Mapping[str, Array]) -> Float[Array, "2"]:
        return self.scaled(data["box"])

    def features(self, data: Mapping[str, Array], params: Mapping[str, Array]) -> Float[Array, " features"]:
        agent, box = data["agent"], data["box"]
        dtype = jnp.result_type(float)
        pillars = (~params["free"][1:-1, 1:-1]).ravel().astype(dtype)
        gap = (box - agent).astype(dtype) / (self.size - 3)
        return jnp.concatenate([pillars, grid.hot(agent, self.shape), grid.hot(box, self.shape), gap])

    def steps_to_go(self, data: Mapping[str, Array], params: Mapping[str, Array]) -> Int[Array, ""]:
        moves = params["moves"][self._index(data["agent"]), self._index(data["box"])].astype(jnp.int32)
        return jnp.where(moves == LOST, jnp.int32(self.longest), moves)

    def layers(self, state: State) -> dict[str, Board]:
        cells = {"goal": state.params["goal"], "box": state.data["box"], "agent": state.data["agent"]}
        return {"wall": ~state.params["free"], **{k: grid.mask(cell, self.shape) for k, cell in cells.items()}}


def pushable(room: Board) -> Board:
    """Cells that a box can be pushed into: from a free neighbour, by a player on the free cell beyond."""
    one = room.astype(jnp.int32)
    found = jnp.zeros_like(one)
    for move in MOVES[:4]:
        near = grid.shifted(one, move, 0)
        found = found | (near & grid.shifted(near, move, 0))
    return room & (found > 0)


@functools.cache
def _behind(inner: int) -> np.ndarray:
    """bool[4, player row, player column, box]: the player stands so that the move brings it onto the box."""
    rows, columns = np.divmod(np.arange(inner**2), inner)
    cell = np.arange(inner)
    return np.stack([(cell[:, None, None] + d == rows) & (cell[None, :, None] + r == columns) for d, r in MOVES[:4]])


def solve(room: Board, goal: Cell) -> Int8[Array, "player box"]:
    """Fewest moves from every situation until the box is on the goal; ``LOST`` where that cannot be, or is no situation.

    Breadth-first search backwards over all of them at once: in each round every situation looks at what its four moves
    lead to.

    Args:
      room: free cells, without the walls all round.
      goal: a cell of it.
    """
    inner = room.shape[0]
    lost = jnp.int8(LOST)
    free = room.astype(jnp.int8)
    box_here = jnp.eye(inner**2, dtype=bool).reshape(inner, inner, inner**2)
    legal = room[:, :, None] & room.ravel()[None, None] & ~box_here
    solved = grid.mask(goal, room.shape).ravel()
    start = jnp.where(legal & solved[None, None], jnp.int8(0), lost)
    behind = jnp.asarray(_behind(inner))
    # where a step without a push leads to a free cell, and where a push moves the box to one
    walks = [(grid.shifted(free, m, 0) > 0)[:, :, None] & ~behind[i] for i, m in enumerate(MOVES[:4])]
    pushes = [behind[i] & (grid.shifted(free, m, 0) > 0).ravel()[None, None] for i, m in enumerate(MOVES[:4])]

    def one_round(loop: tuple[Array, Array]) -> tuple[Array, Array]:
        old = loop[0]
        best = old
        for i, move in enumerate(MOVES[:4]):
            walked = jnp.where(walks[i], grid.shifted(old, move, LOST), lost)
            # after a push the box is one further, and the player right behind it
            followed = jnp.min(jnp.where(behind[i], old, lost), (0, 1)).reshape(inner, inner)
            pushed = grid.shifted(followed, move, LOST).ravel()
            pushed = jnp.where(pushes[i], jnp.broadcast_to(pushed[None, None], old.shape), lost)
            best = jnp.minimum(best, jnp.minimum(jnp.minimum(walked, pushed), lost - 1) + 1)
        new = jnp.where(legal, jnp.minimum(best, lost), lost)
        return new, jnp.any(new != old)

    moves, _ = jax.lax.while_loop(lambda loop: loop[1], one_round, (start, jnp.any(solved)))
    return moves.reshape(inner**2, inner**2)
