"""What an update of CPPO costs beside one of PPO: for K sampled actions in V, and for discrete actions.

Both learners get the same task, worlds, rollout, widths, epochs and minibatches, so the difference is the second network
of the critic, the contrastive loss, and the advantages, for which CPPO evaluates phi for K actions (or for all of them).
The programs take turns, each of them once in every round; printed are medians over rounds with quartiles, compile time
apart, and the median of the ratios to PPO's update of the same round.

    python benchmarks/cppo_cost.py [--rounds 10] [--envs 64] [--steps 64]
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

import mjxlab
from mjxlab import physics
from mjxlab.agents import cppo, ppo
from mjxlab.learner import Learner

SAMPLES = (1, 8, 16, 32)
WIDTHS = (256, 256)


def programs(env_name: str, envs: int, steps: int, batch: int, epochs: int) -> dict[str, Learner]:
    """PPO and the variants of CPPO on one task, by name."""
    env = mjxlab.make(env_name)
    common: dict[str, Any] = {"num_envs": envs, "rollout_length": steps, "epochs": epochs}
    plain = ppo.Config(
        **common,
        num_minibatches=envs * steps // batch,
        policy_widths=WIDTHS,
        value_widths=WIDTHS,
        activation="swish",
        kernel_init="lecun",
    )
    found = {f"{env_name}: ppo": ppo.make(env, plain)}
    config = cppo.Config(**common, batch_size=batch, policy_widths=WIDTHS, critic_widths=WIDTHS, normalise_obs=True)
    if cppo.make_networks(env, config).discrete:
        found[f"{env_name}: cppo"] = cppo.make(env, config)
    else:
        for k in SAMPLES:
            found[f"{env_name}: cppo, K = {k}"] = cppo.make(env, config.replace(value_samples=k))
    return found


def stepper(learner: Learner) -> tuple[Callable[[], float], float]:
    """A function that makes one update and returns its seconds; and the seconds that compiling took."""
    state = jax.jit(learner.init)(jax.random.key(0))
    begun = time.perf_counter()
    update = physics.jit(lambda s, k: learner.update(s, k, None))
    box = [jax.block_until_ready(update(state, jax.random.key(0)))[0]]
    compiled = time.perf_counter() - begun

    def once() -> float:
        begun = time.perf_counter()
        box[0] = jax.block_until_ready(update(box[0], jax.random.key(1)))[0]
        return time.perf_counter() - begun

    return once, compiled


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--envs", type=int, default=64)
    parser.add_argument("--steps", type=int, default=64)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--tasks", nargs="+", default=["arm_reach", "four_rooms"])
    options = parser.parse_args()
    print(
        f"{jax.devices()[0].device_kind}, {options.envs} worlds x {options.steps} steps, {options.epochs} epochs of",
        end="",
    )
    print(f" minibatches of {options.batch}, hidden layers {WIDTHS}, jax {jax.__version__}")
    for task in options.tasks:
        made = {
            name: stepper(learner)
            for name, learner in programs(task, options.envs, options.steps, options.batch, options.epochs).items()
        }
        seconds = {name: [] for name in made}
        for _ in range(options.rounds):
            for name, (once, _) in made.items():
                seconds[name].append(once())
        base = np.array(seconds[f"{task}: ppo"])
        for name, values in seconds.items():
            low, middle, high = np.percentile(values, (25, 50, 75)) * 1e3
            a, ratio, b = np.percentile(np.array(values) / base, (25, 50, 75))
            print(
                f"{name:28} {middle:7.0f} ms [{low:.0f}, {high:.0f}]   {ratio:5.2f} x PPO [{a:.2f}, {b:.2f}]   "
                f"first call {made[name][1]:.1f} s"
            )


if __name__ == "__main__":
    main()
