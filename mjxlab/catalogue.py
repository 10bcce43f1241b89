"""Everything that has a name: systems that learn, and studies. Nothing is imported before it is used."""

from __future__ import annotations

import dataclasses
import difflib
import importlib
import os
import sys
from types import ModuleType
from typing import TYPE_CHECKING

from mjxlab.errors import ConfigError, UnknownNameError

if TYPE_CHECKING:
    from mjxlab.study import Study


@dataclasses.dataclass(frozen=True)
class System:
    """A system that learns.

    Attributes:
      name: what the command line and run folders call it.
      module: where it lives; the module has ``Config``, ``make(env, config) -> Learner`` and
        ``config_for(env_name, **overrides) -> Config``.
      description: one line.
      source: the paper.
    """

    name: str
    module: str
    description: str
    source: str = ""

    def load(self) -> ModuleType:
        """The module itself, imported now."""
        return importlib.import_module(self.module)


_SYSTEMS = {
    system.name: system
    for system in (
        System(
            "ppo",
            "mjxlab.agents.ppo",
            "proximal policy optimisation, continuous and discrete actions",
            "Schulman et al. 2017, arXiv 1707.06347",
        ),
        System(
            "cppo",
            "mjxlab.agents.cppo",
            "contrastive PPO: goals reached without any reward, on-policy",
            "Osman et al. 2026, arXiv 2605.13554",
        ),
        System(
            "cppo",
            "mjxlab.agents.cppo",
            "contrastive PPO: goal tasks without reward and without replay, continuous and discrete actions",
            "Osman et al. 2026, arXiv 2605.13554",
        ),
    )
}


@dataclasses.dataclass(frozen=True)
class StudySpec:
    """What is known of a study before it is imported.

    Attributes:
      name: what the command line calls it.
      module: where it lies, as ``STUDY``.
      description: one line.
    """

    name: str
    module: str
    description: str


_STUDIES = {
    spec.name: spec
    for spec in (
        StudySpec(
            "selfcheck", "mjxlab.studies.selfcheck", "the harness itself, on a bandit whose winner is known; seconds"
        ),
    )
}


def systems() -> dict[str, System]:
    """All systems by name."""
    return dict(_SYSTEMS)


def system(name: str) -> System:
    """The system called ``name``.

    Raises:
      UnknownNameError: there is none; the message lists the closest names.
    """
    if name not in _SYSTEMS:
        raise UnknownNameError(f"unknown agent {name!r}; {_hint(name, _SYSTEMS)}")
    return _SYSTEMS[name]


def studies() -> dict[str, StudySpec]:
    """All studies by name."""
    return dict(_STUDIES)


def study(name: str) -> Study:
    """The study called ``name``, imported now; or one of your own, as ``"module:NAME"``.

    Raises:
      UnknownNameError: there is none; the message lists the closest names.
      ConfigError: what the module holds under that name is not a study.
    """
    from mjxlab.study import Study

    module, own, attribute = name.partition(":")
    if not own:
        if name not in _STUDIES:
            raise UnknownNameError(f"unknown study {name!r}; {_hint(name, _STUDIES)}")
        module, attribute = _STUDIES[name].module, "STUDY"
    elif os.getcwd() not in sys.path:
        sys.path.append(
            os.getcwd()
        )  # the mjxlab command does not start with the folder it is called in, as python does
    try:
        found = getattr(importlib.import_module(module), attribute)
    except (ModuleNotFoundError, AttributeError, ValueError) as error:
        if not own:
            raise
        raise UnknownNameError(f"study {name!r}: {error}") from error
    if not isinstance(found, Study):
        raise ConfigError(f"study {name!r}: is a {type(found).__name__}, expected a mjxlab.study.Study")
    return found


def _hint(name: str, known: dict[str, System] | dict[str, StudySpec]) -> str:
    close = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
    return f"did you mean {' or '.join(map(repr, close))}?" if close else f"known: {', '.join(sorted(known))}"
