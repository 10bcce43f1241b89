"""Compile options that a program needs because of its physics engine.

XLA's CPU fusion emitters (jax 0.10) recompute exponentially along a kinematic chain, which makes MJX 15 to 100 times
slower for arms. Options go to the top-level ``jit`` only, so whoever compiles asks ``compiler_options``.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import jax.extend.core as jex
import jax.numpy as jnp

#: Name of the nested ``jit`` in which MJX's step is traced.
MARK = "mjx_engine_step"
_OPTION = "xla_cpu_use_fusion_emitters"


def named(function: Callable[..., Any]) -> Callable[..., Any]:
    """``function`` under the name that ``compiler_options`` looks for."""

    @functools.wraps(function)
    def wrapped(*args: Any) -> Any:
        return function(*args)

    wrapped.__name__ = MARK
    return wrapped


def compiler_options(jaxpr: Any) -> dict[str, Any]:
    """Options for the top-level ``jit`` of a program.

    Args:
      jaxpr: a closed jaxpr, as of ``jax.jit(f).trace(*args).jaxpr``.

    Returns:
      ``{}`` unless the program steps the ``mjx`` engine on a CPU and this XLA has the option.
    """
    return mjx_options() if any(_names(jaxpr)) else {}


def mjx_options() -> dict[str, Any]:
    """Options for a program of MJX's: ``{}`` unless the backend is a CPU and this XLA has the option."""
    return {_OPTION: False} if jax.default_backend() == "cpu" and _known() else {}


def _names(jaxpr: Any) -> Iterator[bool]:
    """True for each equation that is the engine's."""
    inner = jaxpr.jaxpr if isinstance(jaxpr, jex.ClosedJaxpr) else jaxpr
    for equation in inner.eqns:
        yield equation.params.get("name") == MARK
        for value in equation.params.values():
            for sub in value if isinstance(value, (tuple, list)) else (value,):
                if isinstance(sub, (jex.Jaxpr, jex.ClosedJaxpr)):
                    yield from _names(sub)


@functools.cache
def _known() -> bool:
    """Whether this XLA knows the option: an unknown one in XLA_FLAGS would abort the process, here it raises."""
    with jax.ensure_compile_time_eval():
        try:
            jax.jit(lambda x: x + 1, compiler_options={_OPTION: False})(jnp.float32(0))
        except Exception:  # the error's type differs between versions of XLA
            return False
    return True


def jit(function: Callable[..., Any], **kwargs: Any) -> Callable[..., Any]:
    """``jax.jit`` that gives each program the options its engine needs. For interactive use and tests.

    Called within another trace it is a plain ``jit``.

    Args:
      function: as for ``jax.jit``.
      kwargs: of ``jax.jit``; ``compiler_options`` there are added to.
    """
    given: Mapping[str, Any] = kwargs.pop("compiler_options", None) or {}
    plain = jax.jit(function, compiler_options=dict(given) or None, **kwargs)
    tuned: dict[tuple[tuple[str, Any], ...], Callable[..., Any]] = {}
    chosen: dict[Any, Callable[..., Any]] = {}

    @functools.wraps(function)
    def call(*args: Any, **named_args: Any) -> Any:
        leaves, structure = jax.tree.flatten((args, named_args))
        if any(isinstance(x, jax.core.Tracer) for x in leaves):
            return jax.jit(function, **kwargs)(*args, **named_args)
        signature = (structure, tuple(_abstract(x) for x in leaves), jax.config.jax_enable_x64)
        if signature not in chosen:
            found = compiler_options(plain.trace(*args, **named_args).jaxpr)
            merged = {**found, **given}
            key = tuple(sorted(merged.items()))
            if key not in tuned:
                tuned[key] = plain if merged == dict(given) else jax.jit(function, compiler_options=merged, **kwargs)
            chosen[signature] = tuned[key]
        return chosen[signature](*args, **named_args)

    return call


def _abstract(leaf: Any) -> Any:
    """What of a leaf decides the program: shape and type of an array, else the (static) value's identity."""
    if hasattr(leaf, "shape") and hasattr(leaf, "dtype"):
        return (tuple(leaf.shape), str(leaf.dtype))
    if isinstance(leaf, (bool, int, float, complex)):
        return type(leaf)
    return id(leaf)
