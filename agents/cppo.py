"""CPPO: contrastive PPO. A goal-conditioned policy without any reward, on-policy and without replay.

The learner itself lives in ``mjxlab.rl.cppo``; this module names it as a system, with settings per environment.

Example:
  >>> from mjxlab.agents import cppo
  >>> import mjxlab
  >>> config = cppo.config_for("arm_reach", num_envs=64)
  >>> learner = cppo.make(mjxlab.make("arm_reach"), config)
"""

from __future__ import annotations

from typing import Any

from mjxlab.configs import from_presets
from mjxlab.rl.cppo import (
    CPPOState,
    CriticRows,
    GoalNetworks,
    PolicyRows,
    collect,
    critic_loss,
    critic_rows,
    make,
    make_networks,
    memory_bytes,
    policy_rows,
    ppo_loss,
)
from mjxlab.rl.cppo_config import Config

__all__ = [
    "CPPOState",
    "Config",
    "CriticRows",
    "GoalNetworks",
    "PolicyRows",
    "collect",
    "config_for",
    "critic_loss",
    "critic_rows",
    "make",
    "make_networks",
    "memory_bytes",
    "policy_rows",
    "ppo_loss",
    "presets",
]

#: Discrete grids need much more entropy than robots do, or the policy is certain before the critic is right.
GRID: dict[str, Any] = {"entropy_cost": 0.1, "lr": 1e-3}

#: Settings per environment, where the defaults were not good enough. ``total_updates`` is a run's usual length.
presets: dict[str, dict[str, Any]] = {
    "arm_reach": {
        "num_envs": 128,
        "rollout_length": 60,
        "batch_size": 512,
        "lr": 5e-4,
        "critic_lr": 1e-3,
        "lr_schedule": "linear",
        "discount": 0.9,
        "normalise_obs": True,
        "total_updates": 60,
    },
    "four_rooms": GRID,
    "random_maze": GRID,
    "key_door": GRID,
    "sokoban_lite": GRID,
    "lights_out_lite": GRID,
}


def config_for(env_name: str, **overrides: Any) -> Config:
    """The settings for an environment (the defaults, where it has none of its own), with some fields replaced.

    Raises:
      ConfigError: an override is no field of ``Config``, or a value cannot work.
    """
    return from_presets(Config, presets, env_name, overrides, "CPPO")
