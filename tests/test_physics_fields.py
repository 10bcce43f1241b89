"""Model fields that differ between worlds: each world is the simulation of a model of its own."""

import jax
import jax.numpy as jnp
import mujoco
import numpy as np
import pytest
from scenes import BALL, RIG

from mjxlab import physics
from mjxlab.physics import perturb

INTEGRATION = mujoco.mjtState.mjSTATE_INTEGRATION
WORLDS = 4


@pytest.fixture(scope="module")
def ball():
    return physics.make_engine(BALL, "mujoco", ("qpos", "qvel", "ncon"))


@pytest.fixture(scope="module")
def rig():
    return physics.make_engine(RIG, "mujoco", ("qpos", "sensordata"))


def model_of(engine, fields, world):
    """A separate model: the world's fields, and mj_setConst."""
    model = physics.load_model(engine.model)
    for name, value in sorted(fields.items(), key=lambda item: item[0] == "eq_data"):
        if name == "eq_data":  # mj_setConst would overwrite a part of it
            mujoco.mj_setConst(model, mujoco.MjData(model))
        holder, attribute = (model.opt, name[4:]) if name.startswith("opt.") else (model, name)
        setattr(holder, attribute, np.asarray(value[world], np.float64))
        if name != "eq_data":
            mujoco.mj_setConst(model, mujoco.MjData(model))
    return model


def check(engine, fields, data, after, steps, ctrl=None):
    """``after`` is ``data`` advanced on each world's model, by bits."""
    bits = lambda d, i: np.ascontiguousarray(d.state["bits"][i]).view(np.float64)  # noqa: E731
    for i in range(WORLDS):
        model = model_of(engine, fields, i)
        world = mujoco.MjData(model)
        mujoco.mj_setState(model, world, bits(data, i), INTEGRATION)
        if ctrl is not None:
            world.ctrl[:] = ctrl
        for _ in range(steps):
            mujoco.mj_step(model, world)
        expected = np.empty(mujoco.mj_stateSize(model, INTEGRATION))
        mujoco.mj_getState(model, world, expected, INTEGRATION)
        np.testing.assert_array_equal(bits(after, i).view(np.uint64), expected.view(np.uint64), f"world {i}")


def stepper(engine, substeps):
    nu = engine.model.nu
    return jax.jit(jax.vmap(lambda d, f: engine.step(d, f, jnp.full(nu, 0.3), substeps)))


def vary(engine):
    """Everything at once: mass and inertia, size, friction, gravity, time step."""
    model = engine.model

    def draw(key):
        k = jax.random.split(key, 5)
        return {
            **perturb.mass(k[0], model, 0.3, 3.0),
            **perturb.friction(k[1], model, 0.2, 2.0, shared=False),
            **perturb.gravity(k[2], model, 0.5, 1.5, tilt=0.2),
            "geom_size": perturb.scale(k[3], perturb.field(model, "geom_size"), 0.5, 2.0),
            "opt.timestep": perturb.uniform(k[4], perturb.field(model, "opt.timestep"), 0.002, 0.008),
        }

    return jax.vmap(draw)(jax.random.split(jax.random.key(5), WORLDS))


@pytest.mark.parametrize(
    "names",
    [("body_mass", "body_inertia"), ("geom_size",), ("geom_friction",), ("opt.gravity",), ("opt.timestep",), None],
)
def test_each_world_is_a_model_of_its_own(ball, names):
    fields = vary(ball)
    fields = {n: v for n, v in fields.items() if names is None or n in names}
    start = jnp.asarray(ball.model.qpos0, jnp.float32).at[2].set(0.1).at[9].set(0.05)
    velocity = jnp.tile(jnp.arange(12.0) / 12 - 0.4, (WORLDS, 1))
    data = jax.vmap(lambda v, f: ball.init(f, qpos=start, qvel=v))(velocity, fields)
    after = stepper(ball, 60)(data, fields)
    check(ball, fields, data, after, 60)
    assert len({float(x) for x in after.qpos[:, 0]} | {float(x) for x in after.qpos[:, 9]}) > 1
    assert np.asarray(after.ncon).max() > 0


def test_a_grown_box_finds_its_contacts(ball):
    """The bounding radius must follow the size, or the broad phase misses the floor."""
    sizes = jnp.tile(perturb.field(ball.model, "geom_size"), (2, 1, 1)).at[1, 2].set(jnp.full(3, 0.35))
    data = jax.vmap(lambda s: ball.step(ball.init({"geom_size": s}), {"geom_size": s}, jnp.zeros(0), 1))(sizes)
    assert data.ncon.tolist() == [0, 4]


def test_fields_change_within_an_episode_and_do_not_leak(ball):
    """One batch serves different worlds in turn; what one wrote must not be seen by the next."""
    step = stepper(ball, 5)
    first, second = vary(ball), jax.tree.map(lambda x: x[::-1], vary(ball))
    data = jax.vmap(lambda v, f: ball.init(f, qvel=v))(jnp.zeros((WORLDS, 12)), first)
    for fields in (first, second, first, jax.tree.map(lambda a, b: a.at[1].set(b[1]), first, second), second):
        after = step(data, fields)
        check(ball, fields, data, after, 5)
        data = after
    plain = jax.vmap(lambda d: ball.step(d, {}, jnp.zeros(0), 5))(data)
    own = {"geom_size": jnp.tile(perturb.field(ball.model, "geom_size")[None], (WORLDS, 1, 1))}
    np.testing.assert_array_equal(plain.qpos, step(data, own).qpos)


def test_gains_damping_and_equalities_vary(rig):
    model = rig.model
    data = jax.vmap(lambda v: rig.init(qvel=v, eq_active=jnp.array([True, True])))(jnp.zeros((WORLDS, model.nv)))
    place = jnp.broadcast_to(jnp.linspace(0, 0.2, WORLDS)[:, None], (WORLDS, 3))
    shift = jnp.zeros((WORLDS, *model.eq_data.shape)).at[:, 0, 3:6].set(place).at[:, 1, 3].set(0.02)
    keys = jax.random.split(jax.random.key(1), WORLDS)
    fields = {
        "eq_data": perturb.field(model, "eq_data")[None] + shift,
        **jax.vmap(lambda k: perturb.gains(k, model, 0.5, 2.0))(keys),
        **jax.vmap(lambda k: perturb.joint_damping(k, model, 0.5, 4.0))(keys),
    }
    after = stepper(rig, 10)(data, fields)
    check(rig, fields, data, after, 10, np.float64(np.float32(0.3)))
    # and beside a field that needs mj_setConst, which would overwrite the anchors of the connect
    fields |= jax.vmap(lambda k: perturb.mass(k, model, 0.5, 2.0))(keys)
    check(rig, fields, data, stepper(rig, 10)(data, fields), 10, np.float64(np.float32(0.3)))


def test_qpos0_moves_the_default_start(ball):
    qpos0 = perturb.field(ball.model, "qpos0").at[2].set(0.75)
    assert float(ball.init({"qpos0": qpos0}).qpos[2]) == 0.75


@pytest.mark.x64
def test_fields_keep_their_precision_in_double(ball):
    fields = {"body_mass": jnp.asarray(ball.model.body_mass)[None] * jnp.linspace(0.5, 2.0, WORLDS)[:, None] + 1e-12}
    data = jax.vmap(lambda f: ball.init(f))(fields)
    check(ball, fields, data, stepper(ball, 20)(data, fields), 20)
