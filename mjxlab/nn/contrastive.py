"""Encoders of contrastive reinforcement learning: phi of a state and an action, psi of a goal.

The critic's value is an energy of the two representations (``mjxlab.rl.contrastive.energy``). All modules work on the
last axis and take any number of batch axes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Float

from mjxlab.errors import ConfigError
from mjxlab.nn.mlp import activation, dense, make_kernel_init

SKIP = 4  # layers that a skip connection leaps over


class Tower(nn.Module):
    """Dense layers with an optional LayerNorm and a swish after each, and a linear layer at the end.

    Attributes:
      widths: of the hidden layers.
      size: of the output.
      layer_norm: normalise before each swish.
      skip: every 4th layer's output is added to what it was 4 layers before (all widths must be equal).
      film: a second input scales and shifts every hidden layer, by linear functions of it (Perez et al. 2018,
        arXiv:1709.07871), in place of being concatenated to the first.
      out_scale: scale of the last layer's initial weights.
    """

    widths: Sequence[int] = (256, 256)
    size: int = 64
    layer_norm: bool = True
    skip: bool = False
    film: bool = False
    out_scale: float = 1.0

    @nn.compact
    def __call__(
        self, x: Float[Array, "*batch features"], extra: Float[Array, "*batch extra"] | None = None
    ) -> Float[Array, "*batch size"]:
        init = make_kernel_init("lecun")
        if extra is not None and not self.film:
            x = jnp.concatenate([x, extra], -1)
        kept: Any = None
        for layer, width in enumerate(self.widths):
            x = dense(width, init)(x)
            if self.layer_norm:
                x = nn.LayerNorm(dtype=x.dtype, param_dtype=x.dtype, force_float32_reductions=False)(x)
            if extra is not None and self.film:
                change = dense(2 * width, init)(extra)
                x = x * (1 + change[..., :width]) + change[..., width:]
            x = activation("swish")(x)
            if self.skip and layer == 0:
                kept = x
            elif self.skip and layer % SKIP == 0:
                x = kept = x + kept
        return dense(self.size, make_kernel_init("lecun", self.out_scale))(x)


class ContrastiveCritic(nn.Module):
    """Both encoders.

    Attributes:
      widths, layer_norm, skip: of each, see ``Tower``.
      repr_dim: size of a representation.
      film: the action acts on phi's hidden layers by FiLM; otherwise it is concatenated to the state.
      state_only: phi does not see the commanded goal. False is an ablation: phi then sees the answer to what it is asked.
    """

    widths: Sequence[int] = (256, 256)
    repr_dim: int = 64
    layer_norm: bool = True
    skip: bool = False
    film: bool = False
    state_only: bool = True

    def setup(self) -> None:
        options = (self.widths, self.repr_dim, self.layer_norm, self.skip)
        self.state_action = Tower(*options, film=self.film)
        self.goal = Tower(*options)

    def phi(
        self,
        state: Float[Array, "*batch state"],
        action: Float[Array, "*batch action"],
        commanded: Float[Array, "*batch goal"] | None = None,
    ) -> Float[Array, "*batch repr"]:
        """Representation of ``[features, achieved]`` and an action (one-hot if discrete).

        ``commanded`` is ignored with ``state_only``, and needed without.
        """
        if not self.state_only:
            if commanded is None:
                raise ConfigError("commanded: got None, expected the commanded goal, as state_only is False")
            state = jnp.concatenate([state, commanded], -1)
        return self.state_action(state, action)

    def psi(self, goal: Float[Array, "*batch goal"]) -> Float[Array, "*batch repr"]:
        """Representation of a goal."""
        return self.goal(goal)

    def __call__(self, state: Array, action: Array, goal: Array) -> tuple[Array, Array]:
        """phi and psi, with the goal as the commanded one; for ``init``."""
        return self.phi(state, action, goal), self.psi(goal)
