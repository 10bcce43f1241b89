"""Gymnasium's vector environments under actions drawn beforehand.

CartPole has a vectorised implementation in NumPy, which is taken where there is one; else ``SyncVectorEnv`` (a process
per world, as ``AsyncVectorEnv`` has it, is not sensible for hundreds of worlds on few cores).
"""

from __future__ import annotations

import gymnasium
from _serve import serve, settings, versions_of

STEPS = 64  # of every world in one call
task = settings()
worlds = task["num_envs"]


def env():
    """A burst of steps of all worlds with random actions."""
    own = gymnasium.spec(task["env"]).vector_entry_point is not None
    vec = gymnasium.make_vec(task["env"], worlds, vectorization_mode="vector_entry_point" if own else "sync")
    vec.reset(seed=0)
    vec.action_space.seed(0)
    actions = [vec.action_space.sample() for _ in range(STEPS)]

    def burst():
        for action in actions:
            vec.step(action)
        return STEPS * worlds

    return burst


serve({"env": env}, versions_of("gymnasium", "mujoco", "numpy"))
