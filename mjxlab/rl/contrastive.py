"""Contrastive losses of goal-conditioned reinforcement learning, on matrices of logits.

The critic f(s, a, g) = energy(phi(s, a), psi(g)) learns to tell which goal g_i followed on which (s_i, a_i): entry (i, j) of
a batch's logits is f(s_i, a_i, g_j) / temperature. At the optimum (with p the discounted law of future goals and p(g) that
of the batch's goals)

=======  ====================================  ================================================
loss     f = log p(g | s, a) / p(g) + …        what it means for A(s, a, g) = f - E_pi f
=======  ====================================  ================================================
fwd      c(s, a), any function                 biased by c(s, a) - E_pi c(s, .): **use rho > 0**
fwd+rho  a constant                            nothing
bwd      c(g), any function                    nothing: c(g) cancels
sym      a constant                            nothing
binary   0 (up to 1 / batch)                   nothing
=======  ====================================  ================================================

``rho`` weighs the mean square of the logsumexp, which is log(batch) + c(s, a) at the optimum of fwd, and so draws c to the
same number everywhere. Without it c is whatever training left there, and can turn the order of two actions round.

Sources: van den Oord et al. 2018 (arXiv:1807.03748), Eysenbach et al. 2022 (arXiv:2206.07568), Bortkiewicz et al. 2024
(arXiv:2408.11052).
"""

from __future__ import annotations

import warnings
from typing import Any, Literal, get_args

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from mjxlab.errors import ConfigError

Scalar = float | Float[Array, ""]
Energy = Literal["norm", "l2", "dot", "cosine"]
Loss = Literal["fwd", "bwd", "sym", "binary"]

EPS = 1e-6  # under the root of the norm: its gradient stays finite where the representations are equal


class IdentifiabilityWarning(UserWarning):
    """A loss that leaves the advantage undetermined."""


def energy(name: Energy | str, x: Float[Array, "n d"], y: Float[Array, "m d"]) -> Float[Array, "n m"]:
    """The energy of every pair of a row of x and a row of y.

    ``norm``: -sqrt(|x - y|² + 1e-6); ``l2``: -|x - y|²; ``dot``: x·y; ``cosine``: x·y / (|x| |y|).

    Squared distances are |x|² + |y|² - 2 x·y, taken about the mean of y so that little cancels, with a floor at 0: a matrix
    product and no array of n m d numbers.
    """
    if name in ("norm", "l2"):
        centre = lax.stop_gradient(y.mean(0, keepdims=True))  # distances do not depend on it
        x, y = x - centre, y - centre
        square = jnp.square(x).sum(-1)[:, None] + jnp.square(y).sum(-1)[None] - 2 * _products(x, y)
        square = jnp.maximum(square, 0)
        return -jnp.sqrt(square + EPS) if name == "norm" else -square
    if name == "cosine":
        x, y = _unit(x), _unit(y)
    elif name != "dot":
        raise ConfigError(f"energy: got {name!r}, expected one of {', '.join(get_args(Energy))}")
    return _products(x, y)


def energy_pairs(name: Energy | str, x: Float[Array, "*#batch d"], y: Float[Array, "*#batch d"]) -> Float[Array, "..."]:
    """The energy of each x with the y beside it; axes of size 1 are stretched to the other's."""
    if name in ("norm", "l2"):
        square = jnp.square(x - y).sum(-1)
        return -jnp.sqrt(square + EPS) if name == "norm" else -square
    if name == "cosine":
        x, y = _unit(x), _unit(y)
    elif name != "dot":
        raise ConfigError(f"energy: got {name!r}, expected one of {', '.join(get_args(Energy))}")
    return (x * y).sum(-1)


def _products(x: Array, y: Array) -> Array:
    # in full precision on every device: what is left after the cancellation is what counts
    return jnp.matmul(x, y.T, precision=lax.Precision.HIGHEST)


def _unit(x: Array) -> Array:
    return x * lax.rsqrt(jnp.square(x).sum(-1, keepdims=True) + EPS**2)


def duplicate_mask(
    goals: Float[Array, "n goal"], unit: Int[Array, " n"] | None = None, valid: Bool[Array, " n"] | None = None
) -> Bool[Array, "n n"]:
    """Which goal j may serve row i as a negative: not one that equals the row's own, which would be a false negative.

    Args:
      goals: of the rows.
      unit: number of the (world, time) that a row is from. Rows of one team at one time are no negatives of each
        other, whatever their goals.
      valid: rows to leave out altogether (their diagonal is False).

    Returns:
      A mask for ``contrastive_loss``; its diagonal is True where the row is valid.
    """
    same = jnp.all(goals[:, None] == goals[None], -1)
    if unit is not None:
        same = same | (unit[:, None] == unit[None])
    return valid_mask(jnp.ones(goals.shape[:1], bool) if valid is None else valid) & (
        ~same | jnp.eye(goals.shape[0], dtype=bool)
    )


def valid_mask(valid: Bool[Array, " n"]) -> Bool[Array, "n n"]:
    """A mask for ``contrastive_loss`` that leaves out rows which are not valid, and their goals."""
    return valid[:, None] & valid[None]


def warn_if_unidentified(loss: str, rho: Any) -> None:
    """Warn where ``fwd`` has no penalty: f is then free up to c(s, a), which goes straight into the advantage.

    A traced ``rho`` is not looked at.
    """
    if loss != "fwd" or isinstance(rho, jax.core.Tracer):
        return
    if float(rho) == 0:
        warnings.warn(
            "rho: got 0 with the loss fwd, which leaves f free up to c(s, a) and so biases advantages; expected rho > 0, "
            "or one of the losses bwd, sym, binary",
            IdentifiabilityWarning,
            stacklevel=3,
        )


def contrastive_loss(
    name: Loss | str, logits: Float[Array, "n n"], rho: Scalar, mask: Bool[Array, "n n"] | None = None
) -> Float[Array, ""]:
    """The loss of a batch; positives lie on the diagonal.

    ``fwd``: InfoNCE over the goals of a row, -mean_i(l_ii - logsumexp_j l_ij) + rho mean_i (logsumexp_j l_ij)².
    ``bwd``: over the rows of a goal (j and i change places). ``sym``: the mean of both. ``binary``: each pair apart,
    mean_i [softplus(-l_ii) + mean_{j≠i} softplus(l_ij)], without penalty: nothing is left undetermined.

    Args:
      name: fwd, bwd, sym or binary.
      logits: entry (i, j) is f(s_i, a_i, g_j) / temperature.
      rho: weight of the penalty on the logsumexp that the loss divides by.
      mask: entries that count. A row whose diagonal entry is False is left out, and so is its goal.
    """
    if name not in get_args(Loss):
        raise ConfigError(f"critic_loss: got {name!r}, expected one of {', '.join(get_args(Loss))}")
    warn_if_unidentified(name, rho)
    positive = jnp.diagonal(logits)
    keep = jnp.ones_like(positive, bool) if mask is None else jnp.diagonal(mask)

    if name == "binary":
        others = ~jnp.eye(logits.shape[0], dtype=bool)
        others = others if mask is None else others & mask
        count = jnp.maximum(others.sum(1), 1).astype(logits.dtype)
        negatives = jnp.where(others, jax.nn.softplus(logits), 0).sum(1) / count
        return _mean(jax.nn.softplus(-positive) + negatives, keep)

    def info_nce(matrix: Array, allowed: Any) -> Array:
        total = _logsumexp(matrix, allowed, keep)
        return _mean(total - positive + rho * jnp.square(total), keep)

    if name == "fwd":
        return info_nce(logits, mask)
    flipped = (logits.T, None if mask is None else mask.T)
    if name == "bwd":
        return info_nce(*flipped)
    return 0.5 * (info_nce(logits, mask) + info_nce(*flipped))


def _logsumexp(logits: Array, mask: Any, keep: Array) -> Array:
    """Over axis 1; 0 in rows that are left out."""
    if mask is None:
        return jax.nn.logsumexp(logits, axis=1)
    low = 0.5 * float(jnp.finfo(logits.dtype).min)  # finite: a row of -inf has no gradient
    total = jax.nn.logsumexp(jnp.where(mask, logits, low), axis=1)
    return jnp.where(keep, total, 0)


def _mean(x: Array, keep: Array) -> Array:
    return jnp.where(keep, x, 0).sum() / jnp.maximum(keep.sum(), 1).astype(x.dtype)


def contrastive_metrics(
    logits: Float[Array, "n n"], mask: Bool[Array, "n n"] | None = None
) -> dict[str, Float[Array, ""]]:
    """How well the critic tells goals apart.

    Returns:
      ``accuracy`` (share of rows whose own goal has the largest logit), ``positive`` and ``negative`` (mean logits of
      matching and of other pairs), ``logsumexp`` (its mean over rows).
    """
    eye = jnp.eye(logits.shape[0], dtype=bool)
    allowed = jnp.ones_like(eye) if mask is None else mask
    keep = jnp.diagonal(allowed)
    positive = jnp.diagonal(logits)
    low = float(jnp.finfo(logits.dtype).min)
    best = jnp.where(allowed, logits, low).max(1)
    others = allowed & ~eye
    return {
        "accuracy": _mean((positive >= best).astype(logits.dtype), keep),
        "positive": _mean(positive, keep),
        "negative": jnp.where(others, logits, 0).sum() / jnp.maximum(others.sum(), 1).astype(logits.dtype),
        "logsumexp": _mean(_logsumexp(logits, allowed, keep), keep),
    }
