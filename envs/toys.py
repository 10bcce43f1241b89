"""Six tiny environments whose values are known in closed form: what a learner must get right, one thing at a time.

If an agent fails on ... it is probably the ... that is wrong:

=========  =========================================  ==================================================
toy        what happens                               suspect
=========  =========================================  ==================================================
Constant   one step, reward 1                         value loss, optimiser
Sign       one step, reward = observation (-1 or 1)   observations, value network
Delay      two steps, reward 1 at the end             discounting, bootstrapping
Steer      one step, reward depends on the action     policy loss, advantages
Match      one step, action must fit the observation  pairing of observations with actions, batching
Cut        reward for ever, cut after four steps      truncation taken for termination, ``final_obs`` lost
=========  =========================================  ==================================================

Each comes with discrete actions (the default) or a one-dimensional box, and gives ``value(obs, gamma)``, the value of
the best policy, and ``best_action(obs)``.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from gymnasium import spaces
from jaxtyping import Array, Float, Num

from mjxlab.envs.base import State, fresh_state
from mjxlab.envs.spaces import unit_box

Obs = Float[Array, "1"]


class _Toy:
    """What the toys share: one number to see, one action of two kinds, and an observation that is the whole state."""

    name = "toy"
    engine = None
    episode_length = 1
    deterministic_reset = False

    def __init__(self, discrete: bool = True):
        self.observation_space = unit_box(1)
        self.action_space = spaces.Discrete(2) if discrete else unit_box(1)
        self.discrete = discrete

    def reset(self, key: jax.Array) -> State:
        start, key = jax.random.split(key)
        obs = self._start(start)
        return fresh_state(obs, obs, key)

    def step(self, state: State, action: jax.Array) -> State:
        reward, obs, over = self._move(state.data, action)
        return state.replace(data=obs, obs=obs, reward=reward, terminated=over)

    def value(self, obs: Float[Array, "*batch 1"], gamma: float) -> Float[Array, "*batch"]:
        """The value of ``obs`` under the best policy with discount ``gamma``."""
        return jnp.ones_like(obs[..., 0])

    def best_action(self, obs: Obs) -> Num[Array, "..."]:
        """An action of the best policy."""
        return jnp.int32(1) if self.discrete else jnp.ones_like(obs)

    def _start(self, key: jax.Array) -> Obs:
        return jnp.zeros((1,), jnp.result_type(float))

    def _move(self, obs: Obs, action: jax.Array) -> tuple[jax.Array, Obs, jax.Array]:
        """(reward, next observation, terminated)."""
        return jnp.ones_like(obs[0]), obs, jnp.ones((), bool)


def _sign(key: jax.Array) -> Obs:
    return jax.random.rademacher(key, (1,), jnp.result_type(float))


class Constant(_Toy):
    """One step, reward 1. The value is 1."""

    name = "toy_constant"
    deterministic_reset = True


class Sign(_Toy):
    """One step, reward = observation, which is -1 or 1. The value is the observation."""

    name = "toy_sign"

    def value(self, obs: Float[Array, "*batch 1"], gamma: float) -> Float[Array, "*batch"]:
        return obs[..., 0]

    def _start(self, key: jax.Array) -> Obs:
        return _sign(key)

    def _move(self, obs: Obs, action: jax.Array) -> tuple[jax.Array, Obs, jax.Array]:
        return obs[0], obs, jnp.ones((), bool)


class Delay(_Toy):
    """Two steps, which see 0 and then 1; the second gives reward 1. The values are gamma and 1."""

    name = "toy_delay"
    episode_length = 2
    deterministic_reset = True

    def value(self, obs: Float[Array, "*batch 1"], gamma: float) -> Float[Array, "*batch"]:
        return jnp.where(obs[..., 0] > 0.5, jnp.ones_like(obs[..., 0]), gamma)

    def _move(self, obs: Obs, action: jax.Array) -> tuple[jax.Array, Obs, jax.Array]:
        return obs[0], jnp.ones_like(obs), obs[0] > 0.5


class Steer(_Toy):
    """One step. Discrete: reward 1 for action 1, -1 for action 0. Box: 1 - (action - 1/2)². The best value is 1."""

    name = "toy_steer"
    deterministic_reset = True

    def best_action(self, obs: Obs) -> Num[Array, "..."]:
        return jnp.int32(1) if self.discrete else jnp.full_like(obs, 0.5)

    def _move(self, obs: Obs, action: jax.Array) -> tuple[jax.Array, Obs, jax.Array]:
        if self.discrete:
            reward = 2 * action.astype(obs.dtype) - 1
        else:
            reward = 1 - (action[0].astype(obs.dtype) - 0.5) ** 2
        return reward, obs, jnp.ones((), bool)


class Match(_Toy):
    """One step that sees -1 or 1. Discrete: reward 1 for action (obs + 1) / 2, else -1. Box: 1 - (action - obs / 2)².

    The best value is 1.
    """

    name = "toy_match"

    def best_action(self, obs: Obs) -> Num[Array, "..."]:
        return (obs[0] > 0).astype(jnp.int32) if self.discrete else obs / 2

    def _start(self, key: jax.Array) -> Obs:
        return _sign(key)

    def _move(self, obs: Obs, action: jax.Array) -> tuple[jax.Array, Obs, jax.Array]:
        if self.discrete:
            reward = (2 * action.astype(obs.dtype) - 1) * obs[0]
        else:
            reward = 1 - (action[0].astype(obs.dtype) - obs[0] / 2) ** 2
        return reward, obs, jnp.ones((), bool)


class Cut(_Toy):
    """The first step sees 0 and gives nothing; all later ones see 1 and give 1. Never terminates, is cut after 4 steps.

    The values are gamma / (1 - gamma) and 1 / (1 - gamma). Taking the cut for an end makes both too small; so does
    bootstrapping from the observation after the reset (0) in place of ``final_obs`` (1).
    """

    name = "toy_cut"
    episode_length = 4
    deterministic_reset = True

    def value(self, obs: Float[Array, "*batch 1"], gamma: float) -> Float[Array, "*batch"]:
        return jnp.where(obs[..., 0] > 0.5, jnp.ones_like(obs[..., 0]), gamma) / (1 - gamma)

    def _move(self, obs: Obs, action: jax.Array) -> tuple[jax.Array, Obs, jax.Array]:
        return obs[0], jnp.ones_like(obs), jnp.zeros((), bool)
