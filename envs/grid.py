"""Grid tasks: worlds of squares, whole numbers throughout, pure JAX.

``GridGoal`` is to grids what ``GoalEnv`` is to robots: a task with a commanded goal. A new task is a subclass with five
short methods (``draw``, ``move``, ``features``, ``achieved``, ``steps_to_go``) and, for pictures, ``layers``. The functions
beside it are what such methods are written with. Boards are looked up by comparing coordinates, not by gathers: a
lookup in a batch of different boards is then plain arithmetic, which any accelerator fuses.

A cell is a pair (row, column) of int32, row 0 is at the top, and a board has walls all round.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any, Literal, get_args

import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces
from jaxtyping import Array, Bool, Float, Int, Integer, Key

from mjxlab.envs.base import State, fresh_state
from mjxlab.envs.goal_env import RewardKind
from mjxlab.envs.spaces import unit_box
from mjxlab.errors import ConfigError

DenseKind = Literal["path", "euclid"]
Cell = Int[Array, "2"]
Board = Bool[Array, "h w"]

#: what the actions of a walker do: row and column of the move
MOVES = ((-1, 0), (1, 0), (0, -1), (0, 1), (0, 0))
UP, DOWN, LEFT, RIGHT, STAY = range(5)


def delta(action: Int[Array, ""]) -> Cell:
    """Row and column of a move: 0 up, 1 down, 2 left, 3 right, anything else none."""
    down = (action == DOWN).astype(jnp.int32) - (action == UP).astype(jnp.int32)
    right = (action == RIGHT).astype(jnp.int32) - (action == LEFT).astype(jnp.int32)
    return jnp.stack([down, right])


def mask(cell: Cell, shape: tuple[int, ...]) -> Board:
    """The board that is true at one cell alone; nowhere if the cell lies outside."""
    rows, columns = jnp.arange(shape[0], dtype=jnp.int32), jnp.arange(shape[1], dtype=jnp.int32)
    return (rows == cell[0])[:, None] & (columns == cell[1])[None]


def at(board: Board, cell: Cell) -> Bool[Array, ""]:
    """The board at a cell; False outside."""
    return jnp.any(board & mask(cell, board.shape))


def hot(cell: Cell, shape: tuple[int, int], border: int = 1) -> Float[Array, " rows_and_columns"]:
    """Row and column one-hot, one after the other; ``border`` rows and columns on either side are never used."""
    rows = jnp.arange(border, shape[0] - border, dtype=jnp.int32) == cell[0]
    columns = jnp.arange(border, shape[1] - border, dtype=jnp.int32) == cell[1]
    return jnp.concatenate([rows, columns]).astype(jnp.result_type(float))


def blocked(free: Board, cell: Cell) -> Float[Array, "4"]:
    """1 for each neighbour (up, down, left, right) that cannot be entered."""
    around = [at(free, cell + jnp.asarray(move, jnp.int32)) for move in MOVES[:4]]
    return (~jnp.stack(around)).astype(jnp.result_type(float))


def manhattan(a: Cell, b: Cell) -> Int[Array, ""]:
    """Steps between two cells where nothing is in the way."""
    return jnp.sum(jnp.abs(a - b), dtype=jnp.int32)


def choose(key: Key[Array, ""], allowed: Bool[Array, "*shape"]) -> Int[Array, ""]:
    """Flat index of a true entry, all equally likely; 0 if there is none."""
    flat = allowed.reshape(-1).astype(jnp.int32)
    count = jnp.sum(flat, dtype=jnp.int32)
    number = jax.random.randint(key, (), 0, jnp.maximum(count, 1), jnp.int32)
    passed = jnp.sum((jnp.cumsum(flat, dtype=jnp.int32) <= number).astype(jnp.int32), dtype=jnp.int32)
    return jnp.where(count == 0, jnp.int32(0), passed)


def choose_cell(key: Key[Array, ""], allowed: Board) -> Cell:
    """A true cell, all equally likely."""
    index, width = choose(key, allowed), allowed.shape[1]
    return jnp.stack([index // width, index % width])


def choose_two(key: Key[Array, ""], allowed: Board) -> tuple[Cell, Cell]:
    """Two different true cells, all ordered pairs equally likely."""
    first_key, second_key = jax.random.split(key)
    first = choose_cell(first_key, allowed)
    return first, choose_cell(second_key, allowed & ~mask(first, allowed.shape))


def shifted(board: Integer[Array, "h w *rest"], move: tuple[int, int], fill: int) -> Integer[Array, "h w *rest"]:
    """What each cell sees one ``move`` away; ``fill`` where that is off the board."""
    (h, w), (down, right) = board.shape[:2], move
    wide = jnp.pad(board, ((1, 1), (1, 1), *((0, 0),) * (board.ndim - 2)), constant_values=fill)
    return wide[1 + down : 1 + down + h, 1 + right : 1 + right + w]


def distances(free: Board, goal: Cell) -> Int[Array, "h w"]:
    """Steps from every cell to ``goal`` (a flood fill); h w where there is no way."""
    size = free.shape[0] * free.shape[1]
    here = mask(goal, free.shape)
    far = jnp.full(free.shape, size, jnp.int32)

    def spread(loop: tuple[Int[Array, "h w"], Bool[Array, ""]]) -> tuple[Int[Array, "h w"], Bool[Array, ""]]:
        old = loop[0]
        near = functools.reduce(jnp.minimum, [shifted(old, move, size) for move in MOVES[:4]])
        new = jnp.where(free, jnp.minimum(old, near + 1), far)
        return new, jnp.any(new != old)

    start = jnp.where(here & free, 0, far)
    return jax.lax.while_loop(lambda loop: loop[1], spread, (start, jnp.any(here)))[0]


class GridGoal:
    """A task on a board with a commanded goal; ``State`` has ``achieved``, ``commanded`` and ``success``.

    The observation is a flat vector ``[features, achieved, commanded]``: its last ``goal_size`` numbers are the commanded
    goal, nothing before them depends on it. Positions are scaled to [-1, 1], the rest is 0 or 1 (or -1 and 1).
    The last action does nothing, so a goal that is reached can be held. ``State.data`` is a dict of what moves,
    ``State.params`` a dict of what is fixed within an episode, the goal (``"goal"``) among it.

    Args:
      reward: "dense", in [-1, 0]; "sparse": 1 at every step that ends in success, else 0.
      dense: what the dense reward measures. "path": minus the fewest steps to the goal, over the most that there can be.
        "euclid": minus the straight-line distance between achieved and commanded goal, over the most that there can be. The
        second knows nothing of walls, doors or boxes, and misleads.
      terminate_on_success: end the episode at the first success.
      noise: probability that an action is not carried out.
      episode_length: time limit in steps, instead of the task's own.
      engine: there is no physics: "auto" is all that it may be.
    """

    name = "grid"
    engine = None
    goal_size = 2
    #: seconds that a step takes in a film
    dt = 0.2
    episode_length = 50
    #: the most steps that the best way can take; ``distance`` goes no higher
    longest = 50
    #: goals that differ by less in every number are the same
    tolerance = 0.5

    def __init__(
        self,
        *,
        reward: RewardKind | str = "dense",
        dense: DenseKind | str = "path",
        terminate_on_success: bool = False,
        noise: float = 0.0,
        episode_length: int | None = None,
        engine: str | None = "auto",
    ) -> None:
        if engine not in ("auto", None):
            raise ConfigError(f"environment {self.name!r} has no physics engine: engine is {engine!r}, expected 'auto'")
        if not 0 <= noise < 1:
            raise ConfigError(f"noise is {noise!r}; expected a probability, 0 <= noise < 1")
        if episode_length is not None:
            self.episode_length = count("episode_length", episode_length, 1)
        self.reward_kind = one_of("reward", reward, get_args(RewardKind))
        self.dense_kind = one_of("dense", dense, get_args(DenseKind))
        self.terminate_on_success = terminate_on_success
        self.noise = noise
        self.action_space: spaces.Space = spaces.Discrete(len(MOVES))

    # the task

    def draw(self, key: Key[Array, ""]) -> tuple[dict[str, Array], dict[str, Array]]:
        """What moves (``data``) and what is fixed (``params``) of a new episode."""
        raise ConfigError(f"environment {self.name!r} defines no draw")

    def move(self, data: Mapping[str, Array], params: Mapping[str, Array], action: Int[Array, ""]) -> dict[str, Array]:
        """What an action does."""
        raise ConfigError(f"environment {self.name!r} defines no move")

    def features(self, data: Mapping[str, Array], params: Mapping[str, Array]) -> Float[Array, " features"]:
        """What the policy sees, without the goal."""
        raise ConfigError(f"environment {self.name!r} defines no features")

    def achieved(self, data: Mapping[str, Array], params: Mapping[str, Array]) -> Float[Array, " goal"]:
        """What is there, in the numbers in which goals are given."""
        raise ConfigError(f"environment {self.name!r} defines no achieved")

    def commanded(self, params: Mapping[str, Array]) -> Float[Array, " goal"]:
        """What is wanted, in the same numbers."""
        return self.scaled(params["goal"])

    def steps_to_go(self, data: Mapping[str, Array], params: Mapping[str, Array]) -> Int[Array, ""]:
        """Steps of the best way to the goal, were every action carried out; ``longest`` or more if it is out of reach."""
        raise ConfigError(f"environment {self.name!r} defines no steps_to_go")

    def layers(self, state: State) -> dict[str, Board]:
        """What lies where, a board for each kind of thing, first the lowest: the world as an image."""
        raise ConfigError(f"environment {self.name!r} defines no layers")

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns of the board."""
        raise ConfigError(f"environment {self.name!r} defines no shape")

    # the environment

    def scaled(self, cell: Cell) -> Float[Array, "2"]:
        """A cell as a goal: -1 at the board's first row and column, 1 at its last."""
        h, w = self.shape
        dtype = jnp.result_type(float)
        return 2 * cell.astype(dtype) / jnp.asarray([h - 1, w - 1], dtype) - 1

    def reached(
        self, achieved: Float[Array, "*batch goal"], commanded: Float[Array, "*batch goal"]
    ) -> Bool[Array, "*batch"]:
        """Whether the one is the other."""
        return jnp.all(jnp.abs(achieved - commanded) < self.tolerance, axis=-1)

    @functools.cached_property
    def observation_space(self) -> spaces.Space:
        """Numbers in [-1, 1]."""
        return unit_box(*jax.eval_shape(self.reset, jax.random.key(0)).obs.shape)

    def reset(self, key: Key[Array, ""]) -> State:
        """A fresh episode; all randomness comes from ``key``."""
        key, draw = jax.random.split(key)
        return self.start(key, *self.draw(draw))

    def start(self, key: Key[Array, ""], data: dict[str, Array], params: dict[str, Array]) -> State:
        """An episode that begins in a situation of the caller's choice (``data`` and ``params`` as ``draw`` gives them)."""
        seen = self._seen(data, params)
        return fresh_state(data, key=key, params=params, **{k: v for k, v in seen.items() if k != "distance"})

    def step(self, state: State, action: Any) -> State:
        """One step.

        Args:
          state: of one world.
          action: Int[""].
        """
        action, key = self._action(action), state.key
        if self.noise:
            key, draw = jax.random.split(key)
            idle = jnp.int32(int(self.action_space.n) - 1)  # type: ignore[attr-defined]
            action = jnp.where(jax.random.bernoulli(draw, self.noise), idle, action)
        data = self.move(state.data, state.params, action)
        seen = self._seen(data, state.params)
        distance = seen.pop("distance")
        return state.replace(
            data=data,
            key=key,
            reward=self._reward(distance, seen),
            terminated=seen["success"] if self.terminate_on_success else jnp.zeros((), bool),
            **seen,
        )

    def scripted(self, state: State) -> Int[Array, ""]:
        """An action of a best policy: one that leaves the fewest steps to go. Where all is lost, any."""
        actions = jnp.arange(int(self.action_space.n), dtype=jnp.int32)  # type: ignore[attr-defined]

        def after(action: Int[Array, ""]) -> Int[Array, ""]:
            return self.steps_to_go(self.move(state.data, state.params, action), state.params)

        return jnp.argmin(jax.vmap(after)(actions)).astype(jnp.int32)

    def render_frame(self, state: State, tile: int = 24) -> np.ndarray:
        """uint8[h, w, 3]: a picture of one world, ``tile`` pixels for a cell."""
        from mjxlab.envs.grid_picture import paint

        return paint({name: np.asarray(layer) for name, layer in self.layers(state).items()}, tile)

    def _seen(self, data: Mapping[str, Array], params: Mapping[str, Array]) -> dict[str, Any]:
        """Observation, goals, success and metrics of a situation."""
        achieved, commanded = self.achieved(data, params), self.commanded(params)
        distance = jnp.minimum(self.steps_to_go(data, params), self.longest).astype(jnp.result_type(float))
        return {
            "obs": jnp.concatenate([self.features(data, params), achieved, commanded]),
            "achieved": achieved,
            "commanded": commanded,
            "success": self.reached(achieved, commanded),
            "metrics": {"distance": distance},
            "distance": distance,
        }

    def _reward(self, distance: Float[Array, ""], seen: Mapping[str, Any]) -> Float[Array, ""]:
        if self.reward_kind == "sparse":
            return seen["success"].astype(jnp.result_type(float))
        if self.dense_kind == "path":
            return -distance / self.longest
        # two corners of the cube [-1, 1]^n are 2 sqrt(n) apart
        return -jnp.linalg.norm(seen["achieved"] - seen["commanded"]) / (2 * self.goal_size**0.5)

    def _action(self, action: Any) -> Int[Array, ""]:
        array = jnp.asarray(action)
        if array.shape != ():
            raise ConfigError(
                f"action of {self.name!r} has shape {array.shape}; expected one integer; one world: use jax.vmap for many"
            )
        return array.astype(jnp.int32)


def count(field: str, value: Any, low: int, high: int | None = None) -> int:
    """``value``, checked to be an integer in [low, high].

    Raises:
      ConfigError: it is not.
    """
    if isinstance(value, bool) or not isinstance(value, int) or value < low or (high is not None and value > high):
        most = "" if high is None else f" and at most {high}"
        raise ConfigError(f"{field} is {value!r}; expected an integer of at least {low}{most}")
    return value


def one_of(field: str, value: str, kinds: tuple[str, ...]) -> str:
    """``value``, checked to be one of ``kinds``.

    Raises:
      ConfigError: it is not.
    """
    if value not in kinds:
        raise ConfigError(f"{field} is {value!r}; expected one of {', '.join(map(repr, kinds))}")
    return value
