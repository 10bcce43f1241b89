"""Our own three columns.

As users run it: vectorised worlds with the default reset mode, a chunk of steps (or whole updates) per jitted call under
``lax.scan``, state donated, the physics' own compile options. Every call is waited for.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from gymnasium import spaces
from jax import lax
from jaxtyping import Array, Key

import mjxlab
from mjxlab import physics
from mjxlab.agents import ppo
from mjxlab.bench.pairs import Speed
from mjxlab.bench.rivals._serve import Burst, Measures
from mjxlab.bench.tasks import Task
from mjxlab.envs.vectorize import vectorize
from mjxlab.rl.evaluate import make_evaluate
from mjxlab.rl.rollout import world_keys

_NOT_PPO = ("chunk", "updates_per_call")


class Ours:
    """Our side of a task.

    Attributes:
      env: the environment. config: of its PPO.
      compiled: by column, the seconds until its first use was ready.
    """

    def __init__(self, task: Task, engine: str = "auto") -> None:
        """Args:
        task: what to measure.
        engine: of the physics, where there is any.
        """
        self.task, self.sizes = task, task.sizes
        self.env = mjxlab.make(task.env) if engine == "auto" else mjxlab.make(task.env, engine=engine)
        fields: dict[str, Any] = {
            k: tuple(v) if isinstance(v, list) else v for k, v in (task.sizes | task.ours).items() if k not in _NOT_PPO
        }
        self.config = ppo.Config(**fields)
        self.config.validate()
        self.learner = ppo.make(self.env, self.config)
        self.compiled: dict[str, float] = {}
        self._measures = Measures(
            {"env": lambda: self._steps(False), "inference": lambda: self._steps(True), "training": self._training}
        )
        self._trainer: Any = None

    def measure(self, column: str, seconds: float) -> Speed:
        """One measurement of about ``seconds`` seconds."""
        found = self._measures.run(column, seconds)
        speed = Speed(int(found["steps"]), found["seconds"], found["compile"])
        if speed.compile:
            self.compiled[column] = speed.compile
        return speed

    def about(self) -> dict[str, Any]:
        """Engine, substeps per control step and outputs; None where there is no physics."""
        engine = getattr(self.env, "engine", None)
        return {
            "engine": None if engine is None else engine.kind,
            "substeps": getattr(self.env, "frame_skip", None),
            "outputs": None if engine is None else list(engine.outputs),
        }

    def learned(self, env_steps: int, seed: int, episodes: int = 128) -> dict[str, float]:
        """Mean return of the sampling policy over ``episodes`` episodes after at least ``env_steps`` steps of training."""
        if self._trainer is None:
            evaluate = make_evaluate(self.env, self.learner, episodes, deterministic=False)
            self._trainer = (jax.jit(self.learner.init), self._updates(), physics.jit(evaluate))
        init, update, evaluate = self._trainer
        state, per_call = init(jax.random.key(seed)), self._per_call()
        calls = -(-env_steps // per_call)
        for i in range(calls):
            state = update(state, jax.random.fold_in(jax.random.key(1000 + seed), i))
        mean = float(evaluate(state, jax.random.key(2000 + seed))["return_mean"])
        return {"return": mean, "env_steps": calls * per_call}

    def _per_call(self) -> int:
        return int(self.sizes["updates_per_call"]) * self.config.num_envs * self.config.rollout_length

    def _actions(self, key: Key[Array, ""]) -> Array:
        space, worlds = self.env.action_space, self.config.num_envs
        if isinstance(space, spaces.Discrete):
            return jax.random.randint(key, (worlds,), 0, int(space.n), jnp.int32)
        return jax.random.uniform(key, (worlds, *(space.shape or ())), minval=-1.0, maxval=1.0)

    def _steps(self, policy: bool) -> Burst:
        vec = vectorize(self.env, self.config.num_envs, reset=self.config.reset)
        chunk = int(self.sizes["chunk"])
        networks = ppo.make_networks(self.env, self.config)
        state = jax.jit(self.learner.init)(jax.random.key(0))

        def steps(vstate: Any, key: Key[Array, ""]) -> Any:
            def step(vstate: Any, t: Array) -> tuple[Any, None]:
                if policy:
                    dist = ppo.policy(networks, self.config, state, vstate.obs)
                    keys = world_keys(key, self.config.num_envs, t)
                    action = dist.action(jax.vmap(lambda d, k: d.sample(k))(dist, keys))
                else:
                    action = self._actions(jax.random.fold_in(key, t))
                return vec.step(vstate, action), None

            return lax.scan(step, vstate, jnp.arange(chunk, dtype=jnp.int32))[0]

        run = physics.jit(steps, donate_argnums=0)
        box = [physics.jit(vec.reset)(jax.random.key(1)), 0]

        def burst() -> int:
            box[1] += 1
            box[0] = jax.block_until_ready(run(box[0], jax.random.fold_in(jax.random.key(2), box[1])))
            return chunk * self.config.num_envs

        return burst

    def _updates(self) -> Any:
        updates = int(self.sizes["updates_per_call"])

        def several(state: Any, key: Key[Array, ""]) -> Any:
            def one(state: Any, u: Array) -> tuple[Any, None]:
                return self.learner.update(state, jax.random.fold_in(key, u), None)[0], None

            return lax.scan(one, state, jnp.arange(updates, dtype=jnp.int32))[0]

        return physics.jit(several, donate_argnums=0)

    def _training(self) -> Burst:
        run = self._updates()
        box = [physics.jit(self.learner.init)(jax.random.key(0)), 0]

        def burst() -> int:
            box[1] += 1
            box[0] = jax.block_until_ready(run(box[0], jax.random.fold_in(jax.random.key(3), box[1])))
            return self._per_call()

        return burst
