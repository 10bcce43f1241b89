"""MuJoCo's own OpenGL renderer, where there is OpenGL: the same picture type as the ray caster's, on the host.

Without a display it needs one of two software libraries: OSMesa (``libosmesa6``) or EGL (``libegl1``). The choice is
made here, when the first picture is wanted: the environment variable ``MUJOCO_GL`` if it is set, else OSMesa if it is
found, else EGL, else a window system. OpenGL contexts belong to one thread, so each renderer keeps a thread of its own
and may be used from any.
"""

from __future__ import annotations

import copy
import ctypes.util
import functools
import importlib
import os
import platform
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import mujoco
import numpy as np

from mjxlab.errors import ConfigError, EngineError
from mjxlab.physics.render.camera import Camera, Rig, make_rig
from mjxlab.physics.render.draw import Image

_PROBE = """
import mujoco
renderer = mujoco.Renderer(mujoco.MjModel.from_xml_string("<mujoco/>"), 8, 8)
renderer.render()
renderer.close()
"""
_swap = threading.Lock()


def backend() -> str:
    """The OpenGL library that will be used: ``"osmesa"``, ``"egl"``, ``"glfw"``, ``"cgl"`` or ``"off"``."""
    chosen = os.environ.get("MUJOCO_GL", "").lower().strip()
    if chosen in ("disable", "disabled", "off", "false", "0"):
        return "off"
    if chosen in ("osmesa", "egl", "glfw", "cgl"):
        return chosen
    if platform.system() == "Linux":
        if ctypes.util.find_library("OSMesa"):
            return "osmesa"
        if ctypes.util.find_library("EGL"):
            return "egl"
        return "glfw" if os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY") else "off"
    return "cgl" if platform.system() == "Darwin" else "glfw"


@functools.cache
def unavailable() -> str | None:
    """Why MuJoCo's renderer cannot be used here, in one line; None if it can.

    A picture is tried in a process of its own (about a second, once a process): a broken OpenGL driver can abort the
    process that calls it, and with it a finished training run.
    """
    name = backend()
    hint = "install libosmesa6 or libegl1, or use renderer='jax'"
    if name == "off":
        reason = "MUJOCO_GL switches it off" if os.environ.get("MUJOCO_GL") else "neither OSMesa nor EGL nor a display"
        return f"MuJoCo's renderer is not available: {reason} ({hint})"
    try:
        environment = {**os.environ, "MUJOCO_GL": name}
        done = subprocess.run(
            [sys.executable, "-c", _PROBE], env=environment, capture_output=True, text=True, timeout=60, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"MuJoCo's renderer is not available: {name} gave no answer, {type(error).__name__} ({hint})"
    if done.returncode:
        last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        return f"MuJoCo's renderer is not available: {name}: {last[:200]} ({hint})"
    return None


def available() -> bool:
    """Whether MuJoCo's renderer can be used here."""
    return unavailable() is None


@jax.jit
def _seat(rig: Rig, xpos: Any, xquat: Any) -> Camera:
    return rig.at(xpos, xquat)


class GLRenderer:
    """MuJoCo's renderer for one model and picture size.

    >>> with GLRenderer(model, 320, 240) as renderer:
    ...     image = renderer.render(data, camera)
    """

    def __init__(self, model: mujoco.MjModel, width: int = 320, height: int = 240) -> None:
        """Opens an OpenGL context.

        Args:
          model: the MjModel (copied; the frame buffer is made as large as the picture).
          width, height: pixels.

        Raises:
          EngineError: there is no OpenGL here.
        """
        if width < 1 or height < 1:
            raise ConfigError(f"width, height: expected positive integers, got {width}, {height}")
        self._model = copy.copy(model)
        self._model.vis.global_.offwidth = max(width, int(model.vis.global_.offwidth))
        self._model.vis.global_.offheight = max(height, int(model.vis.global_.offheight))
        self._size = (width, height)
        self._renderer: Any = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="mjxlab-gl")
        try:
            self._renderer = self._thread.submit(self._open).result()
        except Exception as error:
            self._thread.shutdown()
            reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
            raise EngineError(f"MuJoCo's renderer ({backend()}) could not be opened: {reason}") from error

    def _open(self) -> Any:
        name = backend()
        if name == "off":
            raise EngineError("neither OSMesa nor EGL nor a display was found")
        from mujoco.rendering.classic import gl_context

        context = importlib.import_module(f"mujoco.{name}").GLContext
        # MuJoCo chose its context class when it was first imported, perhaps before anybody thought of pictures.
        with _swap:
            before = getattr(gl_context, "GLContext", None)
            gl_context.GLContext = context
            try:
                return mujoco.Renderer(self._model, self._size[1], self._size[0])
            finally:
                gl_context.GLContext = before

    def render(
        self,
        data: mujoco.MjData,
        camera: str | int | Rig | Camera | None = None,
        *,
        shadows: bool = True,
        depth: bool = True,
        segmentation: bool = True,
    ) -> Image:
        """A picture of ``data`` (whose kinematics are fresh), with NumPy arrays.

        Args:
          data: one world.
          camera: as for ``make_rig``, or a camera that was made before.
          shadows: draw shadows.
          depth, segmentation: without them these arrays are filled with the far distance, and -1.
        """
        if not isinstance(camera, Rig | Camera):
            camera = make_rig(self._model, camera)
        seen = _seat(camera, data.xpos, data.xquat) if isinstance(camera, Rig) else camera
        return self._thread.submit(self._render, data, seen, shadows, depth, segmentation).result()

    def _render(self, data: mujoco.MjData, camera: Camera, shadows: bool, depth: bool, segmentation: bool) -> Image:
        renderer, scene = self._renderer, self._renderer.scene
        pos, mat = np.asarray(camera.pos, float), np.asarray(camera.mat, float)
        near = self._model.vis.map.znear * self._model.stat.extent
        scene.flags[mujoco.mjtRndFlag.mjRND_SHADOW] = shadows
        for _ in range(2):  # endless planes are cut round the camera of the update before
            renderer.update_scene(data)
            for eye in scene.camera:
                eye.pos, eye.forward, eye.up = pos, -mat[:, 2], mat[:, 1]
                eye.frustum_near = near
                eye.frustum_top = near * np.tan(np.deg2rad(float(camera.fovy)) / 2)
                eye.frustum_bottom = -eye.frustum_top
        for light in scene.lights[: scene.nlight]:
            if light.headlight:
                light.pos, light.dir = pos, -mat[:, 2]
        rgb = renderer.render().astype(np.float32) / 255
        width, height = self._size
        far = self._model.vis.map.zfar * self._model.stat.extent
        distance = np.full((height, width), far, np.float32)
        geom = np.full((height, width), -1, np.int32)
        if depth:
            renderer.enable_depth_rendering()
            distance = renderer.render()
            renderer.disable_depth_rendering()
        if segmentation:
            renderer.enable_segmentation_rendering()
            found = renderer.render()
            renderer.disable_segmentation_rendering()
            geom = np.where(found[..., 1] == mujoco.mjtObj.mjOBJ_GEOM, found[..., 0], -1).astype(np.int32)
        return Image(rgb, distance, geom)

    def close(self) -> None:
        """Frees the context. Further pictures fail."""
        if self._renderer is not None:
            self._thread.submit(self._renderer.close).result()
            self._renderer = None
        self._thread.shutdown()

    def __enter__(self) -> GLRenderer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
