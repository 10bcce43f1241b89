"""Films and files, MuJoCo's own renderer, the viewer."""

from __future__ import annotations

import errno
import os

import jax.numpy as jnp
import mujoco
import numpy as np
import pytest
from PIL import Image as Pillow

from mjxlab.errors import ConfigError, EngineError, ModelError, WorkLostError
from mjxlab.physics import viewer
from mjxlab.physics.render import (
    GLRenderer,
    caption,
    frames,
    gl,
    make_rig,
    make_scene,
    render_bodies,
    save_gif,
    save_png,
    tile,
)

SCENE = """
<mujoco>
  <visual><headlight ambient=".2 .2 .2" diffuse=".3 .3 .3" specular="0 0 0"/></visual>
  <asset>
    <texture name="t" type="2d" builtin="checker" rgb1=".2 .3 .4" rgb2=".4 .5 .6" width="64" height="64"/>
    <material name="floor" texture="t" texrepeat="1 2" texuniform="true"/>
  </asset>
  <worldbody>
    <light type="directional" dir=".2 .3 -1" diffuse=".6 .6 .6" specular=".2 .2 .2"/>
    <geom name="floor" type="plane" size="0 0 1" material="floor"/>
    <camera name="side" pos="0 -3 1.2" xyaxes="1 0 0 0 .3 1"/>
    <body pos="0 0 1"><joint type="slide" axis="1 0 0"/>
      <geom name="ball" type="sphere" size=".4" rgba=".8 .3 .2 1"/>
      <geom name="rod" type="capsule" size=".1" fromto="0 0 0 .8 0 .3"/>
    </body>
    <body name="goal" mocap="true" pos="-1 .5 .3"><geom type="box" size=".2 .3 .3" euler="0 0 30" rgba=".2 .8 .3 1"/></body>
  </worldbody>
</mujoco>
"""


def scene_model() -> mujoco.MjModel:
    return mujoco.MjModel.from_xml_string(SCENE)


def film(count: int, height: int = 24, width: int = 32) -> np.ndarray:
    """A bright square that moves over a slope of colours."""
    y, x = np.mgrid[0:height, 0:width]
    out = np.stack([np.stack([4 * x, 6 * y, 128 + 0 * x], -1)] * count).astype(np.uint8)
    for i in range(count):
        out[i, 4:10, i % (width - 6) : i % (width - 6) + 6] = (250, 40, 30)
    return out


@pytest.mark.parametrize(("fps", "count"), [(25.0, 20), (30.0, 31)])
def test_a_gif_has_the_frames_the_size_and_the_time(tmp_path, fps, count):
    path = save_gif(tmp_path / "a.gif", film(count), fps)
    with Pillow.open(path) as gif:
        assert (gif.n_frames, gif.size, gif.info["loop"]) == (count, (32, 24), 0)
        time = 0
        for i in range(count):
            gif.seek(i)
            time += gif.info["duration"]
            shown = np.asarray(gif.convert("RGB")).astype(int)
            assert np.abs(shown - film(count)[i]).mean() < 6
            x = i % 26  # where `film` drew the square
            assert np.abs(shown[4:10, x : x + 6] - [250, 40, 30]).max() < 30
    assert time == pytest.approx(1000 * count / fps, abs=10)
    assert os.listdir(tmp_path) == ["a.gif"]


def test_equal_frames_are_merged_without_losing_time(tmp_path):
    with Pillow.open(save_gif(tmp_path / "a.gif", np.repeat(film(3), 4, axis=0), 20.0)) as gif:
        time = sum(gif.seek(i) or gif.info["duration"] for i in range(gif.n_frames))
    assert time == 600


def test_a_gif_keeps_within_its_limit(tmp_path):
    rng = np.random.default_rng(0)
    noisy = (film(12) * 0.7 + rng.uniform(0, 70, (12, 24, 32, 3))).astype(np.uint8)
    free = save_gif(tmp_path / "a.gif", noisy).stat().st_size
    assert save_gif(tmp_path / "a.gif", noisy, max_bytes=free // 2).stat().st_size <= free // 2
    with pytest.raises(ConfigError, match="max_bytes: 100 cannot be kept, the smallest file has"):
        save_gif(tmp_path / "a.gif", noisy, max_bytes=100)


def test_a_long_film_of_a_robot_is_small(tmp_path):
    """100 frames of 320 x 240 of a robot on a checkered floor that slides by: below 1.5 MB."""
    model = scene_model()
    rig = make_rig(model, "free", body=1, distance=3.0, azimuth=90.0, elevation=-15.0, lookat=(0, 0, 0.5))
    motion = frames(model, np.linspace(0, 2, 4)[:, None], renderer="jax", camera=rig, samples=1)
    assert motion.shape == (4, 240, 320, 3)
    assert np.abs(np.diff(motion.astype(int), axis=0)).mean() > 5
    assert save_gif(tmp_path / "a.gif", motion[np.arange(100) % 4]).stat().st_size < 1_500_000


def test_a_png_is_exact_and_writes_are_whole_or_not_at_all(tmp_path, monkeypatch):
    frame = film(1)[0]
    path = save_png(tmp_path / "a.png", frame)
    np.testing.assert_array_equal(np.asarray(Pillow.open(path)), frame)

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    for save in (lambda: save_png(path, frame[:4]), lambda: save_gif(tmp_path / "b.gif", film(2))):
        with pytest.raises(WorkLostError, match=r"could not be written \(No space left on device\)"):
            save()
    assert os.listdir(tmp_path) == ["a.png"]
    np.testing.assert_array_equal(np.asarray(Pillow.open(path)), frame)  # the old file is still there
    with pytest.raises(WorkLostError, match="No such file or directory"):
        save_png(tmp_path / "nowhere" / "a.png", frame)


def test_films_side_by_side():
    out = tile([film(3), film(5), film(2)], columns=2, gap=1)
    assert out.shape == (5, 49, 65, 3)
    np.testing.assert_array_equal(out[:, :24, 33:], film(5))
    np.testing.assert_array_equal(out[4, :24, :32], film(3)[2])  # holds its last frame
    assert (out[:, 25:, 33:] == 255).all()


def test_captions_change_the_lower_left_corner_only():
    plain = np.zeros((2, 60, 120, 3), np.uint8)
    out = caption(plain, ["2.1 cm", ""], size=12)
    assert out.shape == plain.shape
    rows, columns = np.nonzero(out[0].max(-1) > 200)
    assert rows.min() > 35 and columns.max() < 70 and len(rows) > 20
    assert (out[1] == plain[1]).all()


def test_frames_follow_the_poses_and_mocap_bodies():
    model = scene_model()
    poses = {
        "qpos": np.array([[-0.5], [0.0], [0.5]]),
        "mocap_pos": np.array([[[-1, 0.5, 0.3]], [[-1, 0.5, 0.3]], [[1, 0.5, 0.3]]]),
        "mocap_quat": np.tile([1.0, 0, 0, 0], (3, 1, 1)),
    }
    out = frames(model, poses, renderer="jax", camera="side", width=48, height=36, samples=1).astype(int)
    red = (out[..., 0] > out[..., 1] + 40) & (out[..., 0] > out[..., 2] + 40)
    green = (out[..., 1] > out[..., 0] + 40) & (out[..., 1] > out[..., 2] + 40)
    where = [np.nonzero(mask)[1].mean() for mask in red]
    assert where[0] + 5 < where[1] < where[2] - 5
    assert np.nonzero(green[1])[1].mean() < 24 < np.nonzero(green[2])[1].mean()
    faster = frames(model, poses, renderer="jax", camera="side", width=48, height=36, samples=1, dt=0.5, fps=4)
    np.testing.assert_array_equal(faster, out[[0, 0, 1, 1, 2, 2]])


@pytest.mark.gl
def test_mujocos_renderer_sees_the_same():
    model = scene_model()
    data = mujoco.MjData(model)
    mujoco.mj_forward(model, data)
    with GLRenderer(model, 160, 120) as window:
        theirs = window.render(data, "side")
        again = window.render(data, "side", depth=False, segmentation=False)
    scene, rig = make_scene(model), make_rig(model, "side")
    ours = render_bodies(scene, data.xpos, data.xquat, rig, 160, 120, fog=False)  # MuJoCo draws none unless told
    np.testing.assert_array_equal(theirs.rgb, again.rgb)
    assert (again.segmentation == -1).all()
    same = np.asarray(ours.segmentation) == theirs.segmentation
    assert same.mean() > 0.99
    assert set(np.unique(theirs.segmentation)) == {-1, 0, 1, 2, 3}
    error = np.abs(np.asarray(ours.depth) - theirs.depth)[same] / theirs.depth[same]
    # MuJoCo draws round shapes as polygons: they are off by 1% where they turn away.
    assert error.max() < 0.02 and np.quantile(error, 0.95) < 2e-3
    flat = same & (theirs.segmentation == 3)
    assert (np.abs(np.asarray(ours.depth) - theirs.depth)[flat] / theirs.depth[flat]).max() < 1e-5
    for geom in range(4):
        mask = same & (theirs.segmentation == geom)
        np.testing.assert_allclose(np.asarray(ours.rgb)[mask].mean(0), theirs.rgb[mask].mean(0), atol=0.03)
    near = same & (theirs.segmentation == 0) & (theirs.depth < 6)  # beyond, texture filters differ
    assert np.median(np.abs(np.asarray(ours.rgb) - theirs.rgb)[near]) < 0.02
    large = frames(model, np.zeros((1, 1)), renderer="gl", camera="side", width=800, height=600)
    assert large.shape == (1, 600, 800, 3)  # larger than the model's frame buffer


def test_a_missing_opengl_is_one_line(monkeypatch):
    model = scene_model()
    monkeypatch.setenv("MUJOCO_GL", "off")
    gl.unavailable.cache_clear()
    try:
        message = r"^MuJoCo's renderer is not available: MUJOCO_GL switches it off \(install libosmesa6"
        with pytest.raises(EngineError, match=message):
            frames(model, np.zeros((1, 1)), renderer="gl")
        with pytest.raises(EngineError, match=r"MuJoCo's renderer \(off\) could not be opened"):
            GLRenderer(model, 8, 8)
        mesh = mujoco.MjModel.from_xml_string(
            '<mujoco><asset><mesh name="m" vertex="0 0 0 1 0 0 0 1 0 0 0 1"/></asset>'
            '<worldbody><geom type="mesh" mesh="m"/></worldbody></mujoco>'
        )
        with pytest.raises(ModelError, match="the ray caster draws plane"):
            frames(mesh, np.zeros((1, 0)))
    finally:
        gl.unavailable.cache_clear()


@pytest.mark.gl
def test_meshes_are_left_to_mujocos_renderer():
    mesh = mujoco.MjModel.from_xml_string(
        '<mujoco><asset><mesh name="m" vertex="0 0 0 1 0 0 0 1 0 0 0 1"/></asset><worldbody>'
        '<geom type="mesh" mesh="m" rgba="1 0 0 1"/></worldbody></mujoco>'
    )
    out = frames(mesh, np.zeros((1, 0)), width=40, height=30)[0].astype(int)
    assert 0.02 < (out[..., 0] > out[..., 1] + 50).mean() < 0.9


def test_wrong_films_give_one_line(tmp_path):
    model = scene_model()
    for call, message in (
        (lambda: frames(model, np.zeros((2, 3))), r"poses qpos: expected shape \('time', 1\), got \(2, 3\)"),
        (lambda: frames(model, {"mocap_pos": np.zeros((2, 1, 3))}), "poses: expected qpos among them"),
        (lambda: frames(model, {"pose": np.zeros((2, 1))}), "poses: expected qpos, mocap_pos, mocap_quat, got 'pose'"),
        (
            lambda: frames(model, {"qpos": np.zeros((2, 1)), "mocap_pos": np.zeros((3, 1, 3))}),
            "poses mocap_pos: expected 2 moments, got 3",
        ),
        (lambda: frames(model, np.array([[0.0], [np.nan]])), "poses qpos: not finite at moment 1"),
        (lambda: frames(model, np.zeros((1, 1)), renderer="paint"), "renderer: expected 'auto', 'jax' or 'gl'"),
        (lambda: save_gif(tmp_path / "a.gif", []), "frames: expected at least one"),
        (lambda: save_gif(tmp_path / "a.gif", [film(1)[0], film(1, 10)[0]]), "frames: expected one size"),
        (lambda: save_gif(tmp_path / "a.gif", film(2), 100.0), "fps: expected a rate above 0 and at most 50"),
        (lambda: save_png(tmp_path / "a.png", jnp.zeros((3, 3, 3))), r"frame: expected uint8\[height, width, 3\]"),
        (lambda: tile([film(2), film(2, 10)]), "films: expected frames of"),
        (lambda: caption(film(2), ["a"]), "text: expected one line or 2, got 1"),
    ):
        with pytest.raises(ConfigError, match="^" + message) as error:
            call()
        assert "\n" not in str(error.value)
    assert os.listdir(tmp_path) == []


def test_no_display_is_one_line(monkeypatch):
    model = scene_model()
    monkeypatch.setattr(viewer.platform, "system", lambda: "Linux")
    monkeypatch.delenv("DISPLAY", raising=False)
    monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)
    with pytest.raises(EngineError, match=r"^no display: DISPLAY and WAYLAND_DISPLAY are not set"):
        viewer.watch(model, np.zeros((2, 1)))
    with pytest.raises(ConfigError, match="camera 'up': the model has side"):
        viewer.watch(model, np.zeros((2, 1)), camera="up")
    with pytest.raises(ConfigError, match="dt, speed: expected positive numbers"):
        viewer.watch(model, np.zeros((2, 1)), dt=0.0)


class FakeWindow:
    """What ``watch`` asks of MuJoCo's window; closed by its user after some poses."""

    def __init__(self, model, data, limit):
        self.data, self.limit, self.seen = data, limit, []
        self.cam = mujoco.MjvCamera()

    def is_running(self):
        return len(self.seen) < self.limit

    def sync(self):
        self.seen.append((self.data.qpos.copy(), self.data.geom("ball").xpos.copy()))

    def lock(self):
        return self

    def __enter__(self):
        return self

    def __exit__(self, *_):
        return None


def test_the_viewer_shows_pose_after_pose(monkeypatch):
    import mujoco.viewer

    windows = []

    def launch(model, data):
        windows.append(FakeWindow(model, data, 5))
        return windows[-1]

    monkeypatch.setattr(mujoco.viewer, "launch_passive", launch)
    monkeypatch.setattr(viewer, "no_display", lambda: None)
    model = scene_model()
    poses = {"qpos": np.arange(3.0)[:, None]}
    assert viewer.watch(model, poses, camera="side", dt=1e-4) == 3
    np.testing.assert_allclose([seen[1][0] for seen in windows[0].seen], [0, 1, 2])
    assert windows[0].cam.fixedcamid == 0
    assert viewer.watch(model, poses, dt=1e-4, loop=True) == 5  # until the window is closed
    np.testing.assert_allclose([seen[0][0] for seen in windows[1].seen], [0, 1, 2, 0, 1])
    with pytest.raises(ConfigError, match=r"poses qpos: expected shape \(1,\), got \(2,\)"):
        viewer.watch(model, [np.zeros(2)], dt=1e-4)
