"""Returns and advantages against plain loops, for every combination of episode ends."""

from __future__ import annotations

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mjxlab.errors import ConfigError
from mjxlab.rl import returns

T, B = 9, 5


def random_rollout(seed: int = 0, shape: tuple[int, ...] = (T, B)) -> dict[str, jax.Array]:
    rng = np.random.default_rng(seed)
    dtype = np.dtype(jnp.result_type(float))
    numbers = {k: rng.normal(size=shape).astype(dtype) for k in ("rewards", "values", "final_values")}
    flags = {k: rng.random(shape) < 0.25 for k in ("terminated", "truncated")}
    return jax.tree.map(jnp.asarray, numbers | flags | {"last_value": rng.normal(size=shape[1:]).astype(dtype)})


def bootstrap(d: dict[str, jax.Array]) -> np.ndarray:
    done = d["terminated"] | d["truncated"]
    following = np.concatenate([d["values"][1:], d["last_value"][None]])
    return np.where(done, d["final_values"], following)


def loop_gae(d: dict[str, jax.Array], discount: float, lam: float) -> np.ndarray:
    """The definition, as a sum: A_t = sum over k of (discount lam)^k delta_{t+k} while the episode goes on."""
    d = jax.tree.map(np.asarray, d)
    length, after = d["rewards"].shape[0], bootstrap(d)
    out = np.zeros_like(d["rewards"])
    for index in np.ndindex(d["rewards"].shape[1:]):
        for t in range(length):
            weight, total = 1.0, 0.0
            for k in range(t, length):
                at = (k, *index)
                worth = 0.0 if d["terminated"][at] else after[at]
                total += weight * (d["rewards"][at] + discount * worth - d["values"][at])
                if d["terminated"][at] or d["truncated"][at]:
                    break
                weight *= discount * lam
            out[(t, *index)] = total
    return out


def jax_gae(d, discount, lam):
    values = jnp.concatenate([d["values"], d["last_value"][None]])
    after = returns.next_values(values, d["terminated"] | d["truncated"], d["final_values"])
    return returns.gae(d["rewards"], d["values"], after, d["terminated"], d["truncated"], discount=discount, lam=lam)


@pytest.mark.parametrize(("terminated", "truncated"), list(itertools.product([False, True], repeat=2)))
def test_the_four_ends_of_a_step_by_hand(terminated: bool, truncated: bool) -> None:
    # two steps; the first ends in one of the four ways. Worked out with discount 0.5, lam 0.5.
    d = {
        "rewards": jnp.array([1.0, 2.0]),
        "values": jnp.array([10.0, 20.0]),
        "last_value": jnp.array(40.0),
        "final_values": jnp.array([100.0, 1000.0]),
        "terminated": jnp.array([terminated, False]),
        "truncated": jnp.array([truncated, False]),
    }
    second = 2.0 + 0.5 * 40.0 - 20.0  # the rollout ends, the episode does not: bootstraps from the next observation
    first = {
        (False, False): 1.0 + 0.5 * 20.0 - 10.0 + 0.25 * second,
        (False, True): 1.0 + 0.5 * 100.0 - 10.0,  # value of final_obs, nothing from the next episode
        (True, False): 1.0 - 10.0,
        (True, True): 1.0 - 10.0,  # termination wins
    }[terminated, truncated]
    for transform in (lambda f: f, jax.jit):
        advantages, targets = transform(lambda d: jax_gae(d, 0.5, 0.5))(d)
        np.testing.assert_allclose(advantages, [first, second], rtol=1e-6)
        np.testing.assert_allclose(targets, np.array([first, second]) + np.array([10.0, 20.0]), rtol=1e-6)
    batched = jax.tree.map(lambda x: jnp.stack([x, x]), d)
    np.testing.assert_allclose(jax.vmap(lambda d: jax_gae(d, 0.5, 0.5))(batched)[0], [[first, second]] * 2, rtol=1e-6)


@pytest.mark.parametrize("lam", [0.0, 0.7, 1.0])
def test_gae_equals_the_sum_that_defines_it(lam: float) -> None:
    for seed, shape in enumerate([(T, B), (T,), (T, 2, 3)]):
        d = random_rollout(seed, shape)
        np.testing.assert_allclose(jax_gae(d, 0.9, lam)[0], loop_gae(d, 0.9, lam), rtol=2e-5, atol=2e-5)


@pytest.mark.x64
def test_gae_in_double_precision() -> None:
    d = random_rollout()
    advantages, targets = jax.jit(jax_gae)(d, 0.9, 0.95)
    assert advantages.dtype == targets.dtype == jnp.float64
    np.testing.assert_allclose(advantages, loop_gae(d, 0.9, 0.95), rtol=1e-12, atol=1e-12)


def test_limits_of_lambda() -> None:
    d = random_rollout(3)
    after = bootstrap(d)
    one_step = d["rewards"] + 0.9 * np.where(d["terminated"], 0, after) - d["values"]
    np.testing.assert_allclose(jax_gae(d, 0.9, 0.0)[0], one_step, rtol=1e-5, atol=1e-6)
    full = returns.discounted_returns(
        d["rewards"], d["terminated"], d["truncated"], discount=0.9, next_values=jnp.asarray(after)
    )
    np.testing.assert_allclose(jax_gae(d, 0.9, 1.0)[1], full, rtol=1e-5, atol=1e-5)


def test_gae_targets_are_lambda_returns() -> None:
    d = random_rollout(4)
    found = returns.lambda_returns(
        d["rewards"], jnp.asarray(bootstrap(d)), d["terminated"], d["truncated"], discount=0.9, lam=0.6
    )
    np.testing.assert_allclose(jax_gae(d, 0.9, 0.6)[1], found, rtol=1e-5, atol=1e-5)


def test_n_step_returns_interpolate() -> None:
    d = random_rollout(5)
    after = bootstrap(d)
    done = np.asarray(d["terminated"] | d["truncated"])
    arrays = jax.tree.map(np.asarray, d)

    def by_hand(t: int, b: int, n: int) -> float:
        total, weight = 0.0, 1.0
        for k in range(t, T):
            total += weight * arrays["rewards"][k, b]
            weight *= 0.9
            if done[k, b] or k == T - 1 or k == t + n - 1:
                return total + weight * (0.0 if arrays["terminated"][k, b] else after[k, b])
        raise AssertionError

    for n in (1, 3, T, T + 4):
        found = returns.n_step_returns(
            d["rewards"], jnp.asarray(after), d["terminated"], d["truncated"], discount=0.9, n=n
        )
        expected = [[by_hand(t, b, n) for b in range(B)] for t in range(T)]
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
    with pytest.raises(ConfigError, match="n: got 0"):
        returns.n_step_returns(d["rewards"], jnp.asarray(after), d["terminated"], d["truncated"], discount=0.9, n=0)


def test_discounted_returns_without_bootstrap() -> None:
    flags = jnp.zeros((4,), bool)
    found = returns.discounted_returns(jnp.ones(4), flags.at[1].set(True), flags, discount=0.5)
    np.testing.assert_allclose(found, [1.5, 1.0, 1.5, 1.0])


def test_parity_with_rlax() -> None:
    rlax = pytest.importorskip("rlax")
    from mjxlab._compat import lenient

    d = random_rollout(6, (T,))
    d["truncated"] = jnp.zeros((T,), bool)
    values = jnp.append(d["values"], d["last_value"])
    discounts = 0.9 * (1 - d["terminated"].astype(values.dtype))
    with lenient():
        expected = rlax.truncated_generalized_advantage_estimation(d["rewards"], discounts, 0.8, values)
        returns_expected = rlax.lambda_returns(d["rewards"], discounts, values[1:], 0.8)
    advantages, targets = jax_gae(d, 0.9, 0.8)
    np.testing.assert_allclose(advantages, expected, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(targets, returns_expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("density", [0.0, 0.02, 0.5, 1.0])
def test_values_where_equals_the_full_pass(density: float) -> None:
    obs = {"a": jax.random.normal(jax.random.key(0), (T, B, 3)), "b": jnp.arange(T * B).reshape(T, B, 1) % 7}
    mask = jax.random.uniform(jax.random.key(1), (T, B)) < density

    def value(obs):
        return jnp.tanh(obs["a"]).sum(-1) + obs["b"][..., 0].astype(jnp.float32)

    found = jax.jit(lambda o, m: returns.values_where(value, o, m, chunk=4))(obs, mask)
    np.testing.assert_allclose(found, np.where(mask, value(obs), 0), rtol=1e-6)
    # under vmap each member has its own number of rows
    masks = jnp.stack([mask, ~mask])
    both = jax.tree.map(lambda x: jnp.stack([x, x]), obs)
    found = jax.vmap(lambda o, m: returns.values_where(value, o, m, chunk=4))(both, masks)
    np.testing.assert_allclose(found, np.where(masks, value(both), 0), rtol=1e-6)


def test_values_where_computes_nothing_without_need() -> None:
    calls = []

    def value(obs):
        jax.debug.callback(lambda: calls.append(1))
        return obs.sum(-1)

    found = jax.jit(lambda o, m: returns.values_where(value, o, m, chunk=4))
    jax.block_until_ready(found(jnp.ones((T, B, 2)), jnp.zeros((T, B), bool)))
    jax.effects_barrier()
    assert not calls
    jax.block_until_ready(found(jnp.ones((T, B, 2)), jnp.zeros((T, B), bool).at[0, 0].set(True)))
    jax.effects_barrier()
    assert len(calls) == 1
