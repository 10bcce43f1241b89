"""Running statistics: exact, stable, the same in any order and on any number of devices."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, PartitionSpec

from mjxlab.rl import normalise
from mjxlab.rl.counter import Counter


def fold(batches, start=None):
    stats = normalise.init(batches[0][0]) if start is None else start
    step = jax.jit(normalise.update)
    for batch in batches:
        stats = step(stats, batch)
    return stats


def true_std(stats):
    return np.sqrt(np.asarray(stats.var, np.float64))


def test_equals_numpy_over_all_samples_at_once() -> None:
    rng = np.random.default_rng(0)
    scale, shift = np.array([1, 1e-3, 50]), np.array([0, 5, -300])
    batches = [(rng.normal(size=(n, 3)) * scale + shift).astype(np.float32) for n in (5, 64, 1, 200)]
    stats = fold([jnp.asarray(b) for b in batches])
    everything = np.concatenate(batches).astype(np.float64)
    assert int(stats.count) == 270
    np.testing.assert_allclose(stats.mean, everything.mean(0), rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(true_std(stats), everything.std(0), rtol=1e-4)
    z = normalise.normalise(stats, jnp.asarray(batches[3]), clip=None)
    np.testing.assert_allclose(z, (batches[3] - everything.mean(0)) / everything.std(0), rtol=1e-2, atol=1e-3)


def test_batch_axes_of_any_number_and_pytrees_with_integers() -> None:
    obs = {
        "a": jax.random.normal(jax.random.key(0), (6, 4, 3)),
        "image": jnp.arange(6 * 4 * 8, dtype=jnp.uint8).reshape(6, 4, 2, 2, 2),
        "scalar": jnp.arange(24.0).reshape(6, 4),
    }
    stats = normalise.update(normalise.init(jax.tree.map(lambda x: x[0, 0], obs)), obs)
    assert int(stats.count) == 24
    np.testing.assert_allclose(stats.mean["a"], np.asarray(obs["a"]).mean((0, 1)), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(stats.mean["scalar"], 11.5, rtol=1e-6)
    z = normalise.normalise(stats, jax.tree.map(lambda x: x[2, 1], obs))
    assert z["image"].dtype == jnp.uint8
    np.testing.assert_array_equal(z["image"], obs["image"][2, 1])
    np.testing.assert_allclose(z["scalar"], (9 - 11.5) / np.arange(24).std(), rtol=1e-5)


def test_fresh_statistics_change_nothing_and_constants_give_zero() -> None:
    x = jnp.array([0.5, -3.0])
    np.testing.assert_array_equal(normalise.normalise(normalise.init(x), x), x)
    stats = normalise.update(normalise.init(x), jnp.tile(x, (10, 1)))
    np.testing.assert_array_equal(normalise.normalise(stats, x), 0.0)
    np.testing.assert_array_equal(normalise.normalise(stats, x + 100, clip=5.0), 5.0)


def test_order_of_merging_does_not_matter() -> None:
    parts = [jax.random.normal(jax.random.key(i), (10 + 7 * i, 2)) * (i + 1) + 3 * i for i in range(4)]
    empty = normalise.init(parts[0][0])
    single = [normalise.update(empty, p) for p in parts]

    def tree(order):
        a, b, c, d = (single[i] for i in order)
        return normalise.merge(normalise.merge(a, b), normalise.merge(c, d))

    reference = fold(parts)
    for other in (tree([0, 1, 2, 3]), tree([3, 1, 0, 2]), fold(parts[::-1])):
        assert int(other.count) == int(reference.count)
        np.testing.assert_allclose(other.mean, reference.mean, rtol=1e-5)
        np.testing.assert_allclose(other.var, reference.var, rtol=1e-5)


def test_far_from_zero() -> None:
    rng = np.random.default_rng(1)
    batches = [jnp.asarray((10_000 + rng.normal(size=(512, 1))).astype(np.float32)) for _ in range(20)]
    stats = fold(batches)
    everything = np.concatenate(batches).astype(np.float64)
    # E[x^2] - E[x]^2 in float32 would be off by more than the variance itself
    np.testing.assert_allclose(true_std(stats), everything.std(0), rtol=1e-4)
    exact = np.asarray(stats.mean, np.float64) + np.asarray(stats.mean_rest, np.float64)
    np.testing.assert_allclose(exact, everything.mean(0), rtol=0, atol=1e-5)


def test_still_learns_after_a_billion_samples() -> None:
    # a billion samples around 1,000 have been seen; now as many come around 1,001, in batches of 2^20
    start = normalise.init(jnp.zeros(1)).replace(count=Counter.of(10**9), mean=jnp.array([1000.0]))
    batch = normalise.RunningStatistics(
        Counter.of(2**20), jnp.array([1001.0]), jnp.array([1.0]), jnp.array([0.0]), jnp.array([0.0])
    )
    steps = 954
    stats, _ = jax.lax.scan(lambda s, _: (normalise.merge(s, batch), None), start, None, length=steps)
    count = 10**9 + steps * 2**20
    assert int(stats.count) == count
    share = steps * 2**20 / count
    exact = np.asarray(stats.mean, np.float64) + np.asarray(stats.mean_rest, np.float64)
    np.testing.assert_allclose(exact, 1000 + share, rtol=0, atol=1e-4)
    np.testing.assert_allclose(stats.var, 1 + share * (1 - share), rtol=1e-5)


def test_one_device_and_two_agree() -> None:
    batch = jax.random.normal(jax.random.key(0), (5, 8, 3)) * 4 + 100
    stats = normalise.update(normalise.init(batch[0, 0]), batch[:, ::-1] * 2)
    mesh = Mesh(np.array(jax.devices()[:2]), ("device",))
    spec = PartitionSpec
    split = jax.jit(
        jax.shard_map(
            normalise.update, mesh=mesh, in_specs=(spec(), spec(None, "device")), out_specs=spec(), check_vma=False
        )
    )
    one, two = normalise.update(stats, batch), split(stats, batch)
    assert int(one.count) == int(two.count) == 80
    for a, b in zip(jax.tree.leaves((one.mean, one.var)), jax.tree.leaves((two.mean, two.var)), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6)


def test_accumulated_returns_restart_with_the_episode() -> None:
    rewards = jnp.array([[1.0, 1.0], [1.0, 1.0], [1.0, 1.0]])
    done = jnp.array([[False, False], [True, False], [False, False]])
    carry, totals = normalise.accumulate_returns(jnp.array([8.0, 0.0]), rewards, done, 0.5)
    np.testing.assert_allclose(totals, [[5.0, 1.0], [3.5, 1.5], [1.0, 1.75]])
    np.testing.assert_allclose(carry, [1.0, 1.75])


@pytest.mark.x64
def test_double_precision_and_stable_types() -> None:
    x = jnp.ones((4, 2))
    stats = normalise.init(x[0])
    after = normalise.update(stats, x)
    assert jax.tree.map(lambda a: a.dtype, stats) == jax.tree.map(lambda a: a.dtype, after)
    assert after.mean.dtype == jnp.float64


def test_counter_beyond_two_to_the_31_and_32() -> None:
    counter = jax.jit(lambda c: c + jnp.int32(7) + 2**31)(Counter.of(2**32 - 5))
    assert int(counter) == 2**32 + 2**31 + 2
    assert int(counter.merge(Counter.of(2**40))) == 2**40 + 2**32 + 2**31 + 2
    counted, seen = jax.lax.scan(lambda c, _: (c + 2**30, c), Counter.of(0), None, length=9)
    assert int(counted) == 9 * 2**30
    np.testing.assert_array_equal(seen.numpy(), np.arange(9, dtype=np.uint64) * np.uint64(2**30))
    np.testing.assert_allclose(counted.to_float(), 9 * 2**30)
