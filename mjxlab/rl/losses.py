"""Pieces of the clipped-surrogate loss (Schulman et al. 2017, arXiv:1707.06347), each a pure function of (batch,) arrays.

The probabilities are those of the action as it was sampled: before clipping to the action bounds, before any
squashing. For a squashed policy the ratio is taken in pre-squash space, where the Jacobian of the squashing cancels.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from mjxlab import spmd

Scalar = float | Float[Array, ""]


def normalise_advantages(advantages: Float[Array, "..."], eps: float = 1e-8) -> Float[Array, "..."]:
    """Zero mean and unit standard deviation over the whole minibatch, that of all devices together."""
    mean = spmd.pmean(advantages.mean())
    centred = advantages - mean
    variance = spmd.pmean(jnp.square(centred).mean())
    return centred / (jnp.sqrt(variance) + eps)


def clipped_surrogate(
    log_ratio: Float[Array, " batch"], advantages: Float[Array, " batch"], clip: Scalar
) -> Float[Array, ""]:
    """Policy loss: -mean min(rho A, clip(rho, 1 - clip, 1 + clip) A), rho = exp(log_ratio) (equation 7)."""
    ratio = jnp.exp(log_ratio)
    clipped = jnp.clip(ratio, 1 - clip, 1 + clip)
    return -jnp.minimum(ratio * advantages, clipped * advantages).mean()


def value_loss(
    values: Float[Array, " batch"],
    targets: Float[Array, " batch"],
    old_values: Float[Array, " batch"] | None = None,
    clip: Scalar | None = None,
) -> Float[Array, ""]:
    """Half the mean squared error to the targets.

    With ``clip`` the larger of that and the error of ``old_values + clip(values - old_values, -clip, clip)`` counts,
    row by row, so that one epoch moves no value further than ``clip`` (Baselines' PPO2; off by default everywhere).
    """
    error = jnp.square(values - targets)
    if clip is not None and old_values is not None:
        near = old_values + jnp.clip(values - old_values, -clip, clip)
        error = jnp.maximum(error, jnp.square(near - targets))
    return 0.5 * error.mean()


def approx_kl(log_ratio: Float[Array, " batch"]) -> Float[Array, ""]:
    """Estimate of KL(old || new) from samples of old: mean(rho - 1 - log rho), unbiased and never negative.

    Source: Schulman, "Approximating KL divergence" (2020), estimator k3.
    """
    return (jnp.expm1(log_ratio) - log_ratio).mean()


def clip_fraction(log_ratio: Float[Array, " batch"], clip: Scalar) -> Float[Array, ""]:
    """Share of samples whose ratio lies outside [1 - clip, 1 + clip]."""
    outside: Bool[Array, " batch"] = jnp.abs(jnp.expm1(log_ratio)) > clip
    return outside.astype(log_ratio.dtype).mean()


def explained_variance(values: Float[Array, "..."], targets: Float[Array, "..."]) -> Float[Array, ""]:
    """1 - Var(targets - values) / Var(targets), over all devices: 1 is a perfect critic, 0 one that knows the mean.

    0 where the targets do not vary.
    """

    def variance(x: Array) -> Array:
        return spmd.pmean(jnp.square(x - spmd.pmean(x.mean())).mean())

    total = variance(targets)
    share = variance(targets - values) / jnp.where(total > 0, total, 1)
    return jnp.where(total > 0, 1 - share, jnp.zeros_like(total))


def clip_by_global_norm(grads: object, max_norm: Scalar | None) -> tuple[object, Float[Array, ""]]:
    """Scale the whole gradient so that its global 2-norm is at most ``max_norm``.

    Returns:
      The gradient, and its norm before. ``max_norm`` None: the gradient as it is.
    """
    norm = jnp.sqrt(sum(jnp.sum(jnp.square(g)) for g in jax.tree.leaves(grads)))
    if max_norm is None:
        return grads, norm
    scale = jnp.minimum(1, max_norm / jnp.maximum(norm, jnp.finfo(norm.dtype).tiny))
    return jax.tree.map(lambda g: g * scale.astype(g.dtype), grads), norm
