"""Minibatches that do not depend on the number of devices.

The worlds are split into G = gcd(number of worlds, 8) groups of neighbours. Each group's samples are permuted with a
key of the group's own, and every minibatch takes an equal share from every group. A device holds whole groups, so on
1, 2, 4 or 8 devices the minibatches hold the same samples.
"""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int, Key, UInt32

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


def permutation(key: Key[Array, ""], size: int) -> UInt32[Array, " size"]:
    """A random order of 0 … size - 1.

    Sorts words whose upper bits are random and whose lower bits are the number, in as many rounds as it takes to make
    ties among the random bits rare. On a CPU this is 7 times as fast as ``jax.random.permutation``, whose sort
    carries a second array along, and compiles in half the time.
    """
    bits = max(size - 1, 1).bit_length()
    if bits > 30:
        raise ConfigError(f"rollout: got {size} samples in one group, expected at most {2**30}")
    numbers = jnp.arange(size, dtype=jnp.uint32)
    rounds = -(-3 * bits // (2 * (32 - bits)))
    draws = jax.random.bits(key, (rounds, size), jnp.uint32) << bits
    order = numbers
    for draw in draws:
        places = jnp.sort(draw | numbers) & jnp.uint32(2**bits - 1)
        order = order[places] if rounds > 1 else places
    return order


def minibatch_indices(
    key: Key[Array, ""], length: int, local_envs: int, num_minibatches: int, epochs: int = 1
) -> Int[Array, "minibatches rows"]:
    """Which rows of a flattened (length, local_envs) rollout go into which minibatch, on this device.

    In each epoch every row is in exactly one minibatch. Row numbers are ``t * local_envs + world``.

    Args:
      key: the same on all devices.
      length: time steps of the rollout.
      local_envs: worlds on this device; the global number is ``local_envs * spmd.axis_size()``.
      num_minibatches: must divide each group's number of samples (``check_minibatches``).
      epochs: how many passes, each in an order of its own.

    Returns:
      ``epochs * num_minibatches`` minibatches, epoch after epoch.
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

    number = jnp.arange(epochs, dtype=jnp.int32)[:, None] * groups + spmd.global_index(here)[None]
    keys = jax.vmap(jax.random.fold_in, in_axes=(None, 0))(key, number.reshape(-1))
    order = jax.vmap(lambda k: permutation(k, length * width))(keys).astype(jnp.int32)
    order = order.reshape(epochs, here, length * width)
    time, world = order // width, order % width
    first = jnp.arange(here, dtype=jnp.int32)[:, None] * width
    rows = time * local_envs + (first[None] + world)
    rows = rows.reshape(epochs, here, num_minibatches, -1).swapaxes(1, 2)
    return rows.reshape(epochs * num_minibatches, -1)


class Packed:
    """A PyTree of arrays with rows on axis 0, as one matrix per dtype: a minibatch is one gather of whole rows."""

    def __init__(self, tree: Any) -> None:
        leaves, self._structure = jax.tree.flatten(tree)
        rows = leaves[0].shape[0]
        columns: dict[str, list[Array]] = {}
        self._places: list[tuple[str, int, int, tuple[int, ...]]] = []
        for leaf in leaves:
            flat = leaf.reshape(rows, -1)
            group = columns.setdefault(leaf.dtype.name, [])
            start = sum(c.shape[1] for c in group)
            group.append(flat)
            self._places.append((leaf.dtype.name, start, start + flat.shape[1], leaf.shape[1:]))
        self._matrices = {name: jnp.concatenate(group, axis=1) for name, group in columns.items()}

    def take(self, rows: Int[Array, " rows"]) -> Any:
        """The PyTree of those rows."""
        picked = {name: matrix[rows] for name, matrix in self._matrices.items()}
        leaves = [picked[name][:, a:b].reshape(rows.shape[0], *shape) for name, a, b, shape in self._places]
        return jax.tree.unflatten(self._structure, leaves)
