"""Returns and advantages over a rollout, exact at both kinds of episode end.

Notation, for time step t of one world (arrays have time on axis 0 and any batch axes behind it)::

    r_t    reward of the step                    V_t    value of the observation that the step started from
    V'_t   value of the observation that it led to: ``values[t + 1]`` where the episode goes on, the value of
           ``final_obs`` (the observation before the reset) where it ended; see ``next_values``
    e_t    terminated: the future is worth nothing
    d_t    terminated or truncated: the episode ends here, so nothing flows back from step t + 1

A truncated step bootstraps from V'_t, a terminated one does not, and where both flags are up termination wins.
All functions are pure, differentiable, and work under ``jit`` and ``vmap``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float

from mjxlab.errors import ConfigError

Scalar = float | Float[Array, ""]


def _reverse_scan(
    gain: Float[Array, "time *batch"], offset: Float[Array, "time *batch"], last: Float[Array, "*batch"]
) -> Float[Array, "time *batch"]:
    """Solves x_t = offset_t + gain_t x_{t+1} backwards from x_T = last.

    A sequential scan: on a CPU it beats ``associative_scan`` at every rollout length in use, since the work per step
    is one fused multiply-add over the batch.
    """

    def step(carry: Array, inputs: tuple[Array, Array]) -> tuple[Array, Array]:
        gain_t, offset_t = inputs
        carry = offset_t + gain_t * carry
        return carry, carry

    return lax.scan(step, last, (gain, offset), reverse=True)[1]


def next_values(
    values: Float[Array, "time_and_one *batch"],
    done: Bool[Array, "time *batch"],
    final_values: Float[Array, "time *batch"],
) -> Float[Array, "time *batch"]:
    """V'_t: the value of what each step led to.

    Args:
      values: of the observations that the steps started from, and of the one after the last step.
      done: terminated or truncated.
      final_values: value of ``final_obs``; read only where ``done``.
    """
    return jnp.where(done, final_values, values[1:])


def gae(
    rewards: Float[Array, "time *batch"],
    values: Float[Array, "time *batch"],
    next_values: Float[Array, "time *batch"],
    terminated: Bool[Array, "time *batch"],
    truncated: Bool[Array, "time *batch"],
    *,
    discount: Scalar,
    lam: Scalar,
) -> tuple[Float[Array, "time *batch"], Float[Array, "time *batch"]]:
    """Generalised advantage estimation (Schulman et al. 2016, arXiv:1506.02438, equation 16).

    ::

        delta_t = r_t + discount (1 - e_t) V'_t - V_t
        A_t     = delta_t + discount lam (1 - d_t) A_{t+1},      A_T = 0

    Returns:
      The advantages A_t, and the value targets A_t + V_t, which are the TD(lam) returns of ``lambda_returns``.
    """
    live = 1 - terminated.astype(rewards.dtype)
    goes_on = 1 - (terminated | truncated).astype(rewards.dtype)
    delta = rewards + discount * live * next_values - values
    advantages = _reverse_scan(discount * lam * goes_on, delta, jnp.zeros_like(values[0]))
    return advantages, advantages + values


def lambda_returns(
    rewards: Float[Array, "time *batch"],
    next_values: Float[Array, "time *batch"],
    terminated: Bool[Array, "time *batch"],
    truncated: Bool[Array, "time *batch"],
    *,
    discount: Scalar,
    lam: Scalar,
) -> Float[Array, "time *batch"]:
    """TD(lam) returns (Sutton and Barto 2018, equation 12.18, in recursive form).

    ::

        G_t = r_t + discount (1 - e_t) [(1 - lam) V'_t + lam G_{t+1}],     G_{t+1} := V'_t where d_t, and at the end
    """
    live = discount * (1 - terminated.astype(rewards.dtype))
    goes_on = 1 - (terminated | truncated).astype(rewards.dtype)
    goes_on = goes_on.at[-1].set(0)
    offset = rewards + live * (1 - lam * goes_on) * next_values
    return _reverse_scan(live * lam * goes_on, offset, jnp.zeros_like(rewards[0]))


def discounted_returns(
    rewards: Float[Array, "time *batch"],
    terminated: Bool[Array, "time *batch"],
    truncated: Bool[Array, "time *batch"],
    *,
    discount: Scalar,
    next_values: Float[Array, "time *batch"] | None = None,
) -> Float[Array, "time *batch"]:
    """Discounted sums of the rewards that follow, until the episode's end.

    With ``next_values``, a truncated episode and the rollout's end bootstrap from V'_t; without, they count as 0.
    """
    tail = jnp.zeros_like(rewards) if next_values is None else next_values
    return lambda_returns(rewards, tail, terminated, truncated, discount=discount, lam=1.0)


def n_step_returns(
    rewards: Float[Array, "time *batch"],
    next_values: Float[Array, "time *batch"],
    terminated: Bool[Array, "time *batch"],
    truncated: Bool[Array, "time *batch"],
    *,
    discount: Scalar,
    n: int,
) -> Float[Array, "time *batch"]:
    """n-step returns: n rewards, then a bootstrap; fewer where the episode or the rollout ends before.

    ::

        G^1_t = r_t + discount (1 - e_t) V'_t
        G^k_t = r_t + discount G^{k-1}_{t+1}   where the episode goes on, else G^1_t
    """
    if n < 1:
        raise ConfigError(f"n: got {n}, expected at least 1")
    one = rewards + discount * (1 - terminated.astype(rewards.dtype)) * next_values
    ends = (terminated | truncated).at[-1].set(True)

    def widen(_: Any, returns: Array) -> Array:
        shifted = jnp.concatenate([returns[1:], returns[-1:]], axis=0)
        return jnp.where(ends, one, rewards + discount * shifted)

    return lax.fori_loop(0, min(n, rewards.shape[0]) - 1, widen, one)


def values_where(
    value_fn: Callable[[Any], Float[Array, " rows"]],
    observations: Any,
    mask: Bool[Array, "*shape"],
    *,
    chunk: int = 256,
) -> Float[Array, "*shape"]:
    """``value_fn`` of the observations where ``mask`` is set, 0 elsewhere, at a cost that follows the number set.

    Truncations are rare, so a whole second critic pass over ``final_obs`` would be nearly all waste. The rows that
    are needed are gathered ``chunk`` at a time, in a loop that runs as often as there are rows to fill: never, if
    none is set. The result is that of the full pass (up to the last bit of the matrix products). Not differentiable
    in reverse mode: targets never are.

    Args:
      value_fn: maps a batch of observations (rows on axis 0) to values.
      observations: PyTree with leaves of shape (\\*shape, …).
      mask: which values are needed.
      chunk: rows per call of ``value_fn``.
    """
    flat_mask = mask.reshape(-1)
    rows = flat_mask.shape[0]
    chunk = min(chunk, rows)
    flat = jax.tree.map(lambda x: x.reshape((rows, *x.shape[mask.ndim :])), observations)
    dtype = jax.eval_shape(value_fn, jax.tree.map(lambda x: x[:chunk], flat)).dtype
    # rank[i] is the place of row i among the rows that are set; row i belongs to chunk rank[i] // chunk
    rank = jnp.cumsum(flat_mask, dtype=jnp.int32) - 1
    count = rank[-1] + 1

    def body(carry: tuple[Array, Array]) -> tuple[Array, Array]:
        start, out = carry
        slot = jnp.where(flat_mask & (rank >= start), rank - start, chunk)
        picked = jnp.zeros(chunk, jnp.int32).at[slot].set(jnp.arange(rows, dtype=jnp.int32), mode="drop")
        values = value_fn(jax.tree.map(lambda x: x[picked], flat))
        return start + chunk, jnp.where(slot < chunk, values[jnp.minimum(slot, chunk - 1)], out)

    start = jnp.zeros((), jnp.int32)
    _, out = lax.while_loop(lambda c: c[0] < count, body, (start, jnp.zeros(rows, dtype)))
    return out.reshape(mask.shape)
