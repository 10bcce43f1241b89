"""The picture: rays through pixels, light on surfaces, haze and sky."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

from mjxlab.errors import ConfigError
from mjxlab.physics.render import textures
from mjxlab.physics.render.camera import Camera, Rig, make_rig, rays
from mjxlab.physics.render.intersect import Vec, blocked, dot, hit_surface, nearest, split
from mjxlab.physics.render.scene import DIRECTIONAL, SPOT, Placed, Scene, make_scene


@flax.struct.dataclass
class Image:
    """A picture of one world (batched under ``vmap``).

    Attributes:
      rgb: colours in [0, 1], ``[height, width, 3]``; row 0 is the top.
      depth: distance along the optical axis in metres, ``[height, width]``; the far clipping distance where nothing is
        hit (as in MuJoCo's renderer).
      segmentation: geom id, ``int32[height, width]``; -1 where nothing is hit.
    """

    rgb: Float[Array, "height width 3"]
    depth: Float[Array, "height width"]
    segmentation: Int[Array, "height width"]

    @property
    def uint8(self) -> Array:
        """The colours as ``uint8[height, width, 3]``."""
        return (self.rgb * 255 + 0.5).astype(jnp.uint8)


def cast(
    scene: Scene,
    geom_xpos: Array,
    geom_xmat: Array,
    origin: Float[Array, "rays 3"],
    direction: Float[Array, "rays 3"],
) -> tuple[Float[Array, " rays"], Int[Array, " rays"], Float[Array, "rays 3"]]:
    """What rays meet first, as ``mj_ray`` answers it: a range finder in pure JAX.

    Args:
      scene: shapes; see-through geoms count like others, geoms that are not drawn do not.
      geom_xpos, geom_xmat: poses of all the model's geoms (one world; ``vmap`` for more).
      origin, direction: in the world's frame; directions of any length above zero.

    Returns:
      Distance in metres (``inf`` where nothing is hit; unlike ``mj_ray`` not in units of the direction's length), geom
      id (-1), and the outward unit normal (zeros). Differentiable in poses, sizes and rays, through the geom that is hit.
    """
    placed = scene.placed(geom_xpos, geom_xmat)
    d = jnp.asarray(direction, scene.dtype)
    d = d / jnp.linalg.norm(d, axis=-1, keepdims=True)
    size, pos, mat = _shapes(scene, placed)
    o, v = split(jnp.asarray(origin, scene.dtype)), split(d)
    geom = _search(scene.kinds, size, pos, mat, o, v, 0, True)[1]
    t, n, _ = hit_surface(scene.kinds, size, pos, mat, o, v, geom, 0, True)
    hit = geom >= 0
    return jnp.where(hit, t, jnp.inf), geom, jnp.stack([jnp.where(hit, part, 0) for part in n], axis=-1)


def render(
    scene: Scene,
    geom_xpos: Array,
    geom_xmat: Array,
    camera: Camera,
    width: int = 320,
    height: int = 240,
    *,
    lights: tuple[Array, Array] | None = None,
    shadows: bool = True,
    samples: int = 1,
    fog: bool = True,
    tile: int = 1 << 14,
) -> Image:
    """A picture of one world. Pure; ``jit`` it (sizes and options are static), ``vmap`` it over worlds.

    Args:
      scene: from ``make_scene``.
      geom_xpos, geom_xmat: poses of all the model's geoms, from any engine: ``[geoms, 3]`` and ``[geoms, 9]`` or
        ``[geoms, 3, 3]``.
      camera: ``free_camera(…)`` or ``make_rig(model, …).at(xpos, xquat)``.
      width, height: pixels.
      lights: ``(light_xpos, light_xdir)`` of the active lights, ``[lights, 3]`` each; by default as in the model's
        initial state (``render_bodies`` moves them along).
      shadows: hard shadows of all lights that cast them.
      samples: rays along each side of a pixel, averaged: 2 or 3 smooth the edges, at 4 or 9 times the cost. Depth and
        segmentation are always those of the middle of the pixel.
      fog: haze towards the horizon, at the model's ``visual/map`` fog distances.
      tile: rays that are followed at once; some 200 bytes each, times the number of worlds under ``vmap``.

    Gradients reach poses, sizes, colours, lights and camera inside the silhouettes; edges are not differentiated.
    """
    placed = scene.placed(geom_xpos, geom_xmat, lights)
    return render_placed(scene, placed, camera, width, height, shadows=shadows, samples=samples, fog=fog, tile=tile)


def render_bodies(
    scene: Scene,
    xpos: Array,
    xquat: Array,
    camera: Rig | Camera,
    width: int = 320,
    height: int = 240,
    **options: Any,
) -> Image:
    """``render`` from the bodies' poses ``[bodies, 3]`` and ``[bodies, 4]``; cameras and lights that follow a body do."""
    seen = camera.at(xpos, xquat) if isinstance(camera, Rig) else camera
    return render_placed(scene, scene.place(xpos, xquat), seen, width, height, **options)


def pixels(
    model: Any,
    camera: str | int | Rig | Camera | None = None,
    width: int = 64,
    height: int = 64,
    *,
    groups: tuple[int, ...] = (0, 1, 2),
    meshes: Any = "error",
    **options: Any,
) -> Callable[..., Image]:
    """Pixel observations: a pure function ``look(data, fields={}) -> Image`` for one world.

    ``data`` is anything with ``xpos`` and ``xquat`` of all bodies: an engine's Data (make the engine with these two
    among its ``outputs``) or an ``MjData``. ``fields``: the world's own model fields, as given to the engine.

    Args:
      model: the MjModel.
      camera: as for ``make_rig``, or a camera that was made before.
      width, height: pixels.
      groups, meshes: as for ``make_scene``.
      options: as for ``render``.
    """
    scene = make_scene(model, groups=groups, meshes=meshes)
    rig = camera if isinstance(camera, Rig | Camera) else make_rig(model, camera)

    def look(data: Any, fields: Mapping[str, Array] | None = None) -> Image:
        own = scene.with_fields(fields) if fields else scene
        return render_bodies(own, data.xpos, data.xquat, rig, width, height, **options)

    return look


def render_placed(
    scene: Scene,
    placed: Placed,
    camera: Camera,
    width: int,
    height: int,
    *,
    shadows: bool = True,
    samples: int = 1,
    fog: bool = True,
    tile: int = 1 << 14,
) -> Image:
    """``render`` for poses that are already there."""
    for name, value in (("width", width), ("height", height), ("samples", samples), ("tile", tile)):
        if not isinstance(value, int) or value < 1:
            raise ConfigError(f"{name}: expected a positive integer, got {value!r}")
    camera = jax.tree.map(lambda a: jnp.asarray(a, scene.dtype), camera)
    shapes = _shapes(scene, placed)
    index = jnp.arange(width * height, dtype=jnp.int32)
    x = (index % width).astype(scene.dtype)
    y = (index // width).astype(scene.dtype)

    def sample(x: Array, y: Array) -> tuple[Array, Array, Array, Array]:
        d, cosine = rays(camera, x, y, width, height)
        found = _see(scene, shapes, split(camera.pos), d, cosine)
        pixel = 2 * jnp.tan(jnp.deg2rad(camera.fovy) / 2) / (height * samples)
        colour, t = _colour(scene, placed, shapes, camera, d, found, pixel, shadows, fog)
        geom = jnp.where(found[2] < found[0], found[3], found[1])
        return colour, t, cosine, geom

    def block(x: Array, y: Array) -> tuple[Array, Array, Array]:
        if samples == 1:
            colour, t, cosine, geom = sample(x + 0.5, y + 0.5)
            return colour, jnp.where(geom >= 0, t * cosine, scene.clip[1]), geom
        d, cosine = rays(camera, x + 0.5, y + 0.5, width, height)
        t_solid, solid, t_clear, clear = _see(scene, shapes, split(camera.pos), d, cosine)
        geom = jnp.where(t_clear < t_solid, clear, solid)
        t = hit_surface(scene.kinds, *shapes, split(camera.pos), d, geom, scene.clip[0] / cosine, False)[0]
        places = [((i + 0.5) / samples, (j + 0.5) / samples) for j in range(samples) for i in range(samples)]

        def add(total: Array, place: Array) -> tuple[Array, None]:
            return total + sample(x + place[0], y + place[1])[0], None

        total, _ = lax.scan(add, jnp.zeros((x.shape[0], 3), scene.dtype), jnp.asarray(places, scene.dtype))
        return total / (samples * samples), jnp.where(geom >= 0, t * cosine, scene.clip[1]), geom

    count = width * height
    if count <= tile:
        rgb, depth, geom = block(x, y)
    else:
        blocks = -(-count // tile)
        padded = [jnp.pad(a, (0, blocks * tile - count)).reshape(blocks, tile) for a in (x, y)]
        out = lax.map(lambda xy: block(*xy), tuple(padded))
        rgb, depth, geom = (a.reshape(blocks * tile, *a.shape[2:])[:count] for a in out)
    return Image(
        jnp.clip(rgb, 0, 1).reshape(height, width, 3), depth.reshape(height, width), geom.reshape(height, width)
    )


def _shapes(scene: Scene, placed: Placed) -> tuple[Array, Array, Array]:
    """Size, centre and axes of all shapes (bounding boxes that stand in for meshes are off their geom's centre)."""
    mat = placed.geom_xmat
    return scene.geom_size, placed.geom_xpos + jnp.einsum("gij,gj->gi", mat, scene.offset), mat


def _search(kinds: Any, size: Array, pos: Array, mat: Array, o: Vec, d: Vec, near: Any, inside: bool) -> Any:
    """``nearest`` behind a ``stop_gradient``: which geom is hit has no gradient."""
    size, pos, mat, o, d, near = lax.stop_gradient((size, pos, mat, o, d, near))
    return nearest(kinds, size, pos, mat, o, d, near, inside)


def _see(scene: Scene, shapes: Any, o: Vec, d: Vec, cosine: Array) -> tuple[Array, Array, Array, Array]:
    """Distance and id of the nearest solid geom, and of the nearest see-through one."""
    near, far = scene.clip[0] / cosine, scene.clip[1] / cosine
    found = []
    for kinds in (scene.opaque, scene.clear):
        t, geom = _search(kinds, *shapes, o, d, near, False)
        found += [jnp.where(t < far, t, jnp.inf), jnp.where(t < far, geom, -1)]
    return tuple(found)  # type: ignore[return-value]


def _colour(
    scene: Scene,
    placed: Placed,
    shapes: Any,
    camera: Camera,
    d: Vec,
    found: tuple[Array, Array, Array, Array],
    pixel: Array,
    shadows: bool,
    fog: bool,
) -> tuple[Array, Array]:
    """``rgb[rays, 3]`` of the solid surface or the sky, seen through one see-through surface, and the distance to the
    nearer of the two (rubbish where there is neither)."""
    t_solid, solid, t_clear, clear = found

    def layer(geom: Array) -> tuple[Array, Array, Array]:
        colour, alpha, t = _surface(scene, placed, shapes, camera, d, geom, pixel, shadows)
        return _haze(scene, colour, t) if fog else colour, alpha, t

    def nothing(geom: Array) -> tuple[Array, Array, Array]:
        blank = jnp.zeros(geom.shape, scene.dtype)
        return jnp.zeros((*geom.shape, 3), scene.dtype), blank, blank

    def lit(geom: Array) -> tuple[Array, Array, Array]:
        return lax.cond(jnp.any(geom >= 0), layer, nothing, geom)  # type: ignore[no-any-return]

    sky = _sky(scene, d)
    if not scene.clear:
        surface, _, t = lit(solid)
        return jnp.where((solid >= 0)[:, None], surface, sky), t
    (surface, glass), (_, alpha), (t, t_glass) = lax.map(lit, jnp.stack([solid, clear]))
    colour = jnp.where((solid >= 0)[:, None], surface, sky)
    before = t_clear < t_solid
    return colour + jnp.where(before, alpha, 0)[:, None] * (glass - colour), jnp.where(before, t_glass, t)


def _sky(scene: Scene, d: Vec) -> Array:
    """A gradient from nadir over horizon to zenith."""
    z = d[2][:, None]
    up, level, down = scene.sky[0][None], scene.sky[1][None], scene.sky[2][None]
    rise = jnp.sqrt(jnp.clip(z, 0, 1) + 1e-6)
    return jnp.where(z > 0, level + rise * (up - level), level + jnp.clip(-3 * z, 0, 1) * (down - level))


def _haze(scene: Scene, colour: Array, t: Array) -> Array:
    share = jnp.clip((t - scene.fog[0]) / (scene.fog[1] - scene.fog[0]), 0, 1)
    share = (share * share * (3 - 2 * share))[:, None]
    return colour + share * (scene.sky[1][None] - colour)


def _surface(
    scene: Scene,
    placed: Placed,
    shapes: Any,
    camera: Camera,
    d: Vec,
    geom: Array,
    pixel: Array,
    shadows: bool,
) -> tuple[Array, Array, Array]:
    """Lit colour ``[rays, 3]``, alpha and distance where each ray meets its geom."""
    o = split(camera.pos)
    near = scene.clip[0] / -dot(split(camera.mat[:, 2]), d)
    t, n, local = hit_surface(scene.kinds, *shapes, o, d, geom, near, False)
    point: Vec = tuple(o[i] + t * d[i] for i in range(3))  # type: ignore[assignment]
    lookup = jnp.maximum(geom, 0)
    rgba = scene.rgba()[lookup]
    base = split(rgba[:, :3] * scene.tint[lookup])
    if scene.patterned:
        base = _checkers(scene, placed, camera, d, t, local, lookup, rgba, base, pixel)
    specular, shine = scene.specular[lookup], jnp.maximum(128 * scene.shininess[lookup], 1)

    # The lamp on the camera shines along the optical axis and casts no shadow.
    head = split(scene.headlight[1]), split(scene.headlight[2])
    facing = jnp.maximum(dot(n, split(camera.mat[:, 2])), 0)
    gleam = specular * _gleam(n, split(camera.mat[:, 2]), d, shine)
    glow = scene.emission[lookup]
    total = [
        base[i] * (glow + scene.headlight[0, i] + head[0][i] * facing) + head[1][i] * gleam for i in range(3)
    ]
    for number, light in enumerate(scene.lights):
        aim, spot = split(placed.light_xdir[number]), split(placed.light_xpos[number])
        if light.kind == DIRECTIONAL:
            to: Vec = tuple(jnp.broadcast_to(-a, t.shape) for a in aim)  # type: ignore[assignment]
            distance, strength = jnp.full_like(t, jnp.inf), jnp.ones_like(t)
        else:
            away: Vec = tuple(spot[i] - point[i] for i in range(3))  # type: ignore[assignment]
            distance = jnp.sqrt(jnp.maximum(dot(away, away), 1e-12))
            to = tuple(a / distance for a in away)  # type: ignore[assignment]
            fade = light.attenuation
            strength = 1 / (fade[0] + distance * (fade[1] + distance * fade[2]))
            if light.kind == SPOT:
                along = -dot(to, aim)
                cone = along > jnp.cos(jnp.deg2rad(light.cutoff))
                strength *= jnp.where(cone, jnp.power(jnp.maximum(along, 1e-6), light.exponent), 0)
        facing = jnp.maximum(dot(n, to), 0)
        if shadows and light.casts_shadow:
            # Starting a little off the surface; a shape cannot shade itself where it faces the light, being convex.
            lift = 1e-4 * (1 + t)
            start: Vec = tuple(point[i] + lift * n[i] for i in range(3))  # type: ignore[assignment]
            held = lax.stop_gradient((*shapes, start, to, distance))
            dark = blocked(scene.opaque, *held[:4], held[4], 0, held[5])
            direct = jnp.where(dark, 0, strength)
        else:
            direct = strength
        gleam = jnp.where(facing > 0, specular * _gleam(n, to, d, shine), 0)
        for i in range(3):
            total[i] += base[i] * (strength * light.ambient[i] + direct * facing * light.diffuse[i])
            total[i] += direct * gleam * light.specular[i]
    return _stack(total), rgba[:, 3], t


def _stack(parts: Any) -> Array:
    """``[rays, 3]`` from three arrays. XLA on the CPU fuses whatever leads up to a concatenation into it and then
    computes it element by element, fifty times slower; through a broadcast it does not."""
    channel = jnp.arange(3, dtype=jnp.int32)[None]
    a, b, c = (part[:, None] for part in parts)
    return jnp.where(channel == 0, a, jnp.where(channel == 1, b, c))


def _gleam(n: Vec, to: Vec, d: Vec, shine: Array) -> Array:
    """Blinn's highlight: how squarely the surface stands half-way between light and eye."""
    half = (to[0] - d[0], to[1] - d[1], to[2] - d[2])
    cosine = dot(n, half) * lax.rsqrt(jnp.maximum(dot(half, half), 1e-12))
    return jnp.power(jnp.clip(cosine, 1e-6, 1), shine)


def _checkers(
    scene: Scene,
    placed: Placed,
    camera: Camera,
    d: Vec,
    t: Array,
    local: Vec,
    lookup: Array,
    rgba: Array,
    base: Vec,
    pixel: Array,
) -> Vec:
    """Base colours with the checkers of planes, averaged over each pixel's footprint on the plane."""
    cells = split(jnp.concatenate([scene.cells, jnp.zeros_like(scene.cells[:, :1])], axis=1)[lookup])
    on = cells[0] > 0
    axes = placed.geom_xmat[lookup]
    normal: Vec = tuple(axes[:, i, 2] for i in range(3))  # type: ignore[assignment]
    slope = dot(d, normal)
    slope = jnp.where(on, jnp.minimum(slope, -1e-3), -1)
    width = []
    for axis in range(2):
        along: Vec = tuple(axes[:, i, axis] for i in range(3))  # type: ignore[assignment]
        reach = jnp.zeros_like(t)
        for screen in (split(camera.mat[:, 0]), split(camera.mat[:, 1])):
            # A pixel to the side moves the ray's foot by this much along the plane's axis.
            reach += jnp.abs(dot(screen, along) - dot(d, along) * dot(screen, normal) / slope)
        width.append(reach * t * pixel * cells[axis])
    x, y = cells[0] * local[0] - 1, -cells[1] * local[1] - 1
    even = jnp.where(on, textures.even_share(x, y, *width), 1)
    thickness = scene.mark_width[lookup] * 2
    line = jnp.where(on & (thickness > 0), textures.line_share(x, y, *width, thickness), 0)
    second, mark = scene.second[lookup], scene.mark[lookup]
    out = []
    for i in range(3):
        board = rgba[:, i] * second[:, i] + even * (base[i] - rgba[:, i] * second[:, i])
        out.append(board + line * (rgba[:, i] * mark[:, i] - board))
    return tuple(out)  # type: ignore[return-value]
