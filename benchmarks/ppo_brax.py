"""PPO on the ant, end to end, beside Brax's PPO: speed as the median of interleaved pairs, and returns at equal steps.

Both run in one process with the same networks, worlds, steps per update, minibatch sizes, epochs and step sizes. (Our
advantages look over the 40 steps that an update takes of each world, Brax's over its unrolls of 20.) Brax trains
on its own ant (``backend="mjx"``); between two of its epochs, our learner makes as many updates as it just made. What
either compiles is left out: Brax by its own clock, whose first two epochs (it compiles in both) are dropped.

    python benchmarks/ppo_brax.py speed [--setting default|small] [--pairs 10]
    python benchmarks/ppo_brax.py returns [--setting default|small] [--seeds 0 1 2 3 4] [--env-steps 1000000]

Brax 0.14.2 calls a function that JAX 0.10 removed; ``shim`` puts it back.
"""

from __future__ import annotations

import argparse
import functools
import json
import math
import os
import pathlib
import time
import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import mjxlab
from mjxlab.agents import ppo
from mjxlab.rl.evaluate import make_evaluate

WORLDS, UNROLL, BATCH, MINIBATCHES, EPOCHS = 512, 20, 256, 4, 4
#: hidden layers of policy and value: Brax's default, and a size at which physics, not the critic, takes most of the time
NETWORKS: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {
    "default": ((32,) * 4, (256,) * 5),
    "small": ((64, 64), (64, 64)),
}
UPDATE = UNROLL * BATCH * MINIBATCHES  # environment steps of one update
SHARED = {"lr": 3e-4, "discount": 0.97, "gae_lambda": 0.95, "clip": 0.3, "reward_scale": 10.0, "entropy_cost": 1e-2}


def shim() -> None:
    """What Brax 0.14.2 misses on JAX 0.10 and newer."""
    jax.device_put_replicated = lambda x, devices: jax.tree.map(lambda a: jnp.stack([a] * len(devices)), x)


def ours(setting: str = "default", **changes: Any) -> tuple[Any, Any]:
    """Our learner and its environment, with the sizes that Brax is given."""
    policy, value = NETWORKS[setting]
    env = mjxlab.make("ant", engine="mujoco")
    config = ppo.Config(
        num_envs=WORLDS,
        rollout_length=UPDATE // WORLDS,
        num_minibatches=MINIBATCHES,
        epochs=EPOCHS,
        policy_widths=policy,
        value_widths=value,
        activation="swish",
        kernel_init="lecun",
        state_std=True,
        final_scale=1.0,
        max_grad_norm=None,
        adam_eps=1e-8,
        **{**SHARED, **changes},
    )
    config.validate()
    return env, ppo.make(env, config)


def brax(
    setting: str,
    seed: int,
    env_steps: int,
    evals: int,
    run_evals: bool,
    progress: Callable[[int, dict[str, Any]], None],
) -> None:
    """Train Brax's PPO on Brax's ant."""
    policy, value = NETWORKS[setting]
    shim()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from brax import envs
        from brax.training.agents.ppo import networks, train

        environment = envs.get_environment("ant", backend="mjx")
        train.train(
            environment,
            num_timesteps=env_steps,
            num_evals=evals,
            run_evals=run_evals,
            num_eval_envs=128,
            deterministic_eval=True,
            episode_length=1000,
            num_envs=WORLDS,
            unroll_length=UNROLL,
            batch_size=BATCH,
            num_minibatches=MINIBATCHES,
            num_updates_per_batch=EPOCHS,
            learning_rate=SHARED["lr"],
            discounting=SHARED["discount"],
            gae_lambda=SHARED["gae_lambda"],
            clipping_epsilon=SHARED["clip"],
            reward_scaling=SHARED["reward_scale"],
            entropy_cost=SHARED["entropy_cost"],
            normalize_observations=True,
            seed=seed,
            network_factory=functools.partial(
                networks.make_ppo_networks, policy_hidden_layer_sizes=policy, value_hidden_layer_sizes=value
            ),
            progress_fn=progress,
        )


def compiled(learner: Any, seed: int) -> tuple[Any, Any, float]:
    """The state, the compiled update and the seconds it took."""
    state = jax.jit(learner.init)(jax.random.key(seed))
    started = time.perf_counter()
    update = jax.jit(lambda s, k: learner.update(s, k, None), donate_argnums=0)
    update = update.lower(state, jax.random.key(0)).compile()
    return state, update, time.perf_counter() - started


def speed(setting: str, pairs: int, updates: int) -> dict[str, Any]:
    """Steps per second of each, and their ratio, over interleaved pairs of ``updates`` updates."""
    _, learner = ours(setting)
    state, update, seconds = compiled(learner, 0)
    rows: list[tuple[float, float]] = []
    seen, started = 0, time.perf_counter()
    brax_compile = math.nan

    def progress(step: int, metrics: dict[str, Any]) -> None:
        nonlocal state, seen, brax_compile
        if "training/sps" not in metrics:
            return
        seen += 1
        if seen == 1:
            brax_compile = time.perf_counter() - started
        begin = time.perf_counter()
        for i in range(updates):
            state, _ = update(state, jax.random.fold_in(jax.random.key(1), seen * updates + i))
        jax.block_until_ready(state)
        if seen > 2:
            rows.append((updates * UPDATE / (time.perf_counter() - begin), float(metrics["training/sps"])))
            print(f"pair {len(rows)}: ours {rows[-1][0]:,.0f}, Brax {rows[-1][1]:,.0f} control steps/s", flush=True)

    brax(setting, 0, (pairs + 2) * updates * UPDATE, pairs + 3, False, progress)
    mine, theirs = np.array(rows).T
    quartiles = np.percentile(mine / theirs, [25, 50, 75])
    print(f"ratio: median {quartiles[1]:.2f}, quartiles {quartiles[0]:.2f} to {quartiles[2]:.2f}, {len(rows)} pairs")
    print(f"compile of an update: ours {seconds:.1f} s; Brax to the end of its first epoch {brax_compile:.1f} s")
    return {"ours": mine.tolist(), "brax": theirs.tolist(), "quartiles": quartiles.tolist(), "compile": seconds}


def returns(setting: str, seeds: list[int], env_steps: int, cells: pathlib.Path | None) -> dict[str, Any]:
    """Return of the deterministic policy over 128 episodes after ``env_steps`` steps, each seed on both.

    ``cells``: a folder where finished seeds are kept, so that the comparison can go on after a stop.
    """
    env, learner = ours(setting)
    updates = math.ceil(env_steps / UPDATE)
    evaluate = jax.jit(make_evaluate(env, learner, 128))
    mine, theirs = [], []
    update = None
    for seed in seeds:
        cell = None if cells is None else cells / f"{setting}-{env_steps}-{seed}.json"
        if cell is not None and cell.exists():
            kept = json.loads(cell.read_text())
            mine.append(kept["ours"])
            theirs.append(kept["brax"])
            continue
        if update is None:
            state, update, _ = compiled(learner, seed)
        else:
            state = jax.jit(learner.init)(jax.random.key(seed))
        for i in range(updates):
            state, _ = update(state, jax.random.fold_in(jax.random.key(1000 + seed), i))
        mine.append(float(evaluate(state, jax.random.key(seed))["return_mean"]))
        found: list[float] = []
        brax(
            setting,
            seed,
            env_steps,
            2,
            True,
            lambda _, metrics, f=found: f.append(float(metrics["eval/episode_reward"])),
        )
        theirs.append(found[-1])
        if cell is not None:
            cell.parent.mkdir(parents=True, exist_ok=True)
            cell.write_text(json.dumps({"ours": mine[-1], "brax": theirs[-1]}))
        print(f"seed {seed}: ours {mine[-1]:,.0f}, Brax {theirs[-1]:,.0f}", flush=True)
    from scipy import stats

    difference = np.array(mine) - np.array(theirs)
    half = stats.t.ppf(0.975, len(seeds) - 1) * difference.std(ddof=1) / math.sqrt(len(seeds))
    low, high = difference.mean() - half, difference.mean() + half
    print(f"return at {updates * UPDATE:,} steps: ours {np.mean(mine):,.0f}, Brax {np.mean(theirs):,.0f}")
    print(
        f"paired difference {difference.mean():,.0f}, 95 % interval {low:,.0f} to {high:,.0f} "
        f"({100 * low / np.mean(theirs):+.0f} % to {100 * high / np.mean(theirs):+.0f} % of Brax's mean)"
    )
    return {"ours": mine, "brax": theirs, "interval": [low, high]}


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("speed", "returns"))
    parser.add_argument("--setting", choices=tuple(NETWORKS), default="default", help="size of the networks")
    parser.add_argument("--cells", type=pathlib.Path, help="folder that keeps the finished seeds of `returns`")
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument("--updates", type=int, default=3, help="updates in each half of a pair")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--env-steps", type=int, default=1_000_000)
    parser.add_argument("--json", help="write the figures to this file")
    options = parser.parse_args()
    print(
        f"jax {jax.__version__}, {os.cpu_count()} cores, {WORLDS} worlds, {UPDATE} steps an update, "
        f"5 substeps a step, networks {options.setting}: {NETWORKS[options.setting]}"
    )
    if options.what == "speed":
        result = speed(options.setting, options.pairs, options.updates)
    else:
        result = returns(options.setting, options.seeds, options.env_steps, options.cells)
    if options.json:
        with open(options.json, "w") as file:
            json.dump(result, file, indent=1)


if __name__ == "__main__":
    main()
