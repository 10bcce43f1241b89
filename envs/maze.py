"""Mazes for a ball and for the ant, of one's own drawing or the ones here.

The tasks are those of JaxGCRL (Bortkiewicz et al. 2024) and, before it, D4RL (Fu et al. 2020); the geometry is our own.
"""

from __future__ import annotations

from typing import Any, Literal, get_args

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key

from mjxlab.envs.base import State
from mjxlab.envs.goal import AntGoal
from mjxlab.envs.goal_env import GoalEnv
from mjxlab.envs.grid import DenseKind, one_of
from mjxlab.envs.maze_layout import Layout
from mjxlab.envs.mujoco_env import asset
from mjxlab.errors import ConfigError
from mjxlab.physics import Data

U_MAZE = """
#####
#...#
###.#
#...#
#####
"""

BIG_MAZE = """
#########
#.......#
#.#.###.#
#.#...#.#
#.###.#.#
#...#...#
#.#.###.#
#.#.....#
#########
"""

Goals = Literal["anywhere", "far"]


class PointBigMaze(GoalEnv):
    """Drive a ball through a maze of 7 x 7 m with loops and dead ends.

    Corridors are 1 m wide. Start and goal lie in two different cells, all ordered pairs equally likely
    (``goals="anywhere"``), or at the two ends of the longest way (``"far"``). The ball is that of ``point_u_maze``: 1 kg,
    pushed with up to 3 N along x and y, at most 1.5 m/s. Observation (8): position, velocity; position; goal, metres.
    Success within 0.2 m. Dense reward per step, in [-1, 0]: minus the length of the shortest way through the maze, over
    that of the longest one.

    Args:
      board: another maze, as a drawing: ``#`` is wall; all free cells must be connected.
      goals: where starts and goals lie.
      dense: "path", or "euclid" for the straight-line distance (over the maze's diagonal), which misleads here.
    """

    name = "point_big_maze"
    frame_skip = 5
    episode_length = 400
    outputs = ("qpos", "qvel")
    radius = 0.2
    goal_size = 2
    #: half the width of a corridor that the ball's centre can use
    free = 0.3

    def __init__(
        self,
        *,
        board: str = BIG_MAZE,
        goals: Goals | str = "anywhere",
        dense: DenseKind | str = "path",
        **common: Any,
    ) -> None:
        self.goals = one_of("goals", goals, get_args(Goals))
        self.dense_kind = one_of("dense", dense, get_args(DenseKind))
        self.layout = Layout(board, cell=1.0, radius=0.15)
        model = self.layout.model(asset("point_maze.xml"), 0.4, conaffinity=1, friction=[0.1, 0.005, 0.0001])
        super().__init__(mjcf=model, **common)

    def reset_pose(self, key: Key[Array, ""]) -> dict[str, Array]:
        start, goal = self.layout.two_places(key, self.free, self.free, self.goals == "far")
        return {"qpos": start, "mocap_pos": jnp.append(goal, self.constant(0.05))[None]}

    def dense(self, before: Data, after: Data, action: Float[Array, "2"]) -> dict[str, Any]:
        if self.dense_kind == "euclid":
            return {"euclid": -self.distance(after) / float(np.hypot(*self.layout.extent))}
        return {"path": -jnp.minimum(self.path(after) / self.layout.longest, 1.0)}

    def path(self, data: Data) -> Float[Array, ""]:
        """Length of the shortest way to the goal, metres."""
        return self.layout.ways(self.achieved(data), self.commanded(data))[0]

    def scripted(self, state: State) -> Float[Array, "2"]:
        """Straight to the next corner of the shortest way."""
        here = self.achieved(state.data)
        _, there = self.layout.ways(here, self.commanded(state.data))
        return jnp.clip(8 * (there - here) - 2 * state.data.qvel, -1, 1)


class AntUMaze(AntGoal):
    """Walk Brax's ant through a U of three corridors, each 3 m wide.

    Start and goal lie in two different of the seven cells, all ordered pairs equally likely (``goals="anywhere"``), or at
    the two ends of the U (``"far"``). The walls, 1 m high, stop the feet and the torso; the other limbs touch nothing, as
    in Brax. Observation (31), ends and arguments as in ``ant_goal``. Success within 0.5 m. Dense reward per step: speed
    along the shortest way to the goal, plus 1 for being alive, minus 0.05 times the squared action.

    Args:
      board: another maze, as a drawing: ``#`` is wall; all free cells must be connected.
      goals: where starts and goals lie.
      dense: "path", or "euclid" for the speed straight towards the goal, which misleads here.
    """

    name = "ant_u_maze"
    mjcf = None
    episode_length = 1000

    def __init__(
        self,
        *,
        board: str = U_MAZE,
        goals: Goals | str = "anywhere",
        dense: DenseKind | str = "path",
        **common: Any,
    ) -> None:
        if "distance" in common:
            raise ConfigError("distance: goals of ant_u_maze lie in the maze's cells; use goals='anywhere' or 'far'")
        self.goals = one_of("goals", goals, get_args(Goals))
        self.dense_kind = one_of("dense", dense, get_args(DenseKind))
        self.layout = Layout(board, cell=3.0, radius=0.25, grace=0.05)
        # bit 2 is for torso and walls alone: the torso does not touch the floor
        model = self.layout.model(asset("ant_goal.xml"), 1.0, {"torso": 2}, conaffinity=3, friction=[1.0, 0.5, 0.5])
        super().__init__(mjcf=model, **common)

    def reset_pose(self, key: Key[Array, ""]) -> dict[str, Array]:
        place_key, pose_key = jax.random.split(key)
        start, goal = self.layout.two_places(place_key, 0.3, 0.8, self.goals == "far")
        pose = super().reset_pose(pose_key)
        qpos = pose["qpos"].at[:2].add(start)
        return {**pose, "qpos": qpos, "mocap_pos": jnp.append(goal, self.constant(0.25))[None]}

    def dense(self, before: Data, after: Data, action: Float[Array, "8"]) -> dict[str, Any]:
        terms = super().dense(before, after, action)
        if self.dense_kind == "path":
            terms["progress"] = (self.path(before) - self.path(after)) / self.dt
        return terms

    def path(self, data: Data) -> Float[Array, ""]:
        """Length of the shortest way to the goal, metres."""
        length = self.layout.ways(self.achieved(data), self.commanded(data))[0]
        # should the torso be pressed deep into a wall, from where nothing is in sight
        return jnp.minimum(length, self.constant(1.5 * self.layout.longest))

    def heading(self, data: Data) -> Float[Array, "2"]:
        """From the middle of one cell to that of the next."""
        here = self.achieved(data)
        return self.layout.towards(here, self.commanded(data)) - here
