"""A trained policy as a pure function: ``load_policy(run)``."""

from __future__ import annotations

import dataclasses
import os
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces

from mjxlab import catalogue, checkpoint
from mjxlab.errors import ConfigError
from mjxlab.learner import Learner
from mjxlab.runs import Run


@dataclasses.dataclass(frozen=True, eq=False)
class Policy:
    """What a run learnt. Call it: ``action, carry = policy(obs, key=None, carry=None)``.

    A call is pure and concerns one world: ``jit`` it, ``vmap`` it over observations (and keys, and carries). NumPy
    observations are fine.

    Attributes:
      env: the environment that it was trained on.
      learner: the agent; ``learner.act(state, carry, obs, key, deterministic)`` is what a call runs.
      state: the training state at the checkpoint.
      step: the checkpoint's number of updates.
      run: the run folder.
    """

    env: Any
    learner: Learner
    state: Any
    step: int
    run: Run

    def __post_init__(self) -> None:
        def act(state: Any, carry: Any, obs: Any, key: Any, deterministic: bool) -> tuple[Any, Any]:
            return self.learner.act(state, carry, obs, key, deterministic)

        object.__setattr__(self, "_act", jax.jit(act, static_argnums=4))

    def start(self, key: jax.Array | None = None) -> Any:
        """What the policy remembers at the start of an episode; ``()`` for one without memory."""
        return self.learner.carry(self.state, jax.random.key(0) if key is None else key)

    def __call__(self, obs: Any, key: jax.Array | None = None, carry: Any = None) -> tuple[Any, Any]:
        """One action.

        Args:
          obs: an observation of one world, as ``env.observation_space`` says.
          key: with a key the action is sampled; without, it is the policy's most likely one.
          carry: what the call before returned; None at the start of an episode.

        Returns:
          The action, and the carry for the next call.

        Raises:
          ConfigError: the observation has another shape.
        """
        obs = _as_observation(self.env.observation_space, obs)
        carry = self.start() if carry is None else carry
        deterministic = key is None
        return self._act(self.state, carry, obs, jax.random.key(0) if key is None else key, deterministic)  # type: ignore[attr-defined]


def _as_observation(space: spaces.Space, obs: Any, path: str = "obs") -> Any:
    if isinstance(space, spaces.Dict):
        if not isinstance(obs, dict) or set(obs) != set(space.spaces):
            found = ", ".join(map(str, obs)) if isinstance(obs, dict) else type(obs).__name__
            raise ConfigError(f"{path}: got {found}, expected a dict of {', '.join(space.spaces)}")
        return {name: _as_observation(inner, obs[name], f"{path}.{name}") for name, inner in space.spaces.items()}
    if space.shape is None:
        return obs
    if np.shape(obs) != space.shape:
        raise ConfigError(
            f"{path}: got shape {np.shape(obs)}, expected {space.shape} (vmap the policy for more worlds)"
        )
    floating = space.dtype is not None and np.issubdtype(space.dtype, np.floating)
    return jnp.asarray(obs, jnp.result_type(float) if floating else None)


def open_run(run: str | os.PathLike[str], engine: str | None = None) -> tuple[Run, ModuleType, Any, Any]:
    """A run folder, its agent's module, its environment and its config.

    Args:
      run: the folder.
      engine: make the environment on this physics engine instead of the run's own.

    Raises:
      ConfigError: no such run, or one that was not made by name (``fit`` without an environment that ``make`` knows).
      UnknownNameError: an agent or environment that is not registered here.
    """
    from mjxlab import envs

    opened = Run.open(run)
    for name in ("agent", "env"):
        if not opened.record.get(name):
            raise ConfigError(f"run_dir: {opened.folder} does not say which {name} it trained, expected a name")
    module = catalogue.system(opened.record["agent"]).load()
    options = dict(opened.record.get("env_options") or {})
    if engine is not None:
        options["engine"] = engine
    env = envs.make(opened.record["env"], **options)
    return opened, module, env, opened.config(module.Config)


def load_policy(run: str | os.PathLike[str], step: int | None = None) -> Policy:
    """The policy of a run folder.

    Args:
      run: the folder that ``mjxlab train`` or ``fit(run_dir=…)`` left.
      step: which checkpoint; the newest by default.

    Raises:
      ConfigError: there is no run at the path.
      CheckpointError: there is no checkpoint, or it is damaged, of another training state, or of another run.

    Example:
      >>> policy = load_policy("runs/demo")  # doctest: +SKIP
      >>> state = policy.env.reset(jax.random.key(0))  # doctest: +SKIP
      >>> action, memory = policy(state.obs)  # doctest: +SKIP
      >>> actions, _ = jax.vmap(policy)(many_observations)  # doctest: +SKIP

    To hand it on without mjxlab's sources, export the program, with the parameters as constants (needs ``flatbuffers``)::

      exported = jax.export.export(jax.jit(lambda obs: policy(obs)[0]))(jnp.zeros(policy.env.observation_space.shape))
      pathlib.Path("policy.bin").write_bytes(exported.serialize())  # read back: jax.export.deserialize(...).call(obs)
    """
    opened, module, env, config = open_run(run)
    learner = module.make(env, config)
    like = jax.eval_shape(learner.init, jax.random.key(0))
    restored = checkpoint.restore(opened.checkpoints, like, step)
    opened.check(restored.step, restored.meta)
    return Policy(env, learner, jax.tree.map(jnp.asarray, restored.state), restored.step, opened)


def random_learner(env: Any) -> Learner:
    """Acts at random, uniformly over the action space: what any trained policy should beat."""
    from mjxlab.envs.spaces import sample

    def act(state: Any, carry: Any, obs: Any, key: jax.Array, deterministic: bool) -> tuple[Any, Any]:
        del state, obs, deterministic
        return sample(env.action_space, key), carry

    return Learner(
        init=lambda key: (),
        update=lambda state, key, batch: (state, {}),
        carry=lambda state, key: (),
        act=act,
    )
