"""What a simulated world carries: the engine's true state, and read-only views under MuJoCo's own names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NoReturn, TypeVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool

from mjxlab.errors import EngineError

T = TypeVar("T")


class UnknownOutputError(EngineError, AttributeError):
    """A field was read that was not among the outputs chosen in ``make_engine``."""


@jax.tree_util.register_pytree_with_keys_class
class Data:
    """One world (or, under ``vmap``, many: axis 0) of a physics engine. Made by ``Engine.init`` only.

    ``data.qpos``, ``data.xpos`` … are views for reading: every name in the engine's ``outputs``. The true state is the
    engine's own, in ``data.state``, so views cannot be written; ``Engine.set`` changes a state without rounding the
    rest. ``Data`` is a PyTree, and ``where`` selects between two of them per world.

    Attributes:
      state: the engine's state, arrays that restart the simulation exactly.
      finite: Bool[""], False once any number of the world's state is not finite, or MuJoCo warned of a bad one.
    """

    __slots__ = ("_finite", "_kind", "_names", "_state", "_views")

    _kind: str
    _names: tuple[str, ...]
    _state: dict[str, Any]
    _finite: Any
    _views: dict[str, Any]

    def __init__(
        self, kind: str, names: Sequence[str], state: Mapping[str, Any], finite: Any, views: Mapping[str, Any]
    ) -> None:
        """``names``: what may be read; each is in ``views``, or in ``state`` where the engine keeps it there anyway."""
        self._fill(kind, tuple(names), dict(state), finite, {n: views[n] for n in names if n not in state})

    def _fill(self, kind: str, names: tuple[str, ...], state: Any, finite: Any, views: Any) -> None:
        for slot, value in zip(
            ("_kind", "_names", "_state", "_finite", "_views"), (kind, names, state, finite, views), strict=True
        ):
            object.__setattr__(self, slot, value)

    @property
    def kind(self) -> str:
        """Name of the engine that the state belongs to."""
        return self._kind

    @property
    def state(self) -> dict[str, Any]:
        """The engine's own state (a copy of the dict)."""
        return dict(self._state)

    @property
    def finite(self) -> Any:
        """Bool[""] per world."""
        return self._finite

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # copy and pickle probe these before the slots are filled
            raise AttributeError(name)
        if name in self._names:
            return self._views[name] if name in self._views else self._state[name]
        raise UnknownOutputError(
            f"data.{name}: not among this engine's outputs ({', '.join(self._names)}); "
            f"ask for it with make_engine(..., outputs=(..., {name!r}))"
        )

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *self._names]

    def __setattr__(self, name: str, value: Any) -> NoReturn:
        raise EngineError(f"data.{name} is a view for reading; change the state with engine.set(data, {name}=...)")

    def replace(self, **values: Any) -> NoReturn:
        """Raises: views are for reading."""
        names = ", ".join(f"{k}=..." for k in values)
        raise EngineError(f"data.replace({names}): views are for reading; use engine.set(data, {names})")

    def __repr__(self) -> str:
        shapes = ", ".join(f"{name}: {getattr(getattr(self, name), 'shape', None)}" for name in self._names)
        return f"Data({self._kind}; {shapes})"

    def tree_flatten_with_keys(self) -> tuple[tuple[tuple[Any, Any], ...], tuple[str, tuple[str, ...]]]:
        key = jax.tree_util.GetAttrKey
        children, aux = self.tree_flatten()
        return tuple(zip((key("state"), key("finite"), key("views")), children, strict=True)), aux

    def tree_flatten(self) -> tuple[tuple[Any, ...], tuple[str, tuple[str, ...]]]:
        return (self._state, self._finite, self._views), (self._kind, self._names)

    @classmethod
    def tree_unflatten(cls, aux: tuple[str, tuple[str, ...]], children: tuple[Any, ...]) -> Data:
        self = object.__new__(cls)
        self._fill(*aux, *children)
        return self


def where(done: Bool[Array, "*worlds"], x: T, y: T) -> T:
    """``x`` in the worlds that are done, ``y`` elsewhere, for any PyTree.

    Args:
      done: one flag per world; its axes lead the axes of every leaf.
      x, y: PyTrees of equal structure (``Data``, environment states; typed keys included).
    """

    def select(a: Any, b: Any) -> Any:
        flag = done.reshape(done.shape + (1,) * (jnp.ndim(a) - done.ndim))
        return jnp.where(jnp.broadcast_to(flag, jnp.shape(a)), a, b)

    return jax.tree.map(select, x, y)
