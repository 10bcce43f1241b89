"""Environments of other suites as environments of this one, and the other way round.

In: ``from_gymnax``, ``from_brax``, ``from_brax_goal``, ``from_playground``, ``from_jumanji`` and ``from_jaxmarl`` take
a name of the other suite, or an environment made with it, and return an ``Env``: one world, pure, without their
autoreset. ``make("gymnax:CartPole-v1")`` is the short way, and so are the prefixes ``brax:``, ``playground:``,
``jumanji:`` and ``jaxmarl:``.

Out: ``to_gymnasium`` (one world), ``to_gymnasium_vector`` (many) and ``to_brax``.

The other packages are imported when an adapter is called, none when this module is.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

_HOME = {
    "from_gymnax": "_gymnax",
    "from_brax": "_brax",
    "from_brax_goal": "_brax_goal",
    "from_playground": "_playground",
    "from_jumanji": "_jumanji",
    "from_jaxmarl": "_jaxmarl",
    "to_gymnasium": "_gymnasium",
    "to_gymnasium_vector": "_gymnasium",
    "to_brax": "_to_brax",
}

#: Prefixes of names that ``make`` hands to an adapter.
PREFIXES = ("gymnax", "brax", "playground", "jumanji", "jaxmarl")

__all__ = [
    "PREFIXES",
    "from_brax",
    "from_brax_goal",
    "from_gymnax",
    "from_jaxmarl",
    "from_jumanji",
    "from_playground",
    "to_brax",
    "to_gymnasium",
    "to_gymnasium_vector",
]

if TYPE_CHECKING:
    from mjxlab.envs.adapters._brax import from_brax
    from mjxlab.envs.adapters._brax_goal import from_brax_goal
    from mjxlab.envs.adapters._gymnasium import to_gymnasium, to_gymnasium_vector
    from mjxlab.envs.adapters._gymnax import from_gymnax
    from mjxlab.envs.adapters._jaxmarl import from_jaxmarl
    from mjxlab.envs.adapters._jumanji import from_jumanji
    from mjxlab.envs.adapters._playground import from_playground
    from mjxlab.envs.adapters._to_brax import to_brax


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
