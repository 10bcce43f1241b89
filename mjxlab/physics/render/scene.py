"""What there is to see: shapes, materials, lights and sky of a model, as a PyTree."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
import mujoco
import numpy as np
from jaxtyping import Array, Float

from mjxlab.errors import ConfigError, ModelError
from mjxlab.physics.render import intersect, textures
from mjxlab.physics.render.camera import Mount, make_mount, quat_to_mat

AnyArray = Array | np.ndarray
DIRECTIONAL, SPOT, POINT = "directional", "spot", "point"


@flax.struct.dataclass
class Light:
    """One light of the model, in MuJoCo's terms (colours in [0, 1], attenuation per metre, cutoff in degrees)."""

    ambient: Any
    diffuse: Any
    specular: Any
    attenuation: Any
    cutoff: Any
    exponent: Any
    mount: Mount
    kind: str = flax.struct.field(pytree_node=False)
    casts_shadow: bool = flax.struct.field(pytree_node=False)


@flax.struct.dataclass
class Placed:
    """Where everything stands at one moment, in the world's frame (metres).

    Attributes:
      geom_xpos, geom_xmat: poses of all the model's geoms.
      light_xpos, light_xdir: of all lights; directions of unit length.
    """

    geom_xpos: Float[Array, "geoms 3"]
    geom_xmat: Float[Array, "geoms 3 3"]
    light_xpos: Float[Array, "lights 3"]
    light_xdir: Float[Array, "lights 3"]


@flax.struct.dataclass
class Scene:
    """A model's visible side. Arrays are leaves and may differ between worlds (``vmap`` over a batched Scene).

    Attributes:
      geom_size, geom_pos, geom_quat, geom_rgba, mat_rgba, …: the model's fields of that name, for all geoms.
      tint, second, mark, cells, mark_width: the textures, see ``textures``.
      headlight: ambient, diffuse, specular colours ``[3, 3]`` of the light that sits on the camera.
      sky: colours of zenith, horizon and nadir ``[3, 3]``.
      clip: nearest and farthest visible distance along the optical axis, metres.
      fog: distances at which the haze begins and is complete, metres.
      opaque, clear: the geoms that are drawn, by shape: solid ones, and those whose alpha is below 1 in the model.
    """

    geom_size: Any
    geom_pos: Any
    geom_quat: Any
    geom_rgba: Any
    mat_rgba: Any
    offset: Any
    specular: Any
    shininess: Any
    emission: Any
    tint: Any
    second: Any
    mark: Any
    cells: Any
    mark_width: Any
    headlight: Any
    sky: Any
    clip: Any
    fog: Any
    lights: tuple[Light, ...]
    resting: Placed
    opaque: intersect.Kinds = flax.struct.field(pytree_node=False)
    clear: intersect.Kinds = flax.struct.field(pytree_node=False)
    bodies: tuple[int, ...] = flax.struct.field(pytree_node=False)
    materials: tuple[int, ...] = flax.struct.field(pytree_node=False)
    patterned: bool = flax.struct.field(pytree_node=False)

    @property
    def kinds(self) -> intersect.Kinds:
        """All geoms that are drawn, by shape."""
        return self.opaque + self.clear

    @property
    def dtype(self) -> Any:
        """The floating-point type of all arrays."""
        return self.geom_size.dtype

    def rgba(self) -> Float[Array, "geoms 4"]:
        """Colour of each geom: its material's, unless it has a colour of its own (MuJoCo's rule)."""
        material = jnp.asarray(self.materials, jnp.int32)
        if self.mat_rgba.shape[0] == 0:
            return self.geom_rgba
        default = jnp.asarray([0.5, 0.5, 0.5, 1], self.dtype)
        own = (material < 0) | jnp.any(self.geom_rgba != default[None], axis=1)
        return jnp.where(own[:, None], self.geom_rgba, self.mat_rgba[jnp.maximum(material, 0)])

    def with_fields(self, fields: Mapping[str, Array]) -> Scene:
        """The scene of a world whose model differs in some fields (as the engines take them).

        Used are ``geom_size geom_pos geom_quat geom_rgba mat_rgba light_pos light_dir light_diffuse light_ambient
        light_specular``; all others do not show. Whether a geom is drawn, and whether it is see-through, stays as in
        the model.
        """
        own = ("geom_size", "geom_pos", "geom_quat", "geom_rgba", "mat_rgba")
        update: dict[str, Any] = {}
        for name in own:
            if name in fields:
                value, old = jnp.asarray(fields[name]), getattr(self, name)
                if value.shape != old.shape:
                    raise ConfigError(f"field {name}: expected shape {old.shape}, got {value.shape}")
                update[name] = value.astype(self.dtype)
        lights = list(self.lights)
        for i, light in enumerate(lights):
            for name in ("diffuse", "ambient", "specular"):
                if f"light_{name}" in fields:
                    value = jnp.asarray(fields[f"light_{name}"])[i].astype(self.dtype)
                    lights[i] = light = light.replace(**{name: value})  # type: ignore[attr-defined]
            if "light_pos" in fields:
                value = jnp.asarray(fields["light_pos"])[i].astype(self.dtype)
                lights[i] = light = light.replace(mount=light.mount.replace(pos=value))  # type: ignore[attr-defined]
            if "light_dir" in fields:
                value = _towards(jnp.asarray(fields["light_dir"])[i].astype(self.dtype))
                lights[i] = light = light.replace(mount=light.mount.replace(quat=value))  # type: ignore[attr-defined]
        return self.replace(**update, lights=tuple(lights))  # type: ignore[attr-defined]

    def place(self, xpos: Float[AnyArray, "bodies 3"], xquat: Float[AnyArray, "bodies 4"]) -> Placed:
        """Poses of geoms and lights from the bodies' positions (metres) and orientations (unit quaternions, w first).

        Every engine gives these two: ask it for the outputs ``"xpos"`` and ``"xquat"``.
        """
        xpos, xquat = jnp.asarray(xpos, self.dtype), jnp.asarray(xquat, self.dtype)
        body = jnp.asarray(self.bodies, jnp.int32)
        turn = jax.vmap(quat_to_mat)(xquat)[body]
        pos = xpos[body] + jnp.einsum("gij,gj->gi", turn, self.geom_pos)
        mat = jnp.einsum("gij,gjk->gik", turn, jax.vmap(quat_to_mat)(self.geom_quat))
        if not self.lights:
            return Placed(pos, mat, self.resting.light_xpos, self.resting.light_xdir)
        frames = [light.mount.frame(xpos, xquat) for light in self.lights]
        return Placed(pos, mat, jnp.stack([f[0] for f in frames]), jnp.stack([-f[1][:, 2] for f in frames]))

    def placed(
        self, geom_xpos: AnyArray, geom_xmat: AnyArray, lights: tuple[AnyArray, AnyArray] | None = None
    ) -> Placed:
        """Poses from the geoms' own (``data.geom_xpos``, ``data.geom_xmat``); lights as given or as in the model's
        initial state."""
        geoms = len(self.bodies)
        if geom_xpos.shape != (geoms, 3) or geom_xmat.size != geoms * 9:
            raise ConfigError(
                f"geom_xpos, geom_xmat: expected ({geoms}, 3) and ({geoms}, 9) or ({geoms}, 3, 3), one world each; "
                f"got {geom_xpos.shape} and {geom_xmat.shape} (vmap over worlds)"
            )
        light_xpos, light_xdir = lights or (self.resting.light_xpos, self.resting.light_xdir)
        return Placed(
            jnp.asarray(geom_xpos, self.dtype),
            jnp.asarray(geom_xmat, self.dtype).reshape(geoms, 3, 3),
            jnp.asarray(light_xpos, self.dtype).reshape(-1, 3),
            jnp.asarray(light_xdir, self.dtype).reshape(-1, 3),
        )


def _towards(direction: Array) -> Array:
    """Quaternion that turns -z into ``direction`` (half-way construction; opposite directions turn about x)."""
    d = direction / jnp.maximum(jnp.linalg.norm(direction), 1e-10)
    q = jnp.stack([1 - d[2], d[1], -d[0], jnp.zeros_like(d[0])])
    flat = jnp.asarray([0, 1, 0, 0], d.dtype)
    return jnp.where(d[2] > 1 - 1e-6, flat, q / jnp.maximum(jnp.linalg.norm(q), 1e-10))


def make_scene(
    model: mujoco.MjModel,
    *,
    groups: Iterable[int] = (0, 1, 2),
    meshes: str = "error",
    sky: Any = None,
    dtype: Any = None,
) -> Scene:
    """The visible side of a model.

    Args:
      model: the MjModel.
      groups: geom groups that are drawn (MuJoCo's viewer draws 0, 1, 2).
      meshes: what to do with meshes, height fields and SDFs, which the ray caster does not know: "error" refuses them,
        "box" draws their bounding boxes instead (with a warning), "skip" leaves them out (with a warning).
      sky: colours of zenith, horizon and nadir ``[3, 3]``; by default the model's skybox, or a light blue one.
      dtype: floating-point type; by default JAX's.

    Raises:
      ModelError: a geom that cannot be drawn.
    """
    dtype = jnp.dtype(dtype or jnp.result_type(float))
    if meshes not in ("error", "box", "skip"):
        raise ConfigError(f"meshes: expected 'error', 'box' or 'skip', got {meshes!r}")
    kind = np.array(model.geom_type)
    size = np.array(model.geom_size)
    offset = np.zeros((model.ngeom, 3))
    shown, strange = _shown(model, groups), foreign(model, groups)
    if strange:
        words = [
            f"{mujoco.mj_id2name(model, mujoco.mjtObj.mjOBJ_GEOM, i) or i} "
            f"({mujoco.mjtGeom(int(kind[i])).name[7:].lower()})"
            for i in strange[:5]
        ]
        what = f"geoms {', '.join(words)}{' …' if len(strange) > 5 else ''}"
        if meshes == "error":
            raise ModelError(
                f"{what}: the ray caster draws {', '.join(intersect.NAMES.values())}; give meshes='box' for bounding "
                "boxes instead, or use MuJoCo's own renderer"
            )
        stand_in = "are drawn as their bounding boxes" if meshes == "box" else "are not drawn"
        warnings.warn(f"{what} {stand_in}", UserWarning, stacklevel=2)
        if meshes == "skip":
            shown = [i for i in shown if i not in set(strange)]
        for i in strange:
            kind[i], offset[i], size[i] = intersect.BOX, model.geom_aabb[i, :3], model.geom_aabb[i, 3:]

    clear = [i for i in shown if _alpha(model, i) < 1]
    opaque = [i for i in shown if i not in set(clear)]
    data = mujoco.MjData(model)
    mujoco.mj_kinematics(model, data)
    mujoco.mj_comPos(model, data)
    mujoco.mj_camlight(model, data)
    texture = textures.read(model)
    material = np.array(model.geom_matid)
    used = np.maximum(material, 0)

    def of_material(name: str, default: float) -> np.ndarray:
        values = np.asarray(getattr(model, name))
        return np.where(material >= 0, values[used], default) if len(values) else np.full(model.ngeom, default)

    def array(value: Any) -> jax.Array:
        return jnp.asarray(np.asarray(value), dtype)

    extent, view, head = model.stat.extent, model.vis.map, model.vis.headlight
    lit = head.active
    lights = tuple(_light(model, i, dtype) for i in range(model.nlight) if model.light_active[i])
    active = [i for i in range(model.nlight) if model.light_active[i]]
    if sky is None:
        sky = textures.sky(model)
    return Scene(
        geom_size=array(size),
        geom_pos=array(model.geom_pos),
        geom_quat=array(model.geom_quat),
        geom_rgba=array(model.geom_rgba),
        mat_rgba=array(model.mat_rgba),
        offset=array(offset),
        specular=array(of_material("mat_specular", 0.5)),
        shininess=array(of_material("mat_shininess", 0.5)),
        emission=array(of_material("mat_emission", 0.0)),
        tint=array(texture.tint),
        second=array(texture.second),
        mark=array(texture.mark),
        cells=array(texture.cells),
        mark_width=array(texture.mark_width),
        headlight=array([head.ambient, head.diffuse, head.specular] if lit else np.zeros((3, 3))),
        sky=array(np.asarray(sky, float).reshape(3, 3)),
        clip=array([view.znear * extent, view.zfar * extent]),
        fog=array([view.fogstart * extent, view.fogend * extent]),
        lights=lights,
        resting=Placed(
            array(data.geom_xpos),
            array(data.geom_xmat.reshape(-1, 3, 3)),
            array(data.light_xpos[active].reshape(-1, 3)),
            array(data.light_xdir[active].reshape(-1, 3)),
        ),
        opaque=_by_kind(kind, opaque),
        clear=_by_kind(kind, clear),
        bodies=tuple(int(b) for b in model.geom_bodyid),
        materials=tuple(int(m) for m in material),
        patterned=bool(np.any(texture.cells[opaque] > 0)),
    )


def foreign(model: mujoco.MjModel, groups: Iterable[int] = (0, 1, 2)) -> list[int]:
    """The visible geoms whose shape the ray caster does not know."""
    return [i for i in _shown(model, groups) if int(model.geom_type[i]) not in intersect.NAMES]


def _shown(model: mujoco.MjModel, groups: Iterable[int]) -> list[int]:
    group = np.clip(model.geom_group, 0, mujoco.mjNGROUP - 1)
    wanted = set(groups)
    return [i for i in range(model.ngeom) if int(group[i]) in wanted and _alpha(model, i) > 0]


def _alpha(model: mujoco.MjModel, geom: int) -> float:
    own, material = model.geom_rgba[geom], int(model.geom_matid[geom])
    if material >= 0 and np.array_equal(own, np.array([0.5, 0.5, 0.5, 1], own.dtype)):
        return float(model.mat_rgba[material, 3])
    return float(own[3])


def _by_kind(kind: np.ndarray, geoms: list[int]) -> intersect.Kinds:
    return tuple((k, ids) for k in intersect.NAMES if (ids := tuple(i for i in geoms if kind[i] == k)))


def _light(model: mujoco.MjModel, i: int, dtype: Any) -> Light:
    kinds = {
        int(mujoco.mjtLightType.mjLIGHT_DIRECTIONAL): DIRECTIONAL,
        int(mujoco.mjtLightType.mjLIGHT_SPOT): SPOT,
        int(mujoco.mjtLightType.mjLIGHT_POINT): POINT,
    }
    kind = kinds.get(int(model.light_type[i]))
    if kind is None:
        raise ModelError(f"light {i}: image-based; the ray caster knows directional, spot and point lights")
    return Light(
        ambient=jnp.asarray(model.light_ambient[i], dtype),
        diffuse=jnp.asarray(model.light_diffuse[i], dtype),
        specular=jnp.asarray(model.light_specular[i], dtype),
        attenuation=jnp.asarray(model.light_attenuation[i], dtype),
        cutoff=jnp.asarray(model.light_cutoff[i], dtype),
        exponent=jnp.asarray(model.light_exponent[i], dtype),
        mount=make_mount(model, "light", i, dtype),
        kind=kind,
        casts_shadow=bool(model.light_castshadow[i]),
    )
