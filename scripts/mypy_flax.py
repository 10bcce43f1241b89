"""A mypy plugin for what flax and JAX make at run time.

* Classes decorated by ``flax.struct.dataclass`` have a method ``replace``.
* ``jax.config`` has an attribute for every option.
* ``PyTreeDef`` comes from a compiled module without stubs: anything goes.
"""

from __future__ import annotations

from collections.abc import Callable

from mypy.nodes import ARG_POS, ARG_STAR2, Argument, Var
from mypy.plugin import AnalyzeTypeContext, ClassDefContext, Plugin
from mypy.plugins.common import add_method_to_class
from mypy.plugins.dataclasses import dataclass_tag_callback
from mypy.types import AnyType, Type, TypeOfAny
from mypy.typevars import fill_typevars

ANYTHING = AnyType(TypeOfAny.explicit)


def _add_replace(context: ClassDefContext) -> None:
    dataclass_tag_callback(context)  # what mypy does by itself for a dataclass_transform
    changes = Argument(Var("changes", ANYTHING), ANYTHING, None, ARG_STAR2)
    add_method_to_class(context.api, context.cls, "replace", [changes], fill_typevars(context.cls.info))


def _add_getattr(context: ClassDefContext) -> None:
    name = Argument(Var("name", ANYTHING), ANYTHING, None, ARG_POS)
    add_method_to_class(context.api, context.cls, "__getattr__", [name], ANYTHING)


def _anything(context: AnalyzeTypeContext) -> Type:
    del context
    return ANYTHING


class FlaxPlugin(Plugin):
    """See the module."""

    def get_class_decorator_hook(self, fullname: str) -> Callable[[ClassDefContext], None] | None:
        """Flax's dataclasses."""
        return _add_replace if fullname == "flax.struct.dataclass" else None

    def get_customize_class_mro_hook(self, fullname: str) -> Callable[[ClassDefContext], None] | None:
        """JAX's options."""
        return _add_getattr if fullname == "jax._src.config.Config" else None

    def get_type_analyze_hook(self, fullname: str) -> Callable[[AnalyzeTypeContext], Type] | None:
        """Types of compiled modules."""
        return _anything if fullname == "jax._src.tree_util.PyTreeDef" else None


def plugin(version: str) -> type[Plugin]:
    """Mypy's entry point."""
    del version
    return FlaxPlugin
