"""mjxlab: JAX-native accelerated simulation and reinforcement learning.

Vectorised MuJoCo worlds on three engines run inside compiled programs, learners are tuples of pure functions, and one
training loop runs them all. Everything below loads when first used, so that ``import mjxlab`` stays quick:

* ``make(name)``, ``register``, ``vectorize``, ``check_env``: environments (``mjxlab.envs``);
* ``fit(learner, steps=…, key=…)``: the training loop; ``Learner``: what it trains;
* ``load_policy(run)``: a trained policy as a pure function;
* ``physics``, ``envs``, ``agents``, ``rl``, ``nn``, ``theory``: the rooms of the house.

Example:
  >>> import jax, mjxlab
  >>> env = mjxlab.make("pendulum")
  >>> state = jax.jit(env.reset)(jax.random.key(0))
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

_HOME = {
    "Learner": "mjxlab.learner",
    "check_env": "mjxlab.envs",
    "fit": "mjxlab.loop",
    "load_policy": "mjxlab.policy",
    "make": "mjxlab.envs",
    "register": "mjxlab.envs",
    "vectorize": "mjxlab.envs",
}
_MODULES = ("agents", "envs", "errors", "nn", "physics", "rl", "spmd", "theory")

if TYPE_CHECKING:
    from mjxlab import agents, envs, errors, nn, physics, rl, spmd, theory
    from mjxlab.envs import check_env, make, register
    from mjxlab.envs.vectorize import vectorize
    from mjxlab.learner import Learner
    from mjxlab.loop import fit
    from mjxlab.policy import load_policy

    __version__: str

__all__ = [
    "Learner",
    "agents",
    "check_env",
    "envs",
    "errors",
    "fit",
    "load_policy",
    "make",
    "nn",
    "physics",
    "register",
    "rl",
    "spmd",
    "theory",
    "vectorize",
]


def __getattr__(name: str) -> Any:
    if name in _HOME:
        value = getattr(importlib.import_module(_HOME[name]), name)
    elif name in _MODULES:
        value = importlib.import_module(f"mjxlab.{name}")
    elif name == "__version__":
        from importlib.metadata import version

        value = version("mjxlab")
    else:
        raise AttributeError(f"module 'mjxlab' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, "__version__"})
