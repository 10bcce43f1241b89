"""Goal tasks of small robots: a two-link arm, the ant, a point in a U-shaped maze."""

from __future__ import annotations

import itertools
from typing import Any, get_args

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Key

from mjxlab.envs.arm import near
from mjxlab.envs.base import State
from mjxlab.envs.classic import uniform
from mjxlab.envs.goal_env import GoalEnv
from mjxlab.envs.grid import DenseKind, one_of
from mjxlab.envs.mujoco_env import asset
from mjxlab.errors import ConfigError
from mjxlab.physics import Data


def disc(key: Key[Array, ""], low: float, high: float) -> Float[Array, "2"]:
    """A point of a ring of radii [low, high], all of its area equally likely."""
    radius, angle = jax.random.split(key)
    dtype = jnp.result_type(float)
    far = jnp.sqrt(jax.random.uniform(radius, (), dtype, low**2, high**2))
    turn = jax.random.uniform(angle, (), dtype, -np.pi, np.pi)
    return far * jnp.stack([jnp.cos(turn), jnp.sin(turn)])


class ReacherGoal(GoalEnv):
    """Bring the tip of Brax's two-link arm within 2 cm of a point of the plane.

    Observation (10): cosines and sines of the joint angles, joint velocities / 10; tip; goal. The arm starts anywhere.
    Dense reward per step, in [-1, 0] less the price of control: half of -tanh(d / 0.1 m), half of -tanh(d / 0.02 m),
    minus 0.01 times the mean squared action.
    """

    name = "reacher_goal"
    mjcf = asset("reacher.xml")
    frame_skip = 2
    episode_length = 50
    outputs = ("qpos", "qvel", "sensordata")
    radius = 0.02
    goal_size = 2
    #: what the motors give of their gear at action 1; Brax's full torque is of no use at this precision
    strength = 0.1

    def reset_pose(self, key: Key[Array, ""]) -> dict[str, Array]:
        shoulder, elbow, goal = jax.random.split(key, 3)
        joints = jnp.concatenate([uniform(shoulder, (1,), np.pi), uniform(elbow, (1,), 2.5)])
        return {"qpos": joints, "mocap_pos": jnp.append(disc(goal, 0.02, 0.2), self.constant(0.01))[None]}

    def control(self, data: Data, action: Float[Array, "2"]) -> Float[Array, "2"]:
        return self.strength * jnp.clip(action, -1, 1)

    def features(self, data: Data) -> Float[Array, "6"]:
        return jnp.concatenate([jnp.cos(data.qpos), jnp.sin(data.qpos), data.qvel / 10])

    def achieved(self, data: Data) -> Float[Array, "2"]:
        return self.sensor(data, "fingertip")[:2]

    def dense(self, before: Data, after: Data, action: Float[Array, "2"]) -> dict[str, Any]:
        distance = self.distance(after)
        return {
            "far": 0.5 * near(distance, 0.1),
            "near": 0.5 * near(distance, 0.02),
            "ctrl": -0.01 * jnp.mean(action**2),
        }

    def scripted(self, state: State) -> Float[Array, "2"]:
        """Inverse kinematics by the law of cosines, then a spring and a damper on the joints."""
        upper, lower = 0.1, 0.11
        x, y = self.commanded(state.data)
        square = x**2 + y**2
        bend = jnp.arccos(jnp.clip((square - upper**2 - lower**2) / (2 * upper * lower), -1, 1))
        angle = jnp.arctan2(y, x)
        joints, speeds = state.data.qpos, state.data.qvel

        def torque(elbow: Float[Array, ""]) -> Float[Array, "2"]:
            shoulder = angle - jnp.arctan2(lower * jnp.sin(elbow), upper + lower * jnp.cos(elbow))
            turn = jnp.arctan2(jnp.sin(shoulder - joints[0]), jnp.cos(shoulder - joints[0]))
            return jnp.stack([turn, elbow - joints[1]])

        error = jnp.where(joints[1] < 0, torque(-bend), torque(bend))
        return jnp.clip((100 * error - 20 * speeds) / (200 * self.strength), -1, 1)


class AntGoal(GoalEnv):
    """Walk Brax's ant to a place on the floor, 0.5 m wide all round.

    The ant starts at the origin with half of Brax's noise (with all of it some starts are lost at once), the goal lies in a
    random direction. Observation (31): torso
    height, orientation, joint angles, velocities; x and y of the torso; goal. Dense reward per step: speed towards the
    goal, plus 1 for being alive, minus 0.05 times the squared action. Ends when the torso leaves [0.2, 1] m of height.
    (With ``terminate_on_success`` mind that the bonus for being alive ends, too: ``healthy_reward=0``.)

    Args:
      distance: nearest and furthest goal, metres.
      healthy_reward: for being alive.
    """

    name = "ant_goal"
    mjcf: Any = asset("ant_goal.xml")
    frame_skip = 5
    episode_length = 500
    outputs = ("qpos", "qvel")
    radius = 0.5
    goal_size = 2

    def __init__(
        self,
        *,
        distance: tuple[float, float] = (1.0, 10.0),
        healthy_reward: float = 1.0,
        ctrl_cost_weight: float = 0.05,
        healthy_z_range: tuple[float, float] = (0.2, 1.0),
        reset_noise_scale: float = 0.05,
        **common: Any,
    ) -> None:
        if not 0 <= distance[0] <= distance[1]:
            raise ConfigError(f"distance is {distance!r}; expected two numbers, 0 <= nearest <= furthest")
        super().__init__(**common)
        self.goal_distance = distance
        self.healthy_reward = healthy_reward
        self.ctrl_cost_weight = ctrl_cost_weight
        self.healthy_z_range = healthy_z_range
        self.reset_noise_scale = reset_noise_scale

    def reset_pose(self, key: Key[Array, ""]) -> dict[str, Array]:
        position, velocity, goal = jax.random.split(key, 3)
        noise = self.reset_noise_scale
        qpos = self.constant(self.home) + uniform(position, (15,), noise)
        return {
            "qpos": qpos.at[3:7].set(qpos[3:7] / jnp.linalg.norm(qpos[3:7])),
            "qvel": noise * jax.random.normal(velocity, (14,), jnp.result_type(float)),
            "mocap_pos": jnp.append(disc(goal, *self.goal_distance), self.constant(0.25))[None],
        }

    def features(self, data: Data) -> Float[Array, "27"]:
        return jnp.concatenate([data.qpos[2:], data.qvel])

    def failed(self, data: Data) -> Any:
        low, high = self.healthy_z_range
        return (data.qpos[2] < low) | (data.qpos[2] > high)

    def dense(self, before: Data, after: Data, action: Float[Array, "8"]) -> dict[str, Any]:
        return {
            "progress": (self.distance(before) - self.distance(after)) / self.dt,
            "alive": self.healthy_reward,
            "ctrl": -self.ctrl_cost_weight * jnp.sum(action**2),
        }

    def heading(self, data: Data) -> Float[Array, "2"]:
        """Where ``scripted`` walks to, from where the torso is, metres."""
        return self.commanded(data) - self.achieved(data)

    def scripted(self, state: State) -> Float[Array, "8"]:
        """A trot that goes for the goal (make the environment with ``outputs=("time",)``).

        The legs are alike under quarter turns, so the gait is turned by the number of quarters that points it at the goal.
        Slow (about 0.5 m/s) and not always steady.
        """
        data = state.data
        gap = self.heading(data)
        w, x, y, z = data.qpos[3:7]
        yaw = jnp.arctan2(2 * (w * z + x * y), 1 - 2 * (y**2 + z**2))
        quarter = jnp.round((jnp.arctan2(gap[1], gap[0]) - yaw) / (np.pi / 2)).astype(jnp.int32)
        # legs by angle: 45, 135, 225, 315 degrees; each swings its hip back while its foot is down
        phase = 2 * np.pi * 1.2 * data.time + self.constant([0, np.pi, 0, np.pi])
        back = jnp.roll(self.constant([1, 1, -1, -1]), quarter)
        fold = self.constant([1, -1, -1, 1])
        hip = -0.6 * back * jnp.cos(phase)
        ankle = fold * jnp.where(jnp.sin(phase) > 0, 1.2, 0.8).astype(phase.dtype)
        error = jnp.stack([hip, ankle], 1) - data.qpos[7:].reshape(4, 2)
        torque = 0.4 * error - 0.06 * data.qvel[6:].reshape(4, 2)
        # the actuators begin with the fourth leg
        return jnp.clip(jnp.roll(torque, 1, axis=0).ravel(), -1, 1)


class PointUMaze(GoalEnv):
    """Drive a ball through a U of three corridors, each 1 m wide.

    The maze fills [-1.5, 1.5]²; a wall from its west side to x = 0.5 divides north from south, the way round is in the east.
    Start and goal are anywhere in the corridors (``goals="anywhere"``) or at the two ends of the U (``"far"``).
    Observation (8): position, velocity; position; goal. Success within 0.2 m. Dense reward per step, in [-1, 0]: minus
    the length of the shortest way round the wall, over 6 m.

    Args:
      goals: where starts and goals lie.
      dense: "path", or "euclid" for the straight-line distance (over the maze's diagonal), which misleads here.
    """

    name = "point_u_maze"
    mjcf = asset("point_u_maze.xml")
    frame_skip = 5
    episode_length = 200
    outputs = ("qpos", "qvel")
    radius = 0.2
    goal_size = 2
    #: half the width of a corridor that the ball's centre can use
    free = 0.3

    def __init__(self, *, goals: str = "anywhere", dense: DenseKind | str = "path", **common: Any) -> None:
        if goals not in ("anywhere", "far"):
            raise ConfigError(f"goals is {goals!r}; expected 'anywhere' or 'far'")
        self.dense_kind = one_of("dense", dense, get_args(DenseKind))
        super().__init__(**common)
        self.goals = goals

    def reset_pose(self, key: Key[Array, ""]) -> dict[str, Array]:
        start, goal = jax.random.split(key)
        if self.goals == "far":
            a, b = (self._place(k, jnp.int32(cell)) for k, cell in ((start, 0), (goal, 6)))
        else:
            # two different cells of the seven
            first, second, a_key, b_key = jax.random.split(start, 4)
            cell = jax.random.randint(first, (), 0, 7, jnp.int32)
            other = (cell + 1 + jax.random.randint(second, (), 0, 6, jnp.int32)) % 7
            a, b = self._place(a_key, cell), self._place(b_key, other)
        return {"qpos": a, "mocap_pos": jnp.append(b, self.constant(0.05))[None]}

    def _place(self, key: Key[Array, ""], cell: Any) -> Float[Array, "2"]:
        """Somewhere in a cell; cells are counted along the U, from its northern end."""
        centres = self.constant([[-1, 1], [0, 1], [1, 1], [1, 0], [1, -1], [0, -1], [-1, -1]])
        return centres[cell] + uniform(key, (2,), self.free)

    def dense(self, before: Data, after: Data, action: Float[Array, "2"]) -> dict[str, Any]:
        if self.dense_kind == "euclid":
            return {"euclid": -self.distance(after) / float(np.hypot(3, 3))}
        return {"path": -jnp.minimum(self.path(self.achieved(after), self.commanded(after)) / 6, 1.0)}

    def path(self, start: Float[Array, "2"], goal: Float[Array, "2"]) -> Float[Array, ""]:
        """Length of the shortest way between two places, metres: straight, or round the corners of the wall."""
        return self._ways(start, goal)[0]

    def _ways(self, start: Float[Array, "2"], goal: Float[Array, "2"]) -> tuple[Float[Array, ""], Float[Array, "2"]]:
        """The shortest way's length, and its first corner (or the goal)."""
        north, south = self.constant([0.66, 0.66]), self.constant([0.66, -0.66])

        def length(*places: Float[Array, "2"]) -> Float[Array, ""]:
            total = self.constant(0.0)
            for a, b in itertools.pairwise(places):
                total = total + jnp.where(crosses_wall(a, b), self.constant(1e3), jnp.linalg.norm(b - a))
            return total

        ways = [
            (start, goal),
            (start, north, goal),
            (start, south, goal),
            (start, north, south, goal),
            (start, south, north, goal),
        ]
        lengths = jnp.stack([length(*way) for way in ways])
        best = jnp.argmin(lengths)
        return lengths[best], jnp.stack([way[1] for way in ways])[best]

    def scripted(self, state: State) -> Float[Array, "2"]:
        """Straight to the next corner of the shortest way."""
        here = self.achieved(state.data)
        _, there = self._ways(here, self.commanded(state.data))
        return jnp.clip(8 * (there - here) - 2 * state.data.qvel, -1, 1)


def crosses_wall(
    a: Float[Array, "2"], b: Float[Array, "2"], half: float = 0.595, tip: float = 0.595
) -> Bool[Array, ""]:
    """Whether the way from a to b meets the wall of the U, grown so far that the ball is never inside, not even at a corner
    (by its radius over sqrt(2), less 1 cm of grace).

    The wall is the rectangle x <= tip, abs(y) <= half. The interval of the segment inside each of the two slabs is
    intersected (the method of slabs).
    """
    d = b - a
    small = jnp.abs(d) < 1e-6
    safe = jnp.where(small, jnp.full_like(d, 1e-6), d)
    x = (tip - a[0]) / safe[0]
    y1, y2 = (-half - a[1]) / safe[1], (half - a[1]) / safe[1]
    zero, one = jnp.zeros_like(x), jnp.ones_like(x)
    enter = jnp.maximum(jnp.minimum(y1, y2), jnp.where(safe[0] > 0, zero, x))
    leave = jnp.minimum(jnp.maximum(y1, y2), jnp.where(safe[0] > 0, x, one))
    return jnp.maximum(enter, zero) < jnp.minimum(leave, one)
