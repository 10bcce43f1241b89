"""The tasks that are Brax's: the robots' constants, and transitions from the same state under the same action.

Brax is run live (``backend="mjx"``); nothing here is a stored result. Tolerances are stated per environment: what is left
is float32 in Brax against float64 in C, amplified where feet strike the floor.
"""

from __future__ import annotations

import os
import warnings
from xml.etree import ElementTree

import jax
import jax.numpy as jnp
import mujoco
import numpy as np
import pytest

import mjxlab
from mjxlab import physics
from mjxlab._compat import lenient

BRAX = {
    "ant": "ant",
    "half_cheetah": "halfcheetah",
    "hopper": "hopper",
    "walker": "walker2d",
    "humanoid": "humanoid",
    "inverted_double_pendulum": "inverted_double_pendulum",
    "reacher": "reacher",
}
# largest difference of an observation, relative to 1 + |observation|, and of a reward, over one control step
TOLERANCE = {
    "ant": 5e-5,
    "half_cheetah": 5e-5,
    "hopper": 1e-5,
    "walker": 2e-4,
    "humanoid": 1e-4,
    "inverted_double_pendulum": 1e-5,
    "reacher": 1e-6,
}
STEPS, WORLDS = 6, 8
# jax 0.10's CPU compiler is slow on kinematic chains with this on; a speed setting, no more
QUICK = {"xla_cpu_use_fusion_emitters": False}


def _brax_model(name):
    """Brax's robot as MuJoCo compiles it, after Brax has fused bodies that have no joint."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import brax
        from brax.io.mjcf import _fuse_bodies

    file = {"half_cheetah": "half_cheetah", "walker": "walker2d"}.get(name, name)
    path = os.path.join(os.path.dirname(brax.__file__), "envs", "assets", f"{file}.xml")
    root = ElementTree.parse(path).getroot()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        _fuse_bodies(root)
    return mujoco.MjModel.from_xml_string(ElementTree.tostring(root, encoding="unicode"))


@pytest.mark.parametrize("name", BRAX)
def test_constants_are_those_of_brax(name):
    """Masses, inertias, frames, joints, actuators, contact geometry and options."""
    ours, theirs = mjxlab.make(name).engine.model, _brax_model(name)
    bodies, joints = (4, 2) if name == "reacher" else (theirs.nbody, theirs.njnt)  # Brax's target has two slides
    moving = slice(1, bodies - 1 if name == "reacher" else bodies)
    for field in ("body_mass", "body_inertia", "body_pos", "body_ipos", "body_parentid"):
        np.testing.assert_allclose(getattr(ours, field)[moving], getattr(theirs, field)[moving], rtol=1e-5, atol=1e-6)
    for field in ("type", "axis", "pos", "stiffness", "limited", "solref", "solimp", "margin"):
        np.testing.assert_allclose(
            getattr(ours, f"jnt_{field}")[:joints], getattr(theirs, f"jnt_{field}")[:joints], atol=1e-6
        )
    limited = ours.jnt_limited[:joints].astype(bool)
    np.testing.assert_allclose(ours.jnt_range[:joints][limited], theirs.jnt_range[:joints][limited], atol=1e-6)
    for field in ("dof_armature", "dof_damping"):
        np.testing.assert_allclose(getattr(ours, field), getattr(theirs, field)[: ours.nv], atol=1e-9)
    for field in ("gear", "ctrlrange", "ctrllimited", "gainprm", "biasprm"):
        np.testing.assert_allclose(getattr(ours, f"actuator_{field}"), getattr(theirs, f"actuator_{field}"), atol=1e-9)
    np.testing.assert_array_equal(ours.actuator_trnid, theirs.actuator_trnid)
    assert _touching(ours) == _touching(theirs)
    assert ours.opt.timestep == theirs.opt.timestep and ours.opt.integrator == theirs.opt.integrator
    np.testing.assert_array_equal(ours.opt.gravity, theirs.opt.gravity)
    if name in ("ant", "humanoid"):  # Brax changes these for its MJX backend
        assert ours.opt.iterations == 1
        assert ours.opt.disableflags & mujoco.mjtDisableBit.mjDSBL_EULERDAMP
    else:
        assert ours.opt.iterations == theirs.opt.iterations and ours.opt.ls_iterations == theirs.opt.ls_iterations


def _touching(model):
    """Shape, place and material of the geoms that can touch another (where none can, there is nothing to compare)."""
    meets = [
        any(
            (model.geom_contype[i] & model.geom_conaffinity[j]) | (model.geom_contype[j] & model.geom_conaffinity[i])
            for j in range(model.ngeom)
            if j != i
        )
        for i in range(model.ngeom)
    ]
    rows = []
    for i in np.flatnonzero(meets):
        size = () if model.geom_type[i] == mujoco.mjtGeom.mjGEOM_PLANE else model.geom_size[i]
        numbers = [*size, *model.geom_pos[i], *np.abs(model.geom_quat[i]), *model.geom_friction[i]]
        numbers += [*model.geom_solref[i], *model.geom_solimp[i], model.geom_margin[i]]
        rows.append((int(model.geom_bodyid[i]), int(model.geom_condim[i]), tuple(np.round(numbers, 5) + 0.0)))
    return sorted(rows)


def _brax_env(name):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import brax.envs

        return brax.envs.get_environment(BRAX[name], backend="mjx")


def _brax_start(brax_env, name, qpos, qvel):
    """A Brax state at the given positions and velocities; its own ``reset`` would draw them."""
    from brax.envs.base import State

    inner = brax_env.pipeline_init(qpos, qvel)
    zero = jnp.zeros(())
    keys = {
        "ant": "reward_forward reward_survive reward_ctrl reward_contact x_position y_position distance_from_origin "
        "x_velocity y_velocity forward_reward",
        "half_cheetah": "x_position x_velocity reward_ctrl reward_run",
        "hopper": "reward_forward reward_ctrl reward_healthy x_position x_velocity",
        "walker": "reward_forward reward_ctrl reward_healthy x_position x_velocity",
        "humanoid": "forward_reward reward_linvel reward_quadctrl reward_alive x_position y_position "
        "distance_from_origin x_velocity y_velocity",
        "reacher": "reward_dist reward_ctrl",
    }.get(name, "")
    still = (jnp.zeros(brax_env.sys.act_size()),) if name == "humanoid" else ()
    return State(inner, brax_env._get_obs(inner, *still), zero, zero, dict.fromkeys(keys.split(), zero))


def _parity(name, kind):
    """Largest errors over a few control steps of ours against Brax's, each from Brax's own state."""
    env, theirs = mjxlab.make(name, engine=kind), _brax_env(name)
    keys = jax.random.split(jax.random.key(11), WORLDS)
    pose = jax.vmap(env.reset_pose)(keys)
    qpos, qvel = pose["qpos"], pose["qvel"]
    if name == "reacher":
        target = pose["mocap_pos"][:, 0, :2]
        qpos, qvel = jnp.concatenate([qpos, target], 1), jnp.concatenate([qvel, 0 * target], 1)
    actions = jax.random.uniform(jax.random.key(12), (STEPS, WORLDS, *env.action_space.shape), minval=-1.0, maxval=1.0)

    def roll(state, step):
        def one(state, action):
            state = jax.vmap(step)(state, action)
            done = state.terminated if hasattr(state, "terminated") else state.done > 0.5
            return state, (state.obs, state.reward, done)

        return jax.lax.scan(one, state, actions)[1]

    with lenient(), warnings.catch_warnings():
        warnings.simplefilter("ignore")

        def brax_run(qpos, qvel):
            start = jax.vmap(lambda p, v: _brax_start(theirs, name, p, v))(qpos, qvel)
            # the carry of a scan keeps its types; Brax's first state has a float or two of another kind
            return start.obs, roll(jax.tree.map(lambda x: x + jnp.zeros_like(x), start), theirs.step)

        first, (obs, reward, done) = jax.jit(brax_run, compiler_options=QUICK)(qpos, qvel)

    def our_run(pose):
        start = jax.vmap(lambda p: env.start(jax.random.key(0), **p))(pose)
        return start.obs, roll(start, env.step)

    our_first, (our_obs, our_reward, our_done) = physics.jit(our_run)(pose)
    np.testing.assert_allclose(np.asarray(our_first), np.asarray(first), rtol=1e-5, atol=1e-5)
    error = np.abs(np.asarray(our_obs) - np.asarray(obs)) / (1 + np.abs(np.asarray(obs)))
    gap = np.abs(np.asarray(our_reward) - np.asarray(reward))
    assert (np.asarray(our_done) == np.asarray(done)).all()
    return error.max(axis=(1, 2)), gap.max(axis=1)


def _check(name, kind):
    error, gap = _parity(name, kind)
    # the first step starts from equal bits; after it, differences grow with each contact
    growth = np.array([1, 2, 4, 8, 16, 32])[:STEPS]
    assert (error < TOLERANCE[name] * growth).all(), error
    assert (gap < TOLERANCE[name] * growth).all(), gap


def test_ant_steps_as_brax_does():
    _check("ant", "mujoco")


@pytest.mark.slow
@pytest.mark.parametrize("name", [n for n in BRAX if n != "ant"])
def test_steps_as_brax_does(name):
    _check(name, "mujoco")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ant", "inverted_double_pendulum", "reacher"])
def test_steps_as_brax_does_through_mjx(name):
    _check(name, "mjx")
