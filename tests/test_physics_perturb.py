"""Randomisation and disturbances: the right distribution, of the right entries, with what belongs together."""

import flax.struct
import jax
import jax.numpy as jnp
import mujoco
import numpy as np
import pytest
from scenes import BALL, CHAIN, RIG

from mjxlab import physics
from mjxlab.errors import ConfigError, EngineError
from mjxlab.physics import perturb

MODEL = mujoco.MjModel.from_xml_string(RIG)
KEYS = jax.random.split(jax.random.key(0), 400)


def test_scale_is_uniform_within_bounds_and_only_where_asked():
    value = perturb.field(MODEL, "geom_friction")
    drawn = jax.vmap(lambda k: perturb.scale(k, value, 0.5, 2.0, ids=[1, 3]))(KEYS) / value[None]
    np.testing.assert_array_equal(np.delete(drawn, [1, 3], axis=1), 1)
    factors = np.asarray(drawn)[:, [1, 3], 0]
    assert factors.min() >= 0.5
    assert factors.max() <= 2.0
    np.testing.assert_allclose(factors.mean(), 1.25, atol=0.05)
    np.testing.assert_allclose(drawn[:, 1, 0], drawn[:, 1, 2], rtol=1e-6)  # one factor for an entry
    assert abs(np.corrcoef(factors.T)[0, 1]) < 0.2  # entries are independent
    shared = jax.vmap(lambda k: perturb.scale(k, value, 0.5, 2.0, shared=True))(KEYS) / value[None]
    np.testing.assert_allclose(shared, np.broadcast_to(shared[:, :1, :1], shared.shape), rtol=1e-6)
    logarithms = jnp.log(jax.vmap(lambda k: perturb.scale(k, value, 0.5, 2.0, log=True))(KEYS) / value[None])
    np.testing.assert_allclose(logarithms.mean(), 0, atol=0.03)


def test_mass_brings_the_inertia_along():
    """Equal shape, other density: MuJoCo's own inertia of a geom with the scaled mass."""
    fields = perturb.mass(jax.random.key(3), MODEL, 0.3, 3.0)
    heavier = physics.load_model(RIG.replace('mass="1.3"', f'mass="{float(fields["body_mass"][2]):.9g}"'))
    np.testing.assert_allclose(fields["body_inertia"][2], heavier.body_inertia[2], rtol=1e-5)
    ratio = fields["body_mass"][1:] / jnp.asarray(MODEL.body_mass[1:], jnp.float32)
    np.testing.assert_allclose(
        fields["body_inertia"][1:] / jnp.asarray(MODEL.body_inertia[1:], jnp.float32),
        jnp.tile(ratio[:, None], (1, 3)),
        rtol=1e-5,
    )
    assert len(set(np.asarray(ratio).tolist())) == MODEL.nbody - 1


def test_payload_and_centre_of_mass():
    np.testing.assert_allclose(
        perturb.payload(MODEL, 2, 0.5)["body_mass"] - perturb.field(MODEL, "body_mass"), [0, 0, 0.5, 0, 0, 0], atol=1e-6
    )
    for bodies in (None, [4, 5]):
        moved = perturb.centre_of_mass(jax.random.key(0), MODEL, 0.02, bodies=bodies)["body_ipos"]
        change = np.abs(moved - perturb.field(MODEL, "body_ipos"))
        assert change[4].min() > 0
        assert change.max() <= 0.02
        np.testing.assert_array_equal(change[:4], 0)  # the free box and ball are compiled as simple


def test_gains_scale_gain_and_bias_alike():
    fields = perturb.gains(jax.random.key(1), MODEL, 0.5, 2.0)
    ratio = fields["actuator_gainprm"][1, 0] / jnp.float32(MODEL.actuator_gainprm[1, 0])
    np.testing.assert_allclose(fields["actuator_biasprm"][1, 1], -ratio, rtol=1e-6)


def test_gravity_keeps_its_length_times_the_factor():
    drawn = jax.jit(jax.vmap(lambda k: perturb.gravity(k, MODEL, 1.0, 1.0, tilt=0.3)["opt.gravity"]))(KEYS)
    np.testing.assert_allclose(jnp.linalg.norm(drawn, axis=1), 9.81, rtol=1e-5)
    angle = jnp.arccos(-drawn[:, 2] / 9.81)
    assert 0.2 < float(angle.max()) < 0.301
    np.testing.assert_allclose(drawn[:, :2].mean(0), 0, atol=0.2)


def test_a_push_moves_the_body_and_ends():
    engine = physics.make_engine(BALL, "mujoco")
    force = perturb.push(jax.random.key(0), engine.model, 1, 5.0, 5.0)
    np.testing.assert_allclose(jnp.linalg.norm(force[1, :3]), 5.0, rtol=1e-5)
    np.testing.assert_array_equal(force[:, 2:], 0)
    data = engine.step(engine.set(engine.init(), xfrc_applied=force), {}, jnp.zeros(0), 10)
    np.testing.assert_allclose(data.qvel[:2], force[1, :2] * jnp.float32(0.05), rtol=1e-4)  # mass 1, 10 x 5 ms
    none = perturb.push(jax.random.key(0), engine.model, 1, 5.0, 5.0, probability=0.0)
    after = engine.step(engine.set(data, xfrc_applied=none), {}, jnp.zeros(0), 10)
    np.testing.assert_allclose(after.qvel[:2], data.qvel[:2], rtol=1e-6)
    rate = jax.vmap(lambda k: perturb.push(k, engine.model, 1, 5.0, 5.0, probability=0.25)[1].any())(KEYS).mean()
    np.testing.assert_allclose(rate, 0.25, atol=0.07)


def test_kick_and_noise():
    kicked = jax.jit(jax.vmap(lambda k: perturb.kick(k, jnp.ones(4), 0.5, dofs=[0, 2])))(KEYS)
    np.testing.assert_array_equal(kicked[:, 1::2], 1)
    assert 0.45 < float(jnp.abs(kicked[:, ::2] - 1).max()) <= 0.5
    tree = {"a": jnp.zeros(50), "b": jnp.arange(3), "c": jnp.zeros((2, 25))}
    noisy = jax.jit(jax.vmap(lambda k: perturb.noise(k, tree, {"a": 0.1, "b": 0.0, "c": 2.0})))(KEYS)
    np.testing.assert_allclose([noisy["a"].std(), noisy["c"].std()], [0.1, 2.0], rtol=0.03)
    np.testing.assert_array_equal(noisy["b"][7], tree["b"])
    assert abs(np.corrcoef(np.asarray(noisy["a"]).ravel(), np.asarray(noisy["c"]).ravel())[0, 1]) < 0.02


def test_delay_returns_what_was_put_in_so_many_calls_ago():
    line = perturb.delay({"u": jnp.float32(-1)}, 3)
    lags = jnp.array([0, 1, 3, 3, 2, 0, 9])

    def put(line, x):
        value, lag = x
        line, out = perturb.delayed(line, {"u": value}, lag)
        return line, out["u"]

    _, out = jax.lax.scan(put, line, (jnp.arange(7, dtype=jnp.float32), lags))
    np.testing.assert_array_equal(out, [0, 0, -1, 0, 2, 5, 3])


@flax.struct.dataclass
class Small:
    """A state with its own randomness."""

    data: physics.Data
    key: jax.Array


def test_branches_are_equal_simulations_with_keys_of_their_own():
    engine = physics.make_engine(BALL, "mujoco")
    data = jax.vmap(lambda v: engine.step(engine.init(qvel=v), {}, jnp.zeros(0), 3))(jnp.ones((2, 12)))
    states = Small(data=data, key=jax.random.split(jax.random.key(0), 2))
    many = jax.jit(jax.vmap(lambda s: physics.branch(s, 5)))(states)
    assert many.data.qpos.shape == (2, 5, 14)
    assert len({tuple(k) for k in np.asarray(jax.random.key_data(many.key)).reshape(10, -1).tolist()}) == 10
    step = jax.vmap(jax.vmap(lambda d: engine.step(d, {}, jnp.zeros(0), 20)))
    after = step(many.data).state["bits"]
    np.testing.assert_array_equal(after[:, 0], after[:, 4])
    np.testing.assert_array_equal(
        after[:, 0], jax.vmap(lambda d: engine.step(d, {}, jnp.zeros(0), 20))(data).state["bits"]
    )
    assert physics.branch(jax.tree.map(lambda x: x[0], data), 3).qpos.shape == (3, 14)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: perturb.field(MODEL, "mesh_vert"), EngineError, "'mesh_vert' cannot vary between worlds"),
        (
            lambda: perturb.mass(KEYS[0], MODEL, 1, 2, bodies=[9]),
            ConfigError,
            r"ids: expected indices from 0 to 5, got \[9\]",
        ),
        (lambda: perturb.centre_of_mass(KEYS[0], MODEL, 1, bodies=[2]), ConfigError, "'box' is compiled as simple"),
        (lambda: perturb.push(KEYS[0], MODEL, 0, 1, 2), ConfigError, "body: expected an index from 1 to 5, got 0"),
        (
            lambda: perturb.noise(KEYS[0], {"a": jnp.zeros(2), "b": jnp.zeros(2)}, [1.0, 2.0, 3.0]),
            ConfigError,
            "std: .* got 3",
        ),
        (lambda: perturb.delay(jnp.zeros(2), -1), ConfigError, "longest: expected at least 0 steps, got -1"),
        (lambda: physics.branch({"x": jnp.zeros(2)}, 0), ConfigError, "n: expected an integer of at least 1, got 0"),
        (lambda: physics.branch({"x": jnp.zeros(2)}, 2, KEYS[0]), ConfigError, "dict has no field 'key'"),
    ],
)
def test_wrong_use_is_one_clear_line(call, error, message):
    with pytest.raises(error, match=message):
        call()


def test_chain_fields_exist_for_every_function():
    """Every function gives fields of the model's own shape."""
    model = physics.load_model(CHAIN)
    key = jax.random.key(0)
    for fields in (
        perturb.mass(key, model, 0.9, 1.1),
        perturb.centre_of_mass(key, model, 0.01),
        perturb.friction(key, model, 0.9, 1.1),
        perturb.gains(key, model, 0.9, 1.1),
        perturb.joint_damping(key, model, 0.9, 1.1),
        perturb.armature(key, model, 0.9, 1.1, dofs=range(6, model.nv)),
        perturb.gravity(key, model, 0.9, 1.1),
    ):
        for name, value in fields.items():
            assert value.shape == perturb.field(model, name).shape
            assert value.dtype == jnp.float32
