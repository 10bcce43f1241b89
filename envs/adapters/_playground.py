"""MuJoCo Playground environments."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mjxlab.envs.adapters._brax import BraxLike, refuse_wrappers
from mjxlab.envs.adapters._native import Adapted, check_name, making, need
from mjxlab.errors import ConfigError


@making()
def from_playground(
    name_or_env: Any, *, episode_length: int | None = None, config: Mapping[str, Any] | None = None
) -> Adapted:
    """A MuJoCo Playground environment as an ``Env``.

    ``done`` becomes ``terminated``; the time limit is ``vectorize``'s. Physics is MJX in JAX (``impl="jax"``) unless
    ``config`` says otherwise, since some defaults of Playground want a GPU.

    Args:
      name_or_env: a Playground name (``"CartpoleBalance"``) or an environment without wrappers. Robots of MuJoCo
        Menagerie must already lie where Playground looks for them.
      episode_length: the time limit in control steps; default: that of the environment's own config.
      config: changes to its config (``{"ctrl_dt": 0.02}``); names with dots reach into it.

    Raises:
      UnknownNameError: Playground knows no such environment.
      ConfigError: the package is missing, the environment is wrapped or cannot be loaded, or an option does not exist.
    """
    if isinstance(name_or_env, str):
        playground = need("mujoco_playground", "from_playground", "bench")
        registry = playground.registry
        check_name(name_or_env, registry.ALL_ENVS, "Playground")
        overrides = {"impl": "jax", **(config or {})}
        try:
            native = registry.load(name_or_env, config_overrides=overrides)
        except (KeyError, TypeError, ValueError, OSError, RuntimeError) as error:
            raise ConfigError(f"playground:{name_or_env} cannot be loaded with {overrides}: {error}") from error
        name = f"playground:{name_or_env}"
    else:
        if config:
            raise ConfigError("config was given together with an environment; expected a name")
        native, name = name_or_env, f"playground:{type(name_or_env).__name__}"
        refuse_wrappers(native, name)
    if episode_length is None:
        episode_length = int(getattr(getattr(native, "_config", None), "episode_length", 1000))
    return BraxLike(native, name, episode_length, mark=True)
