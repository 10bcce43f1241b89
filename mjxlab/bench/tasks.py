"""What is compared: tasks, sizes, rivals, and how alike each rival's task is."""

from __future__ import annotations

import dataclasses
from typing import Any

from mjxlab.errors import ConfigError

COLUMNS = ("env", "inference", "training")


@dataclasses.dataclass(frozen=True)
class Rival:
    """A rival on a task.

    Attributes:
      name: as in ``venvs.REQUIREMENTS``.
      env: the rival's name of the task.
      columns: what it has.
      alike: what is the same, and what is not; printed beside the ratio.
      extra: settings of its own for the worker.
      script: of ``rivals/run_NAME.py``; the rival's name by default.
    """

    name: str
    env: str
    columns: tuple[str, ...]
    alike: str
    extra: dict[str, Any] = dataclasses.field(default_factory=dict)
    script: str = ""


@dataclasses.dataclass(frozen=True)
class Task:
    """One row of the table: our environment, sizes for all, rivals.

    Attributes:
      sizes: hyper-parameters by the names of ``agents.ppo.Config``, which go to every worker, and ``chunk``: steps per
        call in the first two columns; ``updates_per_call``: whole updates per call in the third.
      ours: settings of our PPO that rivals have built in.
    """

    name: str
    env: str
    sizes: dict[str, Any]
    ours: dict[str, Any]
    rivals: tuple[Rival, ...] = ()


_SMALL = {
    "num_envs": 64,
    "rollout_length": 64,
    "num_minibatches": 16,
    "epochs": 4,
    "lr": 1e-3,
    "discount": 0.99,
    "gae_lambda": 0.95,
    "clip": 0.2,
    "value_clip": 0.2,
    "value_coef": 0.5,
    "entropy_cost": 0.01,
    "reward_scale": 1.0,
    "policy_widths": [64, 64],
    "value_widths": [64, 64],
    "activation": "tanh",
    "chunk": 256,
    "updates_per_call": 4,
}
_BRAX = {
    "num_envs": 512,
    "rollout_length": 40,
    "num_minibatches": 4,
    "epochs": 4,
    "lr": 3e-4,
    "discount": 0.97,
    "gae_lambda": 0.95,
    "clip": 0.3,
    "value_clip": None,
    "value_coef": 0.5,
    "entropy_cost": 1e-2,
    "reward_scale": 10.0,
    "policy_widths": [32, 32, 32, 32],
    "value_widths": [256, 256, 256, 256, 256],
    "activation": "swish",
    "chunk": 20,
    "updates_per_call": 1,
}
_OURS_AS_BRAX = {
    "kernel_init": "lecun",
    "state_std": True,
    "final_scale": 1.0,
    "max_grad_norm": None,
    "adam_eps": 1e-8,
}
_GYM_ANT = (
    "nearest task, and a dearer one: Gymnasium's ant makes 5 substeps of 10 ms too, but by RK4 (four evaluations each) and "
    "with MuJoCo's default solver iterations, where ours, which is Brax's, makes one of each; its observation is longer"
)
_SAME_CARTPOLE = "the same equations, limits and rewards"

TASKS = {
    task.name: task
    for task in (
        Task(
            "cartpole",
            "gymnax:CartPole-v1",
            _SMALL,
            {"normalise_obs": False, "max_grad_norm": None, "adam_eps": 1e-8},
            (
                Rival("gymnax", "CartPole-v1", ("env", "inference"), "the same environment, here behind our adapter"),
                Rival("rejax", "CartPole-v1", ("training",), f"{_SAME_CARTPOLE} (gymnax 0.0.9); evaluations excluded"),
                Rival("sb3", "CartPole-v1", COLUMNS, f"{_SAME_CARTPOLE}; PyTorch on the CPU, DummyVecEnv"),
                Rival("gymnasium", "CartPole-v1", ("env",), f"{_SAME_CARTPOLE}; its NumPy vector environment"),
                Rival("envpool", "CartPole-v1", ("env",), f"{_SAME_CARTPOLE}; C++ threads, one per core"),
            ),
        ),
        Task(
            "ant",
            "ant",
            _BRAX,
            _OURS_AS_BRAX,
            (
                Rival(
                    "brax",
                    "ant",
                    COLUMNS,
                    "the same model and task; physics by MJX, ours by MuJoCo's C engine on a CPU",
                    {"suite": "brax", "episode_length": 1000, "unroll_length": 20},
                ),
                Rival(
                    "gymnasium",
                    "Ant-v5",
                    ("env",),
                    _GYM_ANT,
                ),
                Rival(
                    "envpool",
                    "Ant-v4",
                    ("env",),
                    _GYM_ANT,
                ),
            ),
        ),
        Task(
            "cartpole_physics",
            "cartpole",
            _BRAX,
            _OURS_AS_BRAX,
            (
                Rival(
                    "playground",
                    "CartpoleBalance",
                    COLUMNS,
                    "nearest task: DM Control's cart-pole, another model (1 substep of 10 ms; ours 2 of 10 ms), reward and "
                    "observation; physics by MJX, ours by MuJoCo's C engine on a CPU",
                    {"suite": "playground", "episode_length": 1000, "unroll_length": 20},
                    "brax",
                ),
            ),
        ),
    )
}


def task(name: str) -> Task:
    """A task by name; any other environment of the suite becomes a task without rivals, at small sizes.

    Raises:
      UnknownNameError: neither a task nor an environment.
    """
    if name in TASKS:
        return TASKS[name]
    import mjxlab

    mjxlab.make(name)
    return Task(name, name, _SMALL | {"chunk": 32, "updates_per_call": 1}, {})


def check_columns(columns: tuple[str, ...]) -> None:
    """Raise ``ConfigError`` unless all are columns and there is one."""
    if not columns:
        raise ConfigError(f"columns: got none, expected some of {', '.join(COLUMNS)}")
    for column in columns:
        if column not in COLUMNS:
            raise ConfigError(f"columns: got {column!r}, expected some of {', '.join(COLUMNS)}")
