"""The picture: ``render``, and what else rays are good for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, Int

from mjxlab.errors import ConfigError
from mjxlab.physics.render.camera import Camera, Rig, make_rig, rays
from mjxlab.physics.render.intersect import meet, split
from mjxlab.physics.render.scene import Placed, Scene, make_scene
from mjxlab.physics.render.shade import View, search, see, shapes

AnyArray = Array | np.ndarray


@flax.struct.dataclass
class Image:
    """A picture of one world (batched under ``vmap``).

    Attributes:
      rgb: colours in [0, 1], ``[height, width, 3]``; row 0 is the top.
      depth: distance along the optical axis in metres, ``[height, width]``; the far clipping distance where nothing is
        hit (as in MuJoCo's renderer).
      segmentation: geom id, ``int32[height, width]``; -1 where nothing is hit.
    """

    rgb: Float[AnyArray, "height width 3"]
    depth: Float[AnyArray, "height width"]
    segmentation: Int[AnyArray, "height width"]

    @property
    def uint8(self) -> Any:
        """The colours as ``uint8[height, width, 3]``."""
        return (self.rgb * 255 + 0.5).astype("uint8")


def cast(
    scene: Scene,
    geom_xpos: AnyArray,
    geom_xmat: AnyArray,
    origin: Float[AnyArray, "rays 3"],
    direction: Float[AnyArray, "rays 3"],
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
    solids = shapes(scene, placed)
    o, v = split(jnp.asarray(origin, scene.dtype)), split(d)
    t, geom = search(scene.kinds, solids, o, v, 0, True, 0.0)
    t, n, _ = meet(scene.kinds, *solids, o, v, geom, t)
    hit = geom >= 0
    return jnp.where(hit, t, jnp.inf), geom, jnp.stack([jnp.where(hit, part, 0) for part in n], axis=-1)


def render(
    scene: Scene,
    geom_xpos: AnyArray,
    geom_xmat: AnyArray,
    camera: Camera,
    width: int = 320,
    height: int = 240,
    *,
    lights: tuple[AnyArray, AnyArray] | None = None,
    shadows: bool = True,
    samples: int = 1,
    fog: bool = True,
    tile: int | None = None,
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
      samples: above 1, pixels at the edges of shapes, faces and shadows get ``samples`` by ``samples`` rays, averaged.
        Depth and segmentation are always those of the middle of the pixel.
      fog: haze towards the horizon, at the model's ``visual/map`` fog distances.
      tile: rays that are followed at once, some 200 bytes each, times the number of worlds under ``vmap``; by default
        as many as suit a CPU's caches (4,096), or an accelerator (262,144).

    Gradients reach poses, sizes, colours, lights and camera inside the silhouettes; edges are not differentiated.
    """
    placed = scene.placed(geom_xpos, geom_xmat, lights)
    return render_placed(scene, placed, camera, width, height, shadows=shadows, samples=samples, fog=fog, tile=tile)


def render_bodies(
    scene: Scene,
    xpos: AnyArray,
    xquat: AnyArray,
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
    meshes: str = "error",
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
    tile: int | None = None,
) -> Image:
    """``render`` for poses that are already there."""
    if tile is None:
        tile = 1 << 12 if jax.default_backend() == "cpu" else 1 << 18
    for name, value in (("width", width), ("height", height), ("samples", samples), ("tile", tile)):
        if not isinstance(value, int) or value < 1:
            raise ConfigError(f"{name}: expected a positive integer, got {value!r}")
    camera = jax.tree.map(lambda a: jnp.asarray(a, scene.dtype), camera)
    pixel = 2 * jnp.tan(jnp.deg2rad(camera.fovy) / 2) / height
    view = View(scene, placed, camera, pixel, shadows, fog)
    rgb, depth, geom = _trace(view, width, height, samples, min(tile, width * height))
    return Image(rgb.reshape(height, width, 3), depth.reshape(height, width), geom.reshape(height, width))


def _through(camera: Camera, index: Array, right: Any, down: Any, width: int, height: int) -> Any:
    """Rays through pixels by number, at a place within each (0 to 1)."""
    dtype = camera.pos.dtype
    return rays(camera, (index % width).astype(dtype) + right, (index // width).astype(dtype) + down, width, height)


def _trace(view: View, width: int, height: int, samples: int, tile: int) -> tuple[Array, Array, Array]:
    """Colour, depth and geom of every pixel, ``tile`` rays at a time.

    First one ray through the middle of each pixel; then, for smoothing, ``samples`` by ``samples`` rays through those at
    an edge. Elsewhere one ray does: surfaces are shaded smoothly and checkers know their own average. Both happen in one
    loop, so that the program for a ray is compiled once. The edge pixels are taken in portions, each behind a ``cond``,
    so the work follows the length of the edges (under ``vmap`` all portions are worked).
    """
    scene, dtype = view.scene, view.scene.dtype
    count = width * height
    blocks = -(-count // tile)
    lanes = jnp.arange(tile, dtype=jnp.int32)

    def shoot(index: Array, right: Any, down: Any) -> tuple[Array, Array, Array, Array]:
        d, cosine = _through(view.camera, index, right, down, width, height)
        seen = see(view, d, cosine)
        return seen.rgb, jnp.where(seen.geom >= 0, seen.t * cosine, scene.clip[1]), seen.geom, seen.mark

    def middle(number: Array) -> tuple[Array, Array, Array]:
        return shoot(number * tile + lanes, 0.5, 0.5)[:3]

    if samples == 1:
        if blocks == 1:
            return middle(jnp.int32(0))
        out = lax.map(middle, jnp.arange(blocks, dtype=jnp.int32))
        return jax.tree.map(lambda a: a.reshape(blocks * tile, *a.shape[2:])[:count], out)

    many = samples * samples
    step = 1 / samples
    places = jnp.asarray([(0.5 + i, 0.5 + j) for j in range(samples) for i in range(samples)]).astype(dtype) * step

    def work(picture: tuple[Array, ...], turn: Array) -> tuple[tuple[Array, ...], None]:
        rgb, depth, geom, mark, edges = picture
        first = turn < blocks
        portion, place = jnp.divmod(jnp.maximum(turn - blocks, 0), many)
        number = jnp.where(first, turn, portion)
        index = jnp.where(first, number * tile + lanes, lax.dynamic_slice(edges, (portion * tile,), (tile,)))
        offset = jnp.where(first, 0.5, places[place])

        def rest(index: Array) -> tuple[Array, Array, Array, Array]:
            return jnp.zeros((tile, 3), dtype), jnp.zeros(tile, dtype), index, index

        new = lax.cond(index[0] < count, lambda i: shoot(i, offset[0], offset[1]), rest, index)

        def fill(picture: tuple[Array, ...]) -> tuple[Array, ...]:
            start = number * tile
            *parts, edges = picture
            parts = [lax.dynamic_update_slice_in_dim(a, b, start, 0) for a, b in zip(parts, new, strict=True)]
            edges = lax.cond(turn == blocks - 1, lambda mark: _edges(mark, width, height), lambda mark: edges, parts[3])
            return (*parts, edges)

        def refine(picture: tuple[Array, ...]) -> tuple[Array, ...]:
            rgb = picture[0]
            before = jnp.where(place == 0, 0, rgb.at[index].get(mode="fill", fill_value=0))
            return (rgb.at[index].set(before + new[0] / many, mode="drop"), *picture[1:])

        return lax.cond(first, fill, refine, (rgb, depth, geom, mark, edges)), None

    size = blocks * tile
    blank = jnp.zeros(size, jnp.int32)
    start: tuple[Array, ...] = (jnp.zeros((size, 3), dtype), jnp.zeros(size, dtype), blank, blank, blank)
    turns = jnp.arange(blocks + blocks * many, dtype=jnp.int32)
    rgb, depth, geom, _, _ = lax.scan(work, start, turns)[0]
    return rgb[:count], depth[:count], geom[:count]


def _edges(mark: Array, width: int, height: int) -> Array:
    """Numbers of the pixels beside which the mark jumps, filled up with numbers past the end. ``int32[size]``."""
    count = width * height
    picture = mark[:count].reshape(height, width)
    down, right = picture[1:] != picture[:-1], picture[:, 1:] != picture[:, :-1]
    edge = jnp.pad(down, ((1, 0), (0, 0))) | jnp.pad(down, ((0, 1), (0, 0)))
    edge |= jnp.pad(right, ((0, 0), (1, 0))) | jnp.pad(right, ((0, 0), (0, 1)))
    (where,) = jnp.nonzero(edge.reshape(-1), size=mark.shape[0], fill_value=count)
    return where.astype(jnp.int32)
