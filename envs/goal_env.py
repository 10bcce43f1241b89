"""The base of every goal task: bring something to where it is wanted."""

from __future__ import annotations

from typing import Any, Literal, get_args

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from mjxlab.envs.mujoco_env import MujocoEnv
from mjxlab.errors import ConfigError
from mjxlab.physics import Data

RewardKind = Literal["dense", "sparse"]


class GoalEnv(MujocoEnv):
    """A MuJoCo task with a commanded goal; ``State`` has ``achieved``, ``commanded`` and ``success``.

    The goal is a mocap body, drawn anew at each reset, so it can be seen in pictures and read from ``data``. The
    observation is ``[features, achieved, commanded]``: its last ``goal_size`` numbers are the commanded goal, and nothing
    before them depends on it, so contrastive methods may cut it off and relabel it.

    A subclass defines ``features``, ``achieved``, ``commanded`` and ``dense``; if need be ``failed``.

    Args (besides those of ``MujocoEnv``):
      reward: "dense": the task's own terms; "sparse": 1 at every step that ends in success, else 0.
      terminate_on_success: end the episode at the first success. Dense rewards of the tasks here are at most 0 unless
        said otherwise, so that ending early does not cost.
    """

    radius: float = 0.05
    goal_size: int = 3

    def __init__(
        self, *, reward: RewardKind | str = "dense", terminate_on_success: bool = False, **common: Any
    ) -> None:
        kinds = get_args(RewardKind)
        if reward not in kinds:
            raise ConfigError(f"reward is {reward!r}; expected one of {', '.join(map(repr, kinds))}")
        super().__init__(**common)
        self.reward_kind = reward
        self.terminate_on_success = terminate_on_success

    def features(self, data: Data) -> Float[Array, " features"]:
        """What the policy sees of the robot and its things, without the goal."""
        return jnp.concatenate([data.qpos, data.qvel])

    def achieved(self, data: Data) -> Float[Array, " goal"]:
        """Where the thing is that has to be brought somewhere."""
        return data.qpos[: self.goal_size]

    def commanded(self, data: Data) -> Float[Array, " goal"]:
        """Where it is wanted."""
        return data.mocap_pos[0, : self.goal_size]

    def dense(self, before: Data, after: Data, action: Float[Array, " nu"]) -> dict[str, Any]:
        """Terms of the dense reward."""
        return {"distance": -self.distance(after)}

    def failed(self, data: Data) -> Any:
        """Whether the episode is lost."""
        return False

    def distance(self, data: Data) -> Float[Array, ""]:
        """From achieved to commanded, metres."""
        return jnp.linalg.norm(self.achieved(data) - self.commanded(data))

    def reached(
        self, achieved: Float[Array, "*batch goal"], commanded: Float[Array, "*batch goal"]
    ) -> Bool[Array, "*batch"]:
        """Whether the one is closer to the other than ``radius``; for relabelled goals too."""
        return jnp.linalg.norm(achieved - commanded, axis=-1) < self.radius

    def success(self, data: Data) -> Bool[Array, ""]:
        """Closer than ``radius``."""
        return self.reached(self.achieved(data), self.commanded(data))

    def observe(self, data: Data) -> Float[Array, " obs"]:
        return jnp.concatenate([self.features(data), self.achieved(data), self.commanded(data)])

    def reward(self, before: Data, after: Data, action: Float[Array, " nu"]) -> dict[str, Any]:
        if self.reward_kind == "sparse":
            return {"success": self.success(after).astype(jnp.result_type(float))}
        return self.dense(before, after, action)

    def terminated(self, data: Data) -> Any:
        failed = jnp.asarray(self.failed(data))
        return failed | self.success(data) if self.terminate_on_success else failed

    def metrics(self, before: Data, after: Data, action: Float[Array, " nu"]) -> dict[str, Any]:
        return {"distance": self.distance(after)}

    def _extras(self, data: Data) -> dict[str, Any]:
        return {"achieved": self.achieved(data), "commanded": self.commanded(data), "success": self.success(data)}
