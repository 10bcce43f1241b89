"""The arm: its kinematics against the published table, and whether its tasks can be solved, and not by chance."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import mujoco
import numpy as np
import pytest

import mjxlab
from mjxlab.envs.arm import damped_solve

# Craig's modified Denavit-Hartenberg parameters of the Panda, joints 1 to 7 and the flange: a, d, alpha
TABLE = [
    (0, 0.333, 0),
    (0, 0, -np.pi / 2),
    (0, 0.316, np.pi / 2),
    (0.0825, 0, np.pi / 2),
    (-0.0825, 0.384, -np.pi / 2),
    (0, 0, np.pi / 2),
    (0.088, 0, np.pi / 2),
    (0, 0.107, 0),
]


def _tip(joints):
    """Tip by the table: the chain of link transforms, then 0.1034 m along the hand."""
    frame = np.eye(4)
    for (a, d, alpha), theta in zip(TABLE, [*joints, 0.0], strict=True):
        ct, st, ca, sa = np.cos(theta), np.sin(theta), np.cos(alpha), np.sin(alpha)
        link = [[ct, -st, 0, a], [st * ca, ct * ca, -sa, -d * sa], [st * sa, ct * sa, ca, d * ca], [0, 0, 0, 1]]
        frame = frame @ np.array(link)
    return frame[:3, 3] + 0.1034 * frame[:3, 2]


@functools.cache
def _env(name):
    return mjxlab.make(name, outputs=("xanchor", "xaxis") if name == "arm_reach" else ())


def test_kinematics_are_those_of_the_published_table():
    model = _env("arm_reach").engine.model
    data = mujoco.MjData(model)
    rng = np.random.default_rng(0)
    for _ in range(20):
        data.qpos[:] = rng.uniform(*model.jnt_range.T)
        mujoco.mj_kinematics(model, data)
        np.testing.assert_allclose(data.site("tip").xpos, _tip(data.qpos), atol=1e-6)


def test_limits_and_masses_are_those_of_the_data_sheet():
    model = _env("arm_reach").engine.model
    low = [-2.8973, -1.7628, -2.8973, -3.0718, -2.8973, -0.0175, -2.8973]
    high = [2.8973, 1.7628, 2.8973, -0.0698, 2.8973, 3.7525, 2.8973]
    np.testing.assert_allclose(model.jnt_range.T, [low, high])
    np.testing.assert_allclose(model.actuator_ctrlrange.T, [low, high])
    np.testing.assert_allclose(model.actuator_forcerange[:, 1], [87, 87, 87, 87, 12, 12, 12])
    links = [float(model.body(f"link{i}").mass[0]) for i in range(1, 8)]
    np.testing.assert_allclose(links, [4.970684, 0.646926, 3.228604, 3.587895, 1.225946, 1.666555, 0.735522])


def test_gravity_is_compensated_and_targets_are_reached():
    env = _env("arm_reach")
    model, data = env.engine.model, mujoco.MjData(env.engine.model)
    mujoco.mj_resetDataKeyframe(model, data, 0)
    mujoco.mj_step(model, data, 100)
    np.testing.assert_allclose(data.qpos, env.home, atol=1e-9)
    data.ctrl[:] += 0.2
    mujoco.mj_step(model, data, 500)
    np.testing.assert_allclose(data.qpos, env.home + 0.2, atol=2e-3)


def test_jacobian_is_the_derivative_of_the_tip():
    env = _env("arm_reach")
    state = env.reset(jax.random.key(0))
    joints = np.asarray(state.data.qpos, np.float64)
    steps = 1e-6 * np.eye(7)
    numeric = np.stack([(_tip(joints + s) - _tip(joints - s)) / 2e-6 for s in steps], 1)
    np.testing.assert_allclose(np.asarray(env.jacobian(state.data)[0]), numeric, atol=1e-5)


def test_damped_solve_tends_to_the_least_norm_solution():
    jacobian = jax.random.normal(jax.random.key(0), (3, 7))
    error = jnp.array([0.1, -0.2, 0.3])
    step = damped_solve(jacobian, error, 1e-3)
    np.testing.assert_allclose(
        np.asarray(step), np.linalg.pinv(np.asarray(jacobian)) @ np.asarray(error), rtol=1e-3, atol=1e-5
    )


def test_joint_targets_move_by_the_action_and_stay_inside_the_limits():
    env = _env("arm_reach")
    state = env.reset(jax.random.key(0))
    action = jnp.array([1.0, -1.0, 0.5, 5.0, 0.0, -5.0, 0.1])
    ctrl = np.asarray(jax.jit(env.step)(state, action).data.ctrl)
    np.testing.assert_allclose(ctrl, np.asarray(state.data.ctrl) + 0.06 * np.clip(np.asarray(action), -1, 1), atol=1e-6)
    top = env.start(jax.random.key(0), ctrl=jnp.asarray(env.engine.model.actuator_ctrlrange[:, 1], jnp.float32))
    np.testing.assert_allclose(
        np.asarray(env.control(top.data, jnp.ones(7))), env.engine.model.actuator_ctrlrange[:, 1], rtol=1e-6
    )


@functools.cache
def _episodes(name, policy, worlds=64):
    """Final state, success at any step, rewards (time, worlds), all pucks or tips seen; of whole episodes."""
    env = _env(name)

    @jax.jit
    def run(key):
        def step(state, key):
            keys = jax.random.split(key, worlds)
            size = env.action_space.shape
            action = (
                jax.vmap(env.scripted)(state)
                if policy == "scripted"
                else jax.vmap(lambda k: jax.random.uniform(k, size, minval=-1.0, maxval=1.0))(keys)
            )
            state = jax.vmap(env.step)(state, action)
            return state, (state.success, state.reward, state.terminated)

        state = jax.vmap(env.reset)(jax.random.split(key, worlds))
        return jax.lax.scan(step, state, jax.random.split(key, env.episode_length))

    state, (success, reward, terminated) = run(jax.random.key(2))
    return state, np.asarray(success), np.asarray(reward), np.asarray(terminated)


@pytest.mark.parametrize("name", ["arm_reach", pytest.param("arm_push", marks=pytest.mark.slow)])
def test_a_scripted_controller_solves_the_task_and_chance_does_not(name):
    _, success, reward, terminated = _episodes(name, "scripted")
    assert success[-1].mean() >= 0.98 and not terminated.any()
    assert (reward <= 0).all() and (reward >= -1.011).all()
    _, chance, other, _ = _episodes(name, "random")
    assert chance[-1].mean() <= 0.1
    assert reward.sum(0).mean() > other.sum(0).mean() + 10


def _poses(env):
    return jax.jit(jax.vmap(env.reset_pose))(jax.random.split(jax.random.key(0), 512))


def test_goals_fill_a_volume_and_are_drawn_anew():
    env = _env("arm_reach")
    goals = np.asarray(_poses(env)["mocap_pos"])[:, 0]
    low, high = np.array(env.low), np.array(env.high)
    assert (goals >= low).all() and (goals <= high).all()
    assert ((goals.max(0) - goals.min(0)) > 0.97 * (high - low)).all()
    assert len({tuple(g) for g in goals.tolist()}) == 512
    assert np.prod(high - low) > 0.1  # cubic metres; the ball of success has 0.0005


def test_pushed_goals_lie_on_the_table_at_the_stated_distance():
    env = _env("arm_push")
    poses = _poses(env)
    goals, pucks = np.asarray(poses["mocap_pos"])[:, 0, :2], np.asarray(poses["qpos"])[:, 7:]
    distance = np.linalg.norm(goals - pucks, axis=1)
    assert distance.min() >= 0.12 - 1e-6 and distance.max() <= 0.2 + 1e-6
    assert (goals > [0.32, -0.25]).all() and (goals < [0.76, 0.25]).all()


def test_puck_slides_to_rest_by_coulomb_friction():
    """A push of 0.4 m/s stops after about v² / (2 mu g), less what damping takes: it must lie below and near."""
    env = _env("arm_push")
    model, data = env.engine.model, mujoco.MjData(env.engine.model)
    mujoco.mj_resetDataKeyframe(model, data, 0)
    data.qvel[7] = 0.4
    mujoco.mj_step(model, data, 200)
    frictional = 0.4**2 / (2 * 0.4 * 9.81)
    assert 0.6 * frictional < data.qpos[7] - 0.5 < frictional and abs(data.qvel[7]) < 1e-3


@pytest.mark.parametrize(
    ("name", "goal"), [("arm_reach", 3), ("arm_push", 2), ("reacher_goal", 2), ("point_u_maze", 2)]
)
def test_only_the_last_numbers_of_an_observation_depend_on_the_goal(name, goal):
    env = _env(name)
    state = env.reset(jax.random.key(0))
    moved = env.engine.set(state.data, mocap_pos=state.data.mocap_pos + 0.1)
    before, after = np.asarray(state.obs), np.asarray(env.observe(moved))
    assert env.goal_size == goal and (before[:-goal] == after[:-goal]).all() and (before[-goal:] != after[-goal:]).all()
    np.testing.assert_array_equal(before[-2 * goal : -goal], np.asarray(state.achieved))
    np.testing.assert_array_equal(before[-goal:], np.asarray(state.commanded))


def test_joint_control_of_the_pusher():
    env = mjxlab.make("arm_push", control="joint")
    assert env.action_space.shape == (7,)
    state = env.reset(jax.random.key(0))
    after = jax.jit(env.step)(state, 0.5 * jnp.ones(7))
    np.testing.assert_allclose(np.asarray(after.data.ctrl), np.asarray(state.data.ctrl) + 0.03, atol=1e-6)
