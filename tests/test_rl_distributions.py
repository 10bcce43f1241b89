"""Policy distributions against scipy and distrax."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.integrate
import scipy.stats

from mjxlab._compat import lenient
from mjxlab.rl.distributions import Categorical, Normal, TanhNormal, log_det_tanh

LOC, SCALE = jnp.array([[0.3, -1.0], [2.0, 0.0]]), jnp.array([[0.5, 1.5], [0.1, 1.0]])


def test_normal_against_scipy_and_distrax() -> None:
    dist = Normal(LOC, SCALE)
    raw = dist.sample(jax.random.key(0))
    reference = scipy.stats.norm(np.asarray(LOC), np.asarray(SCALE))
    np.testing.assert_allclose(dist.log_prob(raw), reference.logpdf(raw).sum(-1), rtol=1e-5)
    np.testing.assert_allclose(dist.entropy(), reference.entropy().sum(-1), rtol=1e-5)
    np.testing.assert_allclose(dist.loc + dist.scale * dist.noise(raw), raw, rtol=1e-6)
    other = Normal(LOC + 0.2, SCALE * 1.3)
    with lenient():
        theirs = dist.to_distrax()
        np.testing.assert_allclose(dist.log_prob(raw), theirs.log_prob(raw), rtol=1e-5)
        np.testing.assert_allclose(dist.kl(other), theirs.kl_divergence(other.to_distrax()), rtol=1e-4)
    np.testing.assert_array_equal(dist.action(jnp.array([[3.0, 0.5], [-2.0, -0.5]])), [[1.0, 0.5], [-1.0, -0.5]])


def test_tanh_normal_against_distrax_and_its_own_integral() -> None:
    dist = TanhNormal(LOC, SCALE)
    raw = dist.sample(jax.random.key(1))
    action = dist.action(raw)
    with lenient():
        theirs = dist.to_distrax()
        np.testing.assert_allclose(dist.log_prob_squashed(raw), theirs.log_prob(action), rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(dist.log_prob_action(action), dist.log_prob_squashed(raw), rtol=1e-3, atol=1e-3)
    np.testing.assert_allclose(dist.log_prob(raw), Normal(LOC, SCALE).log_prob(raw))  # raw actions: before the tanh
    one = TanhNormal(jnp.array([0.5]), jnp.array([0.7]))
    grid = jnp.linspace(-8, 8, 20_001)[:, None]
    density = np.exp(jax.vmap(one.log_prob_squashed)(grid))
    np.testing.assert_allclose(scipy.integrate.trapezoid(density, np.tanh(grid[:, 0])), 1.0, rtol=1e-3)


def test_tanh_normal_entropy_is_unbiased() -> None:
    dist = TanhNormal(jnp.array([0.5, -0.2]), jnp.array([0.7, 1.2]))
    noise = jax.random.normal(jax.random.key(0), (100_000, 2))
    estimate = jax.vmap(dist.entropy)(noise).mean()
    exact = 0.0
    for loc, scale in zip(np.asarray(dist.loc), np.asarray(dist.scale), strict=True):
        reference = scipy.stats.norm(loc, scale)
        x = np.linspace(loc - 8 * scale, loc + 8 * scale, 4001)
        jacobian = np.asarray(log_det_tanh(jnp.asarray(x, jnp.float32)))
        exact += reference.entropy() + scipy.integrate.trapezoid(reference.pdf(x) * jacobian, x)
    np.testing.assert_allclose(estimate, exact, rtol=0.01)
    np.testing.assert_allclose(dist.entropy(), Normal(dist.loc, dist.scale).entropy())


def test_log_probabilities_stay_finite_far_out() -> None:
    x = jnp.array([0.0, 5.0, -50.0, 1e4])
    np.testing.assert_allclose(
        log_det_tanh(x), 2 * (np.log(2) - np.abs(x) - np.log1p(np.exp(-2 * np.abs(x)))), rtol=1e-5, atol=1e-7
    )
    far = TanhNormal(jnp.array([30.0]), jnp.array([1e-3]))
    assert np.isfinite(far.log_prob_squashed(jnp.array([30.0])))
    assert np.isfinite(far.log_prob_action(jnp.array([1.0])))
    grad = jax.grad(lambda loc: TanhNormal(loc, jnp.array([1.0])).entropy(jnp.array([0.5])))(jnp.array([40.0]))
    assert np.isfinite(grad).all()


def test_categorical_against_distrax() -> None:
    logits = jax.random.normal(jax.random.key(0), (4, 5))
    dist, other = Categorical(logits), Categorical(logits[::-1])
    raw = jnp.array([0, 4, 2, 1])
    with lenient():
        theirs = dist.to_distrax()
        np.testing.assert_allclose(dist.log_prob(raw), theirs.log_prob(raw), rtol=1e-5)
        np.testing.assert_allclose(dist.entropy(), theirs.entropy(), rtol=1e-5)
        np.testing.assert_allclose(dist.kl(other), theirs.kl_divergence(other.to_distrax()), rtol=1e-4)
    np.testing.assert_array_equal(dist.mode(), np.argmax(logits, -1))
    draws = jax.vmap(dist.sample)(jax.random.split(jax.random.key(1), 20_000))
    np.testing.assert_allclose((np.asarray(draws)[:, 0, None] == np.arange(5)).mean(0), dist.probs()[0], atol=0.015)


def test_masked_actions_have_no_probability_no_entropy_and_no_gradient() -> None:
    logits, mask = jnp.array([0.1, 5.0, -0.3]), jnp.array([True, False, True])
    dist = Categorical(logits, mask)
    kept = Categorical(logits[mask])
    np.testing.assert_array_equal(dist.probs()[1], 0.0)
    np.testing.assert_allclose(dist.entropy(), kept.entropy(), rtol=1e-6)
    np.testing.assert_allclose(dist.log_prob(jnp.int32(2)), kept.log_prob(jnp.int32(1)), rtol=1e-6)
    other = jnp.array([1.0, -2.0, 0.5])
    np.testing.assert_allclose(dist.kl(Categorical(other, mask)), kept.kl(Categorical(other[mask])), rtol=1e-5)
    assert int(dist.mode()) == 0
    draws = jax.vmap(dist.sample)(jax.random.split(jax.random.key(0), 2_000))
    assert set(np.unique(draws)) == {0, 2}

    def everything(logits):
        d = Categorical(logits, mask)
        return d.entropy() + d.log_prob(jnp.int32(0)) + d.kl(Categorical(other, mask))

    grad = jax.grad(everything)(logits)
    assert np.isfinite(grad).all()
    np.testing.assert_array_equal(grad[1], 0.0)


def test_one_allowed_action_is_certain() -> None:
    dist = Categorical(jnp.array([3.0, -1.0]), jnp.array([False, True]))
    np.testing.assert_allclose([dist.entropy(), dist.log_prob(jnp.int32(1))], 0.0, atol=1e-7)
    assert np.isfinite(jax.grad(lambda x: Categorical(x, dist.mask).entropy())(dist.logits)).all()


@pytest.mark.x64
def test_double_precision() -> None:
    dist = TanhNormal(LOC.astype(jnp.float64), SCALE.astype(jnp.float64))
    raw = dist.sample(jax.random.key(0))
    assert raw.dtype == dist.log_prob_squashed(raw).dtype == jnp.float64
    assert Categorical(jnp.zeros(3)).sample(jax.random.key(0)).dtype == jnp.int32


def test_importing_is_cheap(run_python) -> None:
    code = "import sys, mjxlab.rl.distributions as d; print('distrax' in sys.modules)"
    assert run_python(code).stdout.split() == ["False"]
