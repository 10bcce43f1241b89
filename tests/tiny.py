"""A learner that compiles in a second: gradient descent on a noisy quadratic, with worlds that are split over devices."""

from __future__ import annotations

from typing import Any

import flax.struct
import jax
import jax.numpy as jnp

from mjxlab import spmd
from mjxlab.learner import Learner
from mjxlab.rl.counter import Counter

WORLDS = 8


@flax.struct.dataclass
class Config:
    """Two numbers, one of each kind."""

    lr: float = 0.1
    width: int = flax.struct.field(pytree_node=False, default=3)


@flax.struct.dataclass
class Worlds:
    """What lies below a marked field is split as well, keys included."""

    x: Any
    keys: Any


@flax.struct.dataclass
class State:
    w: Any
    momentum: Any
    key: Any
    seen: Counter
    worlds: Worlds = flax.struct.field(metadata={"axis": "device"})


def make(config: Config | None = None, start: int = 0) -> Learner:
    """Fits ``worlds.x @ w`` to 1. The worlds move by noise of their own. ``start``: of the step counter."""
    config = config or Config()

    def init(key):
        worlds = Worlds(jax.random.normal(key, (WORLDS, config.width)), jax.random.split(key, WORLDS))
        return State(jnp.zeros(config.width), jnp.zeros(config.width), key, Counter.of(start), worlds)

    def update(state, key, batch):
        local = state.worlds.x.shape[0]
        index = spmd.global_index(local)
        own = jax.vmap(lambda k, i: jax.random.fold_in(k, jax.random.bits(jax.random.fold_in(key, i))))
        noise = jax.vmap(lambda k: jax.random.normal(k, (config.width,)))(own(state.worlds.keys, index))
        x = 0.9 * state.worlds.x + 0.4 * noise
        data = x if batch is None else batch["x"]

        def loss(w):
            return jnp.mean(jnp.square(data @ w - 1.0))

        value, grad = spmd.pmean(jax.value_and_grad(loss)(state.w))
        momentum = 0.9 * state.momentum + grad
        seen = state.seen + local * spmd.axis_size()
        metrics = {"loss": value, "norm": jnp.linalg.norm(grad), "env_steps": seen}
        new = state.replace(
            w=state.w - config.lr * momentum,
            momentum=momentum,
            key=jax.random.fold_in(key, 1),
            seen=seen,
            worlds=state.worlds.replace(x=x),
        )
        return new, metrics

    return Learner(init, update, lambda state, key: (), lambda state, carry, obs, key, deterministic: (obs, carry))


def evaluate(state, key):
    """One number of the state, one of the key, one of all worlds."""
    total = spmd.psum(jnp.sum(state.worlds.x))
    return {"return_mean": -jnp.sum(jnp.square(state.w)), "draw": jax.random.uniform(key), "total": total}
