"""Configs to JSON and back: flax.struct (or plain) dataclasses of numbers, strings, tuples and one another."""

from __future__ import annotations

import dataclasses
import difflib
import enum
import math
import types
import typing
from typing import Any, TypeVar

import jax
import numpy as np

from mjxlab.errors import ConfigError

C = TypeVar("C")
SEEDS = 2**32  # JAX takes a seed modulo this number, silently, unless 64-bit types are on


def check_seed(seed: Any, name: str = "seed") -> int:
    """The seed, if it is one that no other seed equals.

    Raises:
      ConfigError: no integer, below 0, or 2^32 or more.
    """
    if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < SEEDS:
        raise ConfigError(f"{name}: got {seed!r}, expected an integer of at least 0 and below 2^32")
    return seed


def to_json(value: Any) -> Any:
    """A value that ``json`` can write, and that ``from_json`` turns back.

    Dataclasses become objects, tuples lists, arrays of no axes numbers. A float that JSON lacks (``inf``, ``nan``)
    becomes ``{"__float__": "inf"}``. Anything else (a function, an environment) is kept by its name only,
    ``{"__object__": "module.name"}``: enough to see a difference, not to build it again.
    """
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: to_json(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, enum.Enum):
        return value.name
    if isinstance(value, np.generic | np.ndarray | jax.Array):
        if isinstance(value, jax.Array) and jax.dtypes.issubdtype(value.dtype, jax.dtypes.prng_key):
            value = jax.random.key_data(value)
        array = np.asarray(value)
        return {"__array__": array.tolist(), "dtype": array.dtype.name} if array.ndim else to_json(array.item())
    if isinstance(value, float):
        return value if math.isfinite(value) else {"__float__": repr(value)}
    if isinstance(value, list | tuple):
        return [to_json(v) for v in value]
    if isinstance(value, dict):
        return {str(k): to_json(v) for k, v in value.items()}
    thing = value if hasattr(value, "__qualname__") else type(value)
    return {"__object__": f"{thing.__module__}.{thing.__qualname__}"}


def from_json(cls: type[C], data: dict[str, Any], **replace: Any) -> C:
    """The config of class ``cls`` that ``to_json`` wrote.

    Args:
      cls: a dataclass.
      data: what was written. A field that is missing takes its default.
      replace: fields to set; needed for those that were kept by name only.

    Raises:
      ConfigError: an unknown field, a value of the wrong type, or a field that cannot be built again.
    """
    hints = typing.get_type_hints(cls)
    fields = {f.name: f for f in dataclasses.fields(cls) if f.init}  # type: ignore[arg-type]
    for name in [*data, *replace]:
        if name not in fields:
            raise ConfigError(f"{name}: {cls.__name__} has no such field, expected one of {', '.join(fields)}")
    made = {}
    for name, field in fields.items():
        if name in replace:
            made[name] = replace[name]
        elif name in data:
            made[name] = _build(name, data[name], hints.get(name, Any))
        elif field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            raise ConfigError(f"{name}: not there, expected a value for {cls.__name__}")
    return cls(**made)


def differences(saved: Any, given: Any, prefix: str = "") -> list[str]:
    """A phrase for each field in which two values of ``to_json`` differ: its path, the old and the new value."""
    if isinstance(saved, dict) and isinstance(given, dict):
        found = []
        for name in [*saved, *(n for n in given if n not in saved)]:
            path = f"{prefix}.{name}" if prefix else str(name)
            found += differences(saved.get(name, "nothing"), given.get(name, "nothing"), path)
        return found
    return [] if saved == given else [f"{prefix} (saved {saved!r}, given {given!r})"]


def _build(name: str, value: Any, hint: Any) -> Any:
    choices = typing.get_args(hint) if typing.get_origin(hint) in (typing.Union, types.UnionType) else (hint,)
    if isinstance(value, dict):
        if "__object__" in value:
            raise ConfigError(f"{name}: was kept by name only ({value['__object__']}), expected it to be given anew")
        if "__float__" in value:
            return float(value["__float__"])
        if "__array__" in value:
            return np.asarray(value["__array__"], value["dtype"])
        for choice in choices:
            if dataclasses.is_dataclass(choice) and isinstance(choice, type):
                return from_json(choice, value)
        return {k: _build(f"{name}.{k}", v, Any) for k, v in value.items()}
    if isinstance(value, list):
        return tuple(_build(f"{name}[{i}]", v, _element(choices, i)) for i, v in enumerate(value))
    if float in choices and isinstance(value, int) and not isinstance(value, bool) and int not in choices:
        return float(value)
    if not any(_fits(value, choice) for choice in choices):
        expected = " or ".join(_kind(c) for c in choices if not hasattr(c, "dtypes"))
        raise ConfigError(f"{name}: got {value!r}, expected {expected}")
    return value


def _element(choices: tuple[Any, ...], index: int) -> Any:
    for choice in choices:
        if typing.get_origin(choice) in (tuple, list) and (inner := typing.get_args(choice)):
            return inner[0] if len(inner) == 1 or inner[-1] is Ellipsis else inner[min(index, len(inner) - 1)]
    return Any


def _fits(value: Any, hint: Any) -> bool:
    if hint is None or hint is type(None):
        return value is None
    if typing.get_origin(hint) is typing.Literal:
        return value in typing.get_args(hint)
    if hint in (bool, int, float, str):
        return type(value) is hint
    if typing.get_origin(hint) in (tuple, list, dict) or hint in (tuple, list, dict) or hasattr(hint, "dtypes"):
        return False  # the last: a jaxtyping array
    return True  # kinds that we do not know are left to the config's own validate()


def _kind(hint: Any) -> str:
    if hint is None or hint is type(None):
        return "None"
    if typing.get_origin(hint) is typing.Literal:
        return "one of " + ", ".join(map(str, typing.get_args(hint)))
    return getattr(hint, "__name__", str(hint))


def from_presets(
    config: type[C], presets: dict[str, dict[str, Any]], name: str, overrides: dict[str, Any], agent: str
) -> C:
    """The agent's settings called ``name`` (its defaults where there are none), with some fields replaced, and validated.

    Raises:
      ConfigError: an override is no field of ``config``, or a value cannot work.
    """
    kind: Any = config  # a dataclass with `validate`, which no type here can say
    known = [field.name for field in dataclasses.fields(kind)]
    for override in overrides:
        if override not in known:
            close = difflib.get_close_matches(override, known, 1)
            hint = f"; did you mean {close[0]}?" if close else ""
            raise ConfigError(f"{override}: {agent}'s Config has no such field{hint}")
    made = kind(**{**presets.get(name, {}), **overrides})
    made.validate()
    return typing.cast(C, made)
