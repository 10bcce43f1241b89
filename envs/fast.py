"""A point in the plane that moves as it is told: an environment that costs next to nothing."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from mjxlab.envs import spaces
from mjxlab.envs.base import State, fresh_state
from mjxlab.errors import ConfigError


class Fast:
    """Bring the point to the goal; both start anywhere in the unit square around 0 (side 2).

    For tests of learners and of the training loop: a random policy is plainly worse than a good one, and a good one is
    found in seconds. The point moves by ``speed * action`` and stays inside the square.

    Observation (4 numbers): point, goal. Action: 2 numbers in [-1, 1]. Reward: 1 - distance to the goal.
    Success: within 0.1 of the goal. The best policy goes straight at the goal, so with d the distance at the start
    it earns about ``episode_length - d (d / speed + 1) / 2``.

    Args:
      episode_length: steps until the time limit.
      speed: how far one step can go, per axis.
    """

    name = "fast"
    engine = None
    radius = 0.1

    def __init__(self, episode_length: int = 32, speed: float = 0.2):
        if not 0 < speed <= 2:
            raise ConfigError(f"speed is {speed!r}; expected a number in (0, 2]")
        self.episode_length = episode_length
        self.speed = speed
        self.observation_space = spaces.unit_box(4)
        self.action_space = spaces.unit_box(2)

    def reset(self, key: jax.Array) -> State:
        key, start, aim = jax.random.split(key, 3)
        dtype = jnp.result_type(float)
        point = jax.random.uniform(start, (2,), dtype, -1, 1)
        goal = jax.random.uniform(aim, (2,), dtype, -1, 1)
        return fresh_state(
            point,
            jnp.concatenate([point, goal]),
            key,
            params={"goal": goal},
            metrics={"distance": jnp.linalg.norm(point - goal)},
            achieved=point,
            commanded=goal,
            success=jnp.linalg.norm(point - goal) < self.radius,
        )

    def step(self, state: State, action: Float[Array, "2"]) -> State:
        goal = state.params["goal"]
        move = self.speed * jnp.clip(action.astype(state.data.dtype), -1, 1)
        point = jnp.clip(state.data + move, -1, 1)
        distance = jnp.linalg.norm(point - goal)
        return state.replace(
            data=point,
            obs=jnp.concatenate([point, goal]),
            reward=1 - distance,
            metrics={"distance": distance},
            achieved=point,
            success=distance < self.radius,
        )

    def best_action(self, obs: Float[Array, "4"]) -> Float[Array, "2"]:
        """Straight at the goal."""
        return jnp.clip((obs[2:] - obs[:2]) / self.speed, -1, 1)

    def render_frame(self, state: State) -> np.ndarray:
        """uint8[96, 96, 3]: the point in blue, the goal as a green disc of the radius of success."""
        axis = np.linspace(-1.1, 1.1, 96)
        here = np.stack(np.meshgrid(axis, axis[::-1]), -1)
        frame = np.full((96, 96, 3), 245, np.uint8)
        frame[np.linalg.norm(here - np.asarray(state.params["goal"]), axis=-1) < self.radius] = (60, 170, 90)
        frame[np.linalg.norm(here - np.asarray(state.data), axis=-1) < 0.06] = (40, 80, 200)
        return frame
