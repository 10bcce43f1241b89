"""What MuJoCo derives from model fields, recomputed in JAX for the fields that vary between worlds.

``mj_setConst`` computes inverse weights, subtree masses and bounding radii once, when a model is compiled. MJX keeps
them as constants, so a changed mass or size would leave them stale (wrong contact stiffness, missed contacts). The
functions here are MuJoCo's own definitions (``engine_setconst.c``: ``set0``, ``setFixed``), for the constants that
MJX reads.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import Any

import jax
import jax.numpy as jnp
import mujoco
import numpy as np
from jaxtyping import Array, Float

from mjxlab._compat import lenient

_G = mujoco.mjtGeom
_MINVAL = mujoco.mjMINVAL

#: Fields that move the inertia or the kinematics at qpos0, hence the inverse weights.
_INERTIAL = frozenset(
    {
        "qpos0",
        "body_pos",
        "body_quat",
        "body_ipos",
        "body_iquat",
        "body_mass",
        "body_inertia",
        "jnt_pos",
        "jnt_axis",
        "dof_armature",
        "site_pos",
        "tendon_armature",
        "wrap_prm",
        "actuator_gear",
        "actuator_cranklength",
    }
)

#: Fields from which any constant follows.
TRIGGERS = _INERTIAL | {"geom_size"}

#: Fields whose zero switches a part of MJX's program off: where they vary, the program is built with it on.
_SWITCHES = ("dof_frictionloss", "tendon_frictionloss", "body_gravcomp", "opt.density", "opt.viscosity", "opt.wind")


def switched(fields: Iterable[str]) -> tuple[str, ...]:
    """Those of ``fields`` that decide which parts the program has."""
    return tuple(sorted(set(fields) & set(_SWITCHES)))


def switch_on(model: mujoco.MjModel, fields: Iterable[str]) -> mujoco.MjModel:
    """A copy of the model for building a program in which these fields may be non-zero."""
    changed = copy.copy(model)
    for name in fields:
        if name.startswith("opt."):
            value = getattr(changed.opt, name[4:])
            setattr(changed.opt, name[4:], np.maximum(value, 1e-3) if np.ndim(value) else max(value, 1e-3))
        else:
            value = getattr(changed, name)
            value[:] = np.where(value == 0, 1e-3, value)
    if "body_gravcomp" in fields:
        mujoco.mj_setConst(changed, mujoco.MjData(changed))
    return changed


def constants(mjx: Any, host: mujoco.MjModel, model: Any, blank: Any, fields: Iterable[str]) -> dict[str, Array]:
    """The constants of an MJX model that depend on ``fields``, recomputed.

    Args:
      mjx: the module.
      host: the C model, for its structure.
      model: MJX model with the fields already replaced.
      blank: MJX data of that model, its derived arrays of no matter.
      fields: names of the replaced fields.
    """
    names, changes = set(fields), {}
    if "geom_size" in names:
        changes["geom_rbound"] = rbound(host, model.geom_size, model.geom_rbound)
    if "body_mass" in names:
        changes["body_subtreemass"] = subtree_mass(host, model.body_mass)
        model = model.tree_replace({"body_subtreemass": changes["body_subtreemass"]})
    if names & _INERTIAL and host.nv:
        with lenient():
            changes |= _weights(mjx, host, model, blank)
    return {name: value for name, value in changes.items() if name not in names}  # the caller's own values win


def rbound(host: mujoco.MjModel, size: Float[Array, "geoms 3"], old: Float[Array, " geoms"]) -> Float[Array, " geoms"]:
    """Radius of each geom's bounding sphere; meshes and height fields keep theirs."""
    kind = host.geom_type
    x, y = size[:, 0], size[:, 1]
    radius = old
    for which, value in (
        (_G.mjGEOM_SPHERE, x),
        (_G.mjGEOM_CAPSULE, x + y),
        (_G.mjGEOM_CYLINDER, jnp.sqrt(x * x + y * y)),
        (_G.mjGEOM_ELLIPSOID, jnp.max(size, axis=1)),
        (_G.mjGEOM_BOX, jnp.sqrt(jnp.sum(size * size, axis=1))),
    ):
        radius = jnp.where(jnp.asarray(kind == int(which)), value, radius)
    return radius


def subtree_mass(host: mujoco.MjModel, mass: Float[Array, " bodies"]) -> Float[Array, " bodies"]:
    """Mass of each body and all below it."""
    below = np.eye(host.nbody, dtype=bool)  # below[i, j]: j is in the subtree of i
    for body in range(host.nbody - 1, 0, -1):
        below[host.body_parentid[body]] |= below[body]
    return jnp.asarray(below, mass.dtype) @ mass


def _weights(mjx: Any, host: mujoco.MjModel, model: Any, blank: Any) -> dict[str, Array]:
    """Inverse weights: diagonals of J M^-1 J' at qpos0, averaged as MuJoCo does."""
    data = blank.replace(qpos=model.qpos0)
    data = mjx.kinematics(model, data)
    data = mjx.com_pos(model, data)
    data = mjx.camlight(model, data)
    data = mjx.tendon(model, data)
    data = mjx.crb(model, data)
    data = mjx.tendon_armature(model, data)
    inertia = mjx.full_m(model, data)
    inverse = jnp.linalg.inv(inertia)
    diagonal = jnp.diagonal(inverse)
    changes = {
        "dof_M0": jnp.diagonal(inertia),
        "dof_invweight0": jnp.asarray(_joint_average(host), diagonal.dtype) @ diagonal,
    }
    moving = jnp.asarray(host.body_weldid != 0)
    bodies = jnp.arange(host.nbody, dtype=jnp.int32)
    translation, rotation = jax.vmap(lambda point, body: mjx.jac(model, data, point, body))(data.xipos, bodies)

    def average(jacobian: Array) -> Array:  # (bodies, nv, 3)
        return jnp.einsum("bik,ij,bjk->b", jacobian, inverse, jacobian) / 3

    t, r = average(translation), average(rotation)
    t, r = jnp.where((t < _MINVAL) & (r > _MINVAL), r, t), jnp.where((r < _MINVAL) & (t > _MINVAL), t, r)
    changes["body_invweight0"] = jnp.where(moving[:, None], jnp.stack([t, r], axis=1), jnp.zeros((), t.dtype))
    if host.ntendon:
        changes["tendon_invweight0"] = jnp.einsum("ti,ij,tj->t", data._impl.ten_J, inverse, data._impl.ten_J)
        changes["tendon_length0"] = data.ten_length
    if host.nu:
        moment = mjx.transmission(model, data)._impl.actuator_moment
        changes["actuator_acc0"] = jnp.linalg.norm(moment @ inverse, axis=1)
    return {name: value.astype(getattr(model, name).dtype) for name, value in changes.items()}


def _joint_average(host: mujoco.MjModel) -> np.ndarray:
    """Matrix that averages over a ball joint's axes, and over a free joint's translations and rotations apart."""
    matrix = np.eye(host.nv)
    for kind, start in zip(host.jnt_type, host.jnt_dofadr, strict=True):
        if kind == mujoco.mjtJoint.mjJNT_FREE:
            groups = [slice(start, start + 3), slice(start + 3, start + 6)]
        elif kind == mujoco.mjtJoint.mjJNT_BALL:
            groups = [slice(start, start + 3)]
        else:
            continue
        for group in groups:
            matrix[group, group] = 1 / 3
    return matrix
