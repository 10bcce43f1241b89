"""The runners against plain MuJoCo loops, with Brax's formulas written out in NumPy."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import mujoco
import numpy as np
import pytest

import mjxlab


class Loop:
    """A plain ``mj_step`` loop that remembers what ``mjx.step`` would show: frames of before the last physics step."""

    def __init__(self, env, qpos, qvel):
        self.model, self.skip = env.engine.model, env.frame_skip
        self.data = mujoco.MjData(self.model)
        self.data.qpos[:], self.data.qvel[:] = qpos, qvel
        mujoco.mj_forward(self.model, self.data)
        self.torso = self.data.xpos[1].copy()
        self.com = self.data.subtree_com[0].copy()

    def step(self, ctrl):
        self.data.ctrl[:] = ctrl
        mujoco.mj_step(self.model, self.data, self.skip)
        before, self.torso = self.torso, self.data.xpos[1].copy()
        com, self.com = self.com, self.data.subtree_com[0].copy()
        seconds = self.skip * self.model.opt.timestep
        return (self.torso - before) / seconds, (self.com - com) / seconds


def _run(name, check, steps=4, **kwargs):
    """Reset an environment, step it beside a loop, and hand each step to ``check``."""
    env = mjxlab.make(name, **kwargs)
    state = jax.jit(env.reset)(jax.random.key(7))
    loop = Loop(env, np.asarray(state.data.qpos), np.asarray(state.data.qvel))
    step = jax.jit(env.step)
    rng = np.random.default_rng(0)
    for _ in range(steps):
        action = rng.uniform(-1, 1, env.action_space.shape).astype(np.float32)
        state = step(state, jnp.asarray(action))
        low, high = loop.model.actuator_ctrlrange.T.astype(np.float32)
        velocity, com = loop.step((low + high) / 2 + (high - low) / 2 * action)
        check(env, state, loop, action, velocity, com)


def test_ant_reward_observation_and_end():
    def check(env, state, loop, action, velocity, com):
        expected = velocity[0] + 1 - 0.5 * np.sum(action**2)
        assert float(state.reward) == pytest.approx(expected, abs=2e-5)
        observation = np.concatenate([loop.data.qpos[2:], loop.data.qvel])
        np.testing.assert_allclose(np.asarray(state.obs), observation, rtol=1e-6, atol=1e-6)
        assert bool(state.terminated) == (not 0.2 <= loop.torso[2] <= 1)
        np.testing.assert_allclose(float(state.metrics["y_velocity"]), velocity[1], atol=2e-5)

    _run("ant", check)


def test_half_cheetah_reward_and_observation():
    def check(env, state, loop, action, velocity, com):
        assert float(state.reward) == pytest.approx(velocity[0] - 0.1 * np.sum(action**2), abs=2e-5)
        np.testing.assert_allclose(
            np.asarray(state.obs), np.concatenate([loop.data.qpos[1:], loop.data.qvel]), rtol=1e-5, atol=1e-6
        )
        assert not bool(state.terminated)

    _run("half_cheetah", check)


@pytest.mark.parametrize(("name", "low", "lean"), [("hopper", 0.7, 0.2), ("walker", 0.8, 1.0)])
def test_hopper_and_walker_reward_and_observation(name, low, lean):
    def check(env, state, loop, action, velocity, com):
        assert float(state.reward) == pytest.approx(velocity[0] + 1 - 1e-3 * np.sum(action**2), abs=5e-5)
        z, angle = loop.torso[2], loop.data.qpos[2]
        expected = np.concatenate([[z], loop.data.qpos[2:], np.clip(loop.data.qvel, -10, 10)])
        np.testing.assert_allclose(np.asarray(state.obs), expected, rtol=1e-5, atol=2e-6)
        assert bool(state.terminated) == (not (z > low and abs(angle) < lean))

    _run(name, check)


def test_humanoid_reward_and_observation():
    def check(env, state, loop, action, velocity, com):
        ctrl = 0.4 * action
        assert float(state.reward) == pytest.approx(1.25 * com[0] + 5 - 0.1 * np.sum(ctrl**2), abs=5e-4)
        obs, data, model = np.asarray(state.obs), loop.data, loop.model
        assert obs.shape == (244,)
        np.testing.assert_allclose(obs[:22], data.qpos[2:], rtol=1e-6, atol=1e-6)
        np.testing.assert_allclose(obs[22:45], data.qvel, rtol=1e-6, atol=1e-6)
        # after mj_step the frames and velocities are of the state before its last physics step
        blocks = obs[45:155].reshape(11, 10)
        np.testing.assert_allclose(blocks[:, 9], model.body_mass[1:], rtol=1e-6)
        for body in range(1, 12):
            rotation = data.ximat[body].reshape(3, 3)
            own = rotation @ np.diag(model.body_inertia[body]) @ rotation.T
            arm = data.xipos[body] - loop.com
            about = own + model.body_mass[body] * (arm @ arm * np.eye(3) - np.outer(arm, arm))
            np.testing.assert_allclose(blocks[body - 1, :9].reshape(3, 3), about, rtol=1e-4, atol=1e-5)
            velocity6 = np.zeros(6)
            mujoco.mj_objectVelocity(model, data, mujoco.mjtObj.mjOBJ_BODY, body, velocity6, 0)
            # mj_objectVelocity reads cvel, hence the earlier moment, too; its linear part is at the body's centre
            share = model.body_mass[body] / model.body_mass.sum()
            momentum = obs[155 + 6 * (body - 1) : 161 + 6 * (body - 1)]
            np.testing.assert_allclose(momentum[:3], share * velocity6[3:], rtol=2e-4, atol=2e-5)
            np.testing.assert_allclose(momentum[3:], velocity6[:3], rtol=2e-4, atol=2e-4)
        np.testing.assert_allclose(obs[221:], data.qfrc_actuator, rtol=1e-5, atol=1e-5)

    _run("humanoid", check, steps=2)


def _end(env, qpos):
    return bool(env.terminated(env.start(jax.random.key(0), qpos=jnp.asarray(qpos, jnp.float32)).data))


@pytest.mark.parametrize(
    ("name", "index", "value", "ends"),
    [
        ("ant", 2, 0.21, False),
        ("ant", 2, 0.19, True),
        ("ant", 2, 0.99, False),
        ("ant", 2, 1.01, True),
        ("hopper", 1, -0.54, False),
        ("hopper", 1, -0.56, True),
        ("hopper", 2, 0.19, False),
        ("hopper", 2, -0.21, True),
        ("hopper", 3, 101.0, True),
        ("walker", 1, -0.44, False),
        ("walker", 1, -0.46, True),
        ("walker", 1, 0.76, True),
        ("walker", 2, 0.99, False),
        ("walker", 2, 1.01, True),
        ("half_cheetah", 2, 3.0, False),
    ],
)
def test_episodes_end_at_brax_thresholds(name, index, value, ends):
    env = mjxlab.make(name)
    qpos = env.home.copy()
    qpos[index] = value
    assert _end(env, qpos) == ends


def test_unhealthy_may_go_on_without_its_bonus():
    env = mjxlab.make("walker", terminate_when_unhealthy=False)
    data = env.start(jax.random.key(0), qpos=jnp.asarray(env.home, jnp.float32).at[2].set(1.5)).data
    assert not env.terminated(data) and float(env.alive(data)) == 0


def test_humanoid_ends_when_its_torso_leaves_one_to_two_metres():
    env = mjxlab.make("humanoid")
    heights = jnp.array([0.99, 1.01, 1.99, 2.01])
    assert [bool(env.terminated_with({"height": z})) for z in heights] == [True, False, False, True]


def _capsule(radius, length):
    """Volume of a capsule with ``length`` between the centres of its caps."""
    return np.pi * radius**2 * length + 4 / 3 * np.pi * radius**3


def test_total_masses_follow_from_lengths_radii_and_densities():
    leg = 0.2 * np.sqrt(2)
    ant = 5 * (4 / 3 * np.pi * 0.25**3 + 4 * (2 * _capsule(0.08, leg) + _capsule(0.08, 2 * leg)))
    one_leg = _capsule(0.05, 0.45) + _capsule(0.04, 0.5)
    hopper = 1000 * (_capsule(0.05, 0.4) + one_leg + _capsule(0.06, 0.39))
    walker = 1000 * (_capsule(0.05, 0.4) + 2 * (one_leg + _capsule(0.06, 0.2)))
    for name, mass in (("half_cheetah", 14.0), ("ant", ant), ("hopper", hopper), ("walker", walker)):
        assert mjxlab.make(name).engine.model.body_mass.sum() == pytest.approx(mass, rel=1e-6)


def test_reset_noise_is_of_the_stated_size():
    keys = jax.random.split(jax.random.key(0), 128)
    for name, half, deviation in (("ant", 0.1, 0.1), ("hopper", 5e-3, None)):
        env = mjxlab.make(name)
        pose = jax.jit(jax.vmap(env.reset_pose))(keys)
        shift = np.asarray(pose["qpos"]) - env.home
        joints = shift[:, 7:] if name == "ant" else shift
        assert half * 0.95 < np.abs(joints).max() <= half * 1.0001
        speed = np.asarray(pose["qvel"])
        if deviation is None:
            assert np.abs(speed).max() <= half * 1.0001
        else:
            assert abs(speed.std() - deviation) < 0.005
