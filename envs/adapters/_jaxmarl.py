"""JaxMARL environments: teams, with the agents on the first axis of everything that each of them has."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces as gym_spaces

from mjxlab.envs import spaces
from mjxlab.envs.adapters._native import Adapted, Outcome, check_name, key_like, making, need, plain, tree_space
from mjxlab.errors import ConfigError


@making()
def from_jaxmarl(name_or_env: Any, *, episode_length: int | None = None, **options: Any) -> Adapted:
    """A JaxMARL environment as an ``Env`` of a team.

    Observations are stacked in the order of ``agents``: ``[agents, ...]`` (``[worlds, agents, ...]`` after
    ``vectorize``). Agents with shorter observation vectors get zeros behind them, agents with fewer actions ignore the
    rest. ``reward`` has one number per agent; an episode ends for all at once (``dones["__all__"]``). Where the
    environment says which actions are allowed, the observation is a dict of ``observation`` and ``action_mask``.

    JaxMARL does not tell a loss from running out of time: an end at the environment's own ``max_steps`` counts as
    ``truncated``, any earlier one as ``terminated``.

    Args:
      name_or_env: a JaxMARL name (``"MPE_simple_spread_v3"``) or an environment without wrappers.
      episode_length: the time limit; default: the environment's ``max_steps``, else 1000.
      **options: go to the environment, which must then be given by name.

    Raises:
      UnknownNameError: JaxMARL knows no such environment.
      ConfigError: the package is missing, or agents differ in a way that cannot be stacked.
    """
    if isinstance(name_or_env, str):
        jaxmarl = need("jaxmarl", "from_jaxmarl", "peers")
        check_name(name_or_env, jaxmarl.registered_envs, "JaxMARL")
        name = f"jaxmarl:{name_or_env}"
        try:
            native = jaxmarl.make(name_or_env, **options)
        except (TypeError, AssertionError) as error:
            raise ConfigError(f"{name} does not take these options: {error}") from error
        except (ImportError, UnboundLocalError) as error:
            raise ConfigError(f"{name} cannot be made: a package that it needs is not installed ({error})") from error
    else:
        if options:
            raise ConfigError(f"option {next(iter(options))!r} was given together with an environment; expected a name")
        native, name = name_or_env, f"jaxmarl:{getattr(name_or_env, 'name', type(name_or_env).__name__)}"
    limit = getattr(native, "max_steps", None) or getattr(native, "episode_length", None)
    limit = None if limit is None else int(limit)
    return _JaxMarl(native, name, limit, episode_length or limit or 1000)


class _JaxMarl(Adapted):
    def __init__(self, native: Any, name: str, limit: int | None, episode_length: int) -> None:
        self.agents = tuple(native.agents)
        self.limit = limit
        self._masked = False
        space, bounds, self._sizes = _actions([native.action_space(agent) for agent in self.agents], name)
        super().__init__(native, name, space, episode_length, native_range=bounds)
        self._masked = isinstance(space, gym_spaces.MultiDiscrete) and self._gives_masks()
        self.observation_space = tree_space(self.types().obs)

    def _gives_masks(self) -> bool:
        def masks(key: Any) -> Any:
            state = self.native.reset(key)[1]
            return self.native.get_avail_actions(state)

        try:
            found = jax.eval_shape(masks, key_like())
            return isinstance(found, dict) and set(self.agents) <= set(found)
        except (NotImplementedError, AttributeError, TypeError):
            return False

    def _observe(self, obs: dict[str, Any], state: Any) -> Any:
        stacked = _stack([plain(obs[agent]) for agent in self.agents], self.name)
        if not self._masked:
            return stacked
        allowed = self.native.get_avail_actions(state)
        masks = [jnp.asarray(allowed[agent]).astype(bool) for agent in self.agents]
        return {"observation": stacked, "action_mask": _stack(masks, self.name)}

    def _start(self, key: Any) -> Outcome:
        obs, state = self.native.reset(key)
        return Outcome({"state": state, "elapsed": jnp.zeros((), jnp.int32)}, self._observe(obs, state))

    def _advance(self, key: Any, data: Any, action: Any, params: Any) -> Outcome:
        each = {
            agent: action[i] if self._sizes is None else action[i, : self._sizes[i]]
            for i, agent in enumerate(self.agents)
        }
        obs, state, rewards, dones, info = self.native.step_env(key, data["state"], each)
        elapsed = data["elapsed"] + jnp.ones_like(data["elapsed"])
        done = jnp.asarray(dones["__all__"], bool).reshape(())
        cut = done & (elapsed >= self.limit) if self.limit is not None else jnp.zeros((), bool)
        return Outcome(
            {"state": state, "elapsed": elapsed},
            self._observe(obs, state),
            jnp.stack([jnp.asarray(rewards[agent]).reshape(()) for agent in self.agents]),
            done & ~cut,
            cut,
            info={str(k): jax.tree.map(jnp.asarray, plain(v)) for k, v in info.items()},
        )


def _stack(parts: list[Any], name: str) -> Any:
    """PyTrees of equal structure, stacked; vectors of different lengths are filled up with zeros (False)."""
    structures = {jax.tree.structure(part) for part in parts}
    if len(structures) > 1:
        raise ConfigError(f"{name}: observations of its agents have different structures; expected equal ones")

    def leaf(*arrays: Any) -> Any:
        ranks, shapes = {x.ndim for x in arrays}, {x.shape for x in arrays}
        if len(shapes) > 1:
            if ranks != {1}:
                raise ConfigError(
                    f"{name}: observations of its agents have shapes {sorted(shapes)}; expected equal ones"
                )
            width = max(x.shape[0] for x in arrays)
            arrays = tuple(jnp.pad(x, (0, width - x.shape[0])) for x in arrays)
        return jnp.stack(arrays)

    return jax.tree.map(leaf, *parts)


def _actions(natives: list[Any], name: str) -> tuple[gym_spaces.Space, Any, tuple[int, ...] | None]:
    """The team's space, the native range, and (boxes) how many numbers each agent takes."""
    kinds = {type(space).__name__ for space in natives}
    if kinds == {"Discrete"}:
        return gym_spaces.MultiDiscrete([int(space.n) for space in natives]), None, None
    if kinds != {"Box"} or any(len(space.shape) != 1 for space in natives):
        raise ConfigError(
            f"{name}: action spaces of its agents are {natives}; expected Discrete ones, or boxes of rank 1"
        )
    sizes = tuple(int(space.shape[0]) for space in natives)
    low, high = -np.ones((len(natives), max(sizes)), np.float32), np.ones((len(natives), max(sizes)), np.float32)
    for i, space in enumerate(natives):
        low[i, : sizes[i]], high[i, : sizes[i]] = np.asarray(space.low), np.asarray(space.high)
    if not (np.isfinite(low).all() and np.isfinite(high).all()):
        raise ConfigError(f"{name}: actions range from {low.min()} to {high.max()}; expected finite bounds")
    return spaces.box(-1.0, 1.0, low.shape), (low, high), sizes
