"""Brax 0.14's runners (its MJX backend), transition for transition: hopper, half_cheetah, walker, ant, humanoid.

Rewards, observations, terminations, reset noise, time steps and frame skips are Brax's; so are the weights' names and
defaults. Body positions are of the moment at which Brax reads them (``_brax_timing``).
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key

from mjxlab.envs._brax_timing import LaggedEnv, lag
from mjxlab.envs.classic import uniform
from mjxlab.envs.mujoco_env import MujocoEnv, asset
from mjxlab.physics import Data


class _Runner(MujocoEnv):
    """What the runners share: how far the torso came, and the price of control."""

    outputs = ("qpos", "qvel", "time")

    def __init__(
        self,
        *,
        forward_reward_weight: float = 1.0,
        ctrl_cost_weight: float = 0.1,
        healthy_reward: float = 1.0,
        terminate_when_unhealthy: bool = True,
        reset_noise_scale: float = 0.1,
        **common: Any,
    ) -> None:
        super().__init__(**common)
        self.forward_reward_weight = forward_reward_weight
        self.ctrl_cost_weight = ctrl_cost_weight
        self.healthy_reward = healthy_reward
        self.terminate_when_unhealthy = terminate_when_unhealthy
        self.reset_noise_scale = reset_noise_scale

    def torso(self, data: Data) -> Float[Array, " root"]:
        """The root's position coordinates at the moment at which Brax reads the torso's frame."""
        n = self.root
        return data.qpos[:n] - lag(data, self.engine.model.opt.timestep) * data.qvel[:n]

    #: how many of qpos are the torso's position: x and z in the plane, x, y and z in space
    root = 2

    def healthy(self, data: Data) -> Any:
        """Whether the posture is one to go on from."""
        return True

    def terminated(self, data: Data) -> Any:
        return ~jnp.asarray(self.healthy(data)) if self.terminate_when_unhealthy else False

    def velocity(self, before: Data, after: Data) -> Float[Array, " root"]:
        """Mean velocity of the torso over the step, m/s."""
        return (self.torso(after) - self.torso(before)) / self.dt

    def alive(self, data: Data) -> Any:
        """The bonus for staying healthy."""
        if self.terminate_when_unhealthy:
            return self.healthy_reward
        return self.healthy_reward * jnp.asarray(self.healthy(data)).astype(data.qpos.dtype)

    def reward(self, before: Data, after: Data, action: Float[Array, " nu"]) -> dict[str, Any]:
        return {
            "forward": self.forward_reward_weight * self.velocity(before, after)[0],
            "alive": self.alive(after),
            "ctrl": -self.ctrl_cost_weight * jnp.sum(action**2),
        }

    def metrics(self, before: Data, after: Data, action: Float[Array, " nu"]) -> dict[str, Any]:
        return {"x_velocity": self.velocity(before, after)[0]}


class HalfCheetah(_Runner):
    """Run forward in the plane. Observation (17): qpos without x, qvel. Never ends."""

    name = "half_cheetah"
    mjcf = asset("half_cheetah.xml")
    frame_skip = 5

    def __init__(
        self,
        *,
        forward_reward_weight: float = 1.0,
        ctrl_cost_weight: float = 0.1,
        reset_noise_scale: float = 0.1,
        **common: Any,
    ) -> None:
        super().__init__(
            forward_reward_weight=forward_reward_weight,
            ctrl_cost_weight=ctrl_cost_weight,
            healthy_reward=0.0,
            terminate_when_unhealthy=False,
            reset_noise_scale=reset_noise_scale,
            **common,
        )

    def reset_pose(self, key: Key[Array, ""]) -> dict[str, Array]:
        position, velocity = jax.random.split(key)
        noise = self.reset_noise_scale
        return {
            "qpos": self.constant(self.home) + uniform(position, (9,), noise),
            "qvel": noise * jax.random.normal(velocity, (9,), jnp.result_type(float)),
        }

    def observe(self, data: Data) -> Float[Array, "17"]:
        return jnp.concatenate([data.qpos[1:], data.qvel])

    def reward(self, before: Data, after: Data, action: Float[Array, "6"]) -> dict[str, Any]:
        terms = super().reward(before, after, action)
        return {"run": terms["forward"], "ctrl": terms["ctrl"]}


class _Upright(_Runner):
    """Hopper and walker: planar, with limits on the torso's height and lean."""

    frame_skip = 4
    standing = 1.25  # height of the torso at qpos[1] = 0, metres

    def __init__(
        self,
        *,
        ctrl_cost_weight: float = 1e-3,
        healthy_z_range: tuple[float, float] = (0.0, float("inf")),
        healthy_angle_range: tuple[float, float] = (-1.0, 1.0),
        reset_noise_scale: float = 5e-3,
        **common: Any,
    ) -> None:
        super().__init__(ctrl_cost_weight=ctrl_cost_weight, reset_noise_scale=reset_noise_scale, **common)
        self.healthy_z_range = healthy_z_range
        self.healthy_angle_range = healthy_angle_range

    def reset_pose(self, key: Key[Array, ""]) -> dict[str, Array]:
        position, velocity = jax.random.split(key)
        n, noise = self.engine.model.nv, self.reset_noise_scale
        return {
            "qpos": self.constant(self.home) + uniform(position, (n,), noise),
            "qvel": uniform(velocity, (n,), noise),
        }

    def height(self, data: Data) -> Float[Array, ""]:
        """Height of the torso, metres."""
        return self.standing + self.torso(data)[1]

    def observe(self, data: Data) -> Float[Array, " obs"]:
        return jnp.concatenate([self.height(data)[None], data.qpos[2:], jnp.clip(data.qvel, -10, 10)])

    def healthy(self, data: Data) -> Any:
        z, angle = self.height(data), data.qpos[2]
        (low, high), (back, front) = self.healthy_z_range, self.healthy_angle_range
        return (low < z) & (z < high) & (back < angle) & (angle < front)


class Hopper(_Upright):
    """Hop forward on one leg, in the plane.

    Observation (11): torso height, lean and joint angles, velocities clipped to ±10. Ends when the torso is below 0.7 m,
    leans by more than 0.2 rad, or any number of the state exceeds 100.
    """

    name = "hopper"
    mjcf = asset("hopper.xml")

    def __init__(
        self,
        *,
        healthy_state_range: tuple[float, float] = (-100.0, 100.0),
        healthy_z_range: tuple[float, float] = (0.7, float("inf")),
        healthy_angle_range: tuple[float, float] = (-0.2, 0.2),
        **common: Any,
    ) -> None:
        super().__init__(healthy_z_range=healthy_z_range, healthy_angle_range=healthy_angle_range, **common)
        self.healthy_state_range = healthy_state_range

    def healthy(self, data: Data) -> Any:
        low, high = self.healthy_state_range
        state = jnp.concatenate([data.qpos[2:], data.qvel])
        return super().healthy(data) & jnp.all((low < state) & (state < high))


class Walker(_Upright):
    """Walk forward on two legs, in the plane (Brax's walker2d).

    Observation (17): torso height, lean and joint angles, velocities clipped to ±10. Ends when the torso leaves
    (0.8, 2) m or leans by more than 1 rad.
    """

    name = "walker"
    mjcf = asset("walker.xml")

    def __init__(
        self,
        *,
        healthy_z_range: tuple[float, float] = (0.8, 2.0),
        healthy_angle_range: tuple[float, float] = (-1.0, 1.0),
        **common: Any,
    ) -> None:
        super().__init__(healthy_z_range=healthy_z_range, healthy_angle_range=healthy_angle_range, **common)


class Ant(_Runner):
    """Run forward on four legs.

    Observation (27): torso height, orientation and joint angles, then all velocities. Reward: forward velocity, plus 1
    for being alive, minus 0.5 times the squared action. Ends when the torso's height leaves [0.2, 1] m.
    """

    name = "ant"
    mjcf = asset("ant.xml")
    frame_skip = 5
    root = 3

    def __init__(
        self,
        *,
        ctrl_cost_weight: float = 0.5,
        healthy_z_range: tuple[float, float] = (0.2, 1.0),
        **common: Any,
    ) -> None:
        super().__init__(ctrl_cost_weight=ctrl_cost_weight, **common)
        self.healthy_z_range = healthy_z_range

    def reset_pose(self, key: Key[Array, ""]) -> dict[str, Array]:
        position, velocity = jax.random.split(key)
        noise = self.reset_noise_scale
        qpos = self.constant(self.home) + uniform(position, (15,), noise)
        # the noise bends the quaternion; engines would normalise it, each in its own place
        quat = qpos[3:7] / jnp.linalg.norm(qpos[3:7])
        return {
            "qpos": qpos.at[3:7].set(quat),
            "qvel": noise * jax.random.normal(velocity, (14,), jnp.result_type(float)),
        }

    def observe(self, data: Data) -> Any:
        return jnp.concatenate([data.qpos[2:], data.qvel])

    def healthy(self, data: Data) -> Any:
        z, (low, high) = self.torso(data)[2], self.healthy_z_range
        return (low <= z) & (z <= high)

    def metrics(self, before: Data, after: Data, action: Float[Array, "8"]) -> dict[str, Any]:
        x, y, _ = self.velocity(before, after)
        return {"x_velocity": x, "y_velocity": y}


class Humanoid(LaggedEnv):
    """Run forward on two legs.

    Observation (244): torso height, orientation and joint angles (22), velocities (23), inertia about the
    centre of mass and mass of each of the 11 bodies (110), momentum share and angular velocity of each (66), torque on each
    degree of freedom (23). Reward: 1.25 times the centre of mass's forward velocity, plus 5 for being alive, minus 0.1
    times the squared actuator input (which is 0.4 times the action). Ends when the torso's height leaves [1, 2] m.
    """

    name = "humanoid"
    mjcf = asset("humanoid.xml")
    frame_skip = 5
    outputs = ("qpos", "qvel", "xpos", "xipos", "ximat", "cvel", "subtree_com")

    def __init__(
        self,
        *,
        forward_reward_weight: float = 1.25,
        ctrl_cost_weight: float = 0.1,
        healthy_reward: float = 5.0,
        terminate_when_unhealthy: bool = True,
        healthy_z_range: tuple[float, float] = (1.0, 2.0),
        reset_noise_scale: float = 1e-2,
        **common: Any,
    ) -> None:
        super().__init__(**common)
        self.forward_reward_weight = forward_reward_weight
        self.ctrl_cost_weight = ctrl_cost_weight
        self.healthy_reward = healthy_reward
        self.terminate_when_unhealthy = terminate_when_unhealthy
        self.healthy_z_range = healthy_z_range
        self.reset_noise_scale = reset_noise_scale
        model = self.engine.model
        torque = np.zeros((model.nv, model.nu))
        torque[model.jnt_dofadr[model.actuator_trnid[:, 0]], np.arange(model.nu)] = model.actuator_gear[:, 0]
        self._torque = torque

    def reset_pose(self, key: Key[Array, ""]) -> dict[str, Array]:
        position, velocity = jax.random.split(key)
        noise = self.reset_noise_scale
        qpos = self.constant(self.home) + uniform(position, (24,), noise)
        quat = qpos[3:7] / jnp.linalg.norm(qpos[3:7])
        return {"qpos": qpos.at[3:7].set(quat), "qvel": uniform(velocity, (23,), noise)}

    def frames(self, data: Data) -> dict[str, Array]:
        """Centre of mass (3), torso height, inertia and mass (110), momentum share and angular velocity (66)."""
        model = self.engine.model
        mass = self.constant(model.body_mass[1:])
        share = mass / jnp.sum(mass)
        centre = data.xipos[1:]
        com = share @ centre
        # inertia of each body about the common centre of mass, in the world's axes
        rotation = data.ximat[1:]
        own = jnp.einsum("bij,bj,bkj->bik", rotation, self.constant(model.body_inertia[1:]), rotation)
        arm = centre - com[None]
        square = jnp.sum(arm**2, -1)[:, None, None] * jnp.eye(3, dtype=arm.dtype)[None]
        about = own + mass[:, None, None] * (square - arm[:, :, None] * arm[:, None, :])
        inertia = jnp.concatenate([about.reshape(-1, 9), mass[:, None]], 1)
        # velocity of each body's centre; MuJoCo's cvel is at the tree's centre of mass, angular part first
        angular = data.cvel[1:, :3]
        linear = data.cvel[1:, 3:] + jnp.cross(angular, centre - data.subtree_com[1][None])
        velocity = jnp.concatenate([share[:, None] * linear, angular], 1)
        return {"com": com, "height": data.xpos[1, 2], "inertia": inertia.ravel(), "velocity": velocity.ravel()}

    def observe_with(self, data: Data, frames: dict[str, Array], ctrl: Float[Array, "17"]) -> Float[Array, "244"]:
        low, high = self._middle - self._half, self._middle + self._half
        torque = self.constant(self._torque) @ jnp.clip(ctrl, self.constant(low), self.constant(high))
        return jnp.concatenate([data.qpos[2:], data.qvel, frames["inertia"], frames["velocity"], torque])

    def healthy(self, frames: dict[str, Array]) -> Any:
        """Whether the torso is at a height to go on from."""
        low, high = self.healthy_z_range
        return (low <= frames["height"]) & (frames["height"] <= high)

    def reward_with(
        self, before: dict[str, Array], frames: dict[str, Array], obs: Float[Array, "244"], ctrl: Float[Array, "17"]
    ) -> dict[str, Any]:
        alive = self.constant(1.0) if self.terminate_when_unhealthy else self.healthy(frames).astype(obs.dtype)
        return {
            "forward": self.forward_reward_weight * (frames["com"][0] - before["com"][0]) / self.dt,
            "alive": self.healthy_reward * alive,
            "ctrl": -self.ctrl_cost_weight * jnp.sum(ctrl**2),
        }

    def terminated_with(self, frames: dict[str, Array]) -> Any:
        return ~self.healthy(frames) if self.terminate_when_unhealthy else False
