"""Environments: the contract, many worlds at once, the registry, and the environments themselves.

Everything is imported when first used, so that ``import mjxlab`` stays quick.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

_HOME = {
    "Env": "base",
    "State": "base",
    "fresh_state": "base",
    "VecEnv": "vectorize",
    "VecState": "vectorize",
    "vectorize": "vectorize",
}

__all__ = list(_HOME)

if TYPE_CHECKING:
    from mjxlab.envs.base import Env, State, fresh_state
    from mjxlab.envs.vectorize import VecEnv, VecState, vectorize


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
