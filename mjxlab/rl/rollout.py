"""Collecting experience from vectorised environments."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int, Key

from mjxlab import spmd


@flax.struct.dataclass
class Transition:
    """What one step of every world gave; a rollout stacks them, time first.

    Attributes:
      obs: what the policy saw.
      action: the *raw* action as it was sampled. What the environment took (clipped, squashed) is not kept.
      reward: of the step.
      terminated, truncated: how the episode ended at this step, if it did.
      final_obs: what the step led to, before any reset.
      extras: whatever the policy wants to remember (log-probabilities, values, …).
      episode_return, episode_length, success: of the episode up to and including this step. Where the step ended it,
        they are the whole episode's.
      nonfinite: the world was not finite and was ended by the guard.
      reached: goal tasks: some step of the episode, up to and including this one, was a success.
    """

    obs: Any
    action: Any
    reward: Float[Array, "*time envs"]
    terminated: Bool[Array, "*time envs"]
    truncated: Bool[Array, "*time envs"]
    final_obs: Any
    extras: Any
    episode_return: Float[Array, "*time envs"]
    episode_length: Int[Array, "*time envs"]
    success: Bool[Array, "*time envs"] | None
    nonfinite: Bool[Array, "*time envs"]
    reached: Bool[Array, "*time envs"] | None = None

    @property
    def done(self) -> Bool[Array, "*time envs"]:
        """The episode ended at this step, one way or the other."""
        return self.terminated | self.truncated


# act(obs, keys) -> (action for the environment, raw action, extras), all with worlds on axis 0
Act = Callable[[Any, Key[Array, " envs"]], tuple[Any, Any, Any]]


def world_keys(
    key: Key[Array, ""], local_envs: int, t: int | Int[Array, ""] = 0, *, worlds: int | None = None
) -> Key[Array, " envs"]:
    """A key for each of this device's worlds at step ``t``: the same on any number of devices.

    World i of N gets ``fold_in(key, t N + i)``, one hash where folding in t and i apart would take two.

    Args:
      key: the same on all devices.
      local_envs: worlds on this device.
      t: the step.
      worlds: N, if it is not ``local_envs`` times the number of devices.
    """
    stride = local_envs * spmd.axis_size() if worlds is None else worlds
    number = jnp.asarray(t, jnp.int32) * stride + spmd.global_index(local_envs)
    return jax.vmap(jax.random.fold_in, in_axes=(None, 0))(key, number)


def rollout(vec: Any, act: Act, vstate: Any, key: Key[Array, ""], length: int) -> tuple[Any, Transition]:
    """``length`` steps of every world.

    Args:
      vec: a vectorised environment; the number of worlds is that of ``vstate``.
      act: ``act(obs, keys) -> (action, raw_action, extras)`` on all worlds, with a key for each.
      vstate: where the worlds are.
      key: of all randomness, see ``world_keys``.
      length: number of steps.

    Returns:
      Where the worlds are afterwards, and the transitions with axes (time, envs).
    """

    def step(vstate: Any, t: Array) -> tuple[Any, Transition]:
        obs = vstate.obs
        keys = world_keys(key, vstate.terminated.shape[0], t)
        action, raw, extras = act(obs, keys)
        vstate = vec.step(vstate, action)
        transition = Transition(
            obs=obs,
            action=raw,
            reward=vstate.reward,
            terminated=vstate.terminated,
            truncated=vstate.truncated,
            final_obs=vstate.final_obs,
            extras=extras,
            episode_return=vstate.episode_return,
            episode_length=vstate.episode_length,
            success=vstate.success,
            nonfinite=vstate.nonfinite,
            reached=vstate.reached,
        )
        return vstate, transition

    return lax.scan(step, vstate, jnp.arange(length, dtype=jnp.int32))


@flax.struct.dataclass
class EpisodeSums:
    """Sums over the episodes that ended in a rollout, on this device; ``spmd.psum`` them for all."""

    episodes: Float[Array, ""]
    episode_return: Float[Array, ""]
    episode_length: Float[Array, ""]
    success: Float[Array, ""] | None
    nonfinite: Float[Array, ""]
    reached: Float[Array, ""] | None = None


def episode_sums(transitions: Transition) -> EpisodeSums:
    """Count, return, length, success and reached summed over the episodes that ended; worlds that the guard ended."""
    done, dtype = transitions.done, transitions.reward.dtype

    def total(x: Array) -> Array:
        return jnp.where(done, x.astype(dtype), 0).sum()

    return EpisodeSums(
        episodes=total(jnp.ones_like(transitions.reward)),
        episode_return=total(transitions.episode_return),
        episode_length=total(transitions.episode_length),
        success=None if transitions.success is None else total(transitions.success),
        nonfinite=transitions.nonfinite.astype(dtype).sum(),
        reached=None if transitions.reached is None else total(transitions.reached),
    )
