"""Pictures of the ray caster: geometry against the C library, light against arithmetic."""

from __future__ import annotations

import functools
import itertools
import types

import jax
import jax.numpy as jnp
import mujoco
import numpy as np
import pytest

from mjxlab.errors import ConfigError, ModelError
from mjxlab.physics.render import (
    Camera,
    free_camera,
    make_rig,
    make_scene,
    pixels,
    render,
    render_bodies,
    textures,
)

ROBOT = """
<mujoco>
  <visual><headlight diffuse="0 0 0" ambient="0 0 0" specular="0 0 0"/></visual>
  <default><geom contype="0" conaffinity="0"/></default>
  <worldbody>
    <light name="sun" type="directional" dir=".3 .2 -1" mode="trackcom" pos="0 0 3"/>
    <light name="lamp" type="spot" castshadow="false" pos="1 0 2" dir="-.3 .1 -1" mode="fixed"/>
    <geom type="plane" size="3 3 .1" pos="0 0 -1.2" rgba=".5 .5 .6 1"/>
    <camera name="still" pos="0 -3 1" xyaxes="1 0 0 0 .3 1"/>
    <body name="torso" pos="0 0 .3"><freejoint/>
      <geom type="ellipsoid" size=".4 .3 .2" rgba=".8 .2 .2 1"/>
      <light name="head" type="point" castshadow="false" pos=".5 0 .2" dir="1 0 -1"/>
      <light name="finger" type="spot" castshadow="false" mode="targetbodycom" target="arm" pos="0 .3 1"/>
      <camera name="eye" pos=".5 0 .3" xyaxes="0 -1 0 .2 0 1"/>
      <camera name="track" mode="track" pos="0 -3 1" xyaxes="1 0 0 0 .3 1"/>
      <camera name="trackcom" mode="trackcom" pos="0 -3 1" xyaxes="1 0 0 0 .3 1"/>
      <camera name="watch" mode="targetbody" target="arm" pos="0 -2 1"/>
      <camera name="watchcom" mode="targetbodycom" target="arm" pos="1 -2 1"/>
      <body name="arm" pos=".4 0 0"><joint axis="0 1 0"/>
        <geom type="capsule" size=".1" fromto="0 0 0 .6 .1 .2" rgba=".2 .8 .2 1"/>
        <body pos=".6 .1 .2"><joint axis="1 0 0"/>
          <geom type="box" size=".2 .1 .15" rgba=".2 .2 .8 1"/>
          <geom type="cylinder" size=".1 .3" euler="0 90 30" rgba=".8 .8 .2 1"/>
          <geom type="sphere" size=".15" pos="0 .3 .1" rgba=".7 .3 .8 1"/>
        </body>
      </body>
    </body>
  </worldbody>
</mujoco>
"""
CAMERAS = ("still", "eye", "track", "trackcom", "watch", "watchcom")


@functools.cache
def robot(seed: int = 0) -> tuple[mujoco.MjModel, mujoco.MjData]:
    """The robot in a random pose."""
    model = mujoco.MjModel.from_xml_string(ROBOT)
    data = mujoco.MjData(model)
    rng = np.random.default_rng(seed)
    data.qpos[:] += rng.normal(size=model.nq) * 0.3
    mujoco.mj_normalizeQuat(model, data.qpos)
    mujoco.mj_forward(model, data)
    return model, data


@pytest.mark.x64
@pytest.mark.parametrize("seed", [0, 1])
def test_cameras_lights_and_geoms_stand_where_mujoco_puts_them(seed):
    model, data = robot(seed)
    placed = make_scene(model).place(data.xpos, data.xquat)
    np.testing.assert_allclose(placed.geom_xpos, data.geom_xpos, atol=1e-12)
    np.testing.assert_allclose(placed.geom_xmat.reshape(-1, 9), data.geom_xmat, atol=1e-12)
    np.testing.assert_allclose(placed.light_xpos, data.light_xpos, atol=1e-12)
    np.testing.assert_allclose(placed.light_xdir, data.light_xdir, atol=1e-12)
    for name in CAMERAS:
        camera = make_rig(model, name).at(data.xpos, data.xquat)
        np.testing.assert_allclose(camera.pos, data.camera(name).xpos, atol=1e-12)
        np.testing.assert_allclose(camera.mat.reshape(-1), data.camera(name).xmat, atol=1e-12)
        assert float(camera.fovy) == model.camera(name).fovy[0]


@pytest.mark.x64
def test_a_free_camera_has_mujocos_angles():
    model, data = robot()
    own = mujoco.MjvCamera()
    scene = mujoco.MjvScene(model, 100)
    for azimuth, elevation in ((0, -20), (90, 10), (215, -60)):
        own.lookat[:], own.distance, own.azimuth, own.elevation = (0.3, -0.2, 0.5), 2.5, azimuth, elevation
        mujoco.mjv_updateScene(model, data, mujoco.MjvOption(), None, own, mujoco.mjtCatBit.mjCAT_ALL.value, scene)
        camera = free_camera((0.3, -0.2, 0.5), 2.5, azimuth, elevation)
        eye = scene.camera[0].pos + scene.camera[1].pos
        np.testing.assert_allclose(camera.pos, eye / 2, atol=1e-6)
        np.testing.assert_allclose(-camera.mat[:, 2], scene.camera[0].forward, atol=1e-6)
        np.testing.assert_allclose(camera.mat[:, 1], scene.camera[0].up, atol=1e-6)
    body = make_rig(model, "free", body="torso", lookat=(0, 0, 0.5), distance=2.0, azimuth=90, elevation=0)
    np.testing.assert_allclose(body.at(data.xpos, data.xquat).pos, data.xpos[1] * [1, 1, 0] + [0, -2, 0.5], atol=1e-12)


@pytest.mark.x64
def test_depth_and_segmentation_are_those_of_mj_ray_through_each_pixel():
    model, data = robot()
    width, height = 40, 30
    scene = make_scene(model)
    look = jax.jit(lambda rig: render_bodies(scene, data.xpos, data.xquat, rig, width, height, shadows=False))
    image = look(make_rig(model, "trackcom"))
    pos, mat = data.camera("trackcom").xpos, data.camera("trackcom").xmat.reshape(3, 3)
    tangent = np.tan(np.deg2rad(model.camera("trackcom").fovy[0]) / 2)
    y, x = np.mgrid[0:height, 0:width]
    local = np.stack([(2 * x + 1 - width) / height * tangent, (height - 2 * y - 1) / height * tangent, -1 + 0 * x], -1)
    direction = local.reshape(-1, 3) @ mat.T
    geom, t = np.zeros((1, 1), np.int32), np.empty(len(direction))
    found = np.empty(len(direction), np.int32)
    for i, d in enumerate(direction):  # in units of a direction of depth 1
        t[i] = mujoco.mj_ray(model, data, pos[:, None], d[:, None], None, True, -1, geom)
        found[i] = geom[0, 0]
    np.testing.assert_array_equal(image.segmentation.reshape(-1), found)
    assert set(found) >= {-1, 0, 1, 2, 3, 4}
    far = model.vis.map.zfar * model.stat.extent
    np.testing.assert_allclose(image.depth.reshape(-1), np.where(found >= 0, t, far), rtol=1e-9)


LIT = """
<mujoco>
  <visual><headlight active="0"/></visual>
  <asset>
    <material name="plain" rgba=".8 .6 .4 1" specular="0"/>
    <material name="glow" rgba=".2 .3 .4 1" specular="0" emission=".5"/>
  </asset>
  <worldbody>
    <light name="light" {light} ambient=".1 .2 .3" diffuse=".5 .5 .5" specular="0 0 0"/>
    <geom name="floor" type="plane" size="0 0 1" material="plain"/>
    <geom name="slope" type="box" size=".5 .5 .1" pos="3 0 1.5" euler="0 60 0" material="plain"/>
    <geom name="roof" type="box" size="1 1 .1" pos="-3 0 1.5" material="plain"/>
    <geom name="glow" type="box" size=".5 .5 .1" pos="0 3 .5" material="glow"/>
  </worldbody>
</mujoco>
"""
BASE, AMBIENT, DIFFUSE = np.array([0.8, 0.6, 0.4]), np.array([0.1, 0.2, 0.3]), 0.5


@functools.partial(jax.jit, static_argnames="shadows")
def spot_on(scene, lookat, azimuth, elevation, distance, shadows=True):
    """Colour of the surface that a camera looks at squarely, by a picture of one pixel."""
    camera = free_camera(lookat, distance, azimuth, elevation, fovy=0.01)
    placed = scene.resting
    image = render(scene, placed.geom_xpos, placed.geom_xmat, camera, 1, 1, shadows=shadows, fog=False)
    return image.rgb[0, 0], image.segmentation[0, 0]


def colour(light, lookat, azimuth=45.0, elevation=-45.0, distance=1.0, shadows=True):
    model = mujoco.MjModel.from_xml_string(LIT.format(light=light))
    rgb, geom = spot_on(make_scene(model), jnp.asarray(lookat, float), azimuth, elevation, distance, shadows)
    return np.asarray(rgb), model.geom(int(geom)).name


def test_a_directional_light_gives_full_slanted_and_ambient_colours():
    sun = 'type="directional" dir="0 0 -1"'
    full = BASE * (AMBIENT + DIFFUSE)
    assert colour(sun, (0, 0, 0))[1] == "floor"
    np.testing.assert_allclose(colour(sun, (0, 0, 0))[0], full, rtol=1e-5)
    rgb, name = colour(sun, (3 + 0.1 * np.sin(np.pi / 3), 0, 1.55), 180, -30)
    assert name == "slope"
    np.testing.assert_allclose(rgb, BASE * (AMBIENT + DIFFUSE * np.cos(np.pi / 3)), rtol=1e-5)
    rgb, name = colour(sun, (-3, 0, 1.4), 45, 60, 0.5)
    assert name == "roof"  # from below: turned away
    np.testing.assert_allclose(rgb, BASE * AMBIENT, rtol=1e-5)
    rgb, name = colour(sun, (-3, 0, 0), 45, -20, 0.5)
    assert name == "floor"  # in the roof's shadow
    np.testing.assert_allclose(rgb, BASE * AMBIENT, rtol=1e-5)
    np.testing.assert_allclose(colour(sun, (-3, 0, 0), 45, -20, 0.5, shadows=False)[0], full, rtol=1e-5)
    rgb, name = colour(sun, (0, 3, 0.6))
    assert name == "glow"
    np.testing.assert_allclose(rgb, np.array([0.2, 0.3, 0.4]) * (AMBIENT + DIFFUSE + 0.5), rtol=1e-5)
    no_shadow = 'type="directional" dir="0 0 -1" castshadow="false"'
    np.testing.assert_allclose(colour(no_shadow, (-3, 0, 0), 45, -20, 0.5)[0], full, rtol=1e-5)


def test_point_and_spot_lights_fade_with_distance_and_angle():
    strength = 1 / (1 + 0.5 * 2 + 0.25 * 4)
    point = 'type="point" pos="0 0 2" attenuation="1 .5 .25"'
    np.testing.assert_allclose(colour(point, (0, 0, 0))[0], BASE * (AMBIENT + DIFFUSE) * strength, rtol=1e-5)
    spot = 'type="spot" pos="0 0 2" dir="0 0 -1" cutoff="30" exponent="3"'
    for x, lit in ((0.0, True), (1.0, True), (1.2, False)):  # 0, 26.6 and 31 degrees off the axis
        cosine = 2 / np.hypot(2, x)
        want = BASE * (AMBIENT + DIFFUSE * cosine) * cosine**3 if lit else np.zeros(3)
        np.testing.assert_allclose(colour(spot, (x, 0, 0))[0], want, rtol=2e-5, atol=1e-7)


def test_a_highlight_is_brightest_in_the_mirror_direction():
    light = 'type="directional" dir="1 0 -1"'
    model = mujoco.MjModel.from_xml_string(
        LIT.format(light=light).replace('specular="0 0 0"', 'specular="1 1 1"').replace('specular="0"', 'specular=".4"')
    )
    scene, at = make_scene(model), jnp.zeros(3)
    angles = np.arange(-85.0, -10.0, 5.0)
    # The light falls in at 45 degrees along +x; seen from +x at the same height it is reflected into the eye.
    red = np.array([spot_on(scene, at, 180.0, e, 1.0)[0][0] for e in angles])
    assert angles[red.argmax()] == -45.0
    plain = BASE[0] * (AMBIENT[0] + DIFFUSE * np.sqrt(0.5))
    assert red.max() == pytest.approx(plain + 0.4, rel=1e-4)


def test_see_through_geoms_mix_with_what_is_behind():
    model = mujoco.MjModel.from_xml_string("""
    <mujoco><visual><headlight ambient="1 1 1" diffuse="0 0 0" specular="0 0 0"/></visual><worldbody>
      <geom type="plane" size="0 0 1" rgba="0 0 1 1"/>
      <geom type="sphere" size=".3" pos="0 0 1" rgba="1 0 0 .25"/>
      <geom type="sphere" size=".2" pos="0 0 2" rgba="0 1 0 0"/>
    </worldbody></mujoco>""")
    scene = make_scene(model)
    rgb, geom = spot_on(scene, jnp.zeros(3), 0.0, -90.0, 5.0)
    np.testing.assert_allclose(rgb, [0.25, 0, 0.75], atol=1e-6)
    assert geom == 1  # the invisible one is not there at all, as for mj_ray
    np.testing.assert_allclose(spot_on(scene, jnp.array([2.0, 0, 0]), 0.0, -90.0, 5.0)[0], [0, 0, 1], atol=1e-6)


SMALL = """
<mujoco>
  <visual><headlight ambient=".2 .2 .2" diffuse=".2 .2 .2" specular="0 0 0"/></visual>
  <worldbody>
    <light name="sun" type="directional" dir=".3 .2 -1" diffuse=".5 .5 .5" specular=".1 .1 .1"/>
    <geom type="plane" size="0 0 1" rgba=".5 .5 .6 1"/>
    <camera name="still" pos="0 -2 1.2" xyaxes="1 0 0 0 .4 1"/>
    <body pos="0 0 .6"><freejoint/>
      <geom type="sphere" size=".3" rgba=".6 .2 .2 1"/><geom type="sphere" size=".2" pos=".4 0 .1" rgba=".2 .6 .2 1"/>
      <geom type="sphere" size=".25" pos="-.3 -.3 .2" rgba=".2 .2 .6 .5"/>
    </body>
  </worldbody>
</mujoco>
"""


def small_model() -> mujoco.MjModel:
    return mujoco.MjModel.from_xml_string(SMALL)


def small_poses(count: int) -> tuple[np.ndarray, np.ndarray]:
    """Body positions and orientations of some random states."""
    rng = np.random.default_rng(0)
    quat = rng.normal(size=(count, 1, 4))
    quat /= np.linalg.norm(quat, axis=-1, keepdims=True)
    pos = np.array([0, 0, 0.6]) + rng.normal(size=(count, 1, 3)) * 0.1
    still = np.zeros((count, 1, 3)), np.tile([1.0, 0, 0, 0], (count, 1, 1))
    return np.float32(np.concatenate([still[0], pos], 1)), np.float32(np.concatenate([still[1], quat], 1))


def test_worlds_with_their_own_poses_sizes_and_colours_are_what_a_loop_gives():
    model = small_model()
    scene, rig = make_scene(model), make_rig(model, "still")
    xpos, xquat = small_poses(3)
    rng = np.random.default_rng(0)
    fields = {
        "geom_size": np.float32(model.geom_size * rng.uniform(0.7, 1.3, (3, model.ngeom, 1))),
        "geom_rgba": np.float32(rng.uniform(0.2, 0.8, (3, model.ngeom, 4))),
        "body_mass": np.ones((3, model.nbody), np.float32),
    }

    def one(xpos, xquat, fields):
        return render_bodies(scene.with_fields(fields), xpos, xquat, rig, 24, 18, tile=100)

    batch = jax.jit(jax.vmap(one))(xpos, xquat, fields)
    single = jax.jit(one)
    for i in range(3):
        alone = single(xpos[i], xquat[i], jax.tree.map(lambda a: a[i], fields))  # noqa: B023
        np.testing.assert_array_equal(batch.segmentation[i], alone.segmentation)
        np.testing.assert_allclose(batch.depth[i], alone.depth, rtol=1e-5)
        np.testing.assert_allclose(batch.rgb[i], alone.rgb, atol=1e-4)
        for geom in range(1, model.ngeom):
            assert (alone.segmentation == geom).sum() > 3
    # The sphere's width in pixels follows its own size: a mask of its area ~ size squared.
    area = (np.asarray(batch.segmentation) == 1).sum((1, 2)) / np.asarray(fields["geom_size"])[:, 1, 0] ** 2
    assert len(set(area)) == 3


def test_pixels_come_from_an_engines_outputs():
    from mjxlab.physics import make_engine

    model = small_model()
    engine = make_engine(model, "mujoco", outputs=("qpos", "xpos", "xquat"))
    look = pixels(model, "still", 16, 12)
    xpos, xquat = small_poses(2)
    qpos = np.concatenate([xpos[:, 1], xquat[:, 1]], -1)
    image = jax.jit(jax.vmap(lambda q: look(engine.init(qpos=q))))(qpos)
    assert image.uint8.shape == (2, 12, 16, 3) and image.uint8.dtype == jnp.uint8
    other = jax.jit(jax.vmap(lambda p, q: look(types.SimpleNamespace(xpos=p, xquat=q))))(xpos, xquat)
    np.testing.assert_array_equal(image.segmentation, other.segmentation)
    np.testing.assert_allclose(image.rgb, other.rgb, atol=1e-4)
    assert (image.segmentation[0] != image.segmentation[1]).mean() > 0.05


@pytest.mark.x64
def test_gradients_of_a_picture_are_those_of_finite_differences():
    """Through colour, light and shape, with shadows, smoothing and a see-through geom on; none is NaN anywhere."""
    model = small_model()
    scene, rig = make_scene(model), make_rig(model, "still")
    xpos, xquat = small_poses(1)

    def brightness(scene, xpos):
        image = render_bodies(scene, xpos, xquat[0], rig, 16, 12, samples=2, fog=False)
        return jnp.sum(image.rgb) + jnp.sum(image.depth)

    xpos = jnp.asarray(xpos[0], float)
    by_scene, by_pos = jax.jit(jax.grad(brightness, argnums=(0, 1)))(scene, xpos)
    for leaf in jax.tree.leaves((by_scene, by_pos)):
        assert np.isfinite(leaf).all()
    assert np.abs(by_pos[1]).min() > 0.1 and np.abs(by_scene.geom_size[1:, 0]).min() > 0.01
    run = jax.jit(brightness)
    for change in (  # what moves no edges, whose share finite differences would see too
        lambda s, h: s.replace(geom_rgba=s.geom_rgba.at[2, 1].add(h)),
        lambda s, h: s.replace(geom_rgba=s.geom_rgba.at[3, 3].add(h)),
        lambda s, h: s.replace(lights=(s.lights[0].replace(diffuse=s.lights[0].diffuse + h),)),
    ):
        slope = (run(change(scene, 1e-4), xpos) - run(change(scene, -1e-4), xpos)) / 2e-4
        way = jax.jvp(lambda h: change(scene, h), (0.0,), (1.0,))[1]  # noqa: B023
        total = sum(jnp.sum(a * b) for a, b in zip(jax.tree.leaves(by_scene), jax.tree.leaves(way), strict=True))
        assert abs(float(slope)) > 1e-2
        assert float(slope) == pytest.approx(float(total), rel=1e-5)


def test_smoothing_averages_the_rays_of_edge_pixels():
    model, data = robot()
    scene, camera = make_scene(model), make_rig(model, "track").at(data.xpos, data.xquat)
    look = jax.jit(
        lambda size, samples: render(
            scene,
            data.geom_xpos,
            data.geom_xmat,
            camera,
            *size,
            samples=samples,
            lights=(data.light_xpos, data.light_xdir),
        ),
        static_argnums=(0, 1),
    )
    plain, smooth, fine = look((40, 30), 1), look((40, 30), 2), look((80, 60), 1)
    average = np.asarray(fine.rgb).reshape(30, 2, 40, 2, 3).mean((1, 3))
    np.testing.assert_array_equal(plain.segmentation, smooth.segmentation)
    # two programs: XLA may contract the same float32 arithmetic differently
    np.testing.assert_allclose(plain.depth, smooth.depth, rtol=2e-6)
    changed = (np.abs(np.asarray(plain.rgb) - np.asarray(smooth.rgb)) > 1e-5).any(-1)
    assert 0.1 < changed.mean() < 0.6
    np.testing.assert_allclose(smooth.rgb[changed], average[changed], atol=1e-3)
    assert np.abs(np.asarray(smooth.rgb) - average).max() < 0.1 < np.abs(np.asarray(plain.rgb) - average).max()


def test_the_checkerboard_formula_is_the_average_over_a_box():
    rng = np.random.default_rng(0)
    x, y = rng.uniform(-5, 5, (2, 50))
    width, depth = rng.uniform(0.05, 4, (2, 50))
    offset = (np.arange(200) + 0.5) / 200 - 0.5
    gx = x[:, None, None] + width[:, None, None] * offset[None, :, None]
    gy = y[:, None, None] + depth[:, None, None] * offset[None, None, :]
    even = ((np.floor(gx) + np.floor(gy)) % 2 == 0).mean((1, 2))
    np.testing.assert_allclose(textures.even_share(x, y, width, depth), even, atol=0.02)
    near = (np.abs(gx - 2 * np.round(gx / 2)) < 0.1) | (np.abs(gy - 2 * np.round(gy / 2)) < 0.1)
    np.testing.assert_allclose(textures.line_share(x, y, width, depth, 0.2), near.mean((1, 2)), atol=0.02)


def test_checkers_of_a_model_are_found_and_scaled():
    text = """
    <mujoco><asset>
      <texture name="t" type="2d" builtin="checker" rgb1="1 0 0" rgb2="0 0 1" mark="{mark}"
        markrgb="0 1 0" width="64" height="64"/>
      <texture name="f" type="2d" builtin="flat" rgb1=".2 .4 .6" width="16" height="16"/>
      <material name="u" texture="t" texrepeat="4 2" texuniform="true"/><material name="v" texture="t" texrepeat="4 2"/>
      <material name="w" texture="f"/></asset>
      <worldbody><geom type="plane" size="2 2 1" material="u"/><geom type="plane" size="2 2 1" material="v"/>
      <geom type="plane" size="0 0 1" material="v"/><geom type="sphere" size="1" material="w"/></worldbody></mujoco>"""
    found = textures.read(mujoco.MjModel.from_xml_string(text.format(mark="none")))
    np.testing.assert_allclose(found.cells, [[4, 2], [2, 1], [4, 2], [0, 0]])
    np.testing.assert_allclose(found.tint, [[1, 0, 0], [1, 0, 0], [1, 0, 0], [0.2, 0.4, 0.6]], atol=3e-3)
    np.testing.assert_allclose(found.second[0], [0, 0, 1])
    assert (found.mark_width == 0).all()
    marked = textures.read(mujoco.MjModel.from_xml_string(text.format(mark="edge")))
    np.testing.assert_allclose(marked.mark[0], [0, 1, 0])
    assert marked.mark_width[0] == pytest.approx(2 / 64)


@pytest.mark.x64
def test_types_follow_jax_or_the_wish():
    model = small_model()
    xpos, xquat = small_poses(1)
    look = jax.jit(
        lambda scene, rig, samples: render_bodies(scene, xpos[0], xquat[0], rig, 4, 3, samples=samples),
        static_argnums=2,
    )
    own = look(make_scene(model), make_rig(model, "still"), 1)
    assert own.rgb.dtype == own.depth.dtype == jnp.float64 and own.segmentation.dtype == jnp.int32
    small = look(make_scene(model, dtype=jnp.float32), make_rig(model, "still", dtype=jnp.float32), 2)
    assert small.rgb.dtype == small.depth.dtype == jnp.float32


def test_unknown_shapes_are_refused_boxed_or_left_out():
    model = mujoco.MjModel.from_xml_string("""
    <mujoco><asset><mesh name="m" vertex="0 0 0 .4 0 0 0 .2 0 0 0 .6"/></asset><worldbody>
      <geom name="thing" type="mesh" mesh="m" pos="0 0 1" rgba="1 0 0 1"/><geom type="sphere" size=".1" pos="5 0 0"/>
    </worldbody></mujoco>""")
    with pytest.raises(ModelError, match=r"^geoms thing \(mesh\): the ray caster draws plane, sphere.*meshes='box'"):
        make_scene(model)
    with pytest.warns(UserWarning, match=r"thing \(mesh\) are drawn as their bounding boxes"):
        scene = make_scene(model, meshes="box")
    data = mujoco.MjData(model)
    mujoco.mj_forward(model, data)
    camera = free_camera((0.2, 0.1, 1.3), 3.0, 90.0, 0.0, fovy=30.0)
    look = jax.jit(lambda pos, mat: render(scene, pos, mat, camera, 61, 61))
    image = look(data.geom_xpos, data.geom_xmat)
    corners = np.array(list(itertools.product((-1, 1), repeat=3))) * model.geom_aabb[0, 3:] + model.geom_aabb[0, :3]
    corners = corners @ data.geom_xmat[0].reshape(3, 3).T + data.geom_xpos[0] - np.asarray(camera.pos)
    scale = 30.5 / np.tan(np.deg2rad(15))
    seen = np.stack([30 - corners[:, 2] / corners[:, 1] * scale, 30 + corners[:, 0] / corners[:, 1] * scale], 1)
    filled = np.argwhere(np.asarray(image.segmentation) == 0)
    np.testing.assert_allclose(filled.min(0), seen.min(0), atol=1.1)
    np.testing.assert_allclose(filled.max(0), seen.max(0), atol=1.1)
    with pytest.warns(UserWarning, match="are not drawn"):
        assert make_scene(model, meshes="skip").kinds == ((2, (1,)),)


def test_wrong_arguments_give_one_line():
    model, data = robot()
    scene, camera = make_scene(model), free_camera()
    for call, message in (
        (
            lambda: render(scene, data.geom_xpos, data.geom_xmat, camera, 0, 3),
            "width: expected a positive integer, got 0",
        ),
        (lambda: render(scene, data.geom_xpos, data.geom_xmat, camera, samples=0), "samples: expected a positive"),
        (lambda: render(scene, data.geom_xpos[:2], data.geom_xmat, camera), r"geom_xpos, geom_xmat: expected \(6, 3\)"),
        (lambda: make_rig(model, "nose"), "camera 'nose': the model has still, eye, track"),
        (lambda: make_rig(model, 17), "camera 17: the model has"),
        (lambda: make_rig(model, "eye", distance=2.0), "camera 'eye': lookat, distance"),
        (lambda: make_rig(model, body="leg"), "body 'leg': the model has world, torso, arm"),
        (lambda: free_camera((0, 0)), "camera lookat: expected 3 coordinates"),
        (lambda: make_scene(model, meshes="maybe"), "meshes: expected 'error', 'box' or 'skip', got 'maybe'"),
        (lambda: scene.with_fields({"geom_size": jnp.ones((2, 3))}), r"field geom_size: expected shape \(6, 3\)"),
    ):
        with pytest.raises(ConfigError, match="^" + message) as error:
            call()
        assert "\n" not in str(error.value)
    flat = mujoco.MjModel.from_xml_string(ROBOT.replace('name="still"', 'name="still" projection="orthographic"'))
    with pytest.raises(ConfigError, match="camera 'still': orthographic"):
        make_rig(flat, "still")
    assert isinstance(camera, Camera)
