"""MuJoCo's interactive viewer, where a display exists."""

from __future__ import annotations

import os
import platform
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import jax
import mujoco
import numpy as np

from mjxlab.errors import ConfigError, EngineError

Pose = Mapping[str, Any]


def no_display() -> str | None:
    """Why there can be no window here, in one line; None if there can."""
    if platform.system() == "Linux" and not (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")):
        return "no display: DISPLAY and WAYLAND_DISPLAY are not set (make a video with physics.render.frames instead)"
    return None


def watch(
    model: mujoco.MjModel,
    poses: Iterable[Any],
    *,
    dt: float = 1 / 30,
    camera: str | int | None = None,
    speed: float = 1.0,
    loop: bool = False,
) -> int:
    """Show a motion in MuJoCo's viewer, in real time, until it ends or the window is closed.

    Args:
      model: the MjModel.
      poses: a stream of poses: ``qpos [nq]``, or a dict of ``qpos`` and, if there are any, ``mocap_pos [nmocap, 3]`` and
        ``mocap_quat [nmocap, 4]``. A recording (a dict of arrays with time first) works too. A generator is asked as
        time goes by, so it can be a running simulation.
      dt: seconds of simulated time between poses.
      camera: name or number of one of the model's cameras; by default a free one, moved with the mouse.
      speed: simulated seconds a second.
      loop: start a recording again at its end.

    Returns:
      How many poses were shown.

    Raises:
      EngineError: no window can be opened.
      ConfigError: no such camera, or a pose of a wrong shape.
    """
    if dt <= 0 or speed <= 0:
        raise ConfigError(f"dt, speed: expected positive numbers, got {dt}, {speed}")
    fixed = None if camera is None else _camera(model, camera)
    if isinstance(poses, Mapping):
        poses = _moments(poses)
    if loop:
        poses = list(poses)
    missing = no_display()
    if missing is not None:
        raise EngineError(missing)
    import mujoco.viewer

    data = mujoco.MjData(model)
    before = set(threading.enumerate())
    try:
        window = mujoco.viewer.launch_passive(model, data)
    except Exception as error:  # GLFW, a missing mjpython on macOS, …: there is no common class
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise EngineError(f"MuJoCo's viewer could not be opened: {reason}") from error
    shown = 0
    with window:
        if fixed is not None:
            with window.lock():
                window.cam.type = mujoco.mjtCamera.mjCAMERA_FIXED
                window.cam.fixedcamid = fixed
        due = time.monotonic()
        for pose in _repeat(poses, loop):
            if not window.is_running():
                break
            with window.lock():
                _set(model, data, pose)
            window.sync()
            shown += 1
            due += dt / speed
            time.sleep(max(0.0, due - time.monotonic()))
            due = max(due, time.monotonic() - 1.0)  # a slow simulation is shown slowly, not chased
    # The window's thread still draws for a moment; leaving the process under it would crash.
    for thread in set(threading.enumerate()) - before:
        thread.join(timeout=5)
    return shown


def watch_policy(
    env: Any,
    act: Callable[[Any, jax.Array], Any],
    key: jax.Array,
    *,
    episodes: int = 1,
    camera: str | int | None = None,
    speed: float = 1.0,
) -> int:
    """Run an environment under a policy and show it as it goes.

    Args:
      env: one with a MuJoCo model (``env.engine``) and ``env.pose``.
      act: ``act(obs, key) -> action`` for one world.
      key: all the randomness.
      episodes: how many, one after the other.
      camera, speed: as for ``watch``.

    Returns:
      How many steps were shown.
    """
    if getattr(env, "engine", None) is None or not hasattr(env, "pose"):
        raise ConfigError(f"environment {getattr(env, 'name', env)!r} has no MuJoCo model to show")
    missing = no_display()
    if missing is not None:
        raise EngineError(missing)
    from mjxlab import physics

    reset = physics.jit(env.reset)
    step = physics.jit(lambda state, key: env.step(state, act(state.obs, key)))

    def run() -> Iterator[Pose]:
        for episode in range(episodes):
            start, going = jax.random.split(jax.random.fold_in(key, episode))
            state = reset(start)
            for t in range(env.episode_length):
                yield jax.device_get(env.pose(state))
                if bool(state.terminated | state.truncated):
                    break
                state = step(state, jax.random.fold_in(going, t))

    return watch(env.engine.model, run(), dt=float(getattr(env, "dt", 1 / 30)), camera=camera, speed=speed)


def _repeat(poses: Iterable[Any], loop: bool) -> Iterator[Any]:
    while True:
        empty = True
        for pose in poses:
            empty = False
            yield pose
        if not loop or empty:
            return


def _moments(record: Mapping[str, Any]) -> Iterator[Pose]:
    arrays = {name: np.asarray(value) for name, value in record.items() if value is not None}
    for t in range(min((len(value) for value in arrays.values()), default=0)):
        yield {name: value[t] for name, value in arrays.items()}


def _camera(model: mujoco.MjModel, camera: str | int) -> int:
    names = [model.camera(i).name or str(i) for i in range(model.ncam)]
    if isinstance(camera, str) and camera in names:
        return names.index(camera)
    if isinstance(camera, int) and 0 <= camera < model.ncam:
        return camera
    raise ConfigError(f"camera {camera!r}: the model has {', '.join(names) or 'none'}")


def _set(model: mujoco.MjModel, data: mujoco.MjData, pose: Any) -> None:
    for name, value in (pose if isinstance(pose, Mapping) else {"qpos": pose}).items():
        if name not in ("qpos", "mocap_pos", "mocap_quat"):
            raise ConfigError(f"poses: expected qpos, mocap_pos, mocap_quat, got {name!r}")
        if value is None:
            continue
        field = getattr(data, name)
        array = np.asarray(value, float)
        if array.shape != field.shape:
            raise ConfigError(f"poses {name}: expected shape {field.shape}, got {array.shape}")
        field[:] = array
    mujoco.mj_forward(model, data)
