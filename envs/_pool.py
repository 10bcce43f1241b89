"""Fresh initial states for the worlds that need one, made in blocks, and only when there is need."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.custom_batching import custom_vmap

from mjxlab.envs import _trees
from mjxlab.envs.base import Env
from mjxlab.physics import where

Fill = Callable[..., tuple[Any, jax.Array]]


def block_size(num_envs: int) -> int:
    """How many worlds are reset together.

    On a CPU small blocks pay: a lone world that ends makes a few resets, not ``num_envs`` of them. Elsewhere a batch
    costs what its longest path costs, so everything goes in one. The size divides the number of worlds, so that
    a world has the same row whenever its block is made and its numbers come out the same to the last bit.
    """
    if jax.default_backend() != "cpu":
        return num_envs
    most = min(num_envs, max(32, 4 * (os.cpu_count() or 1)))
    best = max(size for size in range(1, most + 1) if num_envs % size == 0)
    return best if 4 * best >= most else num_envs


def make_fill(env: Env) -> Fill:
    """``fill(slots, base_key, episode, empty, needed) -> (slots, full)``.

    While some world is ``needed``, reset its block of worlds and write the ``empty`` ones among them; world ``i`` gets
    ``env.reset(fold_in(base_key[i], episode[i] + 1))``. ``needed`` implies ``empty``; ``full`` is what is not empty
    afterwards. With no need nothing is computed, also under ``jax.vmap``, where a plain ``while_loop`` or ``cond``
    would turn into work for all at every step: the seeds are laid out as more worlds instead.
    """

    @custom_vmap
    def fill(slots: Any, base_key: jax.Array, episode: jax.Array, empty: jax.Array, needed: jax.Array) -> Any:
        size = block_size(base_key.shape[0])

        def some_need(carry: Any) -> jax.Array:
            return carry[2].any()

        def one_block(carry: Any) -> Any:
            slots, empty, needed = carry
            start = (jnp.argmax(needed).astype(jnp.int32) // size) * size
            keys, numbers, write = _trees.rows((base_key, episode, empty), start, size)
            fresh = jax.vmap(lambda k, e: env.reset(jax.random.fold_in(k, e + 1)))(keys, numbers)
            fresh = _trees.vary_like(_trees.strong(fresh), keys)
            new = where(write, fresh, _trees.rows(slots, start, size))
            done = jnp.zeros((size,), bool)
            return (
                _trees.put_rows(slots, new, start),
                _trees.put_rows(empty, done, start),
                _trees.put_rows(needed, done, start),
            )

        slots, empty, _ = jax.lax.while_loop(some_need, one_block, (slots, empty, needed))
        return slots, ~empty

    @fill.def_vmap
    def over_seeds(axis_size: int, in_batched: Any, *args: Any) -> Any:
        def flat(x: jax.Array, batched: bool) -> jax.Array:
            x = x if batched else jnp.broadcast_to(x[None], (axis_size, *x.shape))
            return x.reshape((-1, *x.shape[2:]))

        def split(x: jax.Array) -> jax.Array:
            return x.reshape((axis_size, -1, *x.shape[1:]))

        out = jax.tree.map(split, fill(*jax.tree.map(flat, args, tuple(in_batched))))
        return out, jax.tree.map(lambda _: True, out)

    # jit, so that a step outside of any jit does not compile the loop anew
    return jax.jit(fill)
