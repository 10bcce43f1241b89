"""``mjxlab list``."""

from __future__ import annotations

import dataclasses
from typing import Annotated, Literal

import tyro

from mjxlab.commands.parse import parse
from mjxlab.errors import UnknownNameError


@dataclasses.dataclass
class Options:
    """Environments, agents and studies by name.

    examples: mjxlab list | mjxlab list envs --tag goal | mjxlab list agents | mjxlab list studies
    """

    kind: Annotated[Literal["all", "envs", "agents", "studies"], tyro.conf.Positional] = "all"
    """What to list."""
    tag: str | None = None
    """Only environments with this tag."""


def main(words: list[str]) -> int:
    """Print the names, one a line."""
    options = parse(Options, words, "list")
    from mjxlab import catalogue, envs

    if options.kind in ("all", "agents"):
        print("agents")
        for name, system in catalogue.systems().items():
            print(f"  {name:26} {system.description}")
    if options.kind in ("all", "studies"):
        print("studies")
        for name, study in catalogue.studies().items():
            print(f"  {name:26} {study.description}")
    if options.kind in ("all", "envs"):
        names = envs.names(options.tag)
        if not names:
            known = sorted({tag for name in envs.names() for tag in envs.spec(name).tags})
            raise UnknownNameError(f"unknown tag {options.tag!r}; known: {', '.join(known)}")
        print("environments")
        for name in names:
            spec = envs.spec(name)
            print(f"  {name:26} {spec.description}  [{', '.join(spec.tags)}]")
    return 0
