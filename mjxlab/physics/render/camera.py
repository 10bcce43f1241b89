"""Cameras: where a picture is taken from, and the frames that cameras and lights follow."""

from __future__ import annotations

from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
import mujoco
import numpy as np
from jax import lax
from jaxtyping import Array, Float

from mjxlab.errors import ConfigError
from mjxlab.physics.render.intersect import Vec

FIXED, TRACK, TRACKCOM, TARGETBODY, TARGETBODYCOM, ORBIT = range(6)
"""How a frame follows the bodies: MuJoCo's five camera modes, and ``ORBIT`` (turns about a point)."""


@flax.struct.dataclass
class Camera:
    """A pinhole camera in the world: looks along its own -z, y is up, x to the right.

    Attributes:
      pos: position, metres.
      mat: its axes as columns.
      fovy: vertical field of view, degrees.
    """

    pos: Float[Array, "3"]
    mat: Float[Array, "3 3"]
    fovy: Float[Array, ""]


@flax.struct.dataclass
class Mount:
    """What a camera or light of the model is fastened to. ``frame`` gives its pose for given body poses."""

    pos: Any  # in the body's frame (FIXED, TARGET…)
    quat: Any
    offset: Any  # in the world's frame, from the body or its subtree's centre of mass (TRACK…)
    mat: Any  # orientation in the world (TRACK…)
    centre: Any  # [bodies]: weights of the bodies' centres of mass, for the …COM modes
    inertial: Any  # [bodies, 3]: centres of mass in the bodies' frames
    mode: int = flax.struct.field(pytree_node=False)
    body: int = flax.struct.field(pytree_node=False)
    target: int = flax.struct.field(pytree_node=False)

    def frame(self, xpos: Array, xquat: Array) -> tuple[Array, Array]:
        """Position ``[3]`` and axes ``[3, 3]`` in the world, as ``mj_camlight`` has them."""
        base, turn = xpos[self.body], quat_to_mat(xquat[self.body])
        pos, mat = base + turn @ self.pos, turn @ quat_to_mat(self.quat)
        if self.mode == TRACK:
            return base + self.offset, self.mat
        if self.mode in (TRACKCOM, TARGETBODYCOM):
            inertial = xpos + jnp.einsum("bij,bj->bi", jax.vmap(quat_to_mat)(xquat), self.inertial)
            com = self.centre @ inertial
            if self.mode == TRACKCOM:
                return com + self.offset, self.mat
            return pos, look(pos, com)
        if self.mode == TARGETBODY:
            return pos, look(pos, xpos[self.target])
        return pos, mat


@flax.struct.dataclass
class Rig:
    """A camera that may follow a body: ``rig.at(xpos, xquat)`` is the ``Camera`` for given body poses."""

    fovy: Any
    mount: Mount | None
    lookat: Any = None  # ORBIT: metres from the world's origin, or from ``body`` if that is not None
    mat: Any = None
    distance: Any = None
    body: int | None = flax.struct.field(pytree_node=False, default=None)

    def at(self, xpos: Array | np.ndarray, xquat: Array | np.ndarray) -> Camera:
        """The camera for body positions ``[bodies, 3]`` (metres) and orientations ``[bodies, 4]`` (w first)."""
        dtype = jnp.asarray(self.fovy).dtype
        xpos, xquat = jnp.asarray(xpos, dtype), jnp.asarray(xquat, dtype)
        if self.mount is not None:
            pos, mat = self.mount.frame(xpos, xquat)
            return Camera(pos, mat, self.fovy)
        lookat = self.lookat
        if self.body is not None:
            # Following in the plane only: a camera that bobs with every step of a walker is hard to watch.
            lookat = lookat + xpos[self.body] * jnp.asarray([1, 1, 0], dtype)
        return Camera(lookat + self.distance * self.mat[:, 2], self.mat, self.fovy)


def quat_to_mat(q: Float[Array, "4"]) -> Float[Array, "3 3"]:
    """Rotation matrix of a unit quaternion (w first)."""
    w, x, y, z = q[0], q[1], q[2], q[3]
    return jnp.stack(
        [
            jnp.stack([1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)]),
            jnp.stack([2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)]),
            jnp.stack([2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)]),
        ]
    )


def look(pos: Array, lookat: Array) -> Float[Array, "3 3"]:
    """Axes of a camera at ``pos`` that looks at ``lookat`` with the world's z upwards."""
    z = pos - lookat
    z = z * lax.rsqrt(jnp.maximum(z @ z, 1e-20))
    x = jnp.stack([-z[1], z[0], jnp.zeros_like(z[0])])
    x = x * lax.rsqrt(jnp.maximum(x @ x, 1e-20))
    return jnp.stack([x, jnp.cross(z, x), z], axis=1)


def free_camera(
    lookat: Any = (0.0, 0.0, 0.0),
    distance: Any = 3.0,
    azimuth: Any = 90.0,
    elevation: Any = -20.0,
    fovy: Any = 45.0,
) -> Camera:
    """A camera at ``distance`` metres from ``lookat``, by MuJoCo's angles (degrees).

    Azimuth 0 looks along +x, 90 along +y; a negative elevation looks down.
    """
    dtype = jnp.result_type(float)
    lookat = jnp.asarray(lookat, dtype)
    if lookat.shape != (3,):
        raise ConfigError(f"camera lookat: expected 3 coordinates (metres), got shape {lookat.shape}")
    mat = orbit(jnp.asarray(azimuth, dtype), jnp.asarray(elevation, dtype))
    return Camera(lookat + jnp.asarray(distance, dtype) * mat[:, 2], mat, jnp.asarray(fovy, dtype))


def orbit(azimuth: Float[Array, ""], elevation: Float[Array, ""]) -> Float[Array, "3 3"]:
    """Axes of a camera that looks in the direction given by two angles in degrees."""
    a, e = jnp.deg2rad(azimuth), jnp.deg2rad(elevation)
    ca, sa, ce, se = jnp.cos(a), jnp.sin(a), jnp.cos(e), jnp.sin(e)
    right = jnp.stack([sa, -ca, jnp.zeros_like(sa)])
    up = jnp.stack([-se * ca, -se * sa, ce])
    back = -jnp.stack([ce * ca, ce * sa, se])
    return jnp.stack([right, up, back], axis=1)


def make_mount(model: mujoco.MjModel, kind: str, index: int, dtype: Any) -> Mount:
    """The mount of camera or light number ``index`` (``kind``: ``"cam"`` or ``"light"``)."""

    def get(name: str) -> np.ndarray:
        return np.asarray(getattr(model, f"{kind}_{name}")[index])

    mode, body, target = int(get("mode")), int(get("bodyid")), int(get("targetbodyid"))
    if mode in (TARGETBODY, TARGETBODYCOM) and target < 0:
        mode = FIXED
    if kind == "cam":
        quat, mat = get("quat"), get("mat0").reshape(3, 3)
    else:
        quat, mat = _aim(get("dir")), _quat_to_mat(_aim(get("dir0")))
    anchor = target if mode == TARGETBODYCOM else body
    weights = np.zeros(model.nbody)
    for i in range(model.nbody):
        parent = i
        while parent not in (anchor, 0):
            parent = model.body_parentid[parent]
        if parent == anchor:
            weights[i] = model.body_mass[i]
    if weights.sum() < mujoco.mjMINVAL:
        weights[anchor] = 1.0
    return Mount(
        pos=jnp.asarray(get("pos"), dtype),
        quat=jnp.asarray(quat, dtype),
        offset=jnp.asarray(get("poscom0" if mode == TRACKCOM else "pos0"), dtype),
        mat=jnp.asarray(mat, dtype),
        centre=jnp.asarray(weights / weights.sum(), dtype),
        inertial=jnp.asarray(model.body_ipos, dtype),
        mode=mode,
        body=body,
        target=target,
    )


def _aim(direction: np.ndarray) -> np.ndarray:
    """A quaternion that turns -z into ``direction``: lights, like cameras, point along their own -z."""
    quat = np.zeros(4)
    mujoco.mju_quatZ2Vec(quat, -np.asarray(direction, float))
    return quat


def _quat_to_mat(quat: np.ndarray) -> np.ndarray:
    mat = np.zeros(9)
    mujoco.mju_quat2Mat(mat, np.asarray(quat, float))
    return mat.reshape(3, 3)


def make_rig(
    model: mujoco.MjModel,
    camera: str | int | None = None,
    *,
    lookat: Any = None,
    distance: float | None = None,
    azimuth: float | None = None,
    elevation: float | None = None,
    fovy: float | None = None,
    body: str | int | None = None,
    dtype: Any = None,
) -> Rig:
    """A camera of the model, or a free one.

    Args:
      model: the MjModel.
      camera: name or number of one of the model's cameras (all five modes, tracking ones included); ``"free"`` for a
        free one; ``None`` for the model's first camera, or a free one if it has none or if any of the following is
        given.
      lookat, distance, azimuth, elevation: of a free camera (metres, degrees); by default what MuJoCo's viewer starts
        with (the model's ``statistic`` and ``visual/global``).
      fovy: vertical field of view in degrees; by default the camera's own.
      body: name or number of a body that a free camera follows in the horizontal plane, so that ``lookat`` counts from
        it; by default the first body with a free joint, or whose model slides along a rail, is not followed.
      dtype: floating-point type; by default JAX's.

    Raises:
      ConfigError: no such camera or body, or a camera that is not a plain pinhole.
    """
    dtype = jnp.dtype(dtype or jnp.result_type(float))
    free = (lookat, distance, azimuth, elevation, body)
    if camera is None:
        camera = 0 if model.ncam and all(v is None for v in free) else "free"
    if camera != "free":
        index = _find(model, mujoco.mjtObj.mjOBJ_CAMERA, camera, model.ncam, "camera")
        if any(v is not None for v in free):
            raise ConfigError(f"camera {camera!r}: lookat, distance, azimuth, elevation, body are for camera='free'")
        if model.cam_projection[index] != mujoco.mjtProjection.mjPROJ_PERSPECTIVE:
            raise ConfigError(f"camera {camera!r}: orthographic; the ray caster knows perspective cameras only")
        if model.cam_sensorsize[index, 1] > 0 and np.any(model.cam_intrinsic[index, 2:] != 0):
            raise ConfigError(f"camera {camera!r}: has a shifted principal point; the ray caster wants a centred one")
        angle = model.cam_fovy[index] if fovy is None else fovy
        return Rig(fovy=jnp.asarray(angle, dtype), mount=make_mount(model, "cam", index, dtype))

    world = model.vis.global_
    if world.orthographic:
        raise ConfigError("visual/global orthographic=true: the ray caster knows perspective cameras only")
    follow = None if body is None else _find(model, mujoco.mjtObj.mjOBJ_BODY, body, model.nbody, "body")
    if lookat is None:
        lookat = np.array(model.stat.center) if follow is None else (0.0, 0.0, model.stat.center[2])
    spot = free_camera(
        lookat,
        1.5 * model.stat.extent if distance is None else distance,
        world.azimuth if azimuth is None else azimuth,
        world.elevation if elevation is None else elevation,
    )
    return Rig(
        fovy=jnp.asarray(world.fovy if fovy is None else fovy, dtype),
        mount=None,
        lookat=jnp.asarray(lookat, dtype),
        mat=spot.mat.astype(dtype),
        distance=jnp.asarray(1.5 * model.stat.extent if distance is None else distance, dtype),
        body=follow,
    )


def _find(model: mujoco.MjModel, kind: mujoco.mjtObj, which: str | int, count: int, word: str) -> int:
    names = [mujoco.mj_id2name(model, kind, i) or str(i) for i in range(count)]
    if isinstance(which, str):
        if which in names:
            return names.index(which)
    elif 0 <= int(which) < count:
        return int(which)
    raise ConfigError(f"{word} {which!r}: the model has {', '.join(names) or 'none'}")


def rays(camera: Camera, x: Array, y: Array, width: int, height: int) -> tuple[Vec, Any]:
    """Unit directions through points of the picture, and the cosine of their angle to the optical axis.

    Args:
      x, y: coordinates in pixels, ``[rays]``; the middle of the top left pixel is (0.5, 0.5).
    """
    tangent = jnp.tan(jnp.deg2rad(camera.fovy) / 2)
    u = (2 * x - width) / height * tangent
    v = (height - 2 * y) / height * tangent
    cosine = lax.rsqrt(1 + u * u + v * v)
    m = camera.mat
    d = tuple((u * m[i, 0] + v * m[i, 1] - m[i, 2]) * cosine for i in range(3))
    return d, cosine  # type: ignore[return-value]
