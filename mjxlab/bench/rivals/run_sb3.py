"""Stable-Baselines3's PPO on a CPU, with our sizes, on its default vector environment (``DummyVecEnv``).

env: ``vec.step`` under actions drawn beforehand; inference: plus the policy's forward pass without gradients; training:
one rollout and its epochs per call of ``learn``.
"""

from __future__ import annotations

import numpy as np
import torch
from _serve import serve, settings, versions_of
from stable_baselines3 import PPO
from stable_baselines3.common.env_util import make_vec_env

STEPS = 64  # of every world in one call
task = settings()
worlds = task["num_envs"]
activation = {"tanh": torch.nn.Tanh, "swish": torch.nn.SiLU, "relu": torch.nn.ReLU}[task["activation"]]


def model():
    """Stable-Baselines3's PPO with the task's sizes."""
    return PPO(
        "MlpPolicy",
        make_vec_env(task["env"], worlds, seed=0),
        n_steps=task["rollout_length"],
        batch_size=worlds * task["rollout_length"] // task["num_minibatches"],
        n_epochs=task["epochs"],
        learning_rate=task["lr"],
        gamma=task["discount"],
        gae_lambda=task["gae_lambda"],
        clip_range=task["clip"],
        clip_range_vf=task["value_clip"],
        vf_coef=task["value_coef"],
        ent_coef=task["entropy_cost"],
        policy_kwargs={
            "net_arch": {"pi": list(task["policy_widths"]), "vf": list(task["value_widths"])},
            "activation_fn": activation,
        },
        device="cpu",
        verbose=0,
    )


def env():
    """A burst of steps of all worlds with random actions."""
    vec = make_vec_env(task["env"], worlds, seed=0)
    vec.reset()
    vec.action_space.seed(0)
    actions = [np.array([vec.action_space.sample() for _ in range(worlds)]) for _ in range(STEPS)]

    def burst():
        for action in actions:
            vec.step(action)
        return STEPS * worlds

    return burst


def inference():
    """A burst of steps with the policy's actions."""
    agent = model()
    vec = agent.get_env()
    box = [vec.reset()]

    def burst():
        with torch.no_grad():
            for _ in range(STEPS):
                actions, _, _ = agent.policy(torch.as_tensor(box[0]))
                box[0], _, _, _ = vec.step(actions.numpy())
        return STEPS * worlds

    return burst


def training():
    """A burst of whole updates."""
    agent = model()
    update = worlds * task["rollout_length"]

    def burst():
        agent.learn(update, reset_num_timesteps=False)
        return update

    return burst


serve(
    {"env": env, "inference": inference, "training": training},
    versions_of("stable-baselines3", "torch", "gymnasium", "numpy"),
)
