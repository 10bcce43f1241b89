"""Networks: shapes, initialisation, sharing, images, precision."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mjxlab.errors import ConfigError
from mjxlab.nn.cnn import CNN
from mjxlab.nn.initializers import orthogonal
from mjxlab.nn.mlp import MLP, ActorCritic, GaussianHead


def count(params) -> int:
    return sum(x.size for x in jax.tree.leaves(params))


def test_mlp_is_the_formula() -> None:
    net = MLP((5, 3), activation="relu")
    x = jax.random.normal(jax.random.key(0), (4, 7))
    params = net.init(jax.random.key(1), x)
    layers = params["params"]
    hidden = x
    for name in ("Dense_0", "Dense_1"):
        hidden = np.maximum(hidden @ layers[name]["kernel"] + np.asarray(layers[name]["bias"])[None], 0)
    np.testing.assert_allclose(net.apply(params, x), hidden, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(jax.vmap(lambda row: net.apply(params, row))(x), hidden, rtol=1e-5, atol=1e-6)
    kernel = layers["Dense_0"]["kernel"]
    np.testing.assert_allclose(kernel.T @ kernel, 2 * np.eye(5), atol=1e-5)  # orthogonal with gain sqrt 2


def test_layer_norm_and_lecun() -> None:
    net = MLP((64,), layer_norm=True, kernel_init="lecun")
    params = net.init(jax.random.key(0), jnp.zeros(100))
    kernel = params["params"]["Dense_0"]["kernel"]
    np.testing.assert_allclose(kernel.std(), 0.1, rtol=0.05)
    assert np.abs(kernel).max() <= np.sqrt(3) * 0.1
    a = net.apply(params, jnp.arange(100.0))
    np.testing.assert_allclose(a, net.apply(params, 7 * jnp.arange(100.0)), rtol=1e-3, atol=1e-4)  # scale-free


def test_gaussian_head_starts_at_its_standard_deviation() -> None:
    x = jax.random.normal(jax.random.key(0), (6,))
    for state_std in (False, True):
        head = GaussianHead(3, state_std=state_std, init_std=0.4, final_scale=0.0, kernel_init="lecun")
        loc, scale = head.apply(head.init(jax.random.key(0), x), x)
        np.testing.assert_allclose(loc, 0.0, atol=1e-6)
        np.testing.assert_allclose(scale, 0.4, rtol=1e-5)


def test_only_a_state_dependent_scale_depends_on_the_state() -> None:
    x = jax.random.normal(jax.random.key(0), (2, 6))
    free, dependent = GaussianHead(3), GaussianHead(3, state_std=True, final_scale=1.0)
    scales = [jax.vmap(lambda o, h=h: h.apply(h.init(jax.random.key(0), x[0]), o)[1])(x) for h in (free, dependent)]
    np.testing.assert_array_equal(scales[0][0], scales[0][1])
    assert not np.allclose(scales[1][0], scales[1][1])


def test_shared_and_separate_trunks() -> None:
    obs = {"a": jnp.ones(3), "b": jnp.ones((2, 2))}
    shared = ActorCritic(2, shared=True, policy_widths=(8,))
    separate = ActorCritic(2, policy_widths=(8,), value_widths=(16,))
    p, q = shared.init(jax.random.key(0), obs), separate.init(jax.random.key(0), obs)
    assert count(p) == (7 * 8 + 8) + (8 * 2 + 2) + 2 + (8 + 1)
    assert count(q) == count(p) - (8 + 1) + (7 * 16 + 16) + (16 + 1)
    for net, params in ((shared, p), (separate, q)):
        out, value = net.apply(params, obs)
        assert value.shape == ()
        np.testing.assert_allclose(value, net.apply(params, obs, method="value"))
        np.testing.assert_allclose(out[0], net.apply(params, obs, method="policy")[0])
    # with separate trunks the value's gradient does not touch the policy
    grads = jax.grad(lambda q: separate.apply(q, obs)[1])(q)["params"]
    assert all(not np.any(x) for x in jax.tree.leaves(grads["policy_trunk"]))
    shared_grads = jax.grad(lambda p: shared.apply(p, obs)[1])(p)["params"]
    assert any(np.any(x) for x in jax.tree.leaves(shared_grads["policy_trunk"]))


def test_discrete_head_gives_logits() -> None:
    net = ActorCritic(4, discrete=True, policy_widths=(8,), value_widths=(8,))
    logits, _ = net.apply(net.init(jax.random.key(0), jnp.ones(3)), jnp.ones(3))
    assert logits.shape == (4,)
    assert np.ptp(logits) < 0.1  # nearly uniform at the start


def test_images_go_through_the_cnn() -> None:
    obs = {"image": jnp.full((16, 16, 3), 255, jnp.uint8), "x": jnp.ones(2)}
    net = ActorCritic(2, policy_widths=(8,), value_widths=(8,))
    params = net.init(jax.random.key(0), obs)
    assert "CNN_0" in params["params"]["policy_trunk"]["Encoder_0"]
    (loc, _), value = net.apply(params, obs)
    assert np.isfinite(loc).all() and np.isfinite(value)
    cnn = CNN(features=4)
    weights = cnn.init(jax.random.key(0), obs["image"])
    as_float = jnp.ones((16, 16, 3))
    np.testing.assert_allclose(cnn.apply(weights, obs["image"]), cnn.apply(weights, as_float), rtol=1e-5)


@pytest.mark.x64
def test_double_precision() -> None:
    net = ActorCritic(2, policy_widths=(8,), value_widths=(8,), state_std=True, layer_norm=True)
    obs = {"a": jnp.ones(3), "n": jnp.arange(2)}
    params = net.init(jax.random.key(0), obs)
    out, value = net.apply(params, obs)
    assert {x.dtype for x in jax.tree.leaves((params, out, value))} == {jnp.dtype(jnp.float64)}


def test_unknown_names_are_refused() -> None:
    with pytest.raises(ConfigError, match="activation: got 'tan', expected one of tanh"):
        MLP((2,), activation="tan").init(jax.random.key(0), jnp.ones(2))
    with pytest.raises(ConfigError, match="kernel_init: got 'x'"):
        MLP((2,), kernel_init="x").init(jax.random.key(0), jnp.ones(2))


@pytest.mark.parametrize("shape", [(5, 3), (3, 5), (4, 4)])
def test_orthogonal_is_flaxs_and_survives_nested_vmap(shape: tuple[int, int]) -> None:
    ours, theirs = orthogonal(1.4), jax.nn.initializers.orthogonal(1.4)
    keys = jax.random.split(jax.random.key(0), (2, 3))
    batched = jax.jit(jax.vmap(jax.vmap(lambda k: ours(k, shape, jnp.float32))))(keys)
    for i in range(2):
        for j in range(3):
            np.testing.assert_allclose(batched[i, j], theirs(keys[i, j], shape, jnp.float32), atol=1e-6)


def test_vmapped_factorisations_do_not_hang(run_python) -> None:
    """Six at once in one program on two threads: as ``jnp.linalg.qr`` it hangs within a second."""
    run_python(
        "import os\n"
        "os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:2])\n"
        "import jax\n"
        "from mjxlab import linalg\n"
        "f = jax.jit(jax.vmap(lambda k: [linalg.qr(jax.random.normal(q, (64, 64)))[0] for q in jax.random.split(k, 6)]))\n"
        "for i in range(200): jax.block_until_ready(f(jax.random.split(jax.random.key(i), 8)))",
        timeout=120,
    )
