"""PPO: clipped-surrogate policy optimisation on any environment of the suite.

The learner itself lives in ``mjxlab.rl.ppo``; this module names it as a system, with settings per environment.

Example:
  >>> from mjxlab.agents import ppo
  >>> import mjxlab
  >>> config = ppo.config_for("pendulum", lr=1e-3)
  >>> learner = ppo.make(mjxlab.make("pendulum"), config)
"""

from __future__ import annotations

from typing import Any

from mjxlab.configs import from_presets
from mjxlab.rl.ppo import (
    Networks,
    PPOState,
    Samples,
    collect,
    loss,
    make,
    make_networks,
    memory_bytes,
    policy,
    prepare,
    see,
)
from mjxlab.rl.ppo_config import Config

__all__ = [
    "Config",
    "Networks",
    "PPOState",
    "Samples",
    "collect",
    "config_for",
    "loss",
    "make",
    "make_networks",
    "memory_bytes",
    "policy",
    "prepare",
    "presets",
    "see",
]

#: Settings per environment, where the defaults were not good enough. ``total_updates`` is a run's usual length.
presets: dict[str, dict[str, Any]] = {
    "arm_reach": {
        "num_envs": 128,
        "rollout_length": 20,
        "num_minibatches": 4,
        "epochs": 5,
        "lr": 1e-3,
        "target_kl": 0.02,
        "discount": 0.95,
        "squash": "clip",
        "total_updates": 400,
    },
}


def config_for(env_name: str, **overrides: Any) -> Config:
    """The settings for an environment (the defaults, where it has none of its own), with some fields replaced.

    Raises:
      ConfigError: an override is no field of ``Config``, or a value cannot work.
    """
    return from_presets(Config, presets, env_name, overrides, "PPO")
