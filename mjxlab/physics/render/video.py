"""Recorded poses to frames, with either renderer."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import mujoco
import numpy as np

from mjxlab.errors import ConfigError, EngineError
from mjxlab.physics.render import gl
from mjxlab.physics.render.camera import Camera, Rig, make_rig
from mjxlab.physics.render.draw import render_bodies
from mjxlab.physics.render.scene import Scene, foreign, make_scene

POSES = {"qpos": "nq", "mocap_pos": "nmocap", "mocap_quat": "nmocap"}


def frames(
    model: mujoco.MjModel,
    poses: Any,
    *,
    renderer: str = "auto",
    camera: str | int | Rig | Camera | None = None,
    width: int = 320,
    height: int = 240,
    dt: float | None = None,
    fps: float | None = None,
    samples: int = 2,
    shadows: bool = True,
    scene: Scene | None = None,
) -> np.ndarray:
    """Pictures of a recorded motion.

    Args:
      model: the MjModel.
      poses: a dict of ``qpos`` ``[time, nq]`` and, for models with mocap bodies, ``mocap_pos`` ``[time, nmocap, 3]``
        and ``mocap_quat`` ``[time, nmocap, 4]``; or ``qpos`` alone. On the host.
      renderer: "jax" (the ray caster: the same picture on every machine, about as fast as software OpenGL), "gl"
        (MuJoCo's own), or "auto": "gl" for a model with meshes or height fields where OpenGL works, else "jax".
      camera: as for ``make_rig``, or a camera that was made before.
      width, height: pixels.
      dt, fps: if both are given, the poses are ``dt`` seconds apart and the frames show ``fps`` of them a second of
        simulated time.
      samples: edge smoothing of the ray caster, as for ``render`` (MuJoCo's renderer has its own).
      shadows: draw shadows.
      scene: for the ray caster, instead of ``make_scene(model)``.

    Returns:
      ``uint8[time, height, width, 3]``.

    Raises:
      ConfigError: poses of a wrong shape.
      EngineError: ``renderer="gl"`` where there is no OpenGL.
      ModelError: shapes that the ray caster does not know, where there is no OpenGL.
    """
    if renderer not in ("auto", "jax", "gl"):
        raise ConfigError(f"renderer: expected 'auto', 'jax' or 'gl', got {renderer!r}")
    record = _check(model, poses)
    if dt is not None and fps is not None:
        if not (dt > 0 and fps > 0):
            raise ConfigError(f"dt, fps: expected positive numbers, got {dt}, {fps}")
        length = len(record["qpos"])
        times = np.arange(max(1, round(length * dt * fps))) / (dt * fps)
        record = {name: value[np.minimum(times.astype(int), length - 1)] for name, value in record.items()}
    if renderer == "auto":
        renderer = "gl" if scene is None and foreign(model) and gl.available() else "jax"
    if renderer == "gl" and (missing := gl.unavailable()) is not None:
        raise EngineError(missing)
    rig = camera if isinstance(camera, Rig | Camera) else make_rig(model, camera, dtype=jnp.float32)
    data = mujoco.MjData(model)
    out = np.empty((len(record["qpos"]), height, width, 3), np.uint8)
    if renderer == "gl":
        with gl.GLRenderer(model, width, height) as window:
            for i in range(len(out)):
                _pose(model, data, record, i)
                image = window.render(data, rig, shadows=shadows, depth=False, segmentation=False)
                out[i] = image.uint8
        return out
    scene = make_scene(model, dtype=jnp.float32) if scene is None else scene
    look = functools.partial(_look, width=width, height=height, samples=samples, shadows=shadows)
    for i in range(len(out)):
        _pose(model, data, record, i)
        out[i] = look(scene, rig, data.xpos.astype(np.float32), data.xquat.astype(np.float32))
    return out


@functools.partial(jax.jit, static_argnames=("width", "height", "samples", "shadows"))
def _look(scene: Scene, rig: Any, xpos: Any, xquat: Any, width: int, height: int, samples: int, shadows: bool) -> Any:
    return render_bodies(scene, xpos, xquat, rig, width, height, samples=samples, shadows=shadows).uint8


def _check(model: mujoco.MjModel, poses: Any) -> dict[str, np.ndarray]:
    given = poses if isinstance(poses, Mapping) else {"qpos": poses}
    record: dict[str, np.ndarray] = {}
    for name, value in given.items():
        if name not in POSES:
            raise ConfigError(f"poses: expected {', '.join(POSES)}, got {name!r}")
        if value is None:
            continue
        array = np.asarray(value, float)
        count = int(getattr(model, POSES[name]))
        tail = {"qpos": (count,), "mocap_pos": (count, 3), "mocap_quat": (count, 4)}[name]
        if array.ndim != len(tail) + 1 or array.shape[1:] != tail:
            raise ConfigError(f"poses {name}: expected shape {('time', *tail)}, got {array.shape}")
        record[name] = array
    if "qpos" not in record:
        raise ConfigError("poses: expected qpos among them")
    length = len(record["qpos"])
    for name, array in record.items():
        if len(array) != length or length == 0:
            raise ConfigError(f"poses {name}: expected {length or 'at least 1'} moments, got {len(array)}")
        if not np.isfinite(array).all():
            raise ConfigError(f"poses {name}: not finite at moment {int(np.argwhere(~np.isfinite(array))[0, 0])}")
    return record


def _pose(model: mujoco.MjModel, data: mujoco.MjData, record: dict[str, np.ndarray], i: int) -> None:
    for name, array in record.items():
        getattr(data, name)[:] = array[i]
    mujoco.mj_kinematics(model, data)
    mujoco.mj_comPos(model, data)
    mujoco.mj_camlight(model, data)
    mujoco.mj_tendon(model, data)
