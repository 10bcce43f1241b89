"""Do the tasks that are Brax's step as Brax does? Transitions from the same states under the same actions.

States are visited by a random policy; from each, both sides take two control steps. Brax runs live, with
``backend="mjx"``. What differs is float32 there against float64 in C, and the two solvers' last digits, amplified where
feet strike the floor.

    python benchmarks/brax_parity.py [NAME ...] [--engine mujoco|mjx] [--worlds 64]

Prints the largest and the median error of observations (relative to 1 + |observation|) and of rewards, and how often the
ends differ; exits 1 where a tolerance is exceeded.
"""

from __future__ import annotations

import argparse
import sys
import time
import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import mjxlab
from mjxlab import physics
from mjxlab._compat import lenient

#: our names, and Brax's
BRAX = {
    "ant": "ant",
    "half_cheetah": "halfcheetah",
    "hopper": "hopper",
    "walker": "walker2d",
    "humanoid": "humanoid",
    "inverted_double_pendulum": "inverted_double_pendulum",
    "reacher": "reacher",
}
#: largest error allowed over one control step, and over two
TOLERANCE = {
    "ant": 5e-5,
    "half_cheetah": 5e-4,
    "hopper": 2e-5,
    "walker": 5e-4,
    "humanoid": 1e-3,
    "inverted_double_pendulum": 2e-5,
    "reacher": 2e-6,
}
STEPS = 2
# Brax's step wants its own metrics to be there already
_METRICS = {
    "ant": "reward_forward reward_survive reward_ctrl reward_contact x_position y_position distance_from_origin "
    "x_velocity y_velocity forward_reward",
    "half_cheetah": "x_position x_velocity reward_ctrl reward_run",
    "hopper": "reward_forward reward_ctrl reward_healthy x_position x_velocity",
    "walker": "reward_forward reward_ctrl reward_healthy x_position x_velocity",
    "humanoid": "forward_reward reward_linvel reward_quadctrl reward_alive x_position y_position "
    "distance_from_origin x_velocity y_velocity",
    "reacher": "reward_dist reward_ctrl",
}


def visited(name: str, worlds: int, steps: int = 12) -> dict[str, jax.Array]:
    """Poses (``qpos``, ``qvel``, ``mocap_pos`` of the reacher) that a random policy comes to, after 0 to ``steps`` steps."""
    env = mjxlab.make(name, engine="mujoco")

    def one(key: jax.Array) -> dict[str, jax.Array]:
        start, when, noise = jax.random.split(key, 3)
        stop = jax.random.randint(when, (), 0, steps + 1, jnp.int32)
        actions = jax.random.uniform(noise, (steps, *env.action_space.shape), minval=-1.0, maxval=1.0)

        def step(state: Any, x: Any) -> tuple[Any, None]:
            i, action = x
            new = env.step(state, action)
            return jax.tree.map(lambda a, b: jnp.where(i < stop, a, b), new, state), None

        state, _ = jax.lax.scan(step, env.reset(start), (jnp.arange(steps, dtype=jnp.int32), actions))
        return {k: getattr(state.data, k) for k in ("qpos", "qvel", "mocap_pos") if k in env.engine.outputs}

    return jax.jit(jax.vmap(one))(jax.random.split(jax.random.key(11), worlds))


def ours(name: str, engine: str, pose: dict[str, jax.Array], actions: jax.Array) -> tuple[Any, Any]:
    """First observations, and (observations, rewards, ends) of every step, of this suite."""
    env = mjxlab.make(name, engine=engine)

    def step(state: Any, action: jax.Array) -> tuple[Any, Any]:
        state = jax.vmap(env.step)(state, action)
        return state, (state.obs, state.reward, state.terminated)

    def run(pose: dict[str, jax.Array], actions: jax.Array) -> tuple[Any, Any]:
        state = jax.vmap(lambda p: env.start(jax.random.key(0), **p))(pose)
        return state.obs, jax.lax.scan(step, state, actions)[1]

    return physics.jit(run)(pose, actions)


def brax(name: str, pose: dict[str, jax.Array], actions: jax.Array) -> tuple[Any, Any]:
    """The same of Brax, started at the same poses (its own ``reset`` would draw them)."""
    with lenient(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import brax.envs
        from brax.envs.base import State

        env = brax.envs.get_environment(BRAX[name], backend="mjx")
        zero = jnp.zeros(())
        still = (jnp.zeros(env.sys.act_size()),) if name == "humanoid" else ()

        def start(qpos: jax.Array, qvel: jax.Array) -> Any:
            inner = env.pipeline_init(qpos, qvel)
            metrics = dict.fromkeys(_METRICS.get(name, "").split(), zero)
            return State(inner, env._get_obs(inner, *still), zero, zero, metrics)

        def step(state: Any, action: jax.Array) -> tuple[Any, Any]:
            state = jax.vmap(env.step)(state, action)
            return state, (state.obs, state.reward, state.done > 0.5)

        def run(qpos: jax.Array, qvel: jax.Array, actions: jax.Array) -> tuple[Any, Any]:
            state = jax.vmap(start)(qpos, qvel)
            # a scan's carry keeps its types; those of Brax's first state are weak here and there
            state = jax.tree.map(lambda x: x + jnp.zeros_like(x), state)
            return state.obs, jax.lax.scan(step, state, actions)[1]

        qpos, qvel = pose["qpos"], pose["qvel"]
        if name == "reacher":  # Brax's target has two coordinates of its own
            target = pose["mocap_pos"][:, 0, :2]
            qpos, qvel = jnp.concatenate([qpos, target], 1), jnp.concatenate([qvel, jnp.zeros_like(target)], 1)
        return jax.jit(run, compiler_options=physics.mjx_options())(qpos, qvel, actions)


def parity(name: str, engine: str = "mujoco", worlds: int = 64) -> dict[str, np.ndarray]:
    """Errors per step and world: ``first`` (observations before any step), ``obs``, ``reward``, ``ends`` (they differ)."""
    pose = visited(name, worlds)
    size = mjxlab.make(name).action_space.shape
    actions = jax.random.uniform(jax.random.key(12), (STEPS, worlds, *size), minval=-1.0, maxval=1.0)
    first, (obs, reward, ends) = jax.tree.map(np.asarray, ours(name, engine, pose, actions))
    their_first, (their_obs, their_reward, their_ends) = jax.tree.map(np.asarray, brax(name, pose, actions))
    return {
        "first": (np.abs(first - their_first) / (1 + np.abs(their_first))).max(-1),
        "obs": (np.abs(obs - their_obs) / (1 + np.abs(their_obs))).max(-1),
        "reward": np.abs(reward - their_reward) / (1 + np.abs(their_reward)),
        "ends": ends != their_ends,
    }


def excess(name: str, errors: dict[str, np.ndarray]) -> list[str]:
    """Which tolerances the errors exceed, one line each; empty if none."""
    limit, found = TOLERANCE[name], []
    if errors["first"].max() > 1e-5:
        found.append(f"{name}: first observation off by {errors['first'].max():.1e}")
    for field in ("obs", "reward"):
        if not errors[field].max() < limit:
            found.append(f"{name}: {field} off by {errors[field].max():.1e}; allowed {limit:.0e}")
    if errors["ends"].any():
        found.append(f"{name}: {errors['ends'].sum()} of {errors['ends'].size} ends differ")
    return found


def main() -> int:
    """The command line; 1 if a tolerance is exceeded."""
    parser = argparse.ArgumentParser(description="Transition parity with Brax (backend mjx).")
    parser.add_argument("names", nargs="*", default=list(BRAX), metavar="NAME", help=f"of {', '.join(BRAX)}")
    parser.add_argument("--engine", default="mujoco", choices=["mujoco", "mjx"])
    parser.add_argument("--worlds", type=int, default=64)
    args = parser.parse_args()
    unknown = [n for n in args.names if n not in BRAX]
    if unknown:
        parser.error(f"unknown name {unknown[0]!r}; expected {', '.join(BRAX)}")
    print(f"Brax backend=mjx against engine {args.engine}; {args.worlds} states, {STEPS} control steps from each")
    print(
        f"{'task':26}{'obs median':>12}{'obs max':>10}{'reward median':>15}{'reward max':>12}{'ends':>6}{'seconds':>9}"
    )
    bad = []
    for name in args.names:
        began = time.monotonic()
        errors = parity(name, args.engine, args.worlds)
        obs, reward = errors["obs"], errors["reward"]
        print(
            f"{name:26}{np.median(obs):12.1e}{obs.max():10.1e}{np.median(reward):15.1e}{reward.max():12.1e}"
            f"{errors['ends'].sum():6d}{time.monotonic() - began:9.0f}",
            flush=True,
        )
        bad += excess(name, errors)
    print("\n".join(bad) or "all within tolerance")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
