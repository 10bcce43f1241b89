"""EnvPool under actions drawn beforehand: synchronous (all worlds step together, as a rollout of PPO needs them), one
thread per core.
"""

from __future__ import annotations

import os

import envpool
import numpy as np
from _serve import serve, settings, versions_of

STEPS = 64  # of every world in one call
task = settings()
worlds = task["num_envs"]


def env():
    """A burst of steps of all worlds with random actions."""
    threads = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    vec = envpool.make(task["env"], env_type="gymnasium", num_envs=worlds, num_threads=threads, seed=0)
    vec.reset()
    draw, space = np.random.default_rng(0), vec.action_space
    if hasattr(space, "n"):
        actions = list(draw.integers(0, space.n, (STEPS, worlds)))
    else:
        actions = list(draw.uniform(space.low, space.high, (STEPS, worlds, *space.shape)).astype(space.dtype))

    def burst():
        for action in actions:
            vec.step(action)
        return STEPS * worlds

    return burst


serve({"env": env}, versions_of("envpool", "gymnasium", "numpy"))
