"""Our environments for Gymnasium and Brax: their checkers pass, and the numbers are ours."""

from __future__ import annotations

import subprocess
import sys
import warnings
from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces as gym_spaces
from gymnasium.utils.env_checker import check_env as gymnasium_check
from gymnasium.vector import AutoresetMode

import mjxlab
from mjxlab.envs import fresh_state, vectorize
from mjxlab.envs.adapters import _native, to_brax, to_gymnasium, to_gymnasium_vector
from mjxlab.errors import ConfigError


class Signs:
    """A walk over the integers: a dict for an observation, discrete moves, and an end on the right."""

    name = "signs"
    action_space = gym_spaces.Discrete(3)
    observation_space = gym_spaces.Dict(
        {"action_mask": gym_spaces.MultiBinary(3), "n": gym_spaces.Discrete(100), "x": gym_spaces.Box(-9, 9, (1,))}
    )
    episode_length = 6

    def obs(self, x: Any) -> Any:
        real = x.astype(jnp.result_type(float))
        return {"action_mask": jnp.ones(3, bool), "n": x + jnp.int32(50), "x": real[None]}

    def reset(self, key: Any) -> Any:
        x = jax.random.randint(key, (), -2, 2, jnp.int32)
        return fresh_state(x, self.obs(x), key, metrics={"x": x.astype(jnp.result_type(float))})

    def step(self, state: Any, action: Any) -> Any:
        x = state.data + action.astype(jnp.int32) - jnp.int32(1)
        real = x.astype(jnp.result_type(float))
        return state.replace(data=x, obs=self.obs(x), reward=real, terminated=x >= 3, metrics={"x": real})


@pytest.mark.parametrize("env", ["fast", "pendulum", Signs()], ids=["fast", "pendulum", "dict"])
def test_gymnasium_checker(env: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # that observations are unbounded
        gymnasium_check(to_gymnasium(env, seed=1), skip_render_check=True)


def test_gymnasium_episodes() -> None:
    env = to_gymnasium(Signs())
    obs, info = env.reset(seed=3)
    again, _ = to_gymnasium(Signs(), seed=3).reset()
    assert obs["n"] == again["n"] and info == {"x": float(obs["x"][0])}
    second, _ = env.reset()
    third, _ = env.reset()
    assert len({int(o["n"]) for o in (obs, second, third, env.reset()[0], env.reset()[0])}) > 1
    x = int(third["n"]) - 50
    env.reset(seed=3)
    x = int(obs["n"]) - 50
    for i in range(6):  # stand still: the time limit cuts
        obs, reward, terminated, truncated, info = env.step(1)
        assert reward == x and not terminated and truncated == (i == 5)
    env.reset(seed=3)
    steps = 0
    while not terminated:  # go right: the end
        obs, reward, terminated, truncated, info = env.step(np.int64(2))
        steps += 1
    assert steps == 3 - x and reward == 3 and env.observation_space.contains(obs)
    with pytest.raises(ConfigError, match="before reset"):
        to_gymnasium("fast").step(np.zeros(2))


def test_gymnasium_vector_is_vectorize() -> None:
    """Same keys, same numbers; final observations and returns where episodes end, as Gymnasium's own vector has them."""
    env = to_gymnasium_vector(Signs(), 8, seed=5)
    assert isinstance(env, gymnasium.vector.VectorEnv) and env.metadata["autoreset_mode"] is AutoresetMode.SAME_STEP
    first, infos = env.reset()
    assert first in env.observation_space and infos["_x"].all()
    vec = vectorize(Signs(), 8)
    worlds = vec.reset(jax.random.key(int(np.random.default_rng(np.random.SeedSequence(5)).integers(2**31))))
    np.testing.assert_array_equal(first["n"], worlds.obs["n"])
    step = jax.jit(vec.step)
    returns, lengths, ends = np.zeros(8), np.zeros(8, int), 0
    env.action_space.seed(0)
    for _ in range(30):
        action = env.action_space.sample()
        obs, reward, terminated, truncated, infos = env.step(action)
        worlds = step(worlds, jnp.asarray(action, jnp.int32))
        np.testing.assert_array_equal(obs["x"], worlds.obs["x"])
        np.testing.assert_array_equal(terminated, worlds.terminated)
        np.testing.assert_array_equal(truncated, worlds.truncated)
        returns, lengths, done = returns + reward, lengths + 1, terminated | truncated
        np.testing.assert_array_equal(infos.get("_final_obs", np.zeros(8, bool)), done)
        np.testing.assert_array_equal(infos["x"], obs["x"][:, 0])  # of the new episode, where one began
        for i in np.flatnonzero(done):
            assert infos["final_obs"][i] in env.single_observation_space
            assert infos["final_obs"][i]["x"][0] == reward[i] == infos["final_info"]["x"][i]
            assert infos["final_info"]["episode"]["r"][i] == returns[i]
            assert infos["final_info"]["episode"]["l"][i] == lengths[i]
        assert all(infos["final_obs"][i] is None for i in np.flatnonzero(~done)) if done.any() else True
        returns[done], lengths[done], ends = 0, 0, ends + done.sum()
    assert ends > 20
    with pytest.raises(ConfigError, match="seed is"):
        env.reset(seed=[1, 2])
    with pytest.raises(ConfigError, match="reset_mask"):
        env.reset(options={"reset_mask": np.ones(8, bool)})


def test_gymnasium_vector_beside_gymnasiums_own() -> None:
    """The keys and kinds of infos equal those of SyncVectorEnv in the same mode, around the same environment."""

    class Plain(gymnasium.Env):
        observation_space, action_space = gym_spaces.Box(-1, 1, (2,)), gym_spaces.Discrete(2)

        def reset(self, *, seed: Any = None, options: Any = None) -> Any:
            super().reset(seed=seed)
            return np.zeros(2, np.float32), {"x": 0.0}

        def step(self, action: Any) -> Any:
            return np.ones(2, np.float32), 1.0, True, False, {"x": 1.0}

    theirs = gymnasium.vector.SyncVectorEnv([Plain, Plain], autoreset_mode=AutoresetMode.SAME_STEP)
    theirs.reset()
    *_, expected = theirs.step(np.zeros(2, int))
    ours = to_gymnasium_vector(Signs(), 2, seed=0, episode_length=1)
    ours.reset()
    *_, infos = ours.step(np.ones(2, int))
    assert set(expected) == set(infos) and set(expected["final_info"]) <= set(infos["final_info"])
    for name in ("final_obs", "_final_obs", "x", "_x", "_final_info"):
        assert infos[name].dtype.kind == expected[name].dtype.kind and infos[name].shape == expected[name].shape


@pytest.mark.slow
def test_stable_baselines3_checker() -> None:
    """Where Stable-Baselines3 is installed: its checker, and a few steps of its PPO."""
    pytest.importorskip("stable_baselines3")
    from stable_baselines3 import PPO
    from stable_baselines3.common.env_checker import check_env as sb3_check

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        for env in ("fast", "pendulum", "arm_reach"):
            sb3_check(to_gymnasium(env, seed=0))
        PPO("MlpPolicy", to_gymnasium("fast", seed=0), n_steps=64, batch_size=64, device="cpu").learn(64)


def test_teams_and_discrete_actions_are_refused() -> None:
    class Team(Signs):
        def reset(self, key: Any) -> Any:
            return super().reset(key).replace(reward=jnp.zeros(2))

    for adapt in (to_gymnasium, lambda env: to_gymnasium_vector(env, 2)):
        with pytest.raises(ConfigError, match="2 rewards"):
            adapt(Team())
    with pytest.raises(ConfigError, match="Discrete"):
        to_brax(Signs())


# --- Brax -------------------------------------------------------------------------------------------------------------


def test_brax_wrappers_accept_ours() -> None:
    with _native.making():
        from brax.envs.base import Env
        from brax.envs.wrappers import training

        env = to_brax("fast")
        wrapped = training.wrap(env, episode_length=4)
    assert isinstance(env, Env) and env.observation_size == 4 and env.action_size == 2
    world = mjxlab.make("fast")
    keys = jax.random.split(jax.random.PRNGKey(0), 3)
    with _native.native():
        state = jax.jit(wrapped.reset)(keys)
        step = jax.jit(wrapped.step)
    ours = jax.vmap(world.reset)(jax.random.wrap_key_data(keys))
    first = np.asarray(ours.obs)
    np.testing.assert_array_equal(state.obs, first)
    for i in range(1, 9):
        action = jnp.full((3, 2), 0.5)
        with _native.native():
            state = step(state, action)
        ours = jax.vmap(world.step)(ours, action)
        end = i % 4 == 0
        np.testing.assert_array_equal(state.done, np.full(3, float(end)))
        np.testing.assert_array_equal(state.info["truncation"], np.full(3, float(end)))
        np.testing.assert_allclose(state.reward, ours.reward, rtol=1e-6)
        np.testing.assert_allclose(state.metrics["distance"], ours.metrics["distance"], rtol=1e-6)
        if end:  # Brax starts the same episode again
            np.testing.assert_array_equal(state.obs, first)
            ours = jax.vmap(world.reset)(jax.random.wrap_key_data(keys))
        else:
            np.testing.assert_allclose(state.obs, ours.obs, rtol=1e-6)


@pytest.mark.slow
def test_brax_trains_ours() -> None:
    """Two training steps of Brax's PPO on a MuJoCo task of ours, in a process of its own: Brax 0.14 needs a shim."""
    code = """
import jax, jax.numpy as jnp
jax.device_put_replicated = lambda x, d: jax.tree.map(lambda a: jnp.stack([a] * len(d)), x)
from brax.training.agents.ppo import train
from mjxlab.envs.adapters import to_brax
seen = []
train.train(environment=to_brax("pendulum"), num_timesteps=320, episode_length=200, num_envs=16, batch_size=8,
    num_minibatches=4, unroll_length=5, num_updates_per_batch=1, num_evals=2, num_eval_envs=4,
    progress_fn=lambda n, m: seen.append((n, float(m["eval/episode_reward"]))))
assert seen[0][0] == 0 and seen[-1][0] >= 320 and all(-4000 < r < 0 for _, r in seen), seen
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
