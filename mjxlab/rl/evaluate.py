"""How good is a policy? Whole episodes from fresh starts, apart from training."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Key

from mjxlab import spmd
from mjxlab.envs.vectorize import vectorize
from mjxlab.errors import ConfigError
from mjxlab.learner import Learner
from mjxlab.rl.rollout import world_keys

Evaluate = Callable[[Any, Key[Array, ""]], dict[str, Array]]


def make_evaluate(
    env: Any, learner: Learner, episodes: int = 100, *, deterministic: bool = True, episode_length: int | None = None
) -> Evaluate:
    """``evaluate(state, key) -> metrics``: the first episode of each of ``episodes`` worlds.

    Every call draws fresh starts and goals from ``key``; all randomness of episode i is folded from its number, so
    the figures do not depend on the number of devices. Every episode counts once, so short ones do not count more often
    than long ones. Pure: ``jit`` it, or call it inside the training loop, where each device plays its share.

    Args:
      env: the environment of one world.
      learner: its ``carry`` and ``act`` are used.
      episodes: how many.
      deterministic: passed to ``act``.
      episode_length: the time limit; the environment's own by default.

    Returns:
      A function whose metrics are ``return_mean``, ``return_std``, ``length_mean``, ``episodes``, for goal tasks
      ``success`` (share of episodes whose last step was a success) and ``reached`` (share with a success at any step),
      and ``nonfinite`` (episodes that the guard ended).
    """
    if isinstance(episodes, bool) or not isinstance(episodes, int) or episodes < 1:
        raise ConfigError(f"episodes: got {episodes!r}, expected an integer of at least 1")
    vec = vectorize(env, episodes, reset="first", episode_length=episode_length)

    def evaluate(state: Any, key: Key[Array, ""]) -> dict[str, Array]:
        local = -(-episodes // spmd.axis_size())
        index = spmd.global_index(local)
        reset_key, carry_key, step_key = jax.random.split(key, 3)
        start = vec.reset(reset_key, index)
        carry = jax.vmap(learner.carry, in_axes=(None, 0))(state, world_keys(carry_key, local))
        counts = index < episodes  # the last device may hold a few too many

        def act(carry: Any, obs: Any, key: Array) -> tuple[Any, Any]:
            return learner.act(state, carry, obs, key, deterministic)

        def going(loop: tuple[Any, ...]) -> Array:
            return jnp.any(~loop[3])  # no collective: each device stops when its own worlds are through

        def step(loop: tuple[Any, ...]) -> tuple[Any, ...]:
            t, vstate, carry, over, result = loop
            keys = world_keys(step_key, local, t, worlds=episodes)
            action, carry = jax.vmap(act)(carry, vstate.obs, keys)
            vstate = vec.step(vstate, action)
            now = vstate.done & ~over
            seen = (vstate.episode_return, vstate.episode_length, vstate.success, vstate.reached, vstate.nonfinite)
            result = jax.tree.map(lambda new, old: jnp.where(now, new, old), seen, result)
            return t + jnp.ones_like(t), vstate, carry, over | now, result

        nothing = (start.episode_return, start.episode_length, start.success, start.reached, start.nonfinite)
        loop = (jnp.zeros((), jnp.int32), start, carry, ~counts, nothing)
        _, _, _, _, (returns, lengths, success, reached, nonfinite) = lax.while_loop(going, step, loop)

        def mean(x: Array) -> Array:
            return spmd.psum(jnp.where(counts, x.astype(returns.dtype), 0).sum()) / episodes

        average = mean(returns)
        metrics = {
            "return_mean": average,
            "return_std": jnp.sqrt(mean(jnp.square(returns - average))),
            "length_mean": mean(lengths),
            "episodes": jnp.asarray(episodes, jnp.int32),
            "nonfinite": jnp.round(mean(nonfinite) * episodes).astype(jnp.int32),
        }
        if success is not None:
            metrics["success"] = mean(success)
            metrics["reached"] = mean(reached)
        return metrics

    return evaluate
