"""The Warp engine: how it gathers worlds, and, where warp-lang is installed, its agreement with the C engine."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scenes import PENDULUM

from mjxlab import physics
from mjxlab.errors import EngineError
from mjxlab.physics import load, warp

OUTPUTS = ("qpos", "qvel", "xpos", "sensordata", "qacc")


def test_all_worlds_come_in_one_call_with_their_number():
    """Warp's contact array is shared by all worlds, so its size must be known where the program is built."""
    seen = []

    def world(state, gain):
        seen.append((warp._worlds.get(), state["x"].shape))
        return {"y": state["x"] * gain, "n": jnp.full((), warp._worlds.get())}

    gathered = warp._gather(world)
    assert int(gathered({"x": jnp.ones(2)}, jnp.float32(3))["n"]) == 1
    x = jnp.arange(24.0).reshape(3, 4, 2)
    out = jax.jit(jax.vmap(jax.vmap(gathered, (0, None)), (0, None)))({"x": x}, jnp.float32(2))
    np.testing.assert_array_equal(out["y"], 2 * x)
    np.testing.assert_array_equal(out["n"], jnp.full((3, 4), 12))
    across = jax.vmap(jax.vmap(gathered, (None, 0)), (0, None))({"x": x[0]}, jnp.arange(5.0))
    np.testing.assert_array_equal(across["y"][3, 4], 4 * x[0, 3])
    assert warp._worlds.get() == 1
    assert {shape for _, shape in seen} == {(2,)}


def test_derivatives_are_refused():
    step = warp._gather(warp._refuse_derivative(lambda x: x * x))
    np.testing.assert_array_equal(jax.vmap(step)(jnp.arange(3.0)), [0, 1, 4])
    with pytest.raises(EngineError, match=r"'warp' cannot be differentiated; use make_engine\(model, kind='mjx'\)"):
        jax.grad(step)(jnp.float32(2))


@pytest.mark.skipif(load.has_warp(), reason="warp-lang is installed")
def test_without_warp_the_line_says_what_to_install():
    with pytest.raises(EngineError, match=r"engine 'warp' needs warp-lang: pip install 'mjxlab\[warp\]'"):
        physics.make_engine(PENDULUM, "warp")


@pytest.mark.skipif(not load.has_warp(), reason="warp-lang is not installed")
@pytest.mark.slow
@pytest.mark.timeout(1800)  # Warp compiles some hundred kernels at first
def test_warp_is_near_the_c_engine():
    if jax.default_backend() != "gpu":
        with pytest.raises(EngineError, match="engine 'warp' needs an NVIDIA GPU, and JAX runs on 'cpu' here"):
            physics.make_engine(PENDULUM, "warp")
    engines = (
        physics.make_engine(PENDULUM, "mujoco", OUTPUTS),
        physics.make_engine(PENDULUM, "warp", OUTPUTS, contacts=8, constraints=16, device=jax.default_backend()),
    )

    def run(engine, velocity, mass):
        fields = {"body_mass": jnp.stack([jnp.zeros(()), mass])}
        data = engine.init(fields, qvel=velocity)
        data, _ = jax.lax.scan(lambda d, _: (engine.step(d, fields, jnp.ones(1), 3), None), data, None, length=10)
        back = engine.set(data, fields, qvel=-data.qvel)
        return [(d.qpos, d.qvel, d.xpos, d.sensordata, d.finite) for d in (data, back)]

    velocities, masses = jnp.array([[0.5], [2.0], [-1.0]]), jnp.array([1.0, 3.0])
    got = [
        jax.jit(jax.vmap(jax.vmap(lambda v, m, e=e: run(e, v, m), (0, None)), (None, 0)))(velocities, masses)
        for e in engines
    ]
    for a, b in zip(*map(jax.tree.leaves, got), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-3, rtol=1e-4)
