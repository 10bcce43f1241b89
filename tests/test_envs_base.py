"""The base of MuJoCo environments: a robot of one's own, its errors, and the whole family through the contract."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import mujoco
import numpy as np
import pytest

import mjxlab
from mjxlab import physics
from mjxlab.envs import check_env, randomise
from mjxlab.envs.mujoco_env import MujocoEnv, asset
from mjxlab.errors import ConfigError, ModelError

NAMES = (
    "pendulum",
    "cartpole",
    "inverted_double_pendulum",
    "reacher",
    "hopper",
    "half_cheetah",
    "walker",
    "ant",
    "humanoid",
    "arm_reach",
    "arm_push",
    "reacher_goal",
    "ant_goal",
    "point_u_maze",
)

SWING = """
<mujoco>
  <option timestep="0.01"/>
  <asset><material name="m" rgba="1 0 0 1"/></asset>
  <worldbody>
    <body name="pole" pos="0 0 1">
      <joint name="hinge" axis="0 1 0" damping=".1"/>
      <geom type="capsule" fromto="0 0 0 0 0 -.5" size=".02" mass="2" material="m"/>
      <site name="tip" pos="0 0 -.5"/>
    </body>
    <body name="mark" mocap="true" pos="0 0 2" quat="0 1 0 0"/>
  </worldbody>
  <actuator><motor joint="hinge" ctrlrange="-1 3"/></actuator>
  <sensor><framepos name="tip" objtype="site" objname="tip"/></sensor>
</mujoco>
"""


class Swing(MujocoEnv):
    name = "swing"
    mjcf = SWING
    frame_skip = 3
    episode_length = 20

    def reset_pose(self, key):
        return {"qpos": jax.random.uniform(key, (1,), jnp.result_type(float), -1.0, 1.0)}

    def observe(self, data):
        return {"angle": jnp.concatenate([jnp.sin(data.qpos), jnp.cos(data.qpos)]), "speed": data.qvel}

    def reward(self, before, after, action):
        return {"height": self.sensor(after, "tip")[2], "control": -0.5 * jnp.sum(action**2)}

    def terminated(self, data):
        return self.position(data, "pole")[2] + data.qpos[0] > 2.5

    def metrics(self, before, after, action):
        return {"turned": after.qpos[0] - before.qpos[0]}


def test_own_robot_equals_a_plain_mujoco_loop():
    env = Swing()
    state = jax.jit(env.reset)(jax.random.key(3))
    assert float(state.reward) == 0 and set(state.metrics) == {"reward_height", "reward_control", "turned"}
    assert all(float(x) == 0 for x in state.metrics.values())
    model = mujoco.MjModel.from_xml_string(SWING)
    data = mujoco.MjData(model)
    data.qpos[:] = np.asarray(state.data.qpos)
    step = jax.jit(env.step)
    for action in (0.25, -1.0, 0.9):
        angle = data.qpos[0]
        state = step(state, jnp.full((1,), action))
        data.ctrl[0] = np.float32(1 + 2 * np.float32(action))
        mujoco.mj_step(model, data, 3)
        mujoco.mj_forward(model, data)
        np.testing.assert_allclose(
            state.obs["angle"], [np.sin(data.qpos[0]), np.cos(data.qpos[0])], rtol=1e-5, atol=1e-7
        )
        np.testing.assert_array_equal(np.asarray(state.obs["speed"]), data.qvel.astype(np.float32))
        height = data.site("tip").xpos[2]
        np.testing.assert_allclose(float(state.reward), height - 0.5 * action**2, rtol=1e-5)
        np.testing.assert_allclose(float(state.metrics["reward_height"]), height, rtol=1e-6)
        np.testing.assert_allclose(float(state.metrics["turned"]), data.qpos[0] - angle, rtol=1e-3, atol=1e-6)
        assert bool(state.terminated) == (1 + data.qpos[0] > 2.5)
    assert env.dt == pytest.approx(0.03)


def test_spaces_follow_the_observation():
    env = Swing()
    assert env.action_space.shape == (1,) and env.action_space.low == -1 and env.action_space.high == 1
    assert env.observation_space["angle"].shape == (2,) and env.observation_space["speed"].shape == (1,)


def test_own_robot_keeps_the_contract():
    check_env(Swing(), steps=4, worlds=2, plain=False)


def test_pose_is_what_a_renderer_needs():
    env = Swing()
    state = jax.jit(jax.vmap(env.reset))(jax.random.split(jax.random.key(0), 3))
    pose = env.pose(state)
    assert pose["qpos"].shape == (3, 1) and pose["mocap_pos"].shape == (3, 1, 3)
    np.testing.assert_array_equal(np.asarray(pose["mocap_quat"]), np.tile([0.0, 1, 0, 0], (3, 1, 1)))
    assert mjxlab.make("pendulum").pose(mjxlab.make("pendulum").reset(jax.random.key(0)))["mocap_pos"].shape == (0, 3)


def test_start_begins_where_told_and_reset_is_a_start():
    env = Swing()
    state = env.start(jax.random.key(0), qpos=jnp.array([0.5]), qvel=jnp.array([-2.0]))
    np.testing.assert_array_equal(np.asarray(state.data.qvel), [-2.0])
    np.testing.assert_allclose(np.asarray(state.obs["angle"]), [np.sin(0.5), np.cos(0.5)], rtol=1e-6)


def test_randomisation_is_drawn_at_reset_and_felt_by_the_step():
    env = Swing(randomise=randomise.mass(0.5, 2.0))
    keys = jax.random.split(jax.random.key(0), 4)
    state = jax.jit(jax.vmap(env.reset))(keys)
    mass = np.asarray(state.params["fields"]["body_mass"])[:, 1]
    assert len(set(mass.tolist())) == 4 and (mass > 1).all() and (mass < 4).all()
    after = jax.jit(jax.vmap(env.step))(state, jnp.ones((4, 1)))
    model = mujoco.MjModel.from_xml_string(SWING)
    for i in range(4):
        model.body_mass[:] = np.asarray(state.params["fields"]["body_mass"])[i]
        model.body_inertia[:] = np.asarray(state.params["fields"]["body_inertia"])[i]
        mujoco.mj_setConst(model, mujoco.MjData(model))
        data = mujoco.MjData(model)
        data.qpos[:], data.ctrl[:] = np.asarray(state.data.qpos)[i], 3
        mujoco.mj_step(model, data, 3)
        np.testing.assert_allclose(np.asarray(after.data.qvel)[i], data.qvel, rtol=1e-5)


def test_arguments_replace_the_classes_own():
    env = Swing(frame_skip=7, episode_length=5, outputs=("xquat",))
    assert env.dt == pytest.approx(0.07) and env.episode_length == 5 and "xquat" in env.engine.outputs
    other = MujocoEnv(SWING)
    assert jax.jit(other.step)(other.reset(jax.random.key(0)), jnp.zeros(1)).obs.shape == (2,)


@pytest.mark.parametrize(
    ("make", "error", "says"),
    [
        (lambda: MujocoEnv(), ConfigError, "expected an MJCF path"),
        (lambda: MujocoEnv("nowhere.xml"), ModelError, "no such file"),
        (lambda: MujocoEnv("<mujoco><oops/></mujoco>"), ModelError, "oops"),
        (lambda: Swing(frame_skip=0), ConfigError, "frame_skip is 0; expected an integer of at least 1"),
        (lambda: Swing(episode_length=-1), ConfigError, "episode_length is -1"),
        (lambda: asset("nothing.xml"), ConfigError, "expected one of ant.xml"),
        (lambda: Swing().body_id("leg"), ConfigError, "its bodies are world, pole, mark"),
        (
            lambda: mjxlab.make("arm_reach", reward="tense"),
            ConfigError,
            "reward is 'tense'; expected one of 'dense', 'sparse'",
        ),
        (lambda: mjxlab.make("arm_push", control="mind"), ConfigError, "control is 'mind'"),
        (lambda: mjxlab.make("ant_goal", distance=(3, 1)), ConfigError, "nearest <= furthest"),
        (lambda: mjxlab.make("point_u_maze", goals="near"), ConfigError, "goals is 'near'"),
        (lambda: mjxlab.make("ant", legs=5), ConfigError, "legs"),
    ],
)
def test_errors_are_one_clear_line(make, error, says):
    with pytest.raises(error, match=says.replace("(", r"\(")) as caught:
        make()
    assert "\n" not in str(caught.value)


def test_wrong_actions_and_rewards_are_named():
    env = Swing()
    state = env.reset(jax.random.key(0))
    with pytest.raises(ConfigError, match=r"shape \(3, 1\); expected \(1,\); one world: use jax.vmap"):
        env.step(state, jnp.zeros((3, 1)))

    class Bad(Swing):
        def reward(self, before, after, action):
            return {"speed": after.qvel}

    with pytest.raises(ConfigError, match=r"reward\['speed'\] of 'swing' has shape \(1,\); expected a number"):
        Bad().reset(jax.random.key(0))

    class Unsure(Swing):
        def terminated(self, data):
            return data.qpos[0]

    with pytest.raises(ConfigError, match=r"terminated returned float32\[\]; expected one true or false"):
        Unsure().step(state, jnp.zeros(1))


@pytest.mark.x64
def test_double_precision_goes_through():
    env = Swing()
    state = jax.jit(env.step)(env.reset(jax.random.key(0)), jnp.zeros(1, jnp.float32))
    assert state.reward.dtype == state.obs["speed"].dtype == jnp.float64


@pytest.mark.parametrize("name", NAMES)
def test_assets_have_a_material_a_name_and_sensors_of_the_shared_subset(name):
    env = mjxlab.make(name)
    model = env.engine.model
    assert model.nmat >= 1 and model.nsensor >= 1 and env.name == name
    assert all(model.sensor(i).name for i in range(model.nsensor))
    shared = ("FRAME", "JOINT", "TOUCH", "SUBTREE", "RANGEFINDER", "ACTUATOR", "CONTACT")
    assert all(mujoco.mjtSensor(t).name.removeprefix("mjSENS_").startswith(shared) for t in model.sensor_type)
    goals = [i for i in range(model.nbody) if model.body_mocapid[i] >= 0]
    for geom in range(model.ngeom):
        if model.geom_bodyid[geom] in goals:
            assert model.geom_contype[geom] == model.geom_conaffinity[geom] == 0


@pytest.mark.parametrize("name", ["pendulum", "walker", "arm_push", "point_u_maze"])
def test_same_key_same_bits_and_other_key_other_start(name):
    env = mjxlab.make(name)
    reset = jax.jit(env.reset)
    first, again, other = (reset(jax.random.key(k)) for k in (1, 1, 2))
    assert (np.asarray(first.obs) == np.asarray(again.obs)).all() and (
        np.asarray(first.obs) != np.asarray(other.obs)
    ).any()
    assert first.obs.shape == env.observation_space.shape and bool(first.data.finite) and not bool(first.terminated)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_every_environment_keeps_the_contract(name):
    check_env(mjxlab.make(name), steps=16, worlds=2)


def test_nested_vmap_and_two_devices_give_what_one_world_gives():
    env = mjxlab.make("cartpole")
    keys = jax.random.split(jax.random.key(0), 4)
    actions = jax.random.uniform(jax.random.key(1), (4, 1), minval=-1.0, maxval=1.0)

    def run(key, action):
        return env.step(env.reset(key), action).obs

    one = np.stack([np.asarray(jax.jit(run)(k, a)) for k, a in zip(keys, actions, strict=True)])
    nested = jax.jit(jax.vmap(jax.vmap(run)))(keys.reshape(2, 2), actions.reshape(2, 2, 1))
    np.testing.assert_array_equal(one, np.asarray(nested).reshape(4, -1))
    mesh = jax.make_mesh((2,), ("device",), axis_types=(jax.sharding.AxisType.Auto,))
    spec = jax.sharding.PartitionSpec("device")
    split = jax.jit(jax.shard_map(jax.vmap(run), mesh=mesh, in_specs=(spec, spec), out_specs=spec))
    np.testing.assert_array_equal(one, np.asarray(split(keys, actions)))


def _rollout(env, actions, keys):
    """Observations, rewards and ends of every step (time, worlds), and the first observation."""

    def step(state, action):
        state = jax.vmap(env.step)(state, action)
        return state, (state.obs, state.reward, state.terminated)

    state = jax.vmap(env.reset)(keys)
    return state.obs, jax.lax.scan(step, state, actions)[1]


def _agree(name, tolerance, steps=5, worlds=4):
    keys = jax.random.split(jax.random.key(5), worlds)
    made = {kind: mjxlab.make(name, engine=kind) for kind in ("mujoco", "mjx")}
    shape = (steps, worlds, *made["mujoco"].action_space.shape)
    actions = jax.random.uniform(jax.random.key(6), shape, minval=-1.0, maxval=1.0)
    (first, (obs, reward, ends)), (first_x, (obs_x, reward_x, ends_x)) = (
        physics.jit(lambda a, k, e=env: _rollout(e, a, k))(actions, keys) for env in made.values()
    )
    np.testing.assert_allclose(np.asarray(first), np.asarray(first_x), rtol=0, atol=1e-5)
    error = np.abs(np.asarray(obs) - np.asarray(obs_x)) / (1 + np.abs(np.asarray(obs)))
    assert error.max() < tolerance, error.max()
    np.testing.assert_allclose(np.asarray(reward), np.asarray(reward_x), rtol=tolerance, atol=tolerance)
    assert (np.asarray(ends) == np.asarray(ends_x)).all()


def test_engines_agree_on_observations_and_rewards():
    _agree("pendulum", 1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", [n for n in NAMES if n != "pendulum"])
def test_engines_agree_on_every_environment(name):
    _agree(name, 2e-3 if name in ("ant", "ant_goal", "half_cheetah", "humanoid", "walker") else 1e-4)
