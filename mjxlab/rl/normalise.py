"""Running mean and variance of observations, and reward scaling.

The statistics of a PyTree are merged batch by batch with the parallel formula of Chan, Golub and LeVeque (1983)::

    delta = mean_b - mean_a,   w = n_b / (n_a + n_b)
    mean  = mean_a + w delta
    var   = var_a + w (var_b - var_a + (1 - w) delta^2)

The count is exact (``Counter``). Mean and variance carry their rounding error along (Knuth's two-sum), so that after
10^9 samples in float32 a batch of some thousands still moves them by the right amount, also far from zero.
"""

from __future__ import annotations

import math
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from mjxlab import spmd
from mjxlab.rl.counter import Counter

Scalar = float | Float[Array, ""]


@flax.struct.dataclass
class RunningStatistics:
    """Count, mean and variance of everything seen so far.

    Attributes:
      count: number of samples.
      mean, var: PyTrees like one sample. A leaf that is not floating-point (images, flags) is not normalised: it has
        scalars 0 and 1 here.
      mean_rest, var_rest: what the rounding of ``mean`` and ``var`` left out.
    """

    count: Counter
    mean: Any
    var: Any
    mean_rest: Any
    var_rest: Any


def _is_float(x: Any) -> bool:
    return bool(jnp.issubdtype(x.dtype, jnp.floating))


def _two_sum(a: Array, b: Array) -> tuple[Array, Array]:
    """(s, r) with s the rounded sum and s + r = a + b exactly (Knuth)."""
    total = a + b
    kept = total - a
    return total, (a - (total - kept)) + (b - kept)


def _step(a: Array, rest: Array, by: Array, by_rest: Array, share: Array) -> tuple[Array, Array]:
    """``(a + rest) + share * (by + by_rest)``, as a rounded sum and what it left out."""
    total, lost = _two_sum(a, share * by)
    return _two_sum(total, lost + (rest + share * by_rest))


def init(sample: Any) -> RunningStatistics:
    """Statistics that have seen nothing: mean 0, variance 1. ``sample``: one observation, or its shapes and dtypes."""

    def fill(value: float) -> Any:
        return jax.tree.map(
            lambda x: jnp.full(x.shape, value, x.dtype) if _is_float(x) else jnp.full((), value, float), sample
        )

    return RunningStatistics(count=Counter.of(0), mean=fill(0), var=fill(1), mean_rest=fill(0), var_rest=fill(0))


def _mean(x: Array, ndim: int) -> Array:
    """Mean over the leading axes, one after the other: shorter sums, smaller rounding errors than all at once."""
    while x.ndim > ndim:
        x = x.mean(0)
    return spmd.pmean(x)


def of_batch(like: RunningStatistics, batch: Any) -> RunningStatistics:
    """Statistics of a batch, over all devices. Leaves have any number of batch axes before those of a sample."""
    leaves, shapes = jax.tree.leaves(batch), jax.tree.leaves(like.mean)
    sizes = {math.prod(x.shape[: x.ndim - m.ndim]) for x, m in zip(leaves, shapes, strict=True) if _is_float(x)}
    size = sizes.pop() if sizes else leaves[0].shape[0]

    def moments(x: Array, mean: Array) -> tuple[Array, Array, Array]:
        if not _is_float(x):
            return mean, jnp.ones_like(mean), jnp.zeros_like(mean)
        middle = _mean(x, mean.ndim)
        centred = x - middle.reshape((1,) * (x.ndim - mean.ndim) + mean.shape)
        rest = _mean(centred, mean.ndim)
        return middle, _mean(jnp.square(centred), mean.ndim) - jnp.square(rest), rest

    found = [moments(x, m) for x, m in zip(leaves, shapes, strict=True)]
    structure = jax.tree.structure(like.mean)
    mean, var, rest = (jax.tree.unflatten(structure, [f[i] for f in found]) for i in range(3))
    var = jax.tree.map(lambda v: jnp.maximum(v, 0), var)
    count = Counter.of(0) + size * spmd.axis_size()
    return RunningStatistics(count, mean, var, rest, jax.tree.map(jnp.zeros_like, var))


def merge(a: RunningStatistics, b: RunningStatistics) -> RunningStatistics:
    """Statistics of both sets of samples together. The order does not matter up to rounding."""
    count = a.count.merge(b.count)

    def one(mean: Array, mean_rest: Array, var: Array, var_rest: Array, *other: Array) -> tuple[Array, ...]:
        mean_b, mean_rest_b, var_b, var_rest_b = other
        total = count.to_float(mean.dtype)
        share = b.count.to_float(mean.dtype) / jnp.maximum(total, 1)
        delta, lost = _two_sum(mean_b, -mean)
        lost = lost + (mean_rest_b - mean_rest)
        wider, wider_rest = _two_sum(var_b, -var)
        wider_rest = wider_rest + (var_rest_b - var_rest) + (1 - share) * jnp.square(delta + lost)
        return *_step(mean, mean_rest, delta, lost, share), *_step(var, var_rest, wider, wider_rest, share)

    trees = [t for s in (a, b) for t in (s.mean, s.mean_rest, s.var, s.var_rest)]
    columns = zip(*(jax.tree.leaves(t) for t in trees), strict=True)
    merged = [one(*column) for column in columns]
    structure = jax.tree.structure(a.mean)
    mean, mean_rest, var, var_rest = (jax.tree.unflatten(structure, [m[i] for m in merged]) for i in range(4))
    return RunningStatistics(count, mean, var, mean_rest, var_rest)


def update(stats: RunningStatistics, batch: Any) -> RunningStatistics:
    """Statistics that have seen the batch too; inside the training loop, the batches of all devices."""
    return merge(stats, of_batch(stats, batch))


def std(stats: RunningStatistics, min_std: float = 1e-4) -> Any:
    """Standard deviations, at least ``min_std``."""
    return jax.tree.map(lambda v: jnp.maximum(jnp.sqrt(jnp.maximum(v, 0)), min_std), stats.var)


def normalise(stats: RunningStatistics, x: Any, *, clip: Scalar | None = 10.0, min_std: float = 1e-4) -> Any:
    """(x - mean) / std, clipped to [-clip, clip]; leaves that are not floating-point pass unchanged.

    Args:
      stats: from ``update``. Fresh ones leave ``x`` as it is, up to the clipping.
      x: a sample, or any batch of samples.
      clip: None for none.
      min_std: floor of the standard deviation, so that a constant feature gives 0 and no overflow.
    """

    def one(leaf: Array, mean: Array, rest: Array, scale: Array) -> Array:
        if not _is_float(leaf):
            return leaf
        lead = (1,) * (leaf.ndim - mean.ndim)
        mean, rest, scale = (a.reshape(lead + a.shape) for a in (mean, rest, scale))
        z = ((leaf - mean) - rest) / scale
        return z if clip is None else jnp.clip(z, -clip, clip)

    return jax.tree.map(one, x, stats.mean, stats.mean_rest, std(stats, min_std))


def accumulate_returns(
    carry: Float[Array, " envs"],
    rewards: Float[Array, "time envs"],
    done: Bool[Array, "time envs"],
    discount: Scalar,
) -> tuple[Float[Array, " envs"], Float[Array, "time envs"]]:
    """Discounted sum of each world's rewards so far in its episode: R_t = discount (1 - d_{t-1}) R_{t-1} + r_t.

    Its standard deviation is the scale that rewards are divided by (Engstrom et al. 2020, arXiv:2005.12729).

    Args:
      carry: R after the step before the first, already 0 where an episode ended there.

    Returns:
      The carry for the next rollout, and R_t.
    """

    def step(carry: Array, inputs: tuple[Array, Array]) -> tuple[Array, Array]:
        reward, end = inputs
        total = discount * carry + reward
        return jnp.where(end, jnp.zeros_like(total), total), total

    return jax.lax.scan(step, carry, (rewards, done))
