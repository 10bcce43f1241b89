"""Reverse-mode differentiation through a solver that loops until it converges.

JAX cannot differentiate ``while_loop`` in reverse. ``bounded`` gives a function with the same values in which every
``while`` is a scan of at most so many iterations, each applied only where the loop would still run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.extend.core as jex
import jax.numpy as jnp
from jax import lax


def bounded(function: Callable[..., Any], iterations: int) -> Callable[..., Any]:
    """``function`` with its ``while`` loops as scans of ``iterations`` steps.

    Args:
      function: of arrays (PyTrees), traceable; its while loops must end within ``iterations``.
      iterations: the loops' own limit.
    """

    def run(*args: Any) -> Any:
        closed, shape = jax.make_jaxpr(function, return_shape=True)(*args)
        out = _evaluate(closed.jaxpr, closed.consts, jax.tree.leaves(args), iterations)
        return jax.tree.unflatten(jax.tree.structure(shape), out)

    return run


def _evaluate(jaxpr: Any, consts: Sequence[Any], args: Sequence[Any], iterations: int) -> list[Any]:
    """Evaluate a jaxpr on (traced) values, replacing its while loops; plain calls are entered, others are bound."""
    values: dict[Any, Any] = dict(zip([*jaxpr.constvars, *jaxpr.invars], [*consts, *args], strict=True))
    read = lambda atom: atom.val if isinstance(atom, jex.Literal) else values[atom]  # noqa: E731
    for equation in jaxpr.eqns:
        operands = [read(atom) for atom in equation.invars]
        name, params = equation.primitive.name, equation.params
        if name == "while":
            results = _scan(params, operands, iterations)
        elif name in ("jit", "pjit", "closed_call"):
            inner = params.get("jaxpr", params.get("call_jaxpr"))
            results = _evaluate(inner.jaxpr, inner.consts, operands, iterations)
        else:
            found = equation.primitive.get_bind_params(params)  # jax < 0.10: (functions, params)
            functions, rest = found if isinstance(found, tuple) else ((), found)
            results = equation.primitive.bind(*functions, *operands, **rest)
            results = results if equation.primitive.multiple_results else [results]
        values.update(zip(equation.outvars, results, strict=True))
    return [read(atom) for atom in jaxpr.outvars]


def _scan(params: dict[str, Any], operands: Sequence[Any], iterations: int) -> list[Any]:
    split = params["cond_nconsts"]
    join = split + params["body_nconsts"]
    condition = jex.jaxpr_as_fun(params["cond_jaxpr"])
    body = jex.jaxpr_as_fun(params["body_jaxpr"])
    start = list(operands[join:])

    def step(carry: list[Any], _: None) -> tuple[list[Any], None]:
        (going,) = condition(*operands[:split], *carry)
        # where the loop has ended the body still runs (vmap needs it to); from the start its derivatives are finite
        safe = [jnp.where(going, now, first) for now, first in zip(carry, start, strict=True)]
        new = body(*operands[split:join], *safe)
        return [jnp.where(going, b, a) for a, b in zip(carry, new, strict=True)], None

    final, _ = lax.scan(step, start, None, length=iterations)
    return final
