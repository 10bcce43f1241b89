"""Jumanji, JaxMARL and MuJoCo Playground as ours, where they are installed."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces as gym_spaces

import mjxlab
from mjxlab.agents import ppo
from mjxlab.envs import check_env, spaces, vectorize
from mjxlab.envs.adapters import _native, from_jaxmarl, from_jumanji, from_playground
from mjxlab.errors import ConfigError, UnknownNameError


def rollout(env: Any, steps: int, worlds: int, choose: Any = None) -> Any:
    """States before each step, actions, states after: raw episodes that nothing resets."""

    def one(state: Any, key: jax.Array) -> Any:
        keys = jax.random.split(key, worlds)
        action = jax.vmap(lambda k, s: spaces.sample(env.action_space, k) if choose is None else choose(k, s.obs))(
            keys, state
        )
        new = jax.vmap(env.step)(state, action)
        return new, (state, action, new)

    def run(key: jax.Array) -> Any:
        return jax.lax.scan(one, jax.vmap(env.reset)(jax.random.split(key, worlds)), jax.random.split(key, steps))[1]

    return jax.jit(run)(jax.random.key(2))


def natively(step: Any, *trees: Any) -> Any:
    """``step`` of another suite, over (steps, worlds)."""
    with _native.native():
        return jax.jit(jax.vmap(jax.vmap(step)))(*trees)


def allowed(key: jax.Array, obs: Any) -> jax.Array:
    return jax.random.categorical(key, jnp.where(obs["action_mask"], 0.0, -jnp.inf)).astype(jnp.int32)


# --- Jumanji ----------------------------------------------------------------------------------------------------------


def test_jumanji_transitions_and_discounts() -> None:
    pytest.importorskip("jumanji")
    from jumanji.environments import Maze
    from jumanji.environments.routing.maze.generator import RandomGenerator

    with _native.making():
        native = Maze(generator=RandomGenerator(num_rows=5, num_cols=5), time_limit=25)
    env: Any = from_jumanji(native)
    assert env.episode_length == 25 and env.action_space == gym_spaces.Discrete(4)
    before, action, after = rollout(env, 25, 16, allowed)
    state, timestep = natively(native.step, before.data, action)
    for mine, theirs in zip(jax.tree.leaves(after.data), jax.tree.leaves(state), strict=True):
        np.testing.assert_array_equal(mine, theirs)
    np.testing.assert_array_equal(after.reward, timestep.reward)
    np.testing.assert_array_equal(after.obs["walls"], timestep.observation.walls)
    np.testing.assert_array_equal(after.obs["agent_position"]["row"], timestep.observation.agent_position.row)
    last, zero = np.asarray(timestep.step_type) == 2, np.asarray(timestep.discount) == 0
    np.testing.assert_array_equal(after.terminated, last & zero)
    np.testing.assert_array_equal(after.truncated, last & ~zero)
    assert after.terminated[-1].all() and (np.asarray(after.reward).sum(0) > 0).any()  # some mazes were solved
    assert after.obs["action_mask"].dtype == bool


def test_jumanji_discount_above_zero_is_a_cut() -> None:
    """An environment of our own in Jumanji's terms: it ends at 3, by death if the action is 1, else by a cut."""
    pytest.importorskip("jumanji")
    from jumanji import env as base
    from jumanji import specs
    from jumanji.types import restart, termination, transition, truncation

    class Three(base.Environment):
        observation_spec = specs.Array((), jnp.int32, "count")
        action_spec = specs.DiscreteArray(2)

        def reset(self, key: Any) -> Any:
            return {"n": jnp.int32(0), "key": key}, restart(jnp.int32(0), {"twice": jnp.int32(0)})

        def step(self, state: Any, action: Any) -> Any:
            n = state["n"] + 1
            extras = {"twice": 2 * n}
            kind = jnp.where(n < 3, 0, jnp.where(action == 1, 1, 2))
            ends = [
                lambda: transition(1.0, n, extras=extras),
                lambda: termination(1.0, n, extras),
                lambda: truncation(1.0, n, extras=extras),
            ]
            ends = [lambda end=end: jax.tree.map(jnp.asarray, end()) for end in ends]
            return {"n": n, "key": state["key"]}, jax.lax.switch(kind, ends)

    with _native.making():
        env = from_jumanji(Three())
    step = jax.jit(env.step)
    for action, ends in ((1, (True, False)), (0, (False, True))):
        state = env.reset(jax.random.key(0))
        for i in range(3):
            state = step(state, jnp.int32(action))
            assert (bool(state.terminated), bool(state.truncated)) == (ends if i == 2 else (False, False))
            assert int(state.info["twice"]) == 2 * (i + 1) and float(state.reward) == 1
    check_env(env, plain=False)


@pytest.mark.slow
def test_jumanji_joint_actions_are_one_integer() -> None:
    """Tetris: rotation × column, and a mask over both, in the order of its rows."""
    pytest.importorskip("jumanji")
    with _native.making():
        from jumanji.environments import Tetris

        native = Tetris(num_rows=6, num_cols=6, time_limit=20)
    env: Any = from_jumanji(native)
    assert env.action_space == gym_spaces.Discrete(24) and env.observation_space["action_mask"].shape == (24,)
    before, action, after = rollout(env, 6, 8, allowed)
    parts = jnp.stack([action // 6, action % 6], -1).astype(jnp.int32)
    _, timestep = natively(native.step, before.data, parts)
    np.testing.assert_array_equal(after.reward, timestep.reward)
    np.testing.assert_array_equal(after.obs["grid"], timestep.observation.grid)
    np.testing.assert_array_equal(after.obs["action_mask"], timestep.observation.action_mask.reshape(6, 8, 24))
    both = from_jumanji(native, flatten_actions=False)
    assert both.action_space == gym_spaces.MultiDiscrete([4, 6]) and both.observation_space["action_mask"].shape == (
        4,
        6,
    )
    # PPO masks by it
    networks = ppo.make_networks(env, ppo.Config(policy_widths=(8,), value_widths=(8,)))
    obs = jax.tree.map(lambda x: x[0], before.obs)
    inputs = jax.tree.map(lambda x: x.astype(jnp.float32), obs)
    dist = networks.policy(networks.init(jax.random.key(0)), inputs, obs["action_mask"])
    np.testing.assert_array_equal(np.asarray(dist.probs())[~np.asarray(obs["action_mask"])], 0.0)


@pytest.mark.slow
def test_ppo_learns_a_jumanji_puzzle() -> None:
    """A random walk through the maze, walls masked, is at its goal within 25 steps less often than PPO."""
    pytest.importorskip("jumanji")
    from jumanji.environments import Maze
    from jumanji.environments.routing.maze.generator import RandomGenerator

    with _native.making():
        env = from_jumanji(Maze(generator=RandomGenerator(num_rows=5, num_cols=5), time_limit=25))
    config = ppo.Config(
        num_envs=32, rollout_length=32, lr=1e-3, policy_widths=(64,), value_widths=(64,), num_minibatches=4
    )
    learner = ppo.make(env, config)

    def run(key: jax.Array) -> Any:
        def update(state: Any, u: jax.Array) -> Any:
            return learner.update(state, jax.random.fold_in(key, u), None)

        return jax.lax.scan(update, learner.init(key), jnp.arange(120))[1]

    returns = np.asarray(jax.jit(run)(jax.random.key(0))["episode_return"])
    assert returns[-20:].mean() > returns[:5].mean() + 0.15


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["Maze-v0", "Snake-v1", "Tetris-v0", "Minesweeper-v0", "Game2048-v1", "Connector-v3", "SearchAndRescue-v0"]
)
def test_jumanji_checks(name: str) -> None:
    pytest.importorskip("jumanji")
    check_env(mjxlab.make(f"jumanji:{name}"))


def test_jumanji_names_and_options() -> None:
    pytest.importorskip("jumanji")
    with pytest.raises(UnknownNameError, match="Maze-v0"):
        mjxlab.make("jumanji:Mase-v0")
    with pytest.raises(ConfigError, match="colour"):
        mjxlab.make("jumanji:Maze-v0", colour=1)
    # gymnasium's bounds are the native ones, unless one gives up on them
    assert np.isfinite(from_jumanji("TSP-v1").observation_space["coordinates"].high).all()
    assert np.isinf(from_jumanji("TSP-v1", native_bounds=False).observation_space["coordinates"].high).all()


# --- JaxMARL ----------------------------------------------------------------------------------------------------------


def test_jaxmarl_teams() -> None:
    """Agents on the first axis, a reward each; 25 steps are its time limit, which is a cut and no end."""
    pytest.importorskip("jaxmarl")
    env: Any = mjxlab.make("jaxmarl:MPE_simple_spread_v3")
    assert env.agents == ("agent_0", "agent_1", "agent_2") and env.episode_length == 25
    assert env.action_space == gym_spaces.MultiDiscrete([5, 5, 5]) and env.observation_space.shape == (3, 18)
    before, action, after = rollout(env, 28, 4)
    keys = jax.vmap(jax.vmap(lambda k: jax.random.key_data(jax.random.split(k)[1])))(before.key)

    def step(key: Any, state: Any, action: Any) -> Any:
        return env.native.step_env(key, state, {agent: action[i] for i, agent in enumerate(env.agents)})

    obs, state, reward, done, _ = natively(step, keys, before.data["state"], action)
    for i, agent in enumerate(env.agents):
        np.testing.assert_allclose(after.obs[:, :, i], obs[agent], rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(after.reward[:, :, i], reward[agent], rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(after.data["state"].p_vel, state.p_vel, rtol=1e-5, atol=1e-5)
    ended = np.asarray(done["__all__"])
    np.testing.assert_array_equal(after.truncated, ended)
    assert not after.terminated.any() and ended[25:].all() and not ended[:25].any()
    vec = vectorize(env, 2, episode_length=3)
    worlds = jax.jit(vec.reset)(jax.random.key(0))
    for _ in range(3):
        worlds = jax.jit(vec.step)(worlds, jnp.zeros((2, 3), jnp.int32))
    assert worlds.reward.shape == (2, 3) and worlds.truncated.all() and not worlds.terminated.any()


def test_jaxmarl_agents_that_differ() -> None:
    """A speaker of 3 words that sees 3 numbers, a listener of 5 moves that sees 11."""
    pytest.importorskip("jaxmarl")
    env: Any = mjxlab.make("jaxmarl:MPE_simple_speaker_listener_v4")
    assert env.action_space == gym_spaces.MultiDiscrete([3, 5]) and env.observation_space.shape == (2, 11)
    state = env.reset(jax.random.key(0))
    assert (state.obs[0, 3:] == 0).all() and (state.obs[1] != 0).any()
    with pytest.raises(UnknownNameError, match="MPE_simple_spread_v3"):
        mjxlab.make("jaxmarl:MPE_simple_spred_v3")
    with pytest.raises(ConfigError, match="wings"):
        mjxlab.make("jaxmarl:SMAX", wings=2)


def test_jaxmarl_boxes() -> None:
    """Forces from 0 to 1 natively: -1 of ours is 0 of theirs, which does nothing."""
    pytest.importorskip("jaxmarl")
    env: Any = from_jaxmarl("MPE_simple_spread_v3", action_type="Continuous")
    assert env.action_space.shape == (3, 5) and env.action_space.low.min() == -1
    start = env.reset(jax.random.key(1))
    still = jax.jit(env.step)(start, -jnp.ones((3, 5)))
    pushed = jax.jit(env.step)(start, -jnp.ones((3, 5)).at[0, 1].set(-1.0))  # +1 on agent 0's second number
    push = np.asarray(pushed.data["state"].p_vel - still.data["state"].p_vel)
    np.testing.assert_allclose(push[0], [-0.5, 0.0], atol=1e-6)  # 0.1 s × acceleration 5, to the left
    np.testing.assert_allclose(push[1:], 0.0, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["MPE_simple_spread_v3", "MPE_simple_facmac_v1", "HeuristicEnemySMAX", "overcooked"])
def test_jaxmarl_checks(name: str) -> None:
    pytest.importorskip("jaxmarl")
    env: Any = mjxlab.make(f"jaxmarl:{name}")
    check_env(env)
    if name == "HeuristicEnemySMAX":
        mask = env.reset(jax.random.key(0)).obs["action_mask"]
        assert mask.shape == (5, 10) and mask.dtype == bool and mask.any(-1).all() and not mask.all()


# --- MuJoCo Playground ------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_playground_transitions() -> None:
    pytest.importorskip("mujoco_playground")
    env: Any = from_playground("CartpoleBalance")
    assert env.episode_length == 1000 and env.action_space.shape == (1,)
    before, action, after = rollout(env, 6, 2)
    theirs = natively(env.native.step, before.data, action)
    np.testing.assert_allclose(after.obs, theirs.obs, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(after.reward, theirs.reward, rtol=1e-4, atol=1e-4)
    np.testing.assert_array_equal(after.terminated, theirs.done > 0)
    check_env(env, plain=False, steps=4, x64=False)
    with pytest.raises(UnknownNameError, match="CartpoleBalance"):
        mjxlab.make("playground:CartpoleBalanse")
    with pytest.raises(ConfigError, match="wings"):
        mjxlab.make("playground:CartpoleBalance", config={"wings": 2})
