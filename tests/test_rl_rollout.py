"""Rollouts, shuffling and evaluation."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, PartitionSpec

from mjxlab.envs import fast, toys
from mjxlab.envs.vectorize import vectorize
from mjxlab.errors import ConfigError
from mjxlab.learner import Learner
from mjxlab.rl import shuffle
from mjxlab.rl.evaluate import make_evaluate
from mjxlab.rl.rollout import episode_sums, rollout, world_keys


def device_map(f, devices: int, in_specs, out_specs):
    mesh = Mesh(np.array(jax.devices()[:devices]), ("device",))
    return jax.jit(jax.shard_map(f, mesh=mesh, in_specs=in_specs, out_specs=out_specs, check_vma=False))


def noisy(obs, keys):
    raw = jax.vmap(lambda k: jax.random.normal(k, (2,)))(keys)
    return jnp.clip(raw, -1, 1), raw, {"norm": jnp.linalg.norm(raw, axis=-1)}


def test_rollout_equals_stepping_by_hand() -> None:
    vec = vectorize(fast.Fast(episode_length=3), 4)
    start, key = vec.reset(jax.random.key(0)), jax.random.key(1)
    end, transitions = jax.jit(lambda v, k: rollout(vec, noisy, v, k, 5))(start, key)
    vstate = start
    for t in range(5):
        obs = vstate.obs
        action, raw, _ = noisy(obs, world_keys(key, 4, t))
        vstate = vec.step(vstate, action)
        np.testing.assert_allclose(transitions.obs[t], obs, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(
            transitions.action[t], raw, rtol=1e-5, atol=1e-6
        )  # raw, not what the environment took
        np.testing.assert_allclose(transitions.reward[t], vstate.reward, rtol=1e-5)
        np.testing.assert_array_equal(transitions.truncated[t], vstate.truncated)
        np.testing.assert_allclose(transitions.final_obs[t], vstate.final_obs, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(end.obs, vstate.obs, rtol=1e-5, atol=1e-6)
    assert bool((jnp.abs(transitions.action) > 1).any())
    assert transitions.truncated[2].all()
    # the observation before the reset is kept, and differs from the one after
    assert not np.allclose(transitions.final_obs[2], transitions.obs[3])


def test_episode_sums_count_whole_episodes_only() -> None:
    vec = vectorize(fast.Fast(episode_length=3), 4)
    _, transitions = rollout(vec, noisy, vec.reset(jax.random.key(0)), jax.random.key(1), 7)
    sums = episode_sums(transitions)
    assert float(sums.episodes) == 8
    assert float(sums.episode_length) == 24
    np.testing.assert_allclose(sums.episode_return, transitions.reward[:6].sum(), rtol=1e-5)
    np.testing.assert_allclose(sums.success, transitions.success[jnp.array([2, 5])].sum())
    by_episode = transitions.success[:6].reshape(2, 3, 4).any(1)
    np.testing.assert_allclose(sums.reached, by_episode.sum())


def test_noise_and_minibatches_do_not_depend_on_the_number_of_devices() -> None:
    spec, key = PartitionSpec, jax.random.key(3)
    keys = world_keys(key, 8, 5)
    split = device_map(lambda k: world_keys(k, 4, 5), 2, spec(), spec("device"))(key)
    np.testing.assert_array_equal(jax.random.key_data(keys), jax.random.key_data(split))

    length, envs, minibatches = 6, 8, 3
    world = jnp.tile(jnp.arange(envs, dtype=jnp.int32), (length, 1))
    time = jnp.tile(jnp.arange(length, dtype=jnp.int32)[:, None], (1, envs))

    def gather(key, world, time):
        rows = shuffle.minibatch_indices(key, length, world.shape[1], minibatches, epochs=2)
        return world.reshape(-1)[rows], time.reshape(-1)[rows]

    columns = spec(None, "device")
    one = gather(key, world, time)
    two = device_map(gather, 2, (spec(), columns, columns), columns)(key, world, time)
    for a, b in zip(np.stack(one, -1), np.stack(two, -1), strict=True):
        assert sorted(map(tuple, a.tolist())) == sorted(map(tuple, b.tolist()))
    for epoch in np.stack(one, -1).reshape(2, -1, 2):
        assert sorted(map(tuple, epoch.tolist())) == [(w, t) for w in range(envs) for t in range(length)]
    assert not np.array_equal(one[1][:minibatches], one[1][minibatches:])  # another order in the second epoch


@pytest.mark.parametrize("size", [1, 2, 7, 1000, 40_000])
def test_permutation(size: int) -> None:
    order = np.asarray(jax.jit(lambda k: shuffle.permutation(k, size))(jax.random.key(0)))
    np.testing.assert_array_equal(np.sort(order), np.arange(size))
    if size >= 1000:
        assert abs(np.corrcoef(order, np.arange(size))[0, 1]) < 4 / np.sqrt(size)


def test_permutation_is_uniform() -> None:
    orders = np.asarray(jax.vmap(lambda k: shuffle.permutation(k, 3))(jax.random.split(jax.random.key(0), 6_000)))
    _, counts = np.unique(orders @ np.array([9, 3, 1]), return_counts=True)
    assert len(counts) == 6
    np.testing.assert_allclose(counts / 6_000, 1 / 6, atol=0.025)


def test_bad_minibatches_are_refused() -> None:
    with pytest.raises(ConfigError, match="num_minibatches: got 5, expected a divisor of 6"):
        shuffle.check_minibatches(8, 6, 5)
    assert shuffle.num_groups(12) == 4


def policy(action_fn) -> Learner:
    return Learner(
        init=lambda key: (),
        update=lambda state, key, batch: (state, {}),
        carry=lambda state, key: jnp.zeros((), jnp.int32),
        act=lambda state, carry, obs, key, deterministic: (action_fn(state, obs, key, deterministic), carry + 1),
    )


def test_evaluation_of_a_known_policy() -> None:
    env = fast.Fast(episode_length=16)
    best = policy(lambda state, obs, key, deterministic: env.best_action(obs))
    found = jax.jit(make_evaluate(env, best, 64))((), jax.random.key(0))
    assert float(found["success"]) == float(found["reached"]) == 1.0
    assert float(found["length_mean"]) == 16.0
    idle = policy(lambda state, obs, key, deterministic: jnp.zeros(2))
    worse = jax.jit(make_evaluate(env, idle, 64))((), jax.random.key(0))
    assert float(worse["return_mean"]) < float(found["return_mean"]) - 5
    again = jax.jit(make_evaluate(env, idle, 64))((), jax.random.key(1))
    assert float(again["return_mean"]) != float(worse["return_mean"])  # fresh goals


def test_evaluation_counts_every_episode_once() -> None:
    # an episode ends at once where the first observation is 1: counting by steps would favour it
    class Sometimes(toys.Sign):
        episode_length = 4

        def _move(self, obs, action):
            return jnp.ones_like(obs[0]), obs, obs[0] > 0

    found = make_evaluate(Sometimes(), policy(lambda *_: jnp.int32(0)), 200)((), jax.random.key(0))
    ones = (float(found["length_mean"]) - 4) / (1 - 4)  # share of episodes of length 1
    assert 0.4 < ones < 0.6
    np.testing.assert_allclose(found["return_mean"], found["length_mean"])
    np.testing.assert_allclose(found["return_std"], 3 * np.sqrt(ones * (1 - ones)), rtol=1e-5)


def test_evaluation_on_two_devices_with_an_odd_number_of_episodes() -> None:
    env = fast.Fast(episode_length=4)
    wild = policy(lambda state, obs, key, deterministic: jax.random.uniform(key, (2,), minval=-1))
    evaluate, spec = make_evaluate(env, wild, 7), PartitionSpec
    one = jax.jit(evaluate)((), jax.random.key(0))
    two = device_map(evaluate, 2, (spec(), spec()), spec())((), jax.random.key(0))
    for name in one:
        np.testing.assert_allclose(one[name], two[name], rtol=1e-5, err_msg=name)


def test_evaluation_needs_episodes() -> None:
    with pytest.raises(ConfigError, match="episodes: got 0"):
        make_evaluate(fast.Fast(), policy(lambda *_: jnp.zeros(2)), 0)
