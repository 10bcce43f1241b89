"""Many worlds at once: batching, time limit, NaN guard, autoreset, episode statistics.

The raw environment is one world and knows nothing of all this. ``vectorize`` adds, in this order,

1. batching: ``jax.vmap`` over the worlds;
2. the time limit: an episode is truncated at its ``episode_length``-th step (and may terminate at that same step:
   then both flags are true);
3. the NaN guard: a world whose simulation, observation or reward is not finite ends as *terminated*, with reward 0
   and the last finite observation as ``final_obs``; its neighbours do not notice;
4. autoreset: a world whose episode ended starts its next one at once. Episode ``e`` of world ``i`` always starts from
   ``env.reset(fold_in(base_key_i, e))``, whatever the reset mode; no start is ever used twice, unless one asks
   for ``reset="first"``;
5. statistics of the episode: return, length, summed metrics, success at the end, success at any step.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Literal, get_args

import flax.struct
import jax
import jax.numpy as jnp
from gymnasium import spaces
from jaxtyping import Array, Bool, Float, Int, Key

from mjxlab import spmd
from mjxlab.envs import _trees
from mjxlab.envs._pool import make_fill
from mjxlab.envs.base import Env, State, env_name
from mjxlab.errors import ConfigError
from mjxlab.physics import where

ResetMode = Literal["pool", "fresh", "first"]


@flax.struct.dataclass
class VecState:
    """All worlds, worlds on axis 0 of every array (so that the axis splits over devices).

    ``state`` is what the policy acts on next. Everything else describes the step just made; where an episode ended
    there, ``state`` already belongs to the next episode while the rest still describes the one that ended.

    Attributes:
      state: the worlds, after autoreset.
      reward: of the step just made; 0 where the guard fired.
      terminated, truncated: how the episode ended at this step, if it did. Both may be true.
      final_obs: the observation that the step led to, before any reset. The value at a truncation is that of
        ``final_obs``. Equals ``obs`` where the episode goes on.
      final_achieved, final_commanded, final_success: goal tasks: the same fields before any reset, else None.
      metrics: the environment's metrics of the step just made.
      episode_return, episode_length, episode_metrics: sums over the running episode, this step included; at an
        end, those of the finished episode.
      reached: goal tasks: whether any step of the running episode, this one included, was a success; at an end, that of
        the finished episode. A start that happens to be a success does not count. Else None.
      nonfinite: the guard fired at this step.
      elapsed: steps made since the last reset (0 right after one); the time limit counts it.
      episode: number of the running episode of this world, from 0.
      base_key: the world's own key, from which each episode's key is folded.
      pool: the next initial state of each world (None if ``reset="fresh"``).
      pool_full: whether that slot holds the state of episode ``episode + 1`` (always False if ``reset="fresh"``).
      pool_due: the slot is to be filled at the next step, whether needed or not (``refill`` asks for it).
    """

    state: State
    reward: Float[Array, "envs *team"]
    terminated: Bool[Array, " envs"]
    truncated: Bool[Array, " envs"]
    final_obs: Any
    final_achieved: Any
    final_commanded: Any
    final_success: Any
    metrics: dict[str, Array]
    episode_return: Float[Array, "envs *team"]
    episode_length: Int[Array, " envs"]
    episode_metrics: dict[str, Array]
    reached: Any
    nonfinite: Bool[Array, " envs"]
    elapsed: Int[Array, " envs"]
    episode: Int[Array, " envs"]
    base_key: Key[Array, " envs"]
    pool: Any
    pool_full: Bool[Array, " envs"]
    pool_due: Bool[Array, " envs"]

    @property
    def obs(self) -> Any:
        """What the policy sees next."""
        return self.state.obs

    @property
    def done(self) -> Bool[Array, "*worlds"]:
        """The episode ended at this step, one way or the other."""
        return self.terminated | self.truncated

    @property
    def success(self) -> Any:
        """Whether the step just made ended in success (goal tasks), before any reset; else None."""
        return self.final_success


@dataclasses.dataclass(frozen=True, eq=False)
class VecEnv:
    """What ``vectorize`` returns: three pure functions and the facts about them.

    The number of worlds is taken from the arguments, so that ``step`` and ``refill`` work unchanged on one device's
    share of the worlds and under ``jax.vmap`` over seeds; ``num_envs`` only serves ``reset``.
    Wrap the functions in ``jax.jit`` (for the ``mjx`` engine on a CPU: ``mjxlab.physics.jit``).
    """

    env: Env
    num_envs: int
    reset_mode: str
    episode_length: int
    guard: bool
    _fill: Any = dataclasses.field(repr=False)

    @property
    def name(self) -> str:
        """The environment's name."""
        return env_name(self.env)

    @property
    def engine(self) -> Any:
        """The environment's physics engine, or None."""
        return getattr(self.env, "engine", None)

    @property
    def observation_space(self) -> spaces.Space:
        """Of one world."""
        return self.env.observation_space

    @property
    def action_space(self) -> spaces.Space:
        """Of one world."""
        return self.env.action_space

    def reset(self, key: Key[Array, ""], index: Int[Array, " envs"] | None = None) -> VecState:
        """Episode 0 of every world.

        Args:
          key: one key for all.
          index: global numbers of the worlds (default: 0 … num_envs - 1, or this device's share of them where
            a device axis is bound). All randomness of a world follows from ``key`` and its number.
        """
        if index is None:
            index = spmd.global_index(self.num_envs)
        base_key = jax.vmap(jax.random.fold_in, in_axes=(None, 0))(key, index)
        # copies: outside of jit an array may stand in two fields, and a donated buffer may not
        state = _trees.copy(_trees.strong(jax.vmap(lambda k: self.env.reset(jax.random.fold_in(k, 0)))(base_key)))
        n = base_key.shape[0]
        pool = None if self.reset_mode == "fresh" else _trees.copy(state)

        def no() -> Bool[Array, " envs"]:
            return jnp.zeros((n,), bool)

        def zero() -> Int[Array, " envs"]:
            return jnp.zeros((n,), jnp.int32)

        vstate = VecState(
            state=state,
            reward=jnp.zeros_like(state.reward),
            terminated=no(),
            truncated=no(),
            final_obs=_trees.copy(state.obs),
            final_achieved=_trees.copy(state.achieved),
            final_commanded=_trees.copy(state.commanded),
            final_success=_trees.copy(state.success),
            metrics=_trees.copy(state.metrics),
            episode_return=jnp.zeros_like(state.reward),
            episode_length=zero(),
            episode_metrics=_trees.zeros_like(state.metrics),
            reached=_trees.zeros_like(state.success),
            nonfinite=no(),
            elapsed=zero(),
            episode=zero(),
            base_key=base_key,
            pool=pool,
            # "first" keeps its one slot for ever; a "pool" is filled after the first refill, or when first needed
            pool_full=jnp.full((n,), self.reset_mode == "first"),
            pool_due=no(),
        )
        return _trees.vary_like(vstate, base_key)

    def step(self, vstate: VecState, action: Any) -> VecState:
        """One control step of every world, then the resets.

        Args:
          vstate: as returned by ``reset``, ``step`` or ``refill``.
          action: a batch of actions, worlds first.
        """
        pool, full = vstate.pool, vstate.pool_full
        moved = jax.vmap(self._advance)(vstate.replace(pool=None), action)
        done = moved.done
        if self.reset_mode == "fresh":
            state, _ = self._fill(moved.state, moved.base_key, moved.episode, done, done)
        else:
            if self.reset_mode == "pool":
                needed = (done | vstate.pool_due) & ~full
                pool, full = self._fill(pool, moved.base_key, moved.episode, ~full, needed)
            state = where(done, pool, moved.state)
            full = full & ~done if self.reset_mode == "pool" else full
        moved = moved.replace(
            state=state,
            elapsed=jnp.where(done, jnp.zeros_like(moved.elapsed), moved.elapsed),
            episode=moved.episode + done.astype(jnp.int32),
            pool=pool,
            pool_full=full,
            pool_due=jnp.zeros_like(full),
        )
        return _trees.vary_like(moved, moved.base_key)

    def refill(self, vstate: VecState) -> VecState:
        """Have the empty slots of the pool filled, by real resets, at the next step. Call it once a rollout.

        It changes no result: a slot that is empty when its world needs it is filled then. Filling them together is
        cheaper. It only leaves a note for ``step``, so that a program holds the code of a reset once, not twice: resets
        take long to compile. The identity unless ``reset="pool"``.
        """
        return vstate.replace(pool_due=~vstate.pool_full) if self.reset_mode == "pool" else vstate

    def _advance(self, old: VecState, action: Any) -> VecState:
        """One world: the step, time limit, guard and statistics; no reset."""
        state = self.env.step(old.state, action)
        _trees.check_same(old.state, state, f"environment {self.name}")
        state = _trees.strong(state)

        elapsed = old.elapsed + jnp.ones_like(old.elapsed)
        terminated, truncated = state.terminated, state.truncated | (elapsed >= self.episode_length)
        reward, metrics, nonfinite = state.reward, state.metrics, jnp.zeros_like(old.nonfinite)
        seen = (state.obs, state.achieved, state.commanded)
        success = state.success
        if self.guard:
            nonfinite = ~is_finite(state)
            terminated, truncated = terminated | nonfinite, truncated & ~nonfinite
            reward = jnp.where(nonfinite, jnp.zeros_like(reward), reward)
            metrics = where(nonfinite, _trees.zeros_like(metrics), metrics)
            seen = where(nonfinite, (old.state.obs, old.state.achieved, old.state.commanded), seen)
            success = jax.tree.map(lambda x: x & ~nonfinite, success)

        goes_on = ~old.done  # else this is the first step of an episode, and the sums start anew

        def add(total: jax.Array, x: jax.Array) -> jax.Array:
            return jnp.where(goes_on, total, jnp.zeros_like(total)) + x.astype(total.dtype)

        return old.replace(
            state=state,
            reward=reward,
            terminated=terminated,
            truncated=truncated,
            final_obs=seen[0],
            final_achieved=seen[1],
            final_commanded=seen[2],
            final_success=success,
            metrics=metrics,
            episode_return=add(old.episode_return, reward),
            episode_length=add(old.episode_length, jnp.ones_like(old.episode_length)),
            episode_metrics=jax.tree.map(add, old.episode_metrics, metrics),
            reached=jax.tree.map(lambda before, now: now | (before & goes_on), old.reached, success),
            nonfinite=nonfinite,
            elapsed=elapsed,
        )


def is_finite(state: State) -> Bool[Array, ""]:
    """Whether one world is sound: its data (``data.finite`` if they say so themselves), observation and reward."""
    data = state.data
    sound = data.finite if hasattr(type(data), "finite") else _trees.finite(data)
    return sound & _trees.finite((state.obs, state.reward))


def vectorize(
    env: Env,
    num_envs: int,
    *,
    reset: ResetMode | str = "pool",
    episode_length: int | None = None,
    guard: bool = True,
) -> VecEnv:
    """``num_envs`` worlds of ``env`` as three pure functions: ``reset``, ``step``, ``refill``.

    Args:
      env: the environment of one world.
      num_envs: how many worlds ``reset`` makes.
      reset: where the next episode's start comes from. ``"pool"``: a slot per world, filled ahead by real resets;
        ``"fresh"``: a real reset at the step at which the episode ends; both give the same bits. ``"first"``: every
        episode of a world repeats its first start (fast, and rarely what one wants).
      episode_length: the time limit in control steps; the environment's own by default.
      guard: end a world that is not finite, and count it.

    Raises:
      ConfigError: an argument that cannot work.
    """
    if isinstance(num_envs, bool) or not isinstance(num_envs, int) or num_envs < 1:
        raise ConfigError(f"num_envs is {num_envs!r}; expected an integer of at least 1")
    if reset not in get_args(ResetMode):
        raise ConfigError(f"reset is {reset!r}; expected one of {', '.join(map(repr, get_args(ResetMode)))}")
    limit = env.episode_length if episode_length is None else episode_length
    if isinstance(limit, bool) or not isinstance(limit, int) or not 1 <= limit < 2**31:
        raise ConfigError(f"episode_length is {limit!r}; expected an integer of at least 1 (and below 2**31)")
    return VecEnv(env, num_envs, reset, limit, guard, make_fill(env))
