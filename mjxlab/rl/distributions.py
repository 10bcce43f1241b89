"""Policy distributions: diagonal Normal, the same behind a tanh, Categorical with or without masked actions.

Each is a PyTree of its parameters with any batch axes. ``sample`` and ``log_prob`` speak of the *raw* action, before
any squashing or clipping; ``action`` turns it into what the environment takes. The mathematics is a few lines each and
is kept here, free of distrax's import (about 3 s) and of its promotion rules; ``to_distrax`` gives the same
distribution there, for everything else that one may want of it.
"""

from __future__ import annotations

import math
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key

from mjxlab._compat import lenient

_HALF_LOG_2PI = 0.5 * math.log(2 * math.pi)


def _distrax() -> Any:
    with lenient():
        import distrax
    return distrax


def log_det_tanh(x: Float[Array, "..."]) -> Float[Array, "..."]:
    """log(1 - tanh(x)^2), without cancellation for large ``|x|``."""
    return 2 * (math.log(2) - x - jax.nn.softplus(-2 * x))


@flax.struct.dataclass
class Normal:
    """Independent normals over the last axis. Attributes: ``loc``, ``scale`` of shape (..., size)."""

    loc: Float[Array, "... size"]
    scale: Float[Array, "... size"]

    def sample(self, key: Key[Array, ""]) -> Float[Array, "... size"]:
        """A raw action."""
        return self.loc + self.scale * jax.random.normal(key, self.loc.shape, self.loc.dtype)

    def mode(self) -> Float[Array, "... size"]:
        """The most likely raw action."""
        return self.loc

    def action(self, raw: Float[Array, "... size"]) -> Float[Array, "... size"]:
        """What the environment takes: the raw action clipped to [-1, 1]."""
        return jnp.clip(raw, -1, 1)

    def log_prob(self, raw: Float[Array, "... size"]) -> Float[Array, "..."]:
        """Log-density of the raw action."""
        z = (raw - self.loc) / self.scale
        return (-0.5 * jnp.square(z) - jnp.log(self.scale) - _HALF_LOG_2PI).sum(-1)

    def noise(self, raw: Float[Array, "... size"]) -> Float[Array, "... size"]:
        """The standard normal draw that gave ``raw``."""
        return (raw - self.loc) / self.scale

    def entropy(self, noise: Float[Array, "... size"] | None = None) -> Float[Array, "..."]:
        """Differential entropy in nats, exact; ``noise`` is not needed."""
        del noise
        return (jnp.log(self.scale) + (0.5 + _HALF_LOG_2PI)).sum(-1)

    def kl(self, other: Normal) -> Float[Array, "..."]:
        """KL(self || other)."""
        ratio = jnp.square(self.scale / other.scale)
        shift = jnp.square((self.loc - other.loc) / other.scale)
        return 0.5 * (ratio + shift - 1 - jnp.log(ratio)).sum(-1)

    def to_distrax(self) -> Any:
        """``distrax.MultivariateNormalDiag``. Call its methods inside ``mjxlab._compat.lenient()``."""
        with lenient():
            return _distrax().MultivariateNormalDiag(self.loc, self.scale)


@flax.struct.dataclass
class TanhNormal(Normal):
    """A diagonal Normal whose samples go through tanh. ``log_prob`` and ``kl`` are in pre-squash space.

    For ratios and divergences of two such distributions that is all one needs: the Jacobian is the same in both.
    """

    def action(self, raw: Float[Array, "... size"]) -> Float[Array, "... size"]:
        """What the environment takes: tanh of the raw action, within [-1, 1]."""
        return jnp.tanh(raw)

    def log_prob_squashed(self, raw: Float[Array, "... size"]) -> Float[Array, "..."]:
        """Log-density of ``tanh(raw)`` on [-1, 1], stable for any ``raw``."""
        return self.log_prob(raw) - log_det_tanh(raw).sum(-1)

    def log_prob_action(self, action: Float[Array, "... size"]) -> Float[Array, "..."]:
        """Log-density of a squashed action, which is pulled back from ±1 by one rounding unit."""
        edge = 1 - float(jnp.finfo(action.dtype).epsneg)
        return self.log_prob_squashed(jnp.arctanh(jnp.clip(action, -edge, edge)))

    def entropy(self, noise: Float[Array, "... size"] | None = None) -> Float[Array, "..."]:
        """Entropy in nats: of the squashed variable with ``noise``, of the normal before squashing without.

        The former has no closed form: H = H[normal] + E log(1 - tanh(x)^2), and the expectation is estimated at
        ``x = loc + scale noise``. With ``noise`` drawn from the standard normal it is unbiased, and so is its gradient.
        """
        base = super().entropy()
        return base if noise is None else base + log_det_tanh(self.loc + self.scale * noise).sum(-1)

    def to_distrax(self) -> Any:
        """``distrax.Transformed`` of the normal; its ``log_prob`` is of the squashed action."""
        with lenient():
            distrax = _distrax()
            base = distrax.MultivariateNormalDiag(self.loc, self.scale)
            return distrax.Transformed(base, distrax.Block(distrax.Tanh(), 1))


@flax.struct.dataclass
class Categorical:
    """One of ``choices`` actions.

    Attributes:
      logits: (..., choices), not normalised.
      mask: True where an action is allowed, or None for all. A masked action has probability 0, adds nothing to the
        entropy and gets no gradient. At least one action must be allowed.
    """

    logits: Float[Array, "... choices"]
    mask: Bool[Array, "... choices"] | None = None

    def _log_probs(self) -> Float[Array, "... choices"]:
        logits = self.logits
        if self.mask is not None:
            # a large finite number, not -inf: the softmax's gradient would be 0 times inf
            logits = jnp.where(self.mask, logits, 0.5 * float(jnp.finfo(logits.dtype).min))
        return jax.nn.log_softmax(logits)

    def probs(self) -> Float[Array, "... choices"]:
        """Probability of each action."""
        return jnp.exp(self._log_probs())

    def sample(self, key: Key[Array, ""]) -> Int[Array, "..."]:
        """An action, int32."""
        return jax.random.categorical(key, self._log_probs()).astype(jnp.int32)

    def mode(self) -> Int[Array, "..."]:
        """The most likely action, int32."""
        return jnp.argmax(self._log_probs(), -1).astype(jnp.int32)

    def action(self, raw: Int[Array, "..."]) -> Int[Array, "..."]:
        """What the environment takes: the action itself."""
        return raw

    def log_prob(self, raw: Int[Array, "..."]) -> Float[Array, "..."]:
        """Log-probability of the action."""
        return jnp.take_along_axis(self._log_probs(), raw[..., None], -1)[..., 0]

    def entropy(self, noise: Any = None) -> Float[Array, "..."]:
        """Entropy in nats, exact; ``noise`` is not needed."""
        del noise
        log_probs = self._log_probs()
        terms = jnp.exp(log_probs) * log_probs
        return -(terms if self.mask is None else jnp.where(self.mask, terms, 0)).sum(-1)

    def kl(self, other: Categorical) -> Float[Array, "..."]:
        """KL(self || other); both must allow the same actions."""
        mine = self._log_probs()
        terms = jnp.exp(mine) * (mine - other._log_probs())
        return (terms if self.mask is None else jnp.where(self.mask, terms, 0)).sum(-1)

    def to_distrax(self) -> Any:
        """``distrax.Categorical``. Call its methods inside ``mjxlab._compat.lenient()``."""
        with lenient():
            return _distrax().Categorical(logits=self._log_probs())


Distribution = Normal | Categorical
