"""A locked door: the key has to be fetched before the goal can be reached."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key

from mjxlab.envs import grid
from mjxlab.envs.base import State
from mjxlab.envs.grid import Board, Cell, GridGoal


class KeyDoor(GridGoal):
    """Fetch the key, pass the door, go to the goal in the other room.

    A wall with a locked door divides the board; its column and the door's row are new in every episode. The agent and
    the key lie in the west (two different cells, all pairs equally likely), the goal in the east (all cells equally
    likely). The key is taken by stepping on it, the door opens to whoever has it. The goal is the agent's position alone:
    that it takes a key is for the learner to find out. Actions: up, down, left, right, stay.

    Observation (39 at size 7): row and column one-hot of the agent, the key (zeros once it is taken) and the door
    (10 each), walls next to the agent (4), whether it has the key; position; goal.

    ``data``: ``agent`` (a cell), ``key`` (whether it is held). ``params``: cells ``key``, ``door``, ``goal``.

    Args:
      size: rows and columns of the board, walls included.
    """

    name = "key_door"

    def __init__(self, *, size: int = 7, **common: Any) -> None:
        self.size = grid.count("size", size, 5, 64)
        # to the key, to the door and to the goal, each from the furthest corner
        self.longest = 3 * (size - 3) + 2 * size - 8
        self.episode_length = 7 * size + 1
        super().__init__(**common)
        self.tolerance = 1 / (size - 1)

    @property
    def shape(self) -> tuple[int, int]:
        return self.size, self.size

    def draw(self, key: Key[Array, ""]) -> tuple[dict[str, Array], dict[str, Array]]:
        wall_key, row_key, west_key, east_key = jax.random.split(key, 4)
        column = jax.random.randint(wall_key, (), 2, self.size - 2, jnp.int32)
        row = jax.random.randint(row_key, (), 1, self.size - 1, jnp.int32)
        columns = jnp.broadcast_to(jnp.arange(self.size, dtype=jnp.int32)[None], self.shape)
        agent, lock = grid.choose_two(west_key, self._inside() & (columns < column))
        goal = grid.choose_cell(east_key, self._inside() & (columns > column))
        data = {"agent": agent, "key": jnp.zeros((), bool)}
        return data, {"key": lock, "door": jnp.stack([row, column]), "goal": goal}

    def move(self, data: Mapping[str, Array], params: Mapping[str, Array], action: Int[Array, ""]) -> dict[str, Array]:
        there = data["agent"] + grid.delta(action)
        agent = jnp.where(grid.at(self.free(params["door"], data["key"]), there), there, data["agent"])
        return {"agent": agent, "key": data["key"] | jnp.all(agent == params["key"])}

    def free(self, door: Cell, has_key: Bool[Array, ""]) -> Board:
        """The board as it is to someone with or without the key."""
        wall = jnp.broadcast_to((jnp.arange(self.size, dtype=jnp.int32) == door[1])[None], self.shape)
        return self._inside() & (~wall | (grid.mask(door, self.shape) & has_key))

    def _inside(self) -> Board:
        return jnp.pad(jnp.ones((self.size - 2, self.size - 2), bool), 1)

    def achieved(self, data: Mapping[str, Array], params: Mapping[str, Array]) -> Float[Array, "2"]:
        return self.scaled(data["agent"])

    def features(self, data: Mapping[str, Array], params: Mapping[str, Array]) -> Float[Array, " features"]:
        agent, key, door = data["agent"], params["key"], params["door"]
        has = data["key"].astype(jnp.result_type(float))
        lying = (1 - has) * grid.hot(key, self.shape)
        around = grid.blocked(self.free(door, data["key"]), agent)
        return jnp.concatenate([grid.hot(agent, self.shape), lying, grid.hot(door, self.shape), around, has[None]])

    def steps_to_go(self, data: Mapping[str, Array], params: Mapping[str, Array]) -> Int[Array, ""]:
        agent, key, door, goal = data["agent"], params["key"], params["door"], params["goal"]

        def way(start: Cell) -> Int[Array, ""]:
            """With the key in hand: rooms are empty rectangles, so straight, or by way of the door."""
            through = grid.manhattan(start, door) + grid.manhattan(door, goal)
            return jnp.where(start[1] > door[1], grid.manhattan(start, goal), through)

        return jnp.where(data["key"], way(agent), grid.manhattan(agent, key) + way(key))

    def layers(self, state: State) -> dict[str, Board]:
        data, params = state.data, state.params
        door, agent, has = (grid.mask(cell, self.shape) for cell in (params["door"], data["agent"], params["key"]))
        held = data["key"]
        return {
            "wall": ~self.free(params["door"], jnp.ones_like(held)),
            "door": door & ~held,
            "open_door": door & held,
            "goal": grid.mask(params["goal"], self.shape),
            "key": has & ~held,
            "agent": agent,
            "agent_with_key": agent & held,
        }
