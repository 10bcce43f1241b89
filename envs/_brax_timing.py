"""When Brax reads what.

Brax 0.14 takes ``qpos`` and ``qvel`` after a control step, but body frames as ``mjx.step`` leaves them: of the state
*before* the last physics step (after a reset: of the state itself). Rewards, heights and fingertips in its tasks are of
that earlier moment. The tasks here that are Brax's keep to it, so that transitions agree and policies carry over.

For a coordinate that is a position (slides, hinges, the first three of a free joint) the earlier value needs no extra
work: MuJoCo's Euler integrators move it by ``timestep`` times the *new* velocity, so it is ``q - lag * v``. Where
rotations or velocities of frames matter, ``LaggedEnv`` stops before the last physics step and looks.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key

from mjxlab.envs.base import State
from mjxlab.envs.mujoco_env import MujocoEnv
from mjxlab.physics import Data


def lag(data: Data, timestep: float) -> Float[Array, ""]:
    """Seconds between the frames that Brax reads and the state: one physics step, or 0 right after a reset.

    ``data`` needs the output ``time``.
    """
    return jnp.where(data.time > 0, jnp.full_like(data.time, timestep), jnp.zeros_like(data.time))


class LaggedEnv(MujocoEnv):
    """A task that reads body frames of the state before the last physics step.

    A subclass defines ``frames`` (what it reads of them), ``observe_with`` and ``reward_with``.
    """

    def frames(self, data: Data) -> dict[str, Array]:
        """What the task reads from body frames."""
        return {}

    def observe_with(self, data: Data, frames: dict[str, Array], ctrl: Float[Array, " nu"]) -> Float[Array, " obs"]:
        """The observation: state of now, frames of one physics step earlier, actuator inputs of this step."""
        return jnp.concatenate([data.qpos, data.qvel])

    def reward_with(
        self, before: dict[str, Array], frames: dict[str, Array], obs: Float[Array, " obs"], ctrl: Float[Array, " nu"]
    ) -> dict[str, Any]:
        """Reward terms from the frames at this step and at the last, the new observation, and the actuator inputs."""
        return {}

    def terminated_with(self, frames: dict[str, Array]) -> Any:
        """Whether the episode ends."""
        return False

    def start(self, key: Key[Array, ""], fields: Mapping[str, Any] | None = None, **pose: Any) -> State:
        """As in ``MujocoEnv``: here frames and state are of the same moment."""
        state = super().start(key, fields, **pose)
        frames = self.frames(state.data)
        still = jnp.zeros((self.engine.model.nu,), jnp.result_type(float))
        obs = self.observe_with(state.data, frames, still)
        shapes = jax.eval_shape(lambda: self._named(self.reward_with(frames, frames, obs, still))[1])
        metrics = {name: jnp.zeros(m.shape, m.dtype) for name, m in shapes.items()}
        return state.replace(obs=obs, info={"frames": frames}, metrics=metrics)

    def step(self, state: State, action: Any) -> State:
        """As in ``MujocoEnv``, stopping once before the last physics step."""
        action = self._action(action)
        ctrl = self.control(state.data, action)
        data, fields = state.data, state.params["fields"]
        if self.frame_skip > 1:
            data = self.engine.step(data, fields, ctrl, self.frame_skip - 1)
        frames = self.frames(data)
        data = self.engine.step(data, fields, ctrl, 1)
        obs = self.observe_with(data, frames, ctrl)
        reward, metrics = self._named(self.reward_with(state.info["frames"], frames, obs, ctrl))
        return state.replace(
            data=data,
            obs=obs,
            reward=reward,
            terminated=jnp.asarray(self.terminated_with(frames)),
            metrics=metrics,
            info={"frames": frames},
        )
