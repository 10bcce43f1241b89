"""Environments: the contract, many worlds at once, the registry, and the environments themselves.

The contract and ``vectorize`` are imported at once; everything else when first used, so that ``import mjxlab``
stays quick.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from mjxlab.envs.base import Env, State, fresh_state
from mjxlab.envs.vectorize import VecEnv, VecState, vectorize

_HOME = {
    "check_env": "check",
    "make": "registry",
    "names": "registry",
    "register": "registry",
    "spec": "registry",
}

__all__ = [
    "Env",
    "State",
    "VecEnv",
    "VecState",
    "check_env",
    "fresh_state",
    "make",
    "names",
    "register",
    "spec",
    "vectorize",
]

if TYPE_CHECKING:
    from mjxlab.envs.check import check_env
    from mjxlab.envs.registry import make, names, register, spec


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
