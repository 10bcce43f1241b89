"""Randomised models and disturbances: pure functions of a key.

Functions of the first group return model fields, for ``fields`` of an engine or ``State.params`` of an environment
drawn at reset; merge them with ``{**a, **b}``. Functions of the second group disturb a running episode.

Example:
  >>> fields = {**mass(k1, model, 0.8, 1.2), **friction(k2, model, 0.5, 1.5)}  # one world; vmap over keys
  >>> data = engine.set(data, fields, xfrc_applied=push(k3, model, torso, 0.0, 50.0))  # newtons
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import flax.struct
import jax
import jax.numpy as jnp
import mujoco
import numpy as np
from jaxtyping import Array, Float, Int, Key

from mjxlab.errors import ConfigError
from mjxlab.physics import names

T = TypeVar("T")
Scalar = float | Float[Array, ""]
Fields = dict[str, Array]
Ids = Sequence[int] | np.ndarray | None


def field(model: mujoco.MjModel, name: str) -> Array:
    """A model's own value of a field, as a JAX array to start from.

    Raises:
      EngineError: not a field that may vary between worlds.
    """
    value = names.field_value(model, name)
    return jnp.asarray(value, jnp.result_type(float) if value.dtype.kind == "f" else jnp.int32)


def _factor(key: Key[Array, ""], shape: tuple[int, ...], low: Scalar, high: Scalar, log: bool) -> Array:
    dtype = jnp.result_type(float)
    low, high = jnp.asarray(low, dtype), jnp.asarray(high, dtype)
    if log:
        return jnp.exp(jax.random.uniform(key, shape, dtype, jnp.log(low), jnp.log(high)))
    return jax.random.uniform(key, shape, dtype, low, high)


def _mask(n: int, ids: Ids, what: str) -> np.ndarray:
    mask = np.zeros(n, bool)
    chosen = np.arange(n) if ids is None else np.asarray(ids, np.int64)
    if chosen.size and (chosen.min() < 0 or chosen.max() >= n):
        raise ConfigError(f"{what}: expected indices from 0 to {n - 1}, got {chosen.tolist()}")
    mask[chosen] = True
    return mask


def scale(
    key: Key[Array, ""],
    value: Float[Array, "..."],
    low: Scalar,
    high: Scalar,
    *,
    shared: bool = False,
    log: bool = False,
    ids: Ids = None,
) -> Float[Array, "..."]:
    """``value`` times factors drawn uniformly from [low, high], one for each entry of axis 0.

    Args:
      shared: one factor for all.
      log: uniform in the logarithm (low > 0): halving is as likely as doubling.
      ids: entries of axis 0 to scale; None for all.
    """
    n = value.shape[0] if value.ndim else 1
    factor = _factor(key, () if shared else (n,), low, high, log)
    factor = jnp.where(_mask(n, ids, "ids"), jnp.broadcast_to(factor, (n,)), jnp.ones((), factor.dtype))
    return value * factor.reshape((n,) + (1,) * (value.ndim - 1) if value.ndim else ()).astype(value.dtype)


def uniform(
    key: Key[Array, ""], value: Float[Array, "*shape"], low: Scalar, high: Scalar, ids: Ids = None
) -> Float[Array, "*shape"]:
    """Entries of axis 0 replaced by draws from [low, high]; None for all."""
    drawn = _factor(key, value.shape, low, high, False).astype(value.dtype)
    return _select(value, drawn, ids)


def normal(key: Key[Array, ""], value: Float[Array, "*shape"], std: Scalar, ids: Ids = None) -> Float[Array, "*shape"]:
    """Entries of axis 0 with Gaussian noise of this standard deviation added; None for all."""
    noise = jax.random.normal(key, value.shape, value.dtype) * jnp.asarray(std, value.dtype)
    return _select(value, value + noise, ids)


def _select(value: Array, changed: Array, ids: Ids) -> Array:
    if ids is None or not value.ndim:
        return changed
    mask = _mask(value.shape[0], ids, "ids").reshape((-1,) + (1,) * (value.ndim - 1))
    return jnp.where(np.broadcast_to(mask, value.shape), changed, value)


def mass(
    key: Key[Array, ""],
    model: mujoco.MjModel,
    low: Scalar,
    high: Scalar,
    *,
    bodies: Ids = None,
    shared: bool = False,
) -> Fields:
    """``body_mass`` scaled, and ``body_inertia`` with it: the same shapes of another density."""
    ones = scale(key, jnp.ones(model.nbody, jnp.result_type(float)), low, high, shared=shared, ids=bodies)
    inertia = field(model, "body_inertia") * ones[:, None]
    return {"body_mass": field(model, "body_mass") * ones, "body_inertia": inertia}


def payload(model: mujoco.MjModel, body: int, extra: Scalar) -> Fields:
    """``extra`` kilograms as a point mass at a body's centre of mass (which leaves its inertia alone)."""
    masses = field(model, "body_mass")
    return {"body_mass": masses.at[body].add(jnp.asarray(extra, masses.dtype))}


def centre_of_mass(key: Key[Array, ""], model: mujoco.MjModel, size: Scalar, *, bodies: Ids = None) -> Fields:
    """``body_ipos`` moved by up to ``size`` metres along each axis.

    Args:
      bodies: None for all that allow it. MuJoCo compiles a shortcut into a body whose inertia lies in its own frame
        (a free ball or box); write ``simple="false"`` on it in the MJCF to move its centre of mass.

    Raises:
      ConfigError: a body was compiled with the shortcut.
    """
    old = field(model, "body_ipos")
    if bodies is None:
        bodies = np.flatnonzero((model.body_simple == 0) & (np.arange(model.nbody) > 0))
    for body in bodies:
        if model.body_simple[body]:
            raise ConfigError(
                f"bodies: {model.body(int(body)).name!r} is compiled as simple; write simple='false' on it in the MJCF"
            )
    size = jnp.asarray(size, old.dtype)
    moved = old + jax.random.uniform(key, old.shape, old.dtype, -size, size)
    return {"body_ipos": _select(old, moved, bodies)}


def friction(
    key: Key[Array, ""],
    model: mujoco.MjModel,
    low: Scalar,
    high: Scalar,
    *,
    geoms: Ids = None,
    shared: bool = True,
) -> Fields:
    """``geom_friction`` scaled. A contact takes the larger of two geoms' values, so scale both (``geoms=None``)."""
    return {"geom_friction": scale(key, field(model, "geom_friction"), low, high, shared=shared, ids=geoms)}


def gains(
    key: Key[Array, ""],
    model: mujoco.MjModel,
    low: Scalar,
    high: Scalar,
    *,
    actuators: Ids = None,
    shared: bool = False,
) -> Fields:
    """``actuator_gainprm`` and ``actuator_biasprm`` scaled together: motors' gears, servos' stiffness and damping."""
    ones = scale(key, jnp.ones(model.nu, jnp.result_type(float)), low, high, shared=shared, ids=actuators)
    return {name: field(model, name) * ones[:, None] for name in ("actuator_gainprm", "actuator_biasprm")}


def joint_damping(key: Key[Array, ""], model: mujoco.MjModel, low: Scalar, high: Scalar, *, dofs: Ids = None) -> Fields:
    """``dof_damping`` scaled."""
    return {"dof_damping": scale(key, field(model, "dof_damping"), low, high, ids=dofs)}


def armature(key: Key[Array, ""], model: mujoco.MjModel, low: Scalar, high: Scalar, *, dofs: Ids = None) -> Fields:
    """``dof_armature`` scaled."""
    return {"dof_armature": scale(key, field(model, "dof_armature"), low, high, ids=dofs)}


def gravity(key: Key[Array, ""], model: mujoco.MjModel, low: Scalar, high: Scalar, *, tilt: Scalar = 0.0) -> Fields:
    """``opt.gravity`` scaled, and tilted by up to ``tilt`` radians in a random direction (a sloping floor)."""
    k1, k2, k3 = jax.random.split(key, 3)
    old = field(model, "opt.gravity")
    heading = _factor(k1, (), 0.0, 2 * np.pi, False)
    angle = _factor(k2, (), 0.0, tilt, False)
    # Rodrigues' rotation about a horizontal axis
    axis = jnp.stack([jnp.cos(heading), jnp.sin(heading), jnp.zeros_like(heading)]).astype(old.dtype)
    turned = (
        old * jnp.cos(angle) + jnp.cross(axis, old) * jnp.sin(angle) + axis * jnp.dot(axis, old) * (1 - jnp.cos(angle))
    )
    return {"opt.gravity": turned * _factor(k3, (), low, high, False)}


def push(
    key: Key[Array, ""],
    model: mujoco.MjModel,
    body: int,
    low: Scalar,
    high: Scalar,
    *,
    probability: Scalar = 1.0,
) -> Float[Array, "bodies 6"]:
    """``xfrc_applied`` with a horizontal force on one body, in a random direction.

    Args:
      low, high: newtons.
      probability: of a push; else all forces are zero. Writing the result also ends an earlier push.
    """
    if not 0 < body < model.nbody:
        raise ConfigError(f"body: expected an index from 1 to {model.nbody - 1}, got {body!r}")
    k1, k2, k3 = jax.random.split(key, 3)
    size = _factor(k1, (), low, high, False)
    heading = _factor(k2, (), 0.0, 2 * np.pi, False)
    happens = jax.random.bernoulli(k3, jnp.asarray(probability, size.dtype))
    force = jnp.where(happens, size, jnp.zeros_like(size)) * jnp.stack([jnp.cos(heading), jnp.sin(heading)])
    return jnp.zeros((model.nbody, 6), force.dtype).at[body, :2].set(force)


def kick(
    key: Key[Array, ""],
    qvel: Float[Array, " nv"],
    size: Scalar,
    *,
    dofs: Ids = None,
    probability: Scalar = 1.0,
) -> Float[Array, " nv"]:
    """``qvel`` with up to ``size`` (m/s or rad/s) added or subtracted in each of some degrees of freedom."""
    k1, k2 = jax.random.split(key)
    size = jnp.asarray(size, qvel.dtype)
    happens = jax.random.bernoulli(k2, jnp.asarray(probability, qvel.dtype))
    change = jax.random.uniform(k1, qvel.shape, qvel.dtype, -size, size)
    return _select(qvel, jnp.where(happens, qvel + change, qvel), dofs)


def noise(key: Key[Array, ""], tree: T, std: Any) -> T:
    """Gaussian noise on every floating leaf: of an observation, or of ``ctrl``.

    Args:
      std: one number, or a PyTree of the same structure.
    """
    leaves, structure = jax.tree.flatten(tree)
    stds = jax.tree.leaves(std)
    if len(stds) == 1:
        stds = stds * len(leaves)
    if len(stds) != len(leaves):
        raise ConfigError(f"std: expected one number or {len(leaves)} leaves, got {len(stds)}")

    def add(k: jax.Array, x: Any, s: Any) -> Any:
        if not jnp.issubdtype(x.dtype, jnp.floating):
            return x
        return x + jax.random.normal(k, x.shape, x.dtype) * jnp.asarray(s, x.dtype)

    keys = jax.random.split(key, max(1, len(leaves)))
    return jax.tree.unflatten(structure, [add(k, x, s) for k, x, s in zip(keys, leaves, stds, strict=False)])


@flax.struct.dataclass
class Delay:
    """The last values of a signal, for ``delayed``. ``buffer``: leaves (longest + 1, …), newest at ``head``."""

    buffer: Any
    head: Int[Array, ""]


def delay(value: Any, longest: int) -> Delay:
    """A delay line of up to ``longest`` steps, filled with ``value`` (any PyTree of arrays)."""
    if longest < 0:
        raise ConfigError(f"longest: expected at least 0 steps, got {longest!r}")
    buffer = jax.tree.map(lambda x: jnp.broadcast_to(x, (longest + 1, *jnp.shape(x))), value)
    return Delay(buffer=buffer, head=jnp.int32(0))


def delayed(line: Delay, value: Any, steps: int | Int[Array, ""]) -> tuple[Delay, Any]:
    """Put ``value`` in, and read what was put in ``steps`` calls ago (0: ``value`` itself).

    Args:
      steps: may be traced and differ between worlds and calls; more than the line's length reads the oldest.
    """
    length = jax.tree.leaves(line.buffer)[0].shape[0]
    head = (line.head + jnp.int32(1)) % jnp.int32(length)
    buffer = jax.tree.map(lambda b, x: b.at[head].set(x), line.buffer, value)
    back = jnp.clip(jnp.asarray(steps, jnp.int32), 0, length - 1)
    index = (head - back) % jnp.int32(length)
    return Delay(buffer=buffer, head=head), jax.tree.map(lambda b: b[index], buffer)
