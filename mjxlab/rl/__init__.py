"""Reinforcement learning's parts: returns, losses, normalisers, distributions, rollouts, evaluation, goals, PPO.

Every piece is a pure function of arrays, usable alone. Modules load when first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

_MODULES = (
    "contrastive",
    "counter",
    "cppo",
    "cppo_advantage",
    "cppo_config",
    "cppo_losses",
    "cppo_networks",
    "distributions",
    "evaluate",
    "goals",
    "losses",
    "normalise",
    "ppo",
    "ppo_config",
    "ppo_networks",
    "returns",
    "rollout",
    "shuffle",
)

if TYPE_CHECKING:
    from mjxlab.rl import (
        contrastive,
        counter,
        cppo,
        cppo_advantage,
        cppo_config,
        cppo_losses,
        cppo_networks,
        distributions,
        evaluate,
        goals,
        losses,
        normalise,
        ppo,
        ppo_config,
        ppo_networks,
        returns,
        rollout,
        shuffle,
    )

__all__ = [
    "contrastive",
    "counter",
    "cppo",
    "cppo_advantage",
    "cppo_config",
    "cppo_losses",
    "cppo_networks",
    "distributions",
    "evaluate",
    "goals",
    "losses",
    "normalise",
    "ppo",
    "ppo_config",
    "ppo_networks",
    "returns",
    "rollout",
    "shuffle",
]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"mjxlab.rl.{name}")
    raise AttributeError(f"module 'mjxlab.rl' has no attribute {name!r}")
