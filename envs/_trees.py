"""Small PyTree helpers of the environment layer: leaves with worlds on axis 0, typed keys among them."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from mjxlab import spmd
from mjxlab.errors import ConfigError
from mjxlab.physics import where


def copy(tree: Any) -> Any:
    """The same values in buffers of their own, so that a whole state may be donated."""
    return jax.tree.map(jnp.copy, tree)


def zeros_like(tree: Any) -> Any:
    """Zeros in the shape of ``tree``, whose leaves are ordinary arrays."""
    return jax.tree.map(jnp.zeros_like, tree)


def vary_like(tree: Any, keys: jax.Array) -> Any:
    """``tree`` (axes of ``keys`` first), marked as different on every device wherever ``keys`` are.

    Inside ``shard_map`` JAX tells constants (a reward of 0, a flag that is always False) from what differs between
    devices, and a loop's carry must not change from one to the other. A choice of x or x costs nothing.
    """
    if not spmd.bound():
        return tree
    return where(jax.random.key_data(keys)[..., 0] == 0, tree, tree)


def rows(tree: Any, start: jax.Array, size: int) -> Any:
    """Rows ``start : start + size`` of every leaf."""
    return jax.tree.map(lambda x: lax.dynamic_slice_in_dim(x, start, size), tree)


def put_rows(tree: Any, new: Any, start: jax.Array) -> Any:
    """``tree`` with ``new`` written at row ``start`` of every leaf."""
    return jax.tree.map(lambda x, y: lax.dynamic_update_slice_in_dim(x, y, start, 0), tree, new)


def finite(tree: Any) -> jax.Array:
    """Bool[""]: every floating-point number of ``tree`` is finite."""
    leaves = [x for x in jax.tree.leaves(tree) if jnp.issubdtype(x.dtype, jnp.inexact)]
    result = jnp.ones((), bool)
    for x in leaves:
        result = result & jnp.isfinite(x).all()
    return result


def strong(tree: Any) -> Any:
    """``tree`` without weak types, so that a loop's carry does not change its type and nothing recompiles."""
    return jax.tree.map(lambda x: lax.convert_element_type(x, jnp.asarray(x).dtype), tree)


def path_name(path: tuple[Any, ...]) -> str:
    """``obs['camera'][0]``: a PyTree path as one would write it."""
    return jax.tree_util.keystr(path).lstrip(".")


def describe(x: Any) -> str:
    """``float32[3,4]``."""
    return f"{x.dtype}[{','.join(map(str, x.shape))}]" if hasattr(x, "shape") else repr(x)


def check_same(expected: Any, found: Any, where: str) -> None:
    """Raise a ConfigError that names the first field at which two PyTrees differ in structure, shape or dtype."""
    old = {path_name(p): x for p, x in jax.tree_util.tree_flatten_with_path(expected)[0]}
    new = {path_name(p): x for p, x in jax.tree_util.tree_flatten_with_path(found)[0]}
    for name in [*old, *new]:
        if name not in new:
            raise ConfigError(f"{where}: step drops {name}, which reset returns")
        if name not in old:
            raise ConfigError(f"{where}: step adds {name}, which reset does not return")
        if old[name].shape != new[name].shape or old[name].dtype != new[name].dtype:
            raise ConfigError(
                f"{where}: {name} is {describe(old[name])} after reset and {describe(new[name])} after step; "
                "they must be equal"
            )
    if jax.tree.structure(expected) != jax.tree.structure(found):
        raise ConfigError(
            f"{where}: reset and step return PyTrees of different structure: "
            f"{jax.tree.structure(expected)} and {jax.tree.structure(found)}"
        )
