"""Pendulum, cart-pole, inverted double pendulum and reacher against their equations of motion."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import mujoco
import numpy as np
import pytest

import mjxlab
from mjxlab.envs.classic import safe_norm
from mjxlab.envs.mujoco_env import asset


def test_pendulum_is_a_thin_rod_with_gyms_acceleration():
    """Gym: angle'' = 3 g / (2 l) sin(angle) + 3 / (m l²) torque, angle from upright."""
    model = mujoco.MjModel.from_xml_path(asset("pendulum.xml"))
    data = mujoco.MjData(model)
    for angle, torque in ((0.3, 0.0), (-2.0, 2.0), (1.7, -1.0)):
        data.qpos[0], data.ctrl[0] = angle, torque / 2
        mujoco.mj_forward(model, data)
        assert data.qacc[0] == pytest.approx(15 * np.sin(angle) + 3 * torque, rel=1e-6)


def test_pendulum_keeps_its_energy_without_torque():
    env = mjxlab.make("pendulum")
    state = env.start(jax.random.key(0), qpos=jnp.array([2.0]), qvel=jnp.array([0.0]))

    def energy(data):
        return data.qvel[0] ** 2 / 6 + 5 * jnp.cos(data.qpos[0])  # m l² / 3 / 2 and m g l / 2

    def step(state, _):
        state = env.step(state, jnp.zeros(1))
        return state, energy(state.data)

    _, energies = jax.jit(lambda s: jax.lax.scan(step, s, None, 200))(state)
    # a symplectic integrator: the error swings with the pendulum and does not grow
    assert np.abs(np.asarray(energies) - float(energy(state.data))).max() < 0.2
    early, late = np.asarray(energies[:60]), np.asarray(energies[-60:])
    assert abs(early.mean() - late.mean()) < 0.02


def test_pendulum_reward_is_gyms():
    env = mjxlab.make("pendulum")
    state = env.start(jax.random.key(0), qpos=jnp.array([4.0]), qvel=jnp.array([-1.5]))
    after = env.step(state, jnp.array([0.5]))
    assert float(after.reward) == pytest.approx(-((4 - 2 * np.pi) ** 2 + 0.1 * 1.5**2 + 0.001 * 1.0), rel=1e-5)
    np.testing.assert_allclose(np.asarray(state.obs), [np.cos(4), np.sin(4), -1.5], rtol=1e-5)


def test_cartpole_has_bartos_accelerations():
    """Barto, Sutton, Anderson 1983, without friction."""
    model = mujoco.MjModel.from_xml_path(asset("cartpole.xml"))
    data = mujoco.MjData(model)
    for angle, speed, force in ((0.1, 0.5, 10.0), (-0.2, -1.0, -3.0), (1.0, 2.0, 0.0)):
        data.qpos[:], data.qvel[:], data.ctrl[0] = (0.4, angle), (0.3, speed), force / 10
        mujoco.mj_forward(model, data)
        push = (force + 0.05 * speed**2 * np.sin(angle)) / 1.1
        turn = (9.8 * np.sin(angle) - np.cos(angle) * push) / (0.5 * (4 / 3 - 0.1 * np.cos(angle) ** 2 / 1.1))
        move = push - 0.05 * turn * np.cos(angle) / 1.1
        np.testing.assert_allclose(data.qacc, [move, turn], rtol=2e-5)


@pytest.mark.parametrize(
    ("position", "angle", "ends"), [(2.39, 0.0, False), (2.41, 0.0, True), (0.0, 0.205, False), (0.0, -0.212, True)]
)
def test_cartpole_ends_where_gym_ends_it(position, angle, ends):
    env = mjxlab.make("cartpole")
    data = env.start(jax.random.key(0), qpos=jnp.array([position, angle])).data
    assert bool(env.terminated(data)) == ends


def test_inverted_double_pendulum_geometry_and_end():
    """The tip by plane geometry is MuJoCo's site; it ends below 1 m; after a step the tip is one physics step old."""
    env = mjxlab.make("inverted_double_pendulum", outputs=("sensordata",))
    state = env.start(jax.random.key(0), qpos=jnp.array([0.2, 0.3, -0.7]), qvel=jnp.array([0.5, -1.0, 2.0]))
    tip = np.asarray(env.sensor(state.data, "tip"))
    np.testing.assert_allclose(np.asarray(env.tip(state.data)), tip[[0, 2]], rtol=1e-6)
    after = env.step(state, jnp.array([0.3]))
    model, data = env.engine.model, mujoco.MjData(env.engine.model)
    data.qpos[:], data.qvel[:], data.ctrl[0] = (0.2, 0.3, -0.7), (0.5, -1.0, 2.0), 0.3
    mujoco.mj_step(model, data)
    mujoco.mj_step(model, data)  # its frames are of the state before
    x, _, z = data.site("tip").xpos
    np.testing.assert_allclose(np.asarray(env.tip(after.data)), [x, z], rtol=1e-5)
    expected = 10 - 0.01 * x**2 - (z - 2) ** 2 - 1e-3 * data.qvel[1] ** 2 - 5e-3 * data.qvel[2] ** 2
    assert float(after.reward) == pytest.approx(expected, rel=1e-5)
    low = env.start(jax.random.key(0), qpos=jnp.array([0.0, 0.6, 0.0]))
    assert 1.2 * np.cos(0.6) < 1 and bool(env.terminated(low.data)) and not bool(env.terminated(state.data))


def test_reacher_fingertip_is_mujocos_and_targets_fill_the_disc():
    env = mjxlab.make("reacher", outputs=("sensordata",))
    state = env.start(jax.random.key(0), qpos=jnp.array([0.7, -1.1]), qvel=jnp.array([2.0, 1.0]))
    tip = np.asarray(env.frames(state.data)["tip"])
    np.testing.assert_allclose(tip, np.asarray(env.sensor(state.data, "fingertip")), atol=1e-7)
    targets = np.asarray(jax.jit(jax.vmap(env.reset_pose))(jax.random.split(jax.random.key(1), 256))["mocap_pos"])[:, 0]
    far = np.linalg.norm(targets[:, :2], axis=1)
    assert far.max() <= 0.2 and abs(far.mean() - 0.1) < 0.012 and (targets[:, 2] == np.float32(0.01)).all()


def test_safe_norm_has_a_gradient_at_zero():
    assert (np.asarray(jax.grad(safe_norm)(jnp.zeros(3))) == 0).all()
    assert float(safe_norm(jnp.array([3.0, 4.0]))) == pytest.approx(5)
