"""PPO: clipped-surrogate policy optimisation on any environment of the suite.

The learner itself lives in ``mjxlab.rl.ppo``; this module names it as a system, with settings per environment.

Example:
  >>> from mjxlab.agents import ppo
  >>> import mjxlab
  >>> config = ppo.config_for("pendulum", lr=1e-3)
  >>> learner = ppo.make(mjxlab.make("pendulum"), config)
"""

from __future__ import annotations

import difflib
from typing import Any

from mjxlab.errors import ConfigError
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
)
from mjxlab.rl.ppo_config import Config, field_names

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
]

presets: dict[str, dict[str, Any]] = {}


def config_for(env_name: str, **overrides: Any) -> Config:
    """The settings for an environment (the defaults, where it has none of its own), with some fields replaced.

    Raises:
      ConfigError: an override is no field of ``Config``, or a value cannot work.
    """
    known = field_names()
    for name in overrides:
        if name not in known:
            close = difflib.get_close_matches(name, known, 1)
            hint = f"; did you mean {close[0]}?" if close else ""
            raise ConfigError(f"{name}: PPO's Config has no such field{hint}")
    config = Config(**{**presets.get(env_name, {}), **overrides})
    config.validate()
    return config
