"""A robot of one's own: keep a ball in the middle of a beam. Run it: ``python beam.py``."""

from __future__ import annotations

import pathlib

import jax
import jax.numpy as jnp

import mjxlab
from mjxlab.agents import ppo
from mjxlab.envs.mujoco_env import MujocoEnv
from mjxlab.envs.randomise import mass
from mjxlab.rl.evaluate import make_evaluate


class Beam(MujocoEnv):
    """Observation: tilt, place and their velocities. Reward per step: 1 at the middle, 0 at the ends of the beam."""

    name = "beam"
    mjcf = str(pathlib.Path(__file__).with_name("beam.xml"))
    frame_skip = 5  # 5 physics steps of 4 ms: the policy acts 50 times a second
    episode_length = 200

    def reset_pose(self, key):
        return {"qpos": jax.random.uniform(key, (2,), minval=-0.2, maxval=0.2)}

    def observe(self, data):
        return jnp.concatenate([data.qpos, data.qvel])

    def reward(self, before, after, action):
        return {"middle": 1 - 2 * jnp.abs(self.sensor(after, "place")[0]), "effort": -0.01 * jnp.sum(action**2)}

    def terminated(self, data):
        return jnp.abs(data.qpos[1]) > 0.5  # the ball fell off


mjxlab.register("beam", Beam, description="keep a ball in the middle of a beam")


def train(updates: int = 60, **options):
    """Check the robot, train it on balls and beams of many masses, and return the trained state and the history."""
    env = mjxlab.make("beam", randomise=mass(0.5, 2.0))
    mjxlab.check_env(env)
    learner = ppo.make(env, ppo.config_for("beam", num_envs=64, rollout_length=64, lr=1e-3))
    evaluate = make_evaluate(env, learner, episodes=64)
    return mjxlab.fit(learner, steps=updates, key=0, evaluate=evaluate, env=env, **options)


if __name__ == "__main__":
    print("return of each evaluation:", train(run_dir="runs/beam")[1]["eval/return_mean"])
