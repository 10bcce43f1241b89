"""Classic control through MuJoCo: pendulum, cart-pole, inverted double pendulum, reacher.

``inverted_double_pendulum`` and ``reacher`` are Brax 0.14's tasks (its MJX backend), transition for transition.
``pendulum`` and ``cartpole`` have the masses, lengths, limits and rewards of Gym's Pendulum-v1 and CartPole-v1, with
continuous torque and force.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key

from mjxlab.envs._brax_timing import LaggedEnv, lag
from mjxlab.envs.mujoco_env import MujocoEnv, asset
from mjxlab.physics import Data


def uniform(key: Key[Array, ""], shape: tuple[int, ...], half: float) -> Float[Array, "..."]:
    """Uniform in [-half, half], in JAX's default precision."""
    return jax.random.uniform(key, shape, jnp.result_type(float), -half, half)


class Pendulum(MujocoEnv):
    """Swing a rod up and hold it, with a motor too weak to lift it at once.

    Rod 1 m, 1 kg, gravity 10 m/s², torque 2 N m times the action. Observation: cos, sin of the angle from
    upright, angular velocity. Reward (Gym's, of the state before the step): -(angle² + 0.1 velocity² + 0.001 torque²), the
    angle in [-pi, pi]. Never ends. Gym's limit of 8 rad/s on the velocity is not kept.
    """

    name = "pendulum"
    mjcf = asset("pendulum.xml")
    frame_skip = 5
    episode_length = 200
    outputs = ("qpos", "qvel")

    def reset_pose(self, key: Key[Array, ""]) -> dict[str, Array]:
        angle, speed = jax.random.split(key)
        return {"qpos": uniform(angle, (1,), np.pi), "qvel": uniform(speed, (1,), 1.0)}

    def observe(self, data: Data) -> Float[Array, "3"]:
        return jnp.concatenate([jnp.cos(data.qpos), jnp.sin(data.qpos), data.qvel])

    def reward(self, before: Data, after: Data, action: Float[Array, "1"]) -> dict[str, Array]:
        angle = jnp.arctan2(jnp.sin(before.qpos[0]), jnp.cos(before.qpos[0]))
        torque = 2 * jnp.clip(action[0], -1, 1)
        return {"angle": -(angle**2), "speed": -0.1 * before.qvel[0] ** 2, "torque": -0.001 * torque**2}


class Cartpole(MujocoEnv):
    """Keep a pole upright on a cart that is pushed with up to 10 N.

    Observation, as Gym's: cart position, its velocity, pole angle, its velocity. Reward 1 per step. Ends when the cart is
    further than 2.4 m from the middle or the pole leans by more than 12°.
    """

    name = "cartpole"
    mjcf = asset("cartpole.xml")
    frame_skip = 2
    episode_length = 500
    outputs = ("qpos", "qvel")

    def reset_pose(self, key: Key[Array, ""]) -> dict[str, Array]:
        position, velocity = jax.random.split(key)
        return {"qpos": uniform(position, (2,), 0.05), "qvel": uniform(velocity, (2,), 0.05)}

    def observe(self, data: Data) -> Float[Array, "4"]:
        return jnp.stack([data.qpos[0], data.qvel[0], data.qpos[1], data.qvel[1]])

    def reward(self, before: Data, after: Data, action: Float[Array, "1"]) -> float:
        return 1.0

    def terminated(self, data: Data) -> Any:
        return (jnp.abs(data.qpos[0]) > 2.4) | (jnp.abs(data.qpos[1]) > np.deg2rad(12.0))


class InvertedDoublePendulum(MujocoEnv):
    """Balance two poles, one on the other, on a cart (Brax 0.14).

    Observation (8): cart position; sines and cosines of the two joint angles; velocities clipped to ±10. Reward:
    10 while up, minus 0.01 x² + (z - 2)² of the tip, minus 1e-3 and 5e-3 times the squared joint velocities. Ends when
    the tip is at or below 1 m.
    """

    name = "inverted_double_pendulum"
    mjcf = asset("inverted_double_pendulum.xml")
    frame_skip = 2
    episode_length = 1000
    outputs = ("qpos", "qvel", "time")
    pole = 0.6

    def reset_pose(self, key: Key[Array, ""]) -> dict[str, Array]:
        position, velocity = jax.random.split(key)
        return {
            "qpos": uniform(position, (3,), 0.01),
            "qvel": 0.01 * jax.random.normal(velocity, (3,), jnp.result_type(float)),
        }

    def observe(self, data: Data) -> Float[Array, "8"]:
        angles = data.qpos[1:]
        return jnp.concatenate([data.qpos[:1], jnp.sin(angles), jnp.cos(angles), jnp.clip(data.qvel, -10, 10)])

    def tip(self, data: Data) -> tuple[Float[Array, ""], Float[Array, ""]]:
        """x and z of the upper pole's end, when Brax reads them (see ``_brax_timing``)."""
        x, first, second = data.qpos - lag(data, self.engine.model.opt.timestep) * data.qvel
        lean = first + second
        return x + self.pole * (jnp.sin(first) + jnp.sin(lean)), self.pole * (jnp.cos(first) + jnp.cos(lean))

    def reward(self, before: Data, after: Data, action: Float[Array, "1"]) -> dict[str, Array]:
        x, z = self.tip(after)
        fallen = (z <= 1).astype(z.dtype)
        return {
            "alive": 10 * (1 - fallen),
            "distance": -(0.01 * x**2 + (z - 2) ** 2),
            "velocity": -(1e-3 * after.qvel[1] ** 2 + 5e-3 * after.qvel[2] ** 2),
        }

    def terminated(self, data: Data) -> Any:
        return self.tip(data)[1] <= 1


class Reacher(LaggedEnv):
    """Bring the fingertip of a two-link arm to a target in the plane (Brax 0.14).

    Observation (11): cosines and sines of the joint angles, target x and y, fingertip velocity x and y, vector from
    target to fingertip. Reward: minus that vector's length, minus the squared action. Never ends. The "fingertip velocity"
    is Brax's: it takes the lever arm as lying along the world's x axis, whatever the arm's angle.
    """

    name = "reacher"
    mjcf = asset("reacher.xml")
    frame_skip = 2
    episode_length = 1000
    outputs = ("qpos", "qvel")
    links = (0.1, 0.11)

    def reset_pose(self, key: Key[Array, ""]) -> dict[str, Array]:
        position, velocity, radius, angle = jax.random.split(key, 4)
        dtype = jnp.result_type(float)
        far = 0.2 * jax.random.uniform(radius, (), dtype)
        turn = 2 * np.pi * jax.random.uniform(angle, (), dtype)
        return {
            "qpos": uniform(position, (2,), 0.1),
            "qvel": uniform(velocity, (2,), 0.005),
            "mocap_pos": jnp.stack([far * jnp.cos(turn), far * jnp.sin(turn), self.constant(0.01)])[None],
        }

    def frames(self, data: Data) -> dict[str, Array]:
        """The fingertip and its velocity, by plane geometry."""
        first, lean = data.qpos[0], data.qpos[0] + data.qpos[1]
        turn, spin = data.qvel[0], data.qvel[0] + data.qvel[1]
        upper, lower = self.links
        tip = [
            upper * jnp.cos(first) + lower * jnp.cos(lean),
            upper * jnp.sin(first) + lower * jnp.sin(lean),
            self.constant(0.01),
        ]
        velocity = [-upper * jnp.sin(first) * turn, upper * jnp.cos(first) * turn + lower * spin]
        return {"tip": jnp.stack(tip), "velocity": jnp.stack(velocity)}

    def observe_with(self, data: Data, frames: dict[str, Array], ctrl: Float[Array, "2"]) -> Float[Array, "11"]:
        target = data.mocap_pos[0]
        return jnp.concatenate(
            [jnp.cos(data.qpos), jnp.sin(data.qpos), target[:2], frames["velocity"], frames["tip"] - target]
        )

    def reward_with(
        self, before: dict[str, Array], frames: dict[str, Array], obs: Float[Array, "11"], ctrl: Float[Array, "2"]
    ) -> dict[str, Array]:
        return {"dist": -safe_norm(obs[-3:]), "ctrl": -jnp.sum(ctrl**2)}


def safe_norm(x: Float[Array, " n"]) -> Float[Array, ""]:
    """Euclidean length, with gradient 0 (not NaN) at 0."""
    square = jnp.sum(x**2)
    positive = square > 0
    return jnp.where(positive, jnp.sqrt(jnp.where(positive, square, jnp.ones_like(square))), jnp.zeros_like(square))
