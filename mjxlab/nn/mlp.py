"""Multi-layer perceptrons, actor heads and critics, as Flax linen modules.

A module takes *one* observation, an array or any PyTree of arrays; ``jax.vmap`` it for more (which compiles to the same
matrix products as a batch axis would). Parameters and activations have JAX's default float type, so that everything
runs in double precision under ``jax_enable_x64``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from mjxlab.errors import ConfigError
from mjxlab.nn.cnn import CNN
from mjxlab.nn.initializers import orthogonal

ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "tanh": jnp.tanh,
    "relu": nn.relu,
    "elu": nn.elu,
    "gelu": nn.gelu,
    "swish": nn.swish,
}

Init = Callable[..., Array]


def activation(name: str) -> Callable[[Array], Array]:
    """The activation function of that name."""
    if name not in ACTIVATIONS:
        raise ConfigError(f"activation: got {name!r}, expected one of {', '.join(ACTIVATIONS)}")
    return ACTIVATIONS[name]


def make_kernel_init(name: str, scale: float = 1.0) -> Init:
    """Initialiser of a weight matrix: ``"orthogonal"`` or ``"lecun"`` (uniform), times ``scale``."""
    if name == "orthogonal":
        return orthogonal(scale)
    if name == "lecun":
        return nn.initializers.variance_scaling(scale**2, "fan_in", "uniform")
    raise ConfigError(f"kernel_init: got {name!r}, expected orthogonal or lecun")


def dense(features: int, init: Init) -> nn.Dense:
    """A dense layer in the default float type."""
    dtype = jnp.result_type(float)
    return nn.Dense(features, kernel_init=init, dtype=dtype, param_dtype=dtype)


class MLP(nn.Module):
    """Dense layers with an activation after each.

    Attributes:
      widths: sizes of the layers.
      activation: name of the non-linearity.
      layer_norm: normalise before each activation.
      kernel_init: ``"orthogonal"`` (gain sqrt 2) or ``"lecun"`` (uniform).
    """

    widths: Sequence[int]
    activation: str = "tanh"
    layer_norm: bool = False
    kernel_init: str = "orthogonal"

    @nn.compact
    def __call__(self, x: Float[Array, "*batch features"]) -> Float[Array, "*batch out"]:
        scale = 2**0.5 if self.kernel_init == "orthogonal" else 1.0
        for width in self.widths:
            x = dense(width, make_kernel_init(self.kernel_init, scale))(x)
            if self.layer_norm:
                x = nn.LayerNorm(dtype=x.dtype, param_dtype=x.dtype, force_float32_reductions=False)(x)
            x = activation(self.activation)(x)
        return x


class Encoder(nn.Module):
    """One observation to one vector: images (rank 3) go through a small CNN, all other leaves are flattened."""

    @nn.compact
    def __call__(self, obs: Any) -> Float[Array, " features"]:
        dtype = jnp.result_type(float)
        parts = []
        for leaf in jax.tree.leaves(obs):
            if leaf.ndim == 3:
                parts.append(CNN()(leaf))
            else:
                parts.append(leaf.astype(dtype).reshape(-1))
        return parts[0] if len(parts) == 1 else jnp.concatenate(parts)


class Trunk(nn.Module):
    """Encoder and MLP: one observation to features."""

    widths: Sequence[int]
    activation: str = "tanh"
    layer_norm: bool = False
    kernel_init: str = "orthogonal"

    @nn.compact
    def __call__(self, obs: Any) -> Float[Array, " features"]:
        return MLP(self.widths, self.activation, self.layer_norm, self.kernel_init)(Encoder()(obs))


class GaussianHead(nn.Module):
    """Mean and standard deviation of a diagonal Gaussian.

    Attributes:
      size: number of action components.
      state_std: the standard deviation depends on the observation (softplus of a second output); otherwise it is the
        exponential of a free parameter.
      init_std: its value at the start.
      min_std: its floor.
      final_scale: scale of the output layer's initial weights.
    """

    size: int
    state_std: bool = False
    init_std: float = 1.0
    min_std: float = 1e-3
    final_scale: float = 0.01
    kernel_init: str = "orthogonal"

    @nn.compact
    def __call__(self, x: Float[Array, "*batch features"]) -> tuple[Array, Array]:
        kernel = make_kernel_init(self.kernel_init, self.final_scale)
        if self.state_std:
            out = dense(2 * self.size, kernel)(x)
            loc, raw = out[..., : self.size], out[..., self.size :]
            start = jnp.log(jnp.expm1(jnp.asarray(self.init_std - self.min_std, x.dtype)))
            return loc, jax.nn.softplus(raw + start) + self.min_std
        loc = dense(self.size, kernel)(x)
        start = jnp.log(jnp.asarray(self.init_std, x.dtype))
        log_std = self.param("log_std", lambda _: jnp.full((self.size,), start, x.dtype))
        return loc, jnp.broadcast_to(jnp.maximum(jnp.exp(log_std), self.min_std), loc.shape)


class ActorCritic(nn.Module):
    """Policy and value function, on trunks of their own or on a shared one.

    Attributes:
      size: action components, or number of choices when ``discrete``.
      policy_widths, value_widths: hidden layers; a shared trunk has ``policy_widths``, and the value then has only its
        output layer on top.
      state_std, init_std, min_std: see ``GaussianHead``.
      final_scale: scale of the policy's initial output weights.
    """

    size: int
    discrete: bool = False
    policy_widths: Sequence[int] = (64, 64)
    value_widths: Sequence[int] = (64, 64)
    shared: bool = False
    activation: str = "tanh"
    layer_norm: bool = False
    kernel_init: str = "orthogonal"
    final_scale: float = 0.01
    state_std: bool = False
    init_std: float = 1.0
    min_std: float = 1e-3

    def setup(self) -> None:
        options = (self.activation, self.layer_norm, self.kernel_init)
        self.policy_trunk = Trunk(self.policy_widths, *options)
        self.value_trunk = None if self.shared else Trunk(self.value_widths, *options)
        if self.discrete:
            self.policy_head: Any = dense(self.size, make_kernel_init(self.kernel_init, self.final_scale))
        else:
            self.policy_head = GaussianHead(
                self.size, self.state_std, self.init_std, self.min_std, self.final_scale, self.kernel_init
            )
        self.value_head = dense(1, make_kernel_init(self.kernel_init))

    def policy(self, obs: Any) -> Any:
        """Logits, or (mean, standard deviation), for one observation."""
        return self.policy_head(self.policy_trunk(obs))

    def value(self, obs: Any) -> Float[Array, ""]:
        """The value of one observation."""
        trunk = self.policy_trunk if self.value_trunk is None else self.value_trunk
        return self.value_head(trunk(obs))[0]

    def __call__(self, obs: Any) -> tuple[Any, Float[Array, ""]]:
        """Both at once; a shared trunk is evaluated once."""
        if self.value_trunk is not None:
            return self.policy(obs), self.value(obs)
        features = self.policy_trunk(obs)
        return self.policy_head(features), self.value_head(features)[0]
