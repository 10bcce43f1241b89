"""Flags from dataclasses (tyro), with errors of one line."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import re
import types
import typing
from typing import Any, Literal, TypeVar, Union

from mjxlab.errors import ConfigError

T = TypeVar("T")


def parse(options: type[T], words: list[str], command: str, default: T | None = None) -> T:
    """An instance of the dataclass ``options`` from the words of the command line.

    ``--help`` prints and exits with 0.

    Args:
      options: a dataclass whose fields are flags.
      words: the command line after the command.
      command: what errors and help call it.
      default: values for what is not said; the fields' own by default.

    Raises:
      ConfigError: anything that does not parse; one line.
    """
    import tyro

    captured = io.StringIO()
    given: dict[str, Any] = {} if default is None else {"default": default}
    try:
        with contextlib.redirect_stderr(captured):
            made: T = tyro.cli(options, args=words, prog=f"mjxlab {command}", **given)
            return made
    except SystemExit as stop:
        if not stop.code:
            raise
    raise ConfigError(f"{command}: {one_line(captured.getvalue())} (see mjxlab {command} --help)")


def one_line(box: str) -> str:
    """The gist of tyro's framed error message; frames are ASCII where the terminal's encoding wants it."""
    lines = [line.strip().strip("│").strip() for line in box.strip().splitlines()]
    sections: list[list[str]] = [[]]
    for line in lines[1:]:  # without the title, which stands in the frame or, where frames are ASCII, above a rule
        if not line.strip("╰╯─-"):
            sections.append([])
        else:
            sections[-1].append(line)
    sections = [section for section in sections if section] or [[]]
    gist = " ".join(sections[0]).split(" Got errors:")[0]
    for section in sections[1:]:
        if section and section[0].startswith("Perhaps you meant"):
            flag = re.search(r"--[\w.\-]+", " ".join(section))
            gist += f"; did you mean {flag[0]}?" if flag else ""
    return gist or " ".join(box.split())


def flags_of(config: Any) -> type:
    """A plain dataclass with the fields of ``config`` that can be flags, its values as defaults.

    Floats, integers, booleans, strings, ``Literal``, ``None``-able ones, and tuples of them become flags. A float
    that may also be an array (``Scalar``) is a float here. Help comes from the docstring.
    """
    import tyro

    hints, help_of = _hints(type(config)), descriptions(type(config))
    fields = []
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        hint = _plain(hints.get(field.name, Any), value)
        if hint is not None:
            text = tyro.conf.arg(help=help_of.get(field.name, ""))
            fields.append((field.name, typing.Annotated[hint, text], dataclasses.field(default=value)))
    made = dataclasses.make_dataclass("Config", fields, frozen=True)
    made.__doc__ = "The agent's own settings."
    return made


def descriptions(kind: type) -> dict[str, str]:
    """What a class's docstring says of its fields: ``name: text``, or ``name, other: text`` for several at once."""
    names = {field.name for field in dataclasses.fields(kind)}
    text = re.sub(r"\s+", " ", (kind.__doc__ or "").partition("Attributes:")[2])
    found: list[tuple[list[str], int, int]] = []
    for match in re.finditer(r"(?<= )((?:\w+, )*\w+): ", text):
        if names.issuperset(listed := match[1].split(", ")):
            found.append((listed, match.start(), match.end()))
    ends = [start for _, start, _ in found[1:]] + [len(text)]
    return {
        name: text[begin:end].strip() for (listed, _, begin), end in zip(found, ends, strict=True) for name in listed
    }


def changed(config: Any, flags: Any) -> dict[str, Any]:
    """The fields of ``flags`` that differ from ``config``."""
    pairs = ((field.name, getattr(flags, field.name)) for field in dataclasses.fields(flags))
    return {name: value for name, value in pairs if value != getattr(config, name)}


def _hints(kind: type) -> dict[str, Any]:
    try:
        return typing.get_type_hints(kind)
    except (NameError, TypeError):
        return {}


def _plain(hint: Any, value: Any) -> Any:
    """``hint`` without arrays; where it says nothing, the type of the value. None: it cannot be a flag."""
    if hint in (bool, int, float, str, types.NoneType) or typing.get_origin(hint) is Literal:
        return hint
    if typing.get_origin(hint) in (Union, types.UnionType):
        parts = [_plain(part, None) for part in typing.get_args(hint)]
        kept = [part for part in parts if part is not None]
        if kept and kept != [types.NoneType]:
            return Union[tuple(kept)]  # noqa: UP007
    if typing.get_origin(hint) is tuple:
        parts = [part if part is Ellipsis else _plain(part, None) for part in typing.get_args(hint)]
        if parts and None not in parts:
            return tuple[tuple(parts)]  # type: ignore[misc]
    if isinstance(value, (bool, int, float, str)):
        return type(value)
    if isinstance(value, tuple) and value and len({type(item) for item in value}) == 1:
        item = _plain(Any, value[0])
        return None if item is None else tuple[item, ...]  # type: ignore[valid-type]
    return None
