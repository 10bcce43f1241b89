"""The C engine inside compiled programs: equal to MuJoCo bit for bit, for any stack of vmaps and devices."""

import jax
import jax.numpy as jnp
import mujoco
import numpy as np
import pytest
from jax.sharding import AxisType, PartitionSpec
from scenes import BALL, CRAMPED, PENDULUM, RIG

from mjxlab import physics
from mjxlab.errors import EngineError, ModelError

INTEGRATION = mujoco.mjtState.mjSTATE_INTEGRATION
OUTPUTS = ("qpos", "qvel", "xpos", "sensordata", "act", "time", "eq_active", "xmat", "ncon", "qacc")


@pytest.fixture(scope="module")
def rig():
    return physics.make_engine(RIG, "mujoco", OUTPUTS)


@pytest.fixture(scope="module")
def ball():
    return physics.make_engine(BALL, "mujoco", ("qpos", "qvel", "xpos", "sensordata"))


def row(model: mujoco.MjModel, data: mujoco.MjData) -> np.ndarray:
    state = np.empty(mujoco.mj_stateSize(model, INTEGRATION))
    mujoco.mj_getState(model, data, state, INTEGRATION)
    return state


def bits(data: physics.Data) -> np.ndarray:
    return np.ascontiguousarray(data.state["bits"]).view(np.float64)


def control(key, n):
    return jax.random.uniform(key, (n, 3), jnp.result_type(float), -1, 1)


def check_rollout(engine, calls):
    """A compiled rollout of 5 * calls steps against a loop of mj_step, the whole state by bits at every call."""
    dtype = jnp.result_type(float)
    ctrl = control(jax.random.key(0), calls)
    kinds = jnp.arange(calls) // 20 % 4
    active = jnp.stack([kinds % 2, kinds // 2], 1).astype(bool)  # each equality on and off, several times
    angle = jnp.arange(calls, dtype=dtype) / jnp.asarray(40, dtype)
    zero = jnp.zeros_like(angle)
    hand = jnp.stack([jnp.sin(angle), zero, 1 + zero], 1)[:, None] * jnp.asarray(0.4, dtype)

    @jax.jit
    def rollout(data):
        def body(data, x):
            u, on, place = x
            data = engine.set(data, eq_active=on, mocap_pos=place)
            data = engine.step(data, {}, u, 5)
            return data, data

        return jax.lax.scan(body, data, (ctrl, active, hand))

    _, got = rollout(engine.init())
    model = engine.model
    data = mujoco.MjData(model)
    ncon = 0
    for t in range(calls):
        data.eq_active[:] = np.asarray(active[t])
        data.mocap_pos[:] = np.asarray(hand[t], np.float64)
        data.ctrl[:] = np.asarray(ctrl[t], np.float64)
        for _ in range(5):
            mujoco.mj_step(model, data)
        ncon = max(ncon, data.ncon)
        np.testing.assert_array_equal(bits(got)[t].view(np.uint64), row(model, data).view(np.uint64), str(t))
        fresh = mujoco.MjData(model)
        mujoco.mj_setState(model, fresh, row(model, data), INTEGRATION)
        mujoco.mj_forward(model, fresh)
        late = np.repeat(model.sensor_needstage == mujoco.mjtStage.mjSTAGE_ACC, model.sensor_dim)
        sensors = np.where(late, data.sensordata, fresh.sensordata)
        np.testing.assert_array_equal(got.sensordata[t], sensors.astype(dtype))
        np.testing.assert_array_equal(got.xpos[t], fresh.xpos.astype(dtype))
        np.testing.assert_array_equal(got.xmat[t].reshape(-1, 9), fresh.xmat.astype(dtype))
    assert ncon >= 4
    assert np.abs(np.asarray(got.act)).max() > 0.05
    assert bool(got.finite.all())
    assert not np.allclose(np.asarray(got.sensordata)[:, 6:10], 0)  # touch or acceleration did occur


def test_rollout_equals_mj_step_bit_for_bit_over_1000_steps(rig):
    check_rollout(rig, 200)


@pytest.mark.x64
def test_rollout_equals_mj_step_bit_for_bit_in_double_precision(rig):
    check_rollout(rig, 20)
    data = rig.step(rig.init(), {}, jnp.zeros(3), 3)
    assert data.qpos.dtype == jnp.float64
    np.testing.assert_array_equal(data.qpos, bits(data)[1 : 1 + rig.model.nq])


def test_warm_start_is_part_of_the_state(rig):
    """Without it the next contact solve starts elsewhere, and the last bits differ."""
    data = rig.init(qvel=jnp.full(rig.model.nv, 0.3))
    for _ in range(8):
        data = rig.step(data, {}, jnp.zeros(3), 10)
    cold = rig.set(data, qacc_warmstart=jnp.zeros(rig.model.nv))
    a, b = (rig.step(d, {}, jnp.zeros(3), 10) for d in (data, cold))
    assert (bits(a) != bits(b)).any()
    np.testing.assert_allclose(bits(a)[: rig.model.nq], bits(b)[: rig.model.nq], atol=1e-3)


def test_nested_vmap_and_jit_equal_a_loop_over_worlds(rig):
    nv = rig.model.nv

    def run(velocity, u):
        data = rig.init(qvel=velocity)
        return rig.step(data, {}, u, 4)

    velocities = jax.random.normal(jax.random.key(1), (2, 3, nv)) * jnp.float32(0.5)
    controls = control(jax.random.key(2), 5)
    nested = jax.jit(jax.vmap(jax.vmap(jax.vmap(run, (None, 0)), (0, None)), (1, None)))(velocities, controls)
    assert nested.qpos.shape == (3, 2, 5, rig.model.nq)
    for i, j, k in [(0, 0, 0), (1, 0, 4), (2, 1, 3)]:
        single = run(velocities[j, i], controls[k])
        for a, b in zip(jax.tree.leaves(nested), jax.tree.leaves(single), strict=True):
            np.testing.assert_array_equal(a[i, j, k], b)


def test_one_call_for_any_number_of_worlds(rig, monkeypatch):
    seen = []
    run = physics.cpu.host.Host.run
    monkeypatch.setattr(
        physics.cpu.host.Host, "run", lambda self, plan, n, *a: (seen.append((plan.op, n)), run(self, plan, n, *a))[1]
    )
    data = jax.vmap(jax.vmap(lambda v: rig.init(qvel=v)))(jnp.zeros((2, 3, rig.model.nv)))
    jax.block_until_ready(jax.vmap(jax.vmap(lambda d: rig.step(d, {}, jnp.zeros(3), 2)))(data))
    assert seen == [("init", 6), ("step", 6)]


def test_two_devices_with_2048_worlds_each_do_not_deadlock(ball):
    mesh = jax.make_mesh((2,), ("device",), axis_types=(AxisType.Auto,))

    def run(velocity):
        data = jax.vmap(lambda v: ball.init(qvel=v))(velocity)
        step = jax.vmap(lambda d: ball.step(d, {}, jnp.zeros(0), 2))
        return jax.lax.fori_loop(0, 5, lambda _, d: step(d), data).qpos

    velocity = jax.random.normal(jax.random.key(0), (4096, ball.model.nv))
    split = jax.jit(jax.shard_map(run, mesh=mesh, in_specs=PartitionSpec("device"), out_specs=PartitionSpec("device")))
    np.testing.assert_array_equal(split(velocity), jax.jit(run)(velocity))


def test_nan_world_is_flagged_and_its_neighbours_are_untouched(ball):
    velocity = jax.random.normal(jax.random.key(3), (5, ball.model.nv))
    step = jax.jit(jax.vmap(lambda d: ball.step(d, {}, jnp.zeros(0), 7)))
    clean = jax.vmap(lambda v: ball.init(qvel=v))(velocity)
    bad = jax.vmap(lambda v: ball.init(qvel=v))(velocity.at[2, 1].set(jnp.nan))
    assert bad.finite.tolist() == [True, True, False, True, True]
    a, b = step(step(clean)), step(step(bad))
    assert b.finite.tolist() == [True, True, False, True, True]
    assert np.isnan(b.qpos[2]).any()  # MuJoCo would have reset it in silence
    others = np.array([0, 1, 3, 4])
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        np.testing.assert_array_equal(np.asarray(x)[others], np.asarray(y)[others])
    healed = jax.vmap(ball.set)(b, None, qpos=clean.qpos, qvel=clean.qvel, qacc_warmstart=jnp.zeros_like(clean.qvel))
    assert bool(healed.finite.all())


def test_huge_numbers_and_nan_controls_are_flagged(ball, rig):
    assert not bool(ball.step(ball.init(qvel=jnp.full(12, 1e11)), {}, jnp.zeros(0), 1).finite)
    data = rig.step(rig.init(), {}, jnp.array([0.0, jnp.nan, 0.0]), 1)
    assert not bool(data.finite)
    assert not bool(rig.step(data, {}, jnp.zeros(3), 1).finite)  # a step does not forget


def test_mujoco_writes_no_log(ball, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    jax.block_until_ready(ball.step(ball.init(qvel=jnp.full(12, jnp.nan)), {}, jnp.zeros(0), 3))
    assert not list(tmp_path.iterdir())
    assert "WARNING" not in "".join(capfd.readouterr())


def test_set_is_lossless_and_outputs_are_fresh(rig):
    data = rig.step(rig.init(qvel=jnp.full(rig.model.nv, 0.2)), {}, jnp.array([0.5, -0.5, 0.3]), 9)
    model = rig.model
    before = bits(data)
    names = {
        "qpos": mujoco.mjtState.mjSTATE_QPOS,
        "eq_active": mujoco.mjtState.mjSTATE_EQ_ACTIVE,
        "mocap_pos": mujoco.mjtState.mjSTATE_MOCAP_POS,
        "time": mujoco.mjtState.mjSTATE_TIME,
        "act": mujoco.mjtState.mjSTATE_ACT,
        "xfrc_applied": mujoco.mjtState.mjSTATE_XFRC_APPLIED,
    }
    values = {
        "qpos": data.qpos.at[2].add(jnp.float32(0.5)),
        "eq_active": jnp.array([True, False]),
        "mocap_pos": jnp.ones((1, 3)),
        "time": 3.0,
        "act": jnp.array([0.25, -0.5]),
        "xfrc_applied": jnp.ones((model.nbody, 6)),
    }
    for name, component in names.items():
        after = bits(rig.set(data, **{name: values[name]}))
        expected = mujoco.MjData(model)
        mujoco.mj_setState(model, expected, before, INTEGRATION)
        mujoco.mj_setState(model, expected, np.ravel(np.asarray(values[name], np.float64)), component)
        np.testing.assert_array_equal(after.view(np.uint64), row(model, expected).view(np.uint64), name)
    assert bits(rig.set(data)).view(np.uint64).tolist() == before.view(np.uint64).tolist()
    moved = rig.set(data, qpos=values["qpos"])
    np.testing.assert_allclose(moved.xpos[model.body("box").id, 2], data.xpos[model.body("box").id, 2] + 0.5, atol=1e-6)
    assert rig.set(data, eq_active=values["eq_active"]).eq_active.tolist() == [True, False]


def test_init_takes_all_of_the_state(rig):
    data = rig.init(time=2.0, act=jnp.array([0.5, 0.25]), ctrl=jnp.ones(3), eq_active=jnp.array([True, True]))
    assert float(data.time) == 2.0
    assert data.eq_active.dtype == jnp.bool_
    np.testing.assert_array_equal(data.act, [0.5, 0.25])
    default = mujoco.MjData(rig.model)
    np.testing.assert_array_equal(bits(rig.init()), row(rig.model, default))


def test_sensor_is_a_slice_by_name(rig):
    data = rig.step(rig.init(), {}, jnp.zeros(3), 3)
    np.testing.assert_allclose(rig.sensor(data, "elbow"), data.qpos[-1:], atol=1e-7)
    batch = jax.vmap(lambda v: rig.init(qvel=v))(jnp.zeros((4, rig.model.nv)))
    assert rig.sensor(batch, "tip").shape == (4, 3)
    with pytest.raises(EngineError, match="sensor 'tap' is not in the model; its sensors are tip, tip_velocity"):
        rig.sensor(data, "tap")


def test_where_selects_worlds(rig):
    a = jax.vmap(lambda v: rig.init(qvel=v))(jnp.ones((3, rig.model.nv)))
    b = jax.vmap(lambda v: rig.init(qvel=v))(jnp.zeros((3, rig.model.nv)))
    keys = jax.random.split(jax.random.key(0), 6)
    done = jnp.array([True, False, True])
    data, key = physics.where(done, (a, keys[:3]), (b, keys[3:]))
    np.testing.assert_array_equal(data.qvel[:, 0], [1, 0, 1])
    np.testing.assert_array_equal(bits(data)[1], bits(b)[1])
    np.testing.assert_array_equal(jax.random.key_data(key), jax.random.key_data(keys[jnp.array([0, 4, 2])]))


def test_derivatives_are_refused_with_a_line_that_names_mjx(ball):
    def height(v):
        return ball.step(ball.init(qvel=v), {}, jnp.zeros(0), 3).qpos[2]

    for derivative in (jax.grad(height), lambda v: jax.jvp(height, (v,), (v,)), jax.grad(jax.checkpoint(height))):
        with pytest.raises(EngineError, match=r"'mujoco' cannot be differentiated .* kind='mjx'"):
            derivative(jnp.ones(12))
    # what does not depend on the parameters may be simulated inside a loss
    slope = jax.grad(lambda w: w * jax.jit(height)(jax.lax.stop_gradient(w) * jnp.ones(12)))(jnp.float32(2))
    np.testing.assert_allclose(slope, height(jnp.full(12, 2.0)))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda e, d: d.xquat, r"data\.xquat: not among this engine's outputs .*outputs=\(\.\.\., 'xquat'\)"),
        (lambda e, d: d.replace(qpos=0), r"data\.replace\(qpos=\.\.\.\): views are for reading; use engine\.set"),
        (lambda e, d: setattr(d, "qpos", 0), r"data\.qpos is a view for reading"),
        (lambda e, d: e.init(qpos=jnp.zeros(3)), r"qpos: expected shape \(14,\), got \(3,\)"),
        (lambda e, d: e.init(qpos=jnp.zeros((7, 14))), "use jax.vmap for many"),
        (lambda e, d: e.init(qpose=jnp.zeros(14)), "'qpose' is not a state field; .* did you mean qpos"),
        (lambda e, d: e.step(d, {}, jnp.zeros(0), 0), "substeps: expected an integer of at least 1, got 0"),
        (lambda e, d: e.step(d, {}, jnp.zeros(2), 1), r"ctrl: expected shape \(0,\), got \(2,\)"),
        (
            lambda e, d: e.step(d, {"body_mas": 0}, jnp.zeros(0), 1),
            "field 'body_mas' is not a model field; did you mean",
        ),
        (lambda e, d: e.step(d, {"qpos": 0}, jnp.zeros(0), 1), "field 'qpos' is state: use engine.set"),
        (lambda e, d: e.step(d, {"hfield_data": 0}, jnp.zeros(0), 1), "'hfield_data' cannot vary between worlds"),
        (lambda e, d: e.step(d, {"opt.disableflags": 0}, jnp.zeros(0), 1), "autoreset is off"),
        (
            lambda e, d: e.step(d, {"body_mass": jnp.zeros(2)}, jnp.zeros(0), 1),
            r"field body_mass: expected shape \(3,\)",
        ),
    ],
)
def test_wrong_use_is_one_clear_line(ball, call, message):
    with pytest.raises(EngineError, match=message) as caught:
        call(ball, ball.init())
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: physics.make_engine(BALL, "bullet"), "kind: expected one of auto, mujoco, mjx, warp, got 'bullet'"),
        (lambda: physics.make_engine(BALL, "mujoco", ("qpos", "xpoz")), "'xpoz' is not an MjData field .*did you mean"),
        (lambda: physics.make_engine(BALL, "mujoco", ("efc_J",)), "'efc_J' is not an MjData field of fixed size"),
        (
            lambda: physics.make_engine(BALL, "mujoco", ("cfrc_ext",)),
            "'cfrc_ext' is not computed by a step of this model",
        ),
        (lambda: physics.make_engine(BALL, "mujoco", ("energy",)), "flag energy"),
        (lambda: physics.make_engine(BALL, "mujoco", "qpos"), "outputs: expected a tuple"),
        (lambda: physics.make_engine(BALL, "mujoco", route="smoke"), "route: expected 'ffi', 'callback' or None"),
        (lambda: physics.make_engine(BALL, "mjx", route="ffi"), "engine 'mjx' has no option route"),
        (lambda: physics.make_engine(BALL, "warp"), "engine 'warp' needs"),
        (lambda: physics.make_engine("/nowhere/robot.xml"), "'/nowhere/robot.xml': no such file"),
        (lambda: physics.make_engine("/tmp"), "'/tmp': is a directory"),
        (lambda: physics.make_engine("<mujoco><worldbody><geom size='x'/></worldbody></mujoco>"), "XML string.*size"),
    ],
)
def test_what_cannot_be_made_is_one_clear_line(make, message):
    with pytest.raises((EngineError, ModelError), match=message) as caught:
        make()
    assert "\n" not in str(caught.value)


def test_models_come_from_objects_files_and_strings(tmp_path):
    file = tmp_path / "ball.xml"
    file.write_text(BALL)
    model = mujoco.MjModel.from_xml_string(BALL)
    engines = [physics.make_engine(m, "mujoco") for m in (BALL, file, str(file), model)]
    assert len({e.digest for e in engines}) == 1
    assert engines[0].host is engines[3].host
    assert not model.opt.disableflags & mujoco.mjtDisableBit.mjDSBL_AUTORESET  # the caller's model is left alone
    file.write_text(BALL.replace("</worldbody>", ""))
    with pytest.raises(ModelError, match=f"{file}.*XML") as caught:
        physics.make_engine(file)
    assert "\n" not in str(caught.value)


def test_an_error_of_mujoco_is_one_line_and_the_process_lives(ball):
    engine = physics.make_engine(CRAMPED, "mujoco")
    with pytest.raises(jax.errors.JaxRuntimeError, match="engine 'mujoco': .*size memory") as caught:
        jax.block_until_ready(jax.jit(lambda: engine.step(engine.init(), {}, jnp.zeros(0), 2))())
    assert "\n" not in str(caught.value).strip()
    assert bool(ball.step(ball.init(), {}, jnp.zeros(0), 1).finite)


def test_auto_is_the_c_engine_on_a_cpu():
    assert physics.auto_kind() == "mujoco"
    assert physics.make_engine(PENDULUM).kind == "mujoco"
