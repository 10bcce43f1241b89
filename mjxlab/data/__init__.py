"""Data: the registry of real data and weights (``assets``), and readers of their formats.

Submodules load when first used.
"""

from __future__ import annotations

import importlib
from typing import Any

_MODULES = ("assets", "inert", "loaders")

__all__ = ["assets", "inert", "loaders"]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return importlib.import_module(f"{__name__}.{name}")
