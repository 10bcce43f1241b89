"""Tasks of a seven-joint arm (the Panda's kinematics, drawn with primitives): reach a point, push a puck."""

from __future__ import annotations

from typing import Any, Literal, get_args

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key

from mjxlab.envs.base import State
from mjxlab.envs.classic import uniform
from mjxlab.envs.goal_env import GoalEnv
from mjxlab.envs.mujoco_env import asset
from mjxlab.envs.spaces import unit_box
from mjxlab.errors import ConfigError
from mjxlab.physics import Data

JOINTS = 7


def near(distance: Float[Array, ""], scale: float) -> Float[Array, ""]:
    """A bounded price of distance: 0 at 0, -1 far away, half of the way at about 0.55 ``scale``."""
    return -jnp.tanh(distance / scale)


class _Arm(GoalEnv):
    """Joint targets that move by a bounded step, at 25 Hz."""

    frame_skip = 5
    #: how far a joint's target moves per control step at action 1, rad
    step_size = 0.06

    def joint_targets(self, data: Data, move: Float[Array, "7"]) -> Float[Array, "7"]:
        """New set-points of the joint controllers: the old ones plus a move, inside the joints' limits."""
        low, high = self.engine.model.actuator_ctrlrange.T
        return jnp.clip(data.ctrl + move, self.constant(low), self.constant(high))

    def jacobian(self, data: Data) -> tuple[Float[Array, "3 7"], Float[Array, "3 7"]]:
        """How the tip moves and turns with each joint (needs the outputs ``xanchor`` and ``xaxis``)."""
        axes, anchors = data.xaxis[:JOINTS], data.xanchor[:JOINTS]
        return jnp.cross(axes, self.sensor(data, "tip")[None] - anchors).T, axes.T

    def home_pose(self, key: Key[Array, ""], noise: float) -> Float[Array, "7"]:
        """The arm's joints near home."""
        return self.constant(self.home[:JOINTS]) + uniform(key, (JOINTS,), noise)


class ArmReach(_Arm):
    """Bring the tip of the arm within 5 cm of a point in the air, and be there when the episode ends.

    Goals fill a box of 0.35 x 0.7 x 0.5 m in front of the arm; a new one for each episode. An action moves the joints'
    targets by up to 0.06 rad; the joints follow with the stiffness of an impedance controller.

    Observation (27): joint angles, joint velocities, joint targets minus angles; tip; goal. Dense reward per step, in
    [-1, 0]: half of -tanh(d / 0.3 m) and half of -tanh(d / 0.05 m), minus 0.01 times the mean squared action.
    """

    name = "arm_reach"
    mjcf = asset("arm_reach.xml")
    episode_length = 60
    outputs = ("qpos", "qvel", "ctrl", "sensordata")
    radius = 0.05
    #: corners of the box of goals, metres
    low = (0.3, -0.35, 0.15)
    high = (0.65, 0.35, 0.65)

    def reset_pose(self, key: Key[Array, ""]) -> dict[str, Array]:
        pose, goal = jax.random.split(key)
        joints = self.home_pose(pose, 0.05)
        low, high = self.constant(self.low), self.constant(self.high)
        return {
            "qpos": joints,
            "ctrl": joints,
            "mocap_pos": jax.random.uniform(goal, (1, 3), low.dtype, low[None], high[None]),
        }

    def control(self, data: Data, action: Float[Array, "7"]) -> Float[Array, "7"]:
        return self.joint_targets(data, self.step_size * jnp.clip(action, -1, 1))

    def features(self, data: Data) -> Float[Array, "21"]:
        return jnp.concatenate([data.qpos, data.qvel, data.ctrl - data.qpos])

    def achieved(self, data: Data) -> Float[Array, "3"]:
        return self.sensor(data, "tip")

    def dense(self, before: Data, after: Data, action: Float[Array, "7"]) -> dict[str, Any]:
        distance = self.distance(after)
        return {
            "far": 0.5 * near(distance, 0.3),
            "near": 0.5 * near(distance, 0.05),
            "ctrl": -0.01 * jnp.mean(action**2),
        }

    def scripted(self, state: State) -> Float[Array, "7"]:
        """A controller that solves the task (make the environment with ``outputs=("xanchor", "xaxis")``)."""
        move, _ = self.jacobian(state.data)
        step = damped_solve(move, self.commanded(state.data) - self.achieved(state.data))
        lead = state.data.ctrl - state.data.qpos
        return jnp.clip((0.5 * step - 0.5 * lead) / self.step_size, -1, 1)


Control = Literal["plane", "joint"]


class ArmPush(_Arm):
    """Push a puck over a table to within 5 cm of a goal.

    The puck starts 0.44 to 0.6 m in front of the arm, the goal lies 0.12 to 0.2 m from it. With ``control="plane"`` the
    two actions move the tip in the plane, by up to 2 cm a step, and the environment keeps it upright at the puck's height
    (damped least squares); with ``control="joint"`` the seven actions are those of ``arm_reach``.

    Observation (29): joint angles and velocities, joint targets minus angles, tip x and y, puck velocity; puck; goal.
    Dense reward per step, in [-1, 0]: 0.8 times a price of the puck's distance to the goal, half at the scale of 0.25 m and
    half at 0.05 m, and 0.2 times a price of the tip's distance to the puck (scale 0.2 m).
    """

    name = "arm_push"
    mjcf = asset("arm_push.xml")
    episode_length = 100
    outputs = ("qpos", "qvel", "ctrl", "xanchor", "xaxis", "sensordata")
    radius = 0.05
    goal_size = 2
    #: height of the tip over the table, metres
    height = 0.03
    #: how far the tip moves per control step at action 1, metres
    stride = 0.02

    def __init__(self, *, control: Control | str = "plane", **common: Any) -> None:
        if control not in get_args(Control):
            raise ConfigError(f"control is {control!r}; expected one of {', '.join(map(repr, get_args(Control)))}")
        super().__init__(**common)
        self.control_kind = control
        if control == "plane":
            self.action_space = unit_box(2)

    def reset_pose(self, key: Key[Array, ""]) -> dict[str, Array]:
        pose, puck, far, turn = jax.random.split(key, 4)
        dtype = jnp.result_type(float)
        joints = self.home_pose(pose, 0.01)
        low, high = self.constant([0.44, -0.15]), self.constant([0.6, 0.15])
        start = jax.random.uniform(puck, (2,), dtype, low, high)
        length = jax.random.uniform(far, (), dtype, 0.12, 0.2)
        angle = jax.random.uniform(turn, (), dtype, -jnp.pi, jnp.pi)
        offset = length * jnp.stack([jnp.cos(angle), jnp.sin(angle)])
        # mirrored back where it would leave the part of the table that the arm can push over
        goal = start + offset
        inside = (goal > self.constant([0.36, -0.25])) & (goal < self.constant([0.72, 0.25]))
        goal = jnp.where(inside, goal, start - offset)
        return {
            "qpos": jnp.concatenate([joints, start]),
            "ctrl": joints,
            "mocap_pos": jnp.append(goal, self.constant(0.002))[None],
        }

    def control(self, data: Data, action: Float[Array, " nu"]) -> Float[Array, "7"]:
        action = jnp.clip(action, -1, 1)
        if self.control_kind == "joint":
            return self.joint_targets(data, self.step_size * action)
        move, turn = self.jacobian(data)
        tip, pointing = self.sensor(data, "tip"), self.sensor(data, "tip_direction")
        down = self.constant([0.0, 0.0, -1.0])
        rise = (self.height - tip[2])[None]
        error = jnp.concatenate([self.stride * action, rise, jnp.cross(pointing, down)])
        step = damped_solve(jnp.concatenate([move, turn]), error)
        # targets lead the joints by more than the step, since the joints close only part of the gap in one step
        low, high = self.engine.model.actuator_ctrlrange.T
        return jnp.clip(data.qpos[:JOINTS] + 2 * step, self.constant(low), self.constant(high))

    def features(self, data: Data) -> Float[Array, "25"]:
        joints = data.qpos[:JOINTS]
        lead = data.ctrl - joints
        return jnp.concatenate([joints, data.qvel[:JOINTS], lead, self.sensor(data, "tip")[:2], data.qvel[JOINTS:]])

    def achieved(self, data: Data) -> Float[Array, "2"]:
        return data.qpos[JOINTS:]

    def dense(self, before: Data, after: Data, action: Float[Array, " nu"]) -> dict[str, Any]:
        distance = self.distance(after)
        reach = jnp.linalg.norm(self.sensor(after, "tip")[:2] - self.achieved(after))
        return {
            "far": 0.4 * near(distance, 0.25),
            "near": 0.4 * near(distance, 0.05),
            "reach": 0.2 * near(reach, 0.2),
        }

    def scripted(self, state: State) -> Float[Array, "2"]:
        """A controller that solves the task (``control="plane"``): go round behind the puck, then push."""
        data = state.data
        tip, puck, goal = self.sensor(data, "tip")[:2], self.achieved(data), self.commanded(data)
        gap = goal - puck
        ahead = gap / (jnp.linalg.norm(gap) + 1e-6)
        side = jnp.stack([-ahead[1], ahead[0]])
        offset = tip - puck
        along, across = jnp.dot(offset, ahead), jnp.dot(offset, side)
        behind = (along < -0.04) & (jnp.abs(across) < 0.02)
        # while the tip is beside or before the puck, keep clear of it
        sign = jnp.where(across < 0, -1.0, 1.0).astype(tip.dtype)
        beside = puck - 0.09 * ahead + sign * 0.1 * side
        stand = puck - 0.085 * ahead
        wide = (along > -0.07) & (jnp.abs(across) < 0.085)
        clear = puck + (along * ahead + sign * 0.12 * side)
        approach = jnp.where(along > -0.07, jnp.where(wide, clear, beside), stand)
        target = jnp.where(behind, puck - ahead * 0.02 - 1.5 * across * side, approach)
        speed = jnp.where(behind, jnp.clip(jnp.linalg.norm(gap) * 12, 0.0, 1.0), 1.0).astype(tip.dtype)
        pull = (target - tip) / self.stride
        done = self.success(data) & (jnp.linalg.norm(gap) < 0.02)
        return jnp.where(done, jnp.zeros_like(pull), speed * pull / jnp.maximum(1.0, jnp.linalg.norm(pull)))


def damped_solve(jacobian: Float[Array, "m n"], error: Float[Array, " m"], damping: float = 0.03) -> Float[Array, " n"]:
    """Joint step that realises ``error`` in the task's space: ``Jᵀ (J Jᵀ + damping² I)⁻¹ error``."""
    m = jacobian.shape[0]
    gram = jacobian @ jacobian.T + damping**2 * jnp.eye(m, dtype=jacobian.dtype)
    return jacobian.T @ jnp.linalg.solve(gram, error)
