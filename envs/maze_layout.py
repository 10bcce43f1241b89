"""Mazes for robots: drawn as text, built as walls of a MuJoCo model, with the shortest ways through them.

The shortest way is straight, or it goes round corners, each seen from the one before. A disc of radius r goes round a
corner on an arc; here it goes through the middle of that arc, r / sqrt(2) from the walls along x and y, so that wherever
the disc can be, it sees its way. Lengths are right to a tenth of r for each corner. Which corners see each other is found
when the maze is made; at run time only the sight of start and goal is tested.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import mujoco
import numpy as np
from jaxtyping import Array, Float, Int, Key

from mjxlab.envs.grid_nav import read_board
from mjxlab.errors import ConfigError

#: length of a way that does not exist, metres
NO_WAY = 1e3


class Layout:
    """A maze of square cells, walls all round; its middle is the origin, rows run from north (y > 0) to south.

    Args:
      board: the drawing: ``#`` is a block of wall, all else free.
      cell: side of a cell, metres.
      radius: of what goes through it, metres.
      grace: how far it may press into a wall and still be taken to stand beside it, metres.

    Attributes:
      free: bool[rows, columns].
      cells: int[n, 2], row and column of each free cell.
      centres: float[n, 2], x and y of their middles, metres.
      walls: float[w, 4]: x, y and half sizes of the blocks, each as large as can be.
      margin: how near ways come to corners, along x and along y, metres.
      corners: float[c, 2]: where ways bend.
      longest: the longest of the shortest ways between the middles of two cells, metres.
      ends: the two cells that are that far apart.

    Raises:
      ConfigError: a drawing that is no maze.
    """

    def __init__(self, board: str, cell: float, radius: float, grace: float = 0.02) -> None:
        self.free = read_board(board)
        self.margin = radius / np.sqrt(2)
        self.cell, self.radius, self.grace = cell, radius, grace
        self.cells = np.argwhere(self.free)
        self.centres = self._middle(self.cells[:, 0], self.cells[:, 1])
        self.walls = np.array([self._block(*part) for part in blocks(~self.free)])
        self._inner = np.array([self._block(*part) for part in blocks(self._inner_walls())]).reshape(-1, 4)
        self.corners = self._corners()
        self.between, self.next_cell = self._ways_between_corners(), next_steps(self.free)
        lengths = self._ways_between_cells()
        if lengths.max() >= NO_WAY:
            raise ConfigError("board has free cells that cannot be reached from one another; expected them connected")
        self.longest = float(lengths.max())
        first, last = np.unravel_index(lengths.argmax(), lengths.shape)
        self.ends = int(first), int(last)

    @property
    def extent(self) -> tuple[float, float]:
        """Length and width of the free rectangle inside the outer walls, metres."""
        rows, columns = self.free.shape
        return (columns - 2) * self.cell, (rows - 2) * self.cell

    def _middle(self, row: Any, column: Any) -> np.ndarray:
        """x and y of a place given in rows and columns (of cells' middles)."""
        h, w = self.free.shape
        return np.stack(
            [(np.asarray(column) - (w - 1) / 2) * self.cell, ((h - 1) / 2 - np.asarray(row)) * self.cell], -1
        )

    def _block(self, top: int, left: int, rows: int, columns: int) -> np.ndarray:
        middle = self._middle(top + (rows - 1) / 2, left + (columns - 1) / 2)
        return np.array([*middle, columns * self.cell / 2, rows * self.cell / 2])

    def _inner_walls(self) -> np.ndarray:
        """The border never stands between two places inside it."""
        inner = ~self.free
        inner[[0, -1]] = False
        inner[:, [0, -1]] = False
        return inner

    def _corners(self) -> np.ndarray:
        """Outer corners of walls, moved off them by the margin."""
        wall, found = ~self.free, []
        for row in range(1, wall.shape[0]):
            for column in range(1, wall.shape[1]):
                for down in (-1, 1):
                    for right in (-1, 1):
                        # the block at the corner, and the free cell across from it
                        r, c = row - (down < 0), column - (right < 0)
                        across = row - (down > 0), column - (right > 0)
                        beside = wall[across[0], c], wall[r, across[1]]
                        if wall[r, c] and not wall[across] and not any(beside):
                            place = self._middle(row - 0.5, column - 0.5)
                            found.append(place + self.margin * np.array([-right, down]))
        return np.array(found).reshape(-1, 2)

    def _ways_between_corners(self) -> np.ndarray:
        """float[c, c]: lengths of shortest ways from corner to corner (Floyd and Warshall)."""
        n = len(self.corners)
        length = np.linalg.norm(self.corners[:, None] - self.corners, axis=-1)
        seen = np.asarray(sight(self.corners[:, None], self.corners[None], self._boxes(), np))
        best = np.where(seen, length, NO_WAY)
        np.fill_diagonal(best, 0.0)
        for k in range(n):
            best = np.minimum(best, best[:, [k]] + best[[k]])
        return best

    def _ways_between_cells(self) -> np.ndarray:
        """float[n, n]: lengths of the shortest ways between the middles of cells."""
        cells = self.centres
        straight = np.linalg.norm(cells[:, None] - cells, axis=-1)
        best = np.where(sight(cells[:, None], cells[None], self._boxes(), np), straight, NO_WAY)
        if not len(self.corners):
            return best
        leg = np.linalg.norm(cells[:, None] - self.corners, axis=-1)
        leg = np.where(sight(cells[:, None], self.corners[None], self._boxes(), np), leg, NO_WAY)
        onward = np.min(leg[:, :, None] + self.between, axis=1)
        return np.minimum(best, np.min(onward[:, None] + leg[None], axis=-1))

    def _boxes(self) -> np.ndarray:
        """float[b, 4]: x and y from, x and y to, of the walls, grown by the margin less the grace."""
        grow = self.margin - self.grace
        middle, half = self._inner[:, :2], self._inner[:, 2:] + grow
        return np.concatenate([middle - half, middle + half], axis=1)

    # at run time

    def ways(self, start: Float[Array, "2"], goal: Float[Array, "2"]) -> tuple[Float[Array, ""], Float[Array, "2"]]:
        """Length of the shortest way between two places, metres, and its first corner (the goal, if it is in sight)."""
        dtype = start.dtype
        boxes = jnp.asarray(self._boxes(), dtype)
        straight = jnp.linalg.norm(goal - start)
        clear = sight(start, goal, boxes, jnp)
        direct = jnp.where(clear, straight, jnp.asarray(NO_WAY, dtype))
        if not len(self.corners):
            return direct, goal
        corners = jnp.asarray(self.corners, dtype)

        def legs(place: Float[Array, "2"]) -> Float[Array, " c"]:
            seen = sight(place[None], corners, boxes, jnp)
            return jnp.where(seen, jnp.linalg.norm(corners - place[None], axis=1), jnp.asarray(NO_WAY, dtype))

        onward = jnp.min(jnp.asarray(self.between, dtype) + legs(goal)[None], axis=1)
        round_corners = legs(start) + onward
        best = jnp.argmin(round_corners)
        length = jnp.minimum(direct, round_corners[best])
        return length, jnp.where(direct <= round_corners[best], goal, corners[best])

    def cell_of(self, place: Float[Array, "2"]) -> Int[Array, ""]:
        """Index of the free cell whose middle is nearest."""
        gap = jnp.asarray(self.centres, place.dtype) - place[None]
        return jnp.argmin(jnp.sum(gap**2, axis=1)).astype(jnp.int32)

    def towards(self, start: Float[Array, "2"], goal: Float[Array, "2"]) -> Float[Array, "2"]:
        """The middle of the next cell on the way from cell to cell; the goal, from its own cell."""
        here, there = self.cell_of(start), self.cell_of(goal)
        onward = jnp.asarray(self.next_cell)[here, there]
        return jnp.where(here == there, goal, jnp.asarray(self.centres, start.dtype)[onward])

    def two_places(
        self, key: Key[Array, ""], start_jitter: float, goal_jitter: float, far: bool = False
    ) -> tuple[Float[Array, "2"], Float[Array, "2"]]:
        """Places in two different cells (all ordered pairs equally likely; or the two ``ends``, in order, if ``far``), up to
        a jitter from their middles."""
        cell_key, other_key, start_key, goal_key = jax.random.split(key, 4)
        n, dtype = len(self.cells), jnp.result_type(float)
        cell = jax.random.randint(cell_key, (), 0, n, jnp.int32)
        other = (cell + 1 + jax.random.randint(other_key, (), 0, n - 1, jnp.int32)) % n
        if far:
            cell, other = (jnp.int32(end) for end in self.ends)
        centres = jnp.asarray(self.centres, dtype)

        def around(key: Key[Array, ""], cell: Int[Array, ""], jitter: float) -> Float[Array, "2"]:
            return centres[cell] + jax.random.uniform(key, (2,), dtype, -jitter, jitter)

        return around(start_key, cell, start_jitter), around(goal_key, other, goal_jitter)

    # the model

    def model(self, path: str, height: float, contype: Mapping[str, int] | None = None, **bits: Any) -> mujoco.MjModel:
        """A robot's MJCF with this maze's walls, a floor of its size, and a camera above.

        Args:
          path: the MJCF; its geom ``floor`` is fitted to the maze, its camera ``track`` replaced.
          height: of the walls, metres.
          contype: contact bits of some of the robot's geoms, by name, instead of the file's. (Set before the model is
            compiled: MuJoCo keeps bits of whole bodies, too, and would not find the contact otherwise.)
          bits: further attributes of each wall's geom (``conaffinity``, ``friction`` …).
        """
        spec = mujoco.MjSpec.from_file(path)
        for number, (x, y, half_x, half_y) in enumerate(self.walls):
            spec.worldbody.add_geom(
                name=f"wall_{number}",
                type=mujoco.mjtGeom.mjGEOM_BOX,
                pos=[x, y, height / 2],
                size=[half_x, half_y, height / 2],
                material="fixed",
                contype=0,
                **bits,
            )
        for name, value in (contype or {}).items():
            spec.geom(name).contype = value
        rows, columns = self.free.shape
        half = np.array([columns, rows]) * self.cell / 2
        spec.geom("floor").size = [*(half + 0.5 * self.cell), 0.1]
        # a camera that sees all of it, from above and a little from the south, in place of the one that goes with the robot
        spec.delete(spec.camera("track"))
        tip, high = 0.25, 2.7 * half.max()
        spec.worldbody.add_camera(
            name="track", pos=[0, -np.tan(tip) * high, high], quat=[np.cos(tip / 2), np.sin(tip / 2), 0, 0]
        )
        return spec.compile()


def sight(a: Any, b: Any, boxes: Any, xp: Any) -> Any:
    """Bool[...]: whether the straight way from a to b, Float[..., 2], meets none of the boxes, Float[k, 4].

    The part of the way between the two sides of a box is found along x and along y; if the two parts overlap, the way
    meets it (the method of slabs). ``xp`` is NumPy or jax.numpy.
    """
    if not len(boxes):
        return xp.ones(np.broadcast_shapes(a.shape, b.shape)[:-1], bool)
    shape = np.broadcast_shapes(a.shape, b.shape)
    a, way = (
        xp.broadcast_to(a, shape)[..., None, :],
        xp.broadcast_to(b, shape)[..., None, :] - xp.broadcast_to(a, shape)[..., None, :],
    )
    full = (*shape[:-1], len(boxes), 2)
    a, way, low, high = (
        xp.broadcast_to(x, full) for x in (a, way, _lead(boxes[:, :2], full), _lead(boxes[:, 2:], full))
    )
    small = xp.abs(way) < 1e-6
    safe = xp.where(small, xp.full_like(way, 1e-6), way)
    first, second = (low - a) / safe, (high - a) / safe
    enter = xp.max(xp.minimum(first, second), -1)
    leave = xp.min(xp.maximum(first, second), -1)
    meets = xp.maximum(enter, xp.zeros_like(enter)) < xp.minimum(leave, xp.ones_like(leave))
    return ~xp.any(meets, -1)


def _lead(x: Any, full: tuple[int, ...]) -> Any:
    """``x`` with leading axes of length 1, as many as ``full`` has."""
    return x.reshape((1,) * (len(full) - x.ndim) + tuple(x.shape))


def blocks(wall: np.ndarray) -> list[tuple[int, int, int, int]]:
    """Rectangles (top, left, rows, columns) that cover the true cells once each: widest first, then as high as can be."""
    left_over, found = wall.copy(), []
    while left_over.any():
        top, left = (int(x) for x in np.argwhere(left_over)[0])
        columns = 1
        while left + columns < wall.shape[1] and left_over[top, left + columns]:
            columns += 1
        rows = 1
        while top + rows < wall.shape[0] and left_over[top + rows, left : left + columns].all():
            rows += 1
        left_over[top : top + rows, left : left + columns] = False
        found.append((top, left, rows, columns))
    return found


def next_steps(free: np.ndarray) -> np.ndarray:
    """int32[n, n]: the free cell to go to next, from each free cell to each other (breadth-first search)."""
    cells = [tuple(cell) for cell in np.argwhere(free)]
    number = {cell: i for i, cell in enumerate(cells)}
    onward = np.tile(np.arange(len(cells), dtype=np.int32)[:, None], (1, len(cells)))
    for goal in range(len(cells)):
        queue, seen = [(0, goal)], {goal}
        while queue:
            length, here = heapq.heappop(queue)
            row, column = cells[here]
            for cell in ((row - 1, column), (row + 1, column), (row, column - 1), (row, column + 1)):
                there = number.get(cell)
                if there is not None and there not in seen:
                    seen.add(there)
                    onward[there, goal] = here
                    heapq.heappush(queue, (length + 1, there))
    return onward
