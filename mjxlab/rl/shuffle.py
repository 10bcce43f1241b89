"""Minibatches that do not depend on the number of devices.

The worlds are split into G = gcd(number of worlds, 8) groups of neighbours. Each group's samples are permuted with a
key of the group's own, and every minibatch takes an equal share from every group. A device holds whole groups, so on
1, 2, 4 or 8 devices the minibatches hold the same samples.
"""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int, Key

from mjxlab import spmd
from mjxlab.errors import ConfigError

GROUPS = 8  # the most groups, hence the most devices that one minibatch scheme serves


def num_groups(num_envs: int) -> int:
    """G, from the global number of worlds."""
    return math.gcd(num_envs, GROUPS)


def check_minibatches(num_envs: int, length: int, num_minibatches: int) -> None:
    """Raise ``ConfigError`` unless every group's samples split evenly over the minibatches."""
    rows = length * num_envs // num_groups(num_envs)
    if rows % num_minibatches:
        raise ConfigError(
            f"num_minibatches: got {num_minibatches}, expected a divisor of {rows} (rollout_length {length} times "
            f"num_envs {num_envs} over {num_groups(num_envs)} groups)"
        )


def minibatch_indices(
    key: Key[Array, ""], length: int, local_envs: int, num_minibatches: int
) -> Int[Array, "minibatches rows"]:
    """Which rows of a flattened (length, local_envs) rollout go into which minibatch, on this device.

    Every row is in exactly one minibatch. Row numbers are ``t * local_envs + world``.

    Args:
      key: the same on all devices.
      length: time steps of the rollout.
      local_envs: worlds on this device; the global number is ``local_envs * spmd.axis_size()``.
      num_minibatches: must divide each group's number of samples (``check_minibatches``).
    """
    devices = spmd.axis_size()
    groups = num_groups(local_envs * devices)
    if groups % devices:
        raise ConfigError(
            f"devices: got {devices}, expected a divisor of {groups}, the number of groups that num_envs "
            f"{local_envs * devices} is shuffled in"
        )
    check_minibatches(local_envs * devices, length, num_minibatches)
    here = groups // devices
    width = local_envs // here  # worlds per group

    def shuffled(group: Array) -> Array:
        order = jax.random.permutation(jax.random.fold_in(key, group), length * width)
        return order.astype(jnp.int32)

    order = jax.vmap(shuffled)(spmd.global_index(here))  # (here, length * width)
    time, world = order // width, order % width
    first = jnp.arange(here, dtype=jnp.int32)[:, None] * width
    rows = time * local_envs + (first + world)
    return rows.reshape(here, num_minibatches, -1).swapaxes(0, 1).reshape(num_minibatches, -1)
