"""Going to a cell: four rooms with doors between them, and mazes that are new in every episode."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key

from mjxlab.envs import grid
from mjxlab.envs.base import State
from mjxlab.envs.grid import Board, GridGoal
from mjxlab.errors import ConfigError

FOUR_ROOMS = """
###########
#    #    #
#    #    #
#         #
#    #    #
## ##### ##
#    #    #
#    #    #
#         #
#    #    #
###########
"""


class _Walk(GridGoal):
    """A walker in a board of walls; the goal is a cell.

    ``params``: ``free`` (the board), ``goal`` (a cell), ``steps`` (from every cell to the goal).
    """

    def move(self, data: Mapping[str, Array], params: Mapping[str, Array], action: Int[Array, ""]) -> dict[str, Array]:
        there = data["agent"] + grid.delta(action)
        return {"agent": jnp.where(grid.at(params["free"], there), there, data["agent"])}

    def achieved(self, data: Mapping[str, Array], params: Mapping[str, Array]) -> Float[Array, "2"]:
        return self.scaled(data["agent"])

    def steps_to_go(self, data: Mapping[str, Array], params: Mapping[str, Array]) -> Int[Array, ""]:
        here = grid.mask(data["agent"], self.shape)
        return jnp.sum(jnp.where(here, params["steps"].astype(jnp.int32), 0), dtype=jnp.int32)

    def features(self, data: Mapping[str, Array], params: Mapping[str, Array]) -> Float[Array, " features"]:
        agent = data["agent"]
        return jnp.concatenate([grid.hot(agent, self.shape), grid.blocked(params["free"], agent)])

    def layers(self, state: State) -> dict[str, Board]:
        return {
            "wall": ~state.params["free"],
            "goal": grid.mask(state.params["goal"], self.shape),
            "agent": grid.mask(state.data["agent"], self.shape),
        }


def read_board(text: str) -> np.ndarray:
    """bool[h, w] of a drawing, true where it is free: ``#`` is wall, all else free.

    Raises:
      ConfigError: rows of different lengths, fewer than two free cells, or a border that is not all wall.
    """
    rows = text.strip("\n").split("\n")
    if len({len(row) for row in rows}) != 1:
        raise ConfigError(f"board has rows of {sorted({len(row) for row in rows})} cells; expected equal lengths")
    free = np.array([[cell != "#" for cell in row] for row in rows])
    if free[[0, -1]].any() or free[:, [0, -1]].any():
        raise ConfigError("board has a free cell at its border; expected '#' all round")
    if free.sum() < 2:
        raise ConfigError(f"board has {int(free.sum())} free cells; expected at least 2")
    return free


class FourRooms(_Walk):
    """Go to a cell of a house of four rooms (4 x 4 cells each) with a door between neighbours, on a board of 11 x 11.

    After the four rooms of Sutton, Precup and Singh (1999), drawn anew. Start and goal are two different cells, all
    pairs equally likely. One action in ten is not carried out. Actions: up, down, left, right, stay. Observation (26):
    row and column one-hot (9 + 9), walls next to the agent (4); position; goal.

    Args:
      board: another house, as a drawing: ``#`` is wall; all free cells must be connected.
      noise: probability that an action is not carried out.
    """

    name = "four_rooms"

    def __init__(self, *, board: str = FOUR_ROOMS, noise: float = 0.1, **common: Any) -> None:
        self.free = read_board(board)
        super().__init__(noise=noise, **common)
        self.steps = table(self.free)
        self.longest = int(self.steps.max())
        self.tolerance = 1 / (max(self.free.shape) - 1)

    @property
    def shape(self) -> tuple[int, int]:
        return self.free.shape[0], self.free.shape[1]

    def draw(self, key: Key[Array, ""]) -> tuple[dict[str, Array], dict[str, Array]]:
        free = jnp.asarray(self.free)
        start, goal = grid.choose_two(key, free)
        steps = jnp.asarray(self.steps)[goal[0], goal[1]]
        return {"agent": start}, {"free": free, "goal": goal, "steps": steps}


def table(free: np.ndarray) -> np.ndarray:
    """int16[h, w, h, w]: steps between all pairs of cells of one board; 0 where either is a wall.

    Raises:
      ConfigError: some free cell cannot be reached from another.
    """
    found = np.where(np.eye(free.size, dtype=bool)[free.ravel()].reshape(-1, *free.shape), 0, free.size)
    for _ in range(free.size):
        before = found.copy()
        for axis in (1, 2):
            for way in (-1, 1):
                # the border is wall, so nothing comes round it
                found = np.where(free, np.minimum(found, np.roll(found, way, axis) + 1), free.size)
        if (found == before).all():
            break
    if (found[:, free] >= free.size).any():
        raise ConfigError("board has free cells that cannot be reached from one another; expected them connected")
    steps = np.zeros((*free.shape, *free.shape), np.int16)
    steps[free] = np.where(free, found, 0)
    return steps


class RandomMaze(_Walk):
    """Go to a cell of a maze that is new in every episode.

    The maze is drawn inside ``reset``: a depth-first search in random order over the cells of odd row and column leaves
    exactly one way between any two of them (long corridors; not all mazes are equally likely), then dead ends are opened
    with probability ``braid``. All free cells are connected by construction. Start and goal are two different free cells,
    all pairs equally likely. Actions: up, down, left, right, stay. Observation (46 at size 9): the openings of the maze
    (24), row and column one-hot (7 + 7), walls next to the agent (4); position; goal.

    Args:
      size: rows and columns of the board, walls included; odd.
      braid: probability that a dead end is opened into a neighbouring corridor.
    """

    name = "random_maze"

    def __init__(self, *, size: int = 9, braid: float = 0.0, episode_length: int | None = None, **common: Any) -> None:
        if grid.count("size", size, 5, 127) % 2 == 0:
            raise ConfigError(f"size is {size!r}; expected an odd number")
        if not 0 <= braid <= 1:
            raise ConfigError(f"braid is {braid!r}; expected a probability")
        self.size, self.braid, self.cells = size, braid, size // 2
        self.longest = 2 * (self.cells**2 - 1)
        # 50 at the usual size: time for the longest way and two thirds more
        usual = 3 * self.cells**2 + 2
        super().__init__(episode_length=usual if episode_length is None else episode_length, **common)
        self.tolerance = 1 / (size - 1)

    @property
    def shape(self) -> tuple[int, int]:
        return self.size, self.size

    def draw(self, key: Key[Array, ""]) -> tuple[dict[str, Array], dict[str, Array]]:
        maze_key, place_key = jax.random.split(key)
        right, down = maze(maze_key, self.cells, self.braid)
        free = board_of(right, down)
        start, goal = grid.choose_two(place_key, free)
        steps = grid.distances(free, goal).astype(jnp.int16)
        return {"agent": start}, {"free": free, "goal": goal, "steps": steps}

    def features(self, data: Mapping[str, Array], params: Mapping[str, Array]) -> Float[Array, " features"]:
        free = params["free"]
        between = [free[1:-1:2, 2:-1:2].ravel(), free[2:-1:2, 1:-1:2].ravel()]
        return jnp.concatenate([*(x.astype(jnp.result_type(float)) for x in between), super().features(data, params)])


def maze(
    key: Key[Array, ""], n: int, braid: float | Float[Array, ""] = 0.0
) -> tuple[Bool[Array, "n n"], Bool[Array, "n n"]]:
    """A random maze of n x n cells: which cells are open to the right, and which downwards.

    A walker goes to a random unvisited neighbour, or back where it came from if there is none; it is home after twice as
    many moves as there are cells, less two. With ``braid`` = 0 the openings form a tree.

    Args:
      key: all randomness.
      n: at least 2.
      braid: probability that a dead end is opened to one of its closed neighbours.
    """
    size = n * n
    cells = jnp.arange(size, dtype=jnp.int32)
    root_key, walk_key, end_key, open_key = jax.random.split(key, 4)
    root = jax.random.randint(root_key, (), 0, size, jnp.int32)
    # a number below 12 is fair modulo 1, 2, 3 and 4
    dice = jax.random.randint(walk_key, (2 * (size - 1),), 0, 12, jnp.int32)
    steps = jnp.asarray([-n, n, -1, 1], jnp.int32)

    def inside(cell: Int[Array, "..."]) -> list[Bool[Array, "..."]]:
        return [cell >= n, cell < size - n, cell % n > 0, cell % n < n - 1]

    def walk(loop: tuple[Array, ...], die: Int[Array, ""]) -> tuple[tuple[Array, ...], None]:
        here, seen, parent, right, down = loop
        fresh = jnp.stack(
            [ok & ~jnp.any(seen & (cells == here + s)) for ok, s in zip(inside(here), steps, strict=True)]
        )
        way = pick(fresh, die)
        stuck = ~jnp.any(fresh)
        back = jnp.sum(jnp.where(cells == here, parent, 0), dtype=jnp.int32)
        there = jnp.where(stuck, back, here + jnp.sum(jnp.where(way, steps, 0), dtype=jnp.int32))
        new = (cells == there) & ~stuck
        right = right | (((cells == here) & way[3]) | ((cells == there) & way[2]))
        down = down | (((cells == here) & way[1]) | ((cells == there) & way[0]))
        return (there, seen | new, jnp.where(new, here, parent), right, down), None

    seen = cells == root
    none = seen & ~seen
    start: tuple[Array, ...] = (root, seen, jnp.where(seen, root, 0), none, none)
    (_, _, _, right, down), _ = jax.lax.scan(walk, start, dice)

    # each cell's openings up, down, left, right, and the same for closed ones that could be opened
    opened = jnp.stack([jnp.roll(down, n), down, jnp.roll(right, 1), right])
    dead = jnp.sum(opened.astype(jnp.int32), 0, dtype=jnp.int32) == 1
    dead = dead & jax.random.bernoulli(end_key, braid, (size,))
    closed = jnp.stack(inside(cells)) & ~opened & dead[None]
    way = jax.vmap(pick, (1, 0), 1)(closed, jax.random.randint(open_key, (size,), 0, 12, jnp.int32))
    right = right | way[3] | jnp.roll(way[2], -1)
    down = down | way[1] | jnp.roll(way[0], -n)
    return right.reshape(n, n), down.reshape(n, n)


def pick(options: Bool[Array, "4"], die: Int[Array, ""]) -> Bool[Array, "4"]:
    """One of the true options, chosen by a die of 12 faces; none if there is none."""
    order = jnp.cumsum(options.astype(jnp.int32), dtype=jnp.int32)
    return options & (order - 1 == die % jnp.maximum(order[-1], 1))


def board_of(right: Bool[Array, "n n"], down: Bool[Array, "n n"]) -> Bool[Array, "h w"]:
    """The board of 2 n + 1 cells each way, of a maze's openings: true where it is free."""
    n = right.shape[0]
    across = jnp.stack([jnp.ones_like(right), right], -1).reshape(n, 2 * n)
    between = jnp.stack([down, jnp.zeros_like(down)], -1).reshape(n, 2 * n)
    return jnp.pad(jnp.stack([across, between], 1).reshape(2 * n, 2 * n), ((1, 0), (1, 0)))
