"""The pieces of the PPO loss against formulas in NumPy and finite differences of their meaning."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from mjxlab.rl import losses


def test_clipped_surrogate_by_cases() -> None:
    # (ratio, advantage) -> what counts; clip 0.2
    cases = [(1.0, 2.0, 2.0), (1.5, 2.0, 2.4), (1.5, -2.0, -3.0), (0.5, 2.0, 1.0), (0.5, -2.0, -1.6)]
    ratio, advantage, expected = (jnp.array(x) for x in zip(*cases, strict=True))
    found = jax.vmap(lambda r, a: losses.clipped_surrogate(jnp.log(r)[None], a[None], 0.2))(ratio, advantage)
    np.testing.assert_allclose(found, -expected, rtol=1e-6)


def test_gradient_vanishes_where_the_clip_binds_and_at_ratio_one_is_the_policy_gradient() -> None:
    grad = jax.grad(lambda x, a: losses.clipped_surrogate(x, a, 0.2))
    advantages = jnp.array([1.0, -1.0, 1.0, -1.0])
    log_ratio = jnp.log(jnp.array([1.5, 0.5, 0.5, 1.5]))
    found = grad(log_ratio, advantages)
    np.testing.assert_allclose(found, [0, 0, -0.5 / 4, 1.5 / 4], rtol=1e-6)
    np.testing.assert_allclose(grad(jnp.zeros(4), advantages), -advantages / 4, rtol=1e-6)


def test_value_loss_and_its_clipping() -> None:
    values, targets, old = jnp.array([3.0, 0.0]), jnp.array([1.0, 1.0]), jnp.array([0.0, 0.0])
    np.testing.assert_allclose(losses.value_loss(values, targets), 0.5 * (4 + 1) / 2)
    # first row: clipped to 0.5, error 0.25 < 4, so the larger counts; second row is within the clip
    np.testing.assert_allclose(losses.value_loss(values, targets, old, 0.5), 0.5 * (4 + 1) / 2)
    # a value that overshot the clip towards its target gets no further push
    gradient = jax.grad(lambda v: losses.value_loss(v, jnp.array([2.0]), jnp.array([0.0]), 0.5))(jnp.array([1.0]))
    np.testing.assert_allclose(gradient, 0.0)


def test_approx_kl_is_unbiased_and_positive() -> None:
    key = jax.random.key(0)
    old, new = (0.0, 1.0), (0.3, 1.2)
    x = jax.random.normal(key, (200_000,))

    def log_prob(x, loc, scale):
        return -0.5 * ((x - loc) / scale) ** 2 - jnp.log(scale)

    log_ratio = log_prob(x, *new) - log_prob(x, *old)
    exact = np.log(1.2) + (1 + 0.3**2) / (2 * 1.2**2) - 0.5
    np.testing.assert_allclose(losses.approx_kl(log_ratio), exact, rtol=0.02)
    assert float(losses.approx_kl(jnp.array([1e-4, -1e-4]))) >= 0


def test_clip_fraction() -> None:
    log_ratio = jnp.log(jnp.array([1.0, 1.19, 1.21, 0.79, 0.81]))
    np.testing.assert_allclose(losses.clip_fraction(log_ratio, 0.2), 2 / 5)


def test_explained_variance() -> None:
    targets = jnp.array([1.0, 2.0, 3.0, 4.0])
    np.testing.assert_allclose(losses.explained_variance(targets, targets), 1.0)
    np.testing.assert_allclose(losses.explained_variance(jnp.full(4, 2.5), targets), 0.0, atol=1e-6)
    np.testing.assert_allclose(losses.explained_variance(targets + 5, targets), 1.0)  # a constant error is no variance
    np.testing.assert_allclose(losses.explained_variance(targets, jnp.ones(4)), 0.0)


def test_normalised_advantages() -> None:
    x = jnp.array([[1.0, 2.0], [3.0, 10.0]])
    found = losses.normalise_advantages(x)
    np.testing.assert_allclose(found, (x - np.mean(x)) / np.std(x), rtol=1e-5)
    np.testing.assert_allclose(losses.normalise_advantages(jnp.full(3, 7.0)), 0.0)


def test_gradient_clipping_is_by_the_global_norm() -> None:
    grads = {"a": jnp.array([3.0]), "b": jnp.array([[4.0]])}
    clipped, norm = losses.clip_by_global_norm(grads, 1.0)
    np.testing.assert_allclose(norm, 5.0)
    # element-wise clipping would give (1, 1)
    np.testing.assert_allclose([clipped["a"][0], clipped["b"][0, 0]], [0.6, 0.8], rtol=1e-6)
    same, _ = losses.clip_by_global_norm(grads, 10.0)
    np.testing.assert_allclose(same["a"], 3.0)
    untouched, _ = losses.clip_by_global_norm(grads, None)
    assert untouched is grads
    zero, norm = losses.clip_by_global_norm({"a": jnp.zeros(2)}, 1.0)
    np.testing.assert_array_equal(zero["a"], 0.0)
