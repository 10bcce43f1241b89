"""Everything that has a name: systems that learn, and environments. Nothing is imported before it is used."""

from __future__ import annotations

import dataclasses
import difflib
import importlib
from types import ModuleType

from mjxlab.errors import UnknownNameError


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
            "contrastive PPO: goal tasks without reward and without replay, continuous and discrete actions",
            "Osman et al. 2026, arXiv 2605.13554",
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
        close = difflib.get_close_matches(name, _SYSTEMS, n=3, cutoff=0.5)
        hint = f"did you mean {' or '.join(map(repr, close))}?" if close else f"known: {', '.join(sorted(_SYSTEMS))}"
        raise UnknownNameError(f"unknown agent {name!r}; {hint}")
    return _SYSTEMS[name]
