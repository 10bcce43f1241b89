"""MJX behind the same interface: near the C engine, with its derived constants, and differentiable."""

import jax
import jax.numpy as jnp
import mujoco
import numpy as np
import pytest
from scenes import BALL, CHAIN, DUMBBELL, PENDULUM, RIG

from mjxlab import physics
from mjxlab.errors import EngineError, ModelError
from mjxlab.physics import derived, options, perturb, reverse

OUTPUTS = ("qpos", "qvel", "xpos", "sensordata", "qacc", "xmat")


@pytest.fixture(scope="module")
def engines():
    return {kind: physics.make_engine(PENDULUM, kind, OUTPUTS) for kind in ("mujoco", "mjx")}


def test_a_landing_with_fields_of_its_own_is_near_the_c_engine():
    """Tolerance after 40 steps with contacts, in float32: 1e-4 m, 2e-3 m/s."""
    got = {}
    for kind in ("mujoco", "mjx"):
        engine = physics.make_engine(DUMBBELL, kind)
        model = engine.model

        def run(velocity, key, engine=engine, model=model):
            fields = {
                **perturb.mass(key, model, 0.5, 2.0),
                "geom_size": perturb.scale(key, perturb.field(model, "geom_size"), 1.0, 2.0),
            }
            data = engine.init(fields, qvel=velocity)
            data, _ = jax.lax.scan(lambda d, _: (engine.step(d, fields, jnp.zeros(0), 5), None), data, None, length=8)
            return data.qpos, data.qvel, data.xpos, data.sensordata

        velocity = jnp.zeros((2, 6)).at[:, 0].set(0.3).at[:, 2].set(-0.8)
        got[kind] = physics.jit(jax.vmap(run))(velocity, jax.random.split(jax.random.key(2), 2))
    for (a, b), tolerance in zip(zip(*got.values(), strict=True), (1e-4, 2e-3, 1e-4, 1e-4), strict=True):
        np.testing.assert_allclose(a, b, atol=tolerance)
    assert np.abs(np.diff(got["mjx"][0], axis=0)).max() > 1e-3  # the worlds do differ


@pytest.fixture(scope="module")
def programs(engines):
    """Compiled once for each engine, for three worlds: init(qpos, qvel), step(data, ctrl), set(data, qpos)."""
    return {
        kind: (
            physics.jit(jax.vmap(lambda q, v, e=e: e.init(qpos=q, qvel=v))),
            physics.jit(jax.vmap(lambda d, u, e=e: e.step(d, {}, u, 3))),
            physics.jit(jax.vmap(lambda d, q, e=e: e.set(d, qpos=q, time=7.0))),
        )
        for kind, e in engines.items()
    }


def test_outputs_are_fresh_and_equal_the_c_engines(programs):
    """Positions and their sensors of the new state; accelerations of the last substep, as after mj_step."""
    got = []
    for init, step, put in programs.values():
        data = init(jnp.array([[0.3], [0.0], [0.36]]), jnp.array([[2.0], [0.5], [0.1]]))
        after = step(data, jnp.array([[0.7], [0.1], [-0.2]]))
        back = put(after, jnp.array([[-0.2], [0.1], [0.3]]))
        got.append([(d.qpos, d.qvel, d.xpos, d.sensordata, d.qacc, d.xmat) for d in (data, after, back)])
    for x, y in zip(*map(jax.tree.leaves, got), strict=True):
        np.testing.assert_allclose(x, y, atol=2e-4, rtol=1e-4)


def test_the_state_is_small_and_restarts_exactly(programs):
    init, step, put = programs["mjx"]
    data = step(init(jnp.zeros((3, 1)), jnp.ones((3, 1))), jnp.zeros((3, 1)))
    assert sum(np.asarray(x).nbytes for x in jax.tree.leaves(data)) < 3 * 400
    again = jax.tree.map(lambda x: jnp.asarray(np.asarray(x)), data)
    jax.tree.map(np.testing.assert_array_equal, step(data, jnp.ones((3, 1))), step(again, jnp.ones((3, 1))))
    changed = put(data, data.qpos)
    for name, value in changed.state.items():
        np.testing.assert_array_equal(value, jnp.full(3, 7.0) if name == "time" else data.state[name], name)


def test_nan_is_flagged_and_stays_in_its_world(programs):
    init, step, _ = programs["mjx"]
    zero = jnp.zeros((3, 1))
    clean, bad = init(zero, zero + 1), init(zero, jnp.array([[1.0], [jnp.nan], [1.0]]))
    assert bad.finite.tolist() == [True, False, True]
    a, b = step(clean, zero), step(bad, zero)
    assert b.finite.tolist() == [True, False, True]
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        np.testing.assert_array_equal(np.asarray(x)[::2], np.asarray(y)[::2])
    mixed = physics.where(jnp.array([False, True, False]), clean, b)
    assert bool(step(mixed, zero).finite.all())


@pytest.mark.x64
def test_reverse_gradient_equals_finite_differences():
    """Free, and beyond the joint's limit, where MJX's solver iterates."""
    outputs = ("qpos", "qvel", "sensordata")
    mjx, c = (physics.make_engine(PENDULUM, kind, outputs) for kind in ("mjx", "mujoco"))

    def loss(x, engine):
        qpos, qvel, ctrl, mass = x
        fields = {"body_mass": jnp.stack([jnp.zeros_like(mass), mass])}
        data = engine.step(engine.init({}, qpos=qpos[None], qvel=qvel[None]), fields, ctrl[None], 1)
        return 10 * data.qvel.sum() + data.sensordata[:3] @ jnp.array([1.0, 2.0, 3.0])

    slope = physics.jit(jax.value_and_grad(lambda x: loss(x, mjx)))
    value = jax.jit(lambda x: loss(x, c))
    for deflection in (0.1, 0.36):
        x = jnp.array([deflection, 0.5, 0.3, 2.0])
        at, gradient = slope(x)
        np.testing.assert_allclose(value(x), at, rtol=1e-9)
        differences = [(value(x + h) - value(x - h)) / 2e-6 for h in 1e-6 * jnp.eye(4)]
        np.testing.assert_allclose(gradient, differences, rtol=1e-5, atol=1e-7)
        assert np.abs(gradient).min() > 1e-4


def test_bounded_loops_have_values_and_gradients_of_the_loop():
    def root(x):  # Newton's iteration for the square root, until it moves no more
        return jax.lax.while_loop(
            lambda c: jnp.abs(c[0] * c[0] - x) > 1e-5 * x, lambda c: ((c[0] + x / c[0]) / 2, c[1] + 1), (x, 0)
        )

    bounded = reverse.bounded(jax.jit(root), 12)
    np.testing.assert_array_equal(bounded(jnp.float32(3))[0], root(jnp.float32(3))[0])
    slope = jax.vmap(jax.grad(lambda x: bounded(x)[0]))(jnp.array([2.0, 3.0, 50.0]))
    np.testing.assert_allclose(slope, 0.5 / np.sqrt([2.0, 3.0, 50.0]), rtol=1e-3)


@pytest.mark.x64
def test_derived_constants_are_those_of_mj_setconst():
    engine = physics.make_engine(CHAIN, "mjx", ("qpos",))
    model = engine.model
    keys = jax.random.split(jax.random.key(0), 4)
    fields = {
        **perturb.mass(keys[0], model, 0.3, 3.0),
        **perturb.centre_of_mass(keys[1], model, 0.05),
        "geom_size": perturb.scale(keys[2], perturb.field(model, "geom_size"), 0.5, 2.0),
        "qpos0": perturb.normal(keys[3], perturb.field(model, "qpos0"), 0.05, ids=[0, 1, 2, 11, 12]),
        "dof_armature": perturb.field(model, "dof_armature") + 0.01,
    }
    changes = jax.jit(engine._changes)(engine._fields(fields))
    expected = physics.load_model(model)
    for name, value in fields.items():
        setattr(expected, name, np.asarray(value))
    mujoco.mj_setConst(expected, mujoco.MjData(expected))
    checked = set(changes) - set(fields)
    assert checked >= {"geom_rbound", "body_subtreemass", "dof_invweight0", "body_invweight0", "tendon_invweight0"}
    for name in checked:
        np.testing.assert_allclose(changes[name], getattr(expected, name), rtol=1e-9, atol=1e-12, err_msg=name)
        stale = name in ("tendon_length0", "dof_M0") or not np.allclose(getattr(expected, name), getattr(model, name))
        assert stale, name


def test_switches_are_on_where_a_zero_field_varies():
    """Friction loss, gravity compensation and air of a model that has none."""
    engine = physics.make_engine(CHAIN, "mjx", ("qpos",))
    assert derived.switched(("body_mass", "dof_frictionloss")) == ("dof_frictionloss",)
    plain, _, _ = engine._put(("body_mass",))
    varied, data, _ = engine._put(("dof_frictionloss", "body_gravcomp", "opt.density"))
    assert not plain._impl.dof_hasfrictionloss.any()
    assert varied._impl.dof_hasfrictionloss.all()
    assert data._impl.nf == engine.model.nv
    assert varied.flg_gravcomp
    assert not plain.flg_gravcomp
    assert varied.opt._impl.has_fluid_params
    assert not engine.model.dof_frictionloss.any()


def test_compile_options_are_found_wherever_the_step_is(engines):
    step = lambda e, d: e.step(d, {}, jnp.zeros(1), 2).qpos  # noqa: E731
    mjx, c = engines["mjx"], engines["mujoco"]
    deep = jax.jit(jax.vmap(lambda d: jax.lax.cond(d.finite, lambda d: step(mjx, d), lambda d: d.qpos, d)))
    data = jax.eval_shape(jax.vmap(lambda v: mjx.init(qvel=v)), jax.ShapeDtypeStruct((3, 1), jnp.float32))
    found = physics.compiler_options(deep.trace(data).jaxpr)
    option = {"xla_cpu_use_fusion_emitters": False}
    try:  # jax 0.11 has it no more, nor the slowness that it cures
        jax.jit(jnp.sin, compiler_options=option)(1.0)
        assert found == option
    except jax.errors.JaxRuntimeError:
        assert found == {}
    assert physics.compiler_options(jax.make_jaxpr(lambda: step(c, c.init()))()) == {}
    assert physics.compiler_options(jax.make_jaxpr(jnp.sin)(1.0)) == {}


def test_an_unknown_option_is_left_out(engines, monkeypatch):
    mjx = engines["mjx"]
    traced = jax.jit(lambda d: mjx.step(d, {}, jnp.zeros(1), 2).qpos).trace(jax.eval_shape(mjx.init)).jaxpr
    monkeypatch.setattr(options, "_OPTION", "xla_no_such_option")
    options._known.cache_clear()
    assert physics.compiler_options(traced) == {}
    monkeypatch.undo()
    options._known.cache_clear()


def test_jit_takes_the_options_by_itself(engines):
    calls = []

    def run(data, n=1):
        calls.append(n)
        return engines["mujoco"].step(data, {}, jnp.zeros(1), n).qpos

    fast = physics.jit(run, static_argnames="n")
    data = engines["mujoco"].init(qvel=jnp.ones(1))
    np.testing.assert_array_equal(fast(data, n=3), run(data, 3))
    traced = len(calls)
    fast(data, n=3)
    assert len(calls) == traced  # compiled once
    np.testing.assert_array_equal(jax.vmap(lambda x: fast(x))(jax.tree.map(lambda x: x[None], data))[0], run(data))


@pytest.mark.parametrize(
    ("xml", "outputs", "message"),
    [
        (RIG, ("qpos",), "engine 'mjx' has no delayed actuators or sensors; use kind='mujoco'"),
        (
            PENDULUM.replace("<accelerometer", "<jointlimitpos name='l' joint='hinge'/><accelerometer"),
            ("qpos",),
            "engine 'mjx' cannot run this model: .*JOINTLIMITPOS.*kind='mujoco'",
        ),
        (
            BALL.replace('type="sphere" size=".05"', 'type="ellipsoid" size=".05 .06 .07"'),
            ("qpos",),
            "engine 'mjx' cannot run this model: .*collisions not implemented",
        ),
        (CHAIN, ("qpos", "actuator_moment"), "outputs: engine 'mjx' has no 'actuator_moment'; use kind='mujoco'"),
        (CHAIN, ("qpos", "light_xpos"), "outputs: engine 'mjx' has no 'light_xpos'; use kind='mujoco'"),
    ],
)
def test_what_mjx_lacks_is_one_clear_line(xml, outputs, message):
    with pytest.raises((ModelError, EngineError), match=message) as caught:
        physics.make_engine(xml, "mjx", outputs)
    assert "\n" not in str(caught.value)


def test_fields_that_shape_the_program_cannot_vary(engines):
    with pytest.raises(EngineError, match="field 'geom_type' cannot vary .* engine 'mjx'"):
        engines["mjx"].init({"geom_type": jnp.zeros(1, jnp.int32)})
    with pytest.raises(EngineError, match="data of engine 'mujoco' was given to engine 'mjx'"):
        engines["mjx"].step(engines["mujoco"].init(), {}, jnp.zeros(1), 1)
