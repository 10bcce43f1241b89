"""Light on surfaces, haze and sky: what colour a ray brings home."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Int

from mjxlab.physics.render import textures
from mjxlab.physics.render.camera import Camera
from mjxlab.physics.render.intersect import Kinds, Vec, blocked, dot, meet, nearest, split
from mjxlab.physics.render.scene import DIRECTIONAL, SPOT, Placed, Scene

TIE = 1e-5  # surfaces closer together than this share of the distance count as one


class View(NamedTuple):
    """All that rays of one picture have in common."""

    scene: Scene
    placed: Placed
    camera: Camera
    pixel: Array  # angle of a pixel, radians
    shadows: bool
    fog: bool

    @property
    def shapes(self) -> tuple[Array, Array, Array]:
        """Sizes, centres and axes of all geoms."""
        return shapes(self.scene, self.placed)


class Seen(NamedTuple):
    """What a ray brings home.

    Attributes:
      rgb: colour ``[rays, 3]``.
      t: distance to the nearest geom, rubbish where there is none.
      geom: its id, or -1.
      mark: a number that differs where geom, face or shadow do: where it jumps between pixels is an edge.
    """

    rgb: Array
    t: Array
    geom: Int[Array, " rays"]
    mark: Int[Array, " rays"]


def shapes(scene: Scene, placed: Placed) -> tuple[Array, Array, Array]:
    """Size, centre and axes of all geoms (bounding boxes that stand in for meshes are off their geom's centre)."""
    mat = placed.geom_xmat
    return scene.geom_size, placed.geom_xpos + jnp.einsum("gij,gj->gi", mat, scene.offset), mat


def search(
    kinds: Kinds, shapes: tuple[Array, Array, Array], o: Vec, d: Vec, near: Any, inside: bool, tie: float
) -> tuple[Array, Array]:
    """``nearest`` behind a ``stop_gradient``: which geom is hit has no gradient."""
    shapes, o, d, near = lax.stop_gradient((shapes, o, d, near))
    return nearest(kinds, *shapes, o, d, near, inside, tie)


def see(view: View, d: Vec, cosine: Array) -> Seen:
    """Colour and more along rays from the camera.

    Args:
      d: unit directions; ``cosine``: of their angle to the optical axis (distances are clipped along it).
    """
    scene, o = view.scene, split(view.camera.pos)
    near, far = scene.clip[0] / cosine, scene.clip[1] / cosine
    found = []
    for kinds in (scene.opaque, scene.clear):
        t, geom = search(kinds, view.shapes, o, d, near, False, TIE)
        found += [jnp.where(t < far, t, jnp.inf), jnp.where(t < far, geom, -1)]
    t_solid, solid, t_clear, clear = found

    def layer(ray: tuple[Array, Array]) -> tuple[Array, Array, Array, Array]:
        colour, alpha, t, mark = _surface(view, d, *ray)
        return _haze(scene, colour, t) if view.fog else colour, alpha, t, mark

    def nothing(ray: tuple[Array, Array]) -> tuple[Array, Array, Array, Array]:
        geom, _ = ray
        blank = jnp.zeros(geom.shape, scene.dtype)
        return jnp.zeros((*geom.shape, 3), scene.dtype), blank, blank, jnp.zeros_like(geom)

    def lit(ray: tuple[Array, Array]) -> tuple[Array, Array, Array, Array]:
        return lax.cond(jnp.any(ray[0] >= 0), layer, nothing, ray)  # type: ignore[no-any-return]

    sky = _sky(scene, d)
    if not scene.clear:
        surface, _, t, mark = lit((solid, t_solid))
        return Seen(jnp.clip(jnp.where((solid >= 0)[:, None], surface, sky), 0, 1), t, solid, mark)
    (surface, glass), (_, alpha), (t, t_glass), (mark, _) = lax.map(
        lit, (jnp.stack([solid, clear]), jnp.stack([t_solid, t_clear]))
    )
    colour = jnp.clip(jnp.where((solid >= 0)[:, None], surface, sky), 0, 1)
    before = t_clear < t_solid
    colour = colour + jnp.where(before, alpha, 0)[:, None] * (jnp.clip(glass, 0, 1) - colour)
    mark = mark ^ jnp.where(before, clear + 1, 0) * jnp.int32(40503)
    return Seen(colour, jnp.where(before, t_glass, t), jnp.where(before, clear, solid), mark)


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


def _surface(view: View, d: Vec, geom: Array, t: Array) -> tuple[Array, Array, Array, Array]:
    """Lit colour ``[rays, 3]``, alpha, distance and mark where each ray meets its geom."""
    scene, placed, camera = view.scene, view.placed, view.camera
    o = split(camera.pos)
    t, n, local = meet(scene.kinds, *view.shapes, o, d, geom, t)
    point: Vec = tuple(o[i] + t * d[i] for i in range(3))  # type: ignore[assignment]
    lookup = jnp.maximum(geom, 0)
    rgba = scene.rgba()[lookup]
    base = split(rgba[:, :3] * scene.tint[lookup])
    if scene.patterned:
        base = _checkers(view, d, t, local, lookup, rgba, base)
    specular, shine = scene.specular[lookup], jnp.maximum(128 * scene.shininess[lookup], 1)

    # The lamp on the camera shines along the optical axis and casts no shadow.
    head = split(scene.headlight[1]), split(scene.headlight[2])
    facing = jnp.maximum(dot(n, split(camera.mat[:, 2])), 0)
    gleam = specular * _gleam(n, split(camera.mat[:, 2]), d, shine)
    glow = scene.emission[lookup]
    total = [base[i] * (glow + scene.headlight[0, i] + head[0][i] * facing) + head[1][i] * gleam for i in range(3)]
    face = [jnp.round(2 * part).astype(jnp.int32) for part in lax.stop_gradient(n)]
    mark = (geom + 1) * jnp.int32(73856093) ^ (face[0] + 5 * face[1] + 25 * face[2]) * jnp.int32(19349663)
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
        if view.shadows and light.casts_shadow:
            # Starting a little off the surface; a shape cannot shade itself where it faces the light, being convex.
            lift = 1e-4 * (1 + t)
            start: Vec = tuple(point[i] + lift * n[i] for i in range(3))  # type: ignore[assignment]
            held = lax.stop_gradient((*view.shapes, start, to))
            dark = blocked(scene.opaque, *held, 0, lax.stop_gradient(distance))
            direct = jnp.where(dark, 0, strength)
            mark = mark ^ (dark & (facing > 0)).astype(jnp.int32) << (number % 30)
        else:
            direct = strength
        gleam = jnp.where(facing > 0, specular * _gleam(n, to, d, shine), 0)
        for i in range(3):
            total[i] += base[i] * (strength * light.ambient[i] + direct * facing * light.diffuse[i])
            total[i] += direct * gleam * light.specular[i]
    return _stack(total), rgba[:, 3], t, mark


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


def _checkers(view: View, d: Vec, t: Array, local: Vec, lookup: Array, rgba: Array, base: Vec) -> Vec:
    """Base colours with the checkers of planes, averaged over each pixel's footprint on the plane."""
    scene, placed, camera = view.scene, view.placed, view.camera
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
        width.append(reach * t * view.pixel * cells[axis])
    x, y = cells[0] * local[0] - 1, -cells[1] * local[1] - 1
    even = jnp.where(on, textures.even_share(x, y, width[0], width[1]), 1)
    thickness = scene.mark_width[lookup] * 2
    line = jnp.where(on & (thickness > 0), textures.line_share(x, y, width[0], width[1], thickness), 0)
    second, mark = scene.second[lookup], scene.mark[lookup]
    out = []
    for i in range(3):
        board = rgba[:, i] * second[:, i] + even * (base[i] - rgba[:, i] * second[:, i])
        out.append(board + line * (rgba[:, i] * mark[:, i] - board))
    return tuple(out)  # type: ignore[return-value]
