"""Environments of gymnax and Brax as ours: transition by transition what they are natively, and without their resets."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces as gym_spaces

import mjxlab
from mjxlab._compat import lenient
from mjxlab.agents import ppo
from mjxlab.envs import check_env, spaces, vectorize
from mjxlab.envs.adapters import _native as native_module
from mjxlab.envs.adapters import from_brax, from_brax_goal, from_gymnax, from_playground
from mjxlab.errors import ConfigError, MjxlabError, UnknownNameError
from mjxlab.rl.evaluate import make_evaluate


def message(error: type[Exception], call: Any) -> str:
    with pytest.raises(error) as caught:
        call()
    assert isinstance(caught.value, MjxlabError) and "\n" not in str(caught.value)
    return str(caught.value)


def follow(env: Any, natively: Any, steps: int, worlds: int = 8) -> tuple[Any, Any, Any]:
    """Random episodes of ours; at each step what ours and ``natively(data, action)`` make of the same state.

    Returns:
      Both (steps, worlds first), and whether the episode was still going on before the step.
    """

    def one(carry: Any, key: jax.Array) -> Any:
        state, live = carry
        action = jax.vmap(lambda k: spaces.sample(env.action_space, k))(jax.random.split(key, worlds))
        new = jax.vmap(env.step)(state, action)
        with lenient():
            theirs = jax.vmap(natively)(state.data, action)
        mine = {"obs": new.obs, "reward": new.reward, "terminated": new.terminated, "truncated": new.truncated}
        return (new, live & ~(new.terminated | new.truncated)), (mine, theirs, live)

    @jax.jit
    def run(key: jax.Array) -> Any:
        state = jax.vmap(env.reset)(jax.random.split(key, worlds))
        return jax.lax.scan(one, (state, jnp.ones(worlds, bool)), jax.random.split(key, steps))[1]

    return jax.device_get(run(jax.random.key(5)))


@pytest.mark.parametrize("name", ["CartPole-v1", "Pendulum-v1", "MountainCar-v0", "Acrobot-v1"])
def test_gymnax_transitions(name: str) -> None:
    """Against gymnax's own ``step``, whose ``final_observation`` is the observation before its reset."""
    import gymnax

    env: Any = mjxlab.make(f"gymnax:{name}")
    with lenient():
        native, params = gymnax.make(name)

    def natively(state: Any, action: Any) -> Any:
        if name.startswith("Pendulum"):
            action = 2 * action  # gymnax's range
        _, _, reward, terminated, truncated, info = native.step(jax.random.PRNGKey(0), state, action, params)
        return {
            "obs": info["final_observation"],
            "reward": jnp.asarray(reward, jnp.float32),
            "terminated": terminated,
            "truncated": truncated,
        }

    mine, theirs, live = follow(env, natively, 205)
    for field in ("terminated", "truncated"):
        np.testing.assert_array_equal(mine[field][live], theirs[field][live])
    for field in ("obs", "reward"):
        np.testing.assert_allclose(mine[field][live], theirs[field][live], rtol=1e-5, atol=1e-6)
    if name == "CartPole-v1":  # every random episode falls; the state goes on past the fall instead of starting anew
        assert not live[-1].any() and (np.abs(mine["obs"][-1, :, 2]) > 0.21).all()
    if env.episode_length == 200:  # the time limit is theirs and ours at once
        assert live[:200].all() and mine["truncated"][199].all() and not mine["truncated"][:199].any()


def test_gymnax_under_vectorize() -> None:
    """A time limit and a fall end episodes with the flag of each, and ``final_obs`` is of the old episode."""
    vec = vectorize(mjxlab.make("gymnax:CartPole-v1"), 16, episode_length=12)
    key = jax.random.key(0)

    def step(v: Any, k: jax.Array) -> Any:
        action = jax.vmap(lambda s: spaces.sample(vec.action_space, s))(jax.random.split(k, 16))
        v = vec.step(v, action)
        return v, (v.terminated, v.truncated, v.final_obs, v.obs, v.episode_length)

    out = jax.jit(lambda k: jax.lax.scan(step, vec.reset(k), jax.random.split(k, 60))[1])(key)
    terminated, truncated, final, obs, length = map(np.asarray, out)
    fallen = (np.abs(final[..., 2]) > 12 * np.pi / 180) | (np.abs(final[..., 0]) > 2.4)
    np.testing.assert_array_equal(terminated, fallen)
    np.testing.assert_array_equal(truncated, length == 12)
    done = terminated | truncated
    assert terminated.any() and (truncated & ~terminated).any()
    assert (np.abs(obs[done]) <= 0.05).all() and (final[done] != obs[done]).any(-1).all()


def test_gymnax_params() -> None:
    """Fixed ones, and ones that are drawn at each reset and stay for the episode."""
    import gymnax

    with lenient():
        default = gymnax.make("Pendulum-v1")[1]
    heavy = from_gymnax("Pendulum-v1", default.replace(max_steps_in_episode=7, g=0.0))
    assert heavy.episode_length == 7
    drawn: Any = from_gymnax(
        "Pendulum-v1", lambda key: default.replace(g=jax.random.uniform(key, minval=5.0, maxval=15.0))
    )
    states = jax.vmap(drawn.reset)(jax.random.split(jax.random.key(0), 32))
    g = np.asarray(states.params.g)
    assert g.min() < 7 and g.max() > 13 and len(np.unique(g)) == 32
    after = jax.vmap(drawn.step)(states, jnp.zeros((32, 1)))
    np.testing.assert_array_equal(after.params.g, g)
    # theta_dot' = theta_dot + dt * 3 g / (2 l) * sin(theta), clipped at 8
    theta, speed = np.asarray(states.data.theta), np.asarray(states.data.theta_dot)
    expected = np.clip(speed + 0.05 * 1.5 * g * np.sin(theta), -8, 8)
    np.testing.assert_allclose(after.data.theta_dot, expected, rtol=1e-5, atol=1e-5)


def test_gymnax_checks() -> None:
    check_env(mjxlab.make("gymnax:CartPole-v1"))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["Pendulum-v1", "MountainCar-v0", "Acrobot-v1", "Freeway-MinAtar", "FourRooms-misc"])
def test_more_of_gymnax_checks(name: str) -> None:
    check_env(mjxlab.make(f"gymnax:{name}"))


@pytest.mark.x64
def test_gymnax_in_double_precision() -> None:
    """The native environment stays in single precision; what an agent sees is double, the numbers are the same."""
    env = mjxlab.make("gymnax:Pendulum-v1")
    state = jax.jit(env.step)(env.reset(jax.random.key(1)), jnp.ones(1))
    assert state.obs.dtype == state.reward.dtype == jnp.float64 and state.data.theta.dtype == jnp.float32
    with jax.enable_x64(False):
        single = jax.jit(env.step)(env.reset(jax.random.key(1)), jnp.ones(1))
    np.testing.assert_allclose(state.obs, single.obs, rtol=1e-6)


@pytest.mark.slow
def test_ppo_balances_gymnax_cartpole() -> None:
    env = mjxlab.make("gymnax:CartPole-v1")
    config = ppo.Config(
        num_envs=32,
        rollout_length=64,
        lr=2e-3,
        discount=0.99,
        policy_widths=(64, 64),
        value_widths=(64, 64),
        num_minibatches=4,
    )
    learner = ppo.make(env, config)

    def run(key: jax.Array) -> Any:
        def update(state: Any, u: jax.Array) -> Any:
            return learner.update(state, jax.random.fold_in(key, u), None)[0], None

        return jax.lax.scan(update, learner.init(key), jnp.arange(80))[0]

    state = jax.jit(run)(jax.random.key(0))
    found = jax.jit(make_evaluate(env, learner, 64))(state, jax.random.key(1))
    assert float(found["return_mean"]) >= 400


def test_names_and_options() -> None:
    assert "'CartPole-v1'" in message(UnknownNameError, lambda: mjxlab.make("gymnax:Cartpole"))
    assert "gymnax:" in message(UnknownNameError, lambda: mjxlab.make("gym:CartPole-v1"))
    assert "'ant'" in message(UnknownNameError, lambda: mjxlab.make("brax:aunt"))
    assert "engine is 'mjx'" in message(ConfigError, lambda: mjxlab.make("gymnax:CartPole-v1", engine="mjx"))
    assert "'speed'" in message(ConfigError, lambda: mjxlab.make("gymnax:CartPole-v1", speed=1))
    assert "backend is 'bullet'" in message(ConfigError, lambda: mjxlab.make("brax:fast", backend="bullet"))
    assert "wings" in message(ConfigError, lambda: mjxlab.make("brax:ant", backend="spring", wings=2))
    assert "episode_length is 0" in message(ConfigError, lambda: mjxlab.make("gymnax:CartPole-v1", episode_length=0))
    env: Any = mjxlab.make("gymnax:CartPole-v1", episode_length=9)
    assert env.name == "gymnax:CartPole-v1" and env.episode_length == 9 and env.action_space == gym_spaces.Discrete(2)
    assert "shape (2,)" in message(ConfigError, lambda: env.step(env.reset(jax.random.key(0)), jnp.zeros(2, jnp.int32)))
    assert "gymnax:CartPole-v1" not in mjxlab.envs.names() and "gymnax" in mjxlab.envs.spec("gymnax:CartPole-v1").tags


def test_a_missing_package_is_told_with_its_extra() -> None:
    text = message(ConfigError, lambda: native_module.need("no_such_suite.envs", "from_suite", "peers"))
    assert "no_such_suite" in text and "pip install 'mjxlab[peers]'" in text
    text = message(ConfigError, lambda: native_module.need("no_such_suite", "from_suite", None))
    assert text.endswith("pip install no_such_suite")


# --- Brax -------------------------------------------------------------------------------------------------------------


def point() -> Any:
    """A Brax environment of one point: ``[x, y, vx, vy, goal_x, goal_y]``, done beyond a distance of 3."""
    with native_module.making():
        from brax.envs.base import Env, State

    class Point(Env):
        def reset(self, rng: Any) -> Any:
            obs = jnp.concatenate([jnp.zeros(4), jax.random.uniform(rng, (2,), minval=-1.0)])
            return State(None, obs, jnp.zeros(()), jnp.zeros(()), {"far": 0.0}, {})

        def step(self, state: Any, action: Any) -> Any:
            x, v, goal = jnp.split(state.obs, 3)
            v = v + 0.5 * action
            x = x + v
            far = jnp.linalg.norm(x)
            obs = jnp.concatenate([x, v, goal])
            return state.replace(obs=obs, reward=-far, done=jnp.where(far > 3, 1.0, 0.0), metrics={"far": far})

        observation_size = 6
        action_size = 2
        backend = "none"

    return Point()


def test_brax_done_is_terminated_and_nothing_resets() -> None:
    env = from_brax(point(), episode_length=30)
    mine, theirs, _ = follow(env, env.native.step, 30)
    np.testing.assert_allclose(mine["obs"], theirs.obs, rtol=1e-6)
    np.testing.assert_allclose(mine["reward"], theirs.reward, rtol=1e-6)
    np.testing.assert_array_equal(mine["terminated"], theirs.done > 0)
    assert mine["terminated"].any() and not mine["truncated"].any()
    np.testing.assert_array_equal(mine["terminated"], np.linalg.norm(mine["obs"][..., :2], axis=-1) > 3)
    check_env(env)
    state = env.reset(jax.random.key(0))
    assert list(state.metrics) == ["far"] and env.observation_space.shape == (6,)


def test_brax_wrappers_are_refused() -> None:
    with native_module.making():
        from brax.envs.wrappers import training

        env = point()
        wrapped = [training.EpisodeWrapper(env, 10, 1), training.AutoResetWrapper(env), training.VmapWrapper(env)]
    for wrapper in wrapped:
        assert type(wrapper).__name__ in message(ConfigError, lambda wrapper=wrapper: from_brax(wrapper))
        assert type(wrapper).__name__ in message(ConfigError, lambda wrapper=wrapper: from_playground(wrapper))
    assert "'mass'" in message(ConfigError, lambda: from_brax(env, mass=1))


def test_brax_goals() -> None:
    """The goal at the end of the native observation, and goals of our own."""
    held = from_brax_goal(point(), (0, 1), radius=0.6, reward="dense", terminate_on_success=True)
    assert held.goal_size == 2
    state = held.reset(jax.random.key(3))
    np.testing.assert_array_equal(state.obs[-2:], state.commanded)
    np.testing.assert_array_equal(state.obs[2:4], state.achieved)
    np.testing.assert_array_equal(state.data.obs[4:], state.commanded)
    step = jax.jit(held.step)
    for _ in range(12):  # steer to the goal: v becomes what is missing
        state = step(state, jnp.clip(2 * (state.commanded - state.achieved - state.obs[:2]), -1, 1))
        distance = float(jnp.linalg.norm(state.data.obs[:2] - state.commanded))
        assert float(state.reward) == pytest.approx(-distance, abs=1e-6)
        assert bool(state.success) == (distance < 0.6) == bool(state.terminated)
        if state.terminated:
            break
    assert bool(state.success) and state.metrics["distance"] < 0.6

    own = from_brax_goal(point(), (0,), goals=(-2.0, 2.0), radius=0.25)
    states = jax.vmap(own.reset)(jax.random.split(jax.random.key(0), 64))
    goals = np.asarray(states.commanded)[:, 0]
    assert goals.min() < -1.5 and goals.max() > 1.5 and len(np.unique(goals)) == 64
    assert own.observation_space.shape == (7,) and states.obs.shape == (64, 7)
    np.testing.assert_array_equal(states.success, np.abs(goals) < 0.25)
    after = jax.jit(jax.vmap(own.step))(states, jnp.ones((64, 2)))
    np.testing.assert_array_equal(after.commanded, states.commanded)
    np.testing.assert_array_equal(after.reward, (np.abs(0.5 - goals) < 0.25).astype(np.float32))
    check_env(own)
    for arguments in ({"goal_indices": (0, 0)}, {"goal_indices": (5,)}, {"goal_indices": ()}):
        assert "goal_indices" in message(ConfigError, lambda arguments=arguments: from_brax_goal(point(), **arguments))
    assert "goals" in message(ConfigError, lambda: from_brax_goal(point(), (0,), goals=(1.0, -1.0)))
    assert "shape (3,)" in message(ConfigError, lambda: from_brax_goal(point(), (0,), goals=lambda key: jnp.zeros(3)))
    assert "reward" in message(ConfigError, lambda: from_brax_goal(point(), (0,), reward="none"))


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["spring", "mjx"])
def test_brax_ant_transitions(backend: str) -> None:
    env: Any = mjxlab.make("brax:ant", backend=backend)
    vec = vectorize(env, 2)
    with lenient():
        import brax.envs

        native = brax.envs.get_environment("ant", backend=backend)
    step, step_native = mjxlab.physics.jit(vec.step), mjxlab.physics.jit(jax.vmap(native.step))
    worlds = mjxlab.physics.jit(vec.reset)(jax.random.key(0))
    for i in range(4):
        action = jax.random.uniform(jax.random.key(i), (2, 8), minval=-1.0)
        before = worlds.state.data
        worlds = step(worlds, action)
        with lenient():
            after = step_native(before, action)
        np.testing.assert_allclose(worlds.final_obs, after.obs, rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(worlds.reward, after.reward, rtol=1e-4, atol=1e-4)
        np.testing.assert_array_equal(worlds.terminated, after.done > 0)
        np.testing.assert_allclose(worlds.metrics["x_velocity"], after.metrics["x_velocity"], rtol=1e-4, atol=1e-4)
    assert not worlds.nonfinite.any()


@pytest.mark.slow
def test_brax_checks() -> None:
    check_env(mjxlab.make("brax:fast"))
    check_env(mjxlab.make("brax:inverted_pendulum", backend="spring"), steps=8)
