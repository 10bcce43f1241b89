"""Brax environments, and what they share with MuJoCo Playground's."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

from mjxlab.envs import spaces
from mjxlab.envs.adapters._native import Adapted, Outcome, check_name, making, need, plain, scalars, tree_space
from mjxlab.errors import ConfigError


@making()
def from_brax(name_or_env: Any, backend: str | None = None, *, episode_length: int = 1000, **options: Any) -> Adapted:
    """A Brax environment as an ``Env``.

    ``done`` becomes ``terminated``. The time limit is ``vectorize``'s: Brax has it in its wrappers, which are not used
    here. ``State.data`` is Brax's own state; its metrics are ours.

    Args:
      name_or_env: a Brax name (``"ant"``) or an environment without wrappers.
      backend: ``"mjx"``, ``"spring"``, ``"positional"`` or ``"generalized"``; default: Brax's own default.
      episode_length: the time limit in control steps.
      **options: go to Brax's environment, which must then be given by name.

    Raises:
      UnknownNameError: Brax knows no such environment.
      ConfigError: an environment with wrappers that batch, count or reset; a back end that does not exist.
    """
    native, name = load(name_or_env, backend, options)
    return BraxLike(native, name, episode_length, mark=getattr(native, "backend", None) == "mjx")


def load(name_or_env: Any, backend: str | None, options: dict[str, Any]) -> tuple[Any, str]:
    """The Brax environment, and what to call it."""
    known = ("generalized", "spring", "positional", "mjx")
    if backend is not None and backend not in known:
        raise ConfigError(f"backend is {backend!r}; expected one of {', '.join(map(repr, known))}")
    if isinstance(name_or_env, str):
        envs = need("brax.envs", "from_brax", None)
        check_name(name_or_env, envs._envs, "Brax")
        if backend is not None:
            options = {"backend": backend, **options}
        try:
            return envs.get_environment(name_or_env, **options), f"brax:{name_or_env}"
        except TypeError as error:
            raise ConfigError(f"brax:{name_or_env} does not take these options: {error}") from error
    if options:
        raise ConfigError(f"option {next(iter(options))!r} was given together with an environment; expected a name")
    name = f"brax:{type(name_or_env).__name__}"
    if backend is not None and getattr(name_or_env, "backend", backend) != backend:
        raise ConfigError(f"backend is {backend!r}, but the environment {name} has {name_or_env.backend!r}")
    refuse_wrappers(name_or_env, name)
    return name_or_env, name


def refuse_wrappers(env: Any, name: str) -> None:
    """Raise if a wrapper around the environment does what ``vectorize`` does."""
    for _ in range(16):
        kind = type(env).__name__
        if any(word in kind for word in ("AutoReset", "Vmap", "EpisodeWrapper", "EvalWrapper")):
            raise ConfigError(f"{name} is wrapped in {kind}; expected the environment alone (env.unwrapped)")
        if "env" not in getattr(env, "__dict__", {}):
            return
        env = env.env


class BraxLike(Adapted):
    """An environment with ``reset(key) -> state`` and ``step(state, action) -> state`` whose states have ``obs``,
    ``reward``, ``done`` and ``metrics``. Actions are in [-1, 1] already."""

    def __init__(self, native: Any, name: str, episode_length: int, *, mark: bool = False) -> None:
        super().__init__(native, name, spaces.unit_box(int(native.action_size)), episode_length, mark=mark)
        self.observation_space = tree_space(self.types().obs)

    def _start(self, key: Any) -> Outcome:
        state = self.native.reset(key)
        return Outcome(state, plain(state.obs), metrics=scalars(state.metrics))

    def _advance(self, key: Any, data: Any, action: Any, params: Any) -> Outcome:
        state = self.native.step(data, action)
        return Outcome(
            state,
            plain(state.obs),
            jnp.asarray(state.reward).reshape(()),
            jnp.asarray(state.done).reshape(()) > 0,
            metrics=scalars(state.metrics),
        )
