"""The toys keep what they promise: returns of the best policy are their closed forms."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mjxlab.envs import make, names, vectorize

TOYS = [name for name in names("toy") if name != "fast"]
WORLDS, GAMMA = 6, 0.9


@pytest.fixture(autouse=True)
def _compile_quickly() -> Iterator[None]:
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)


def follow(env: Any, steps: int) -> Any:
    """The first observation, then obs, reward, terminated, truncated, final_obs of every step."""
    vec = vectorize(env, WORLDS)

    def one(vstate: Any, _: None) -> Any:
        action = jax.vmap(env.best_action)(vstate.obs)
        vstate = vec.step(vstate, action)
        return vstate, (vstate.obs, vstate.reward, vstate.terminated, vstate.truncated, vstate.final_obs)

    @jax.jit
    def run(key: jax.Array) -> Any:
        vstate = vec.reset(key)
        return vstate.obs, jax.lax.scan(one, vstate, None, steps)[1]

    return jax.device_get(run(jax.random.key(0)))


@pytest.mark.parametrize(("name", "discrete"), [(n, i % 2 == 0) for i, n in enumerate(TOYS)] + [("toy_match", True)])
def test_value_is_bellman_consistent_along_the_best_policy(name: str, discrete: bool) -> None:
    """value(obs) = reward + gamma * value(final_obs), without the second term where the episode terminated."""
    env: Any = make(name, discrete=discrete)
    start, (obs, reward, terminated, truncated, final) = follow(env, 9)
    before = np.concatenate([start[None], obs[:-1]])
    value = np.asarray(env.value(jnp.asarray(before), GAMMA))
    after = np.asarray(env.value(jnp.asarray(final), GAMMA))
    np.testing.assert_allclose(value, reward + GAMMA * np.where(terminated, 0, after), rtol=1e-5)
    assert value.shape == before.shape[:-1] and (terminated | truncated).any()


def test_what_a_wrong_treatment_of_the_cut_would_give() -> None:
    """The cut toy tells the three treatments apart: right, taken for an end, bootstrapped from the next episode."""
    env: Any = make("toy_cut")
    _, (obs, _, terminated, truncated, final) = follow(env, 4)
    assert truncated[-1].all() and not terminated.any()
    right = GAMMA * env.value(jnp.asarray(final[-1]), GAMMA)
    lost = GAMMA * env.value(jnp.asarray(obs[-1]), GAMMA)
    np.testing.assert_allclose(right, GAMMA / (1 - GAMMA), rtol=1e-5)
    np.testing.assert_allclose(lost, GAMMA**2 / (1 - GAMMA), rtol=1e-5)


@pytest.mark.parametrize(("name", "discrete"), [(n, d) for n in ("toy_steer", "toy_match") for d in (True, False)])
def test_no_action_beats_the_best(name: str, discrete: bool) -> None:
    env: Any = make(name, discrete=discrete)
    state = jax.jit(env.reset)(jax.random.key(3))
    actions = jnp.array([0, 1], jnp.int32) if discrete else jnp.linspace(-1, 1, 201)[:, None]
    rewards = jax.jit(jax.vmap(lambda a: env.step(state, a).reward))(actions)
    best = env.step(state, env.best_action(state.obs)).reward
    np.testing.assert_allclose(best, rewards.max(), atol=1e-6)
    np.testing.assert_allclose(best, env.value(state.obs, GAMMA))
    assert rewards.min() < best - 0.1


def test_observations_that_matter_come_in_both_kinds() -> None:
    for name in ("toy_sign", "toy_match"):
        reset = jax.jit(jax.vmap(make(name).reset))
        starts = reset(jax.random.split(jax.random.key(0), 64)).obs[:, 0]
        assert sorted(set(np.asarray(starts).tolist())) == [-1.0, 1.0] and abs(float(starts.mean())) < 0.4


def test_fast_is_won_by_going_straight() -> None:
    env: Any = make("fast")
    start, (obs, reward, _, truncated, _) = follow(env, env.episode_length)
    d = np.abs(start[:, 2:] - start[:, :2])
    steps = np.ceil(d / env.speed - 1e-4).max(1)  # per axis: a square moves
    distance = 1 - reward
    assert all(distance[int(s) - 1 :, i].max() < 1e-5 for i, s in enumerate(steps))
    assert truncated[-1].all() and not truncated[:-1].any()
    assert np.abs(obs).max() <= 1
    # a random policy earns about 1 minus the mean distance of two points in the square, 1.04, at each step
    assert reward.sum(0).mean() > 20


def test_fast_draws_point_and_goal_in_a_picture() -> None:
    env: Any = make("fast")
    frame = env.render_frame(env.reset(jax.random.key(0)))
    assert frame.shape == (96, 96, 3) and frame.dtype == np.uint8
    assert len(np.unique(frame.reshape(-1, 3), axis=0)) == 3
