"""A small convolutional encoder for image observations."""

from __future__ import annotations

from collections.abc import Sequence

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Num


class CNN(nn.Module):
    """3 × 3 convolutions with stride 2 and ReLU, then a dense layer.

    Integer images are taken as 0–255 and scaled to [0, 1]; floating-point ones as they are.

    Attributes:
      channels: of each convolution; each halves height and width.
      features: size of the output.
    """

    channels: Sequence[int] = (16, 32, 32)
    features: int = 128

    @nn.compact
    def __call__(self, image: Num[Array, "height width channels"]) -> Num[Array, " features"]:
        dtype = jnp.result_type(float)
        x = image.astype(dtype)
        if jnp.issubdtype(image.dtype, jnp.integer):
            x = x / 255
        for width in self.channels:
            x = nn.relu(nn.Conv(width, (3, 3), strides=2, dtype=dtype, param_dtype=dtype)(x))
        return nn.relu(nn.Dense(self.features, dtype=dtype, param_dtype=dtype)(x.reshape(-1)))
