"""Exact ray intersections with MuJoCo's primitive shapes.

Every shape but the plane is convex, so a ray meets it in one interval ``[enter, leave]``; each function here returns
that interval (``enter > leave``: no intersection). Vectors are tuples ``(x, y, z)`` of arrays, one array a component,
which keeps the inner loops free of small axes and lets XLA fuse and vectorise them. The convention of ``mj_ray`` holds:
a ray that starts inside a shape meets its far side, and a plane is met from its front only.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, Int

PLANE, SPHERE, CAPSULE, ELLIPSOID, CYLINDER, BOX = 0, 2, 3, 4, 5, 6
"""MuJoCo's ``mjtGeom`` numbers of the shapes that the ray caster knows."""

NAMES = {PLANE: "plane", SPHERE: "sphere", CAPSULE: "capsule", ELLIPSOID: "ellipsoid", CYLINDER: "cylinder", BOX: "box"}

Vec = tuple[Any, Any, Any]  # three arrays of one shape, or scalars
Kinds = tuple[tuple[int, tuple[int, ...]], ...]  # ((shape, (geom ids)), ...): static

_TINY = 1e-12  # below it a direction's component counts as zero
_FAR = float("inf")


def dot(a: Vec, b: Vec) -> Any:
    """Scalar product of two component tuples."""
    return a[0] * b[0] + a[1] * b[1] + a[2] * b[2]


def split(a: Array) -> Vec:
    """``[..., 3]`` to three arrays ``[...]``."""
    return a[..., 0], a[..., 1], a[..., 2]


def rotate(mat: Array, v: Vec) -> Vec:
    """``mat @ v`` for one matrix ``[3, 3]``."""
    return tuple(mat[i, 0] * v[0] + mat[i, 1] * v[1] + mat[i, 2] * v[2] for i in range(3))  # type: ignore[return-value]


def _sqrt(x: Any) -> tuple[Any, Any]:
    """Whether ``x > 0``, and a root whose gradient is finite everywhere."""
    good = x > 0
    return good, jnp.sqrt(jnp.where(good, x, jnp.ones_like(x)))


def _span(good: Any, enter: Any, leave: Any) -> tuple[Any, Any]:
    return jnp.where(good, enter, _FAR), jnp.where(good, leave, -_FAR)


def _slab(half: Any, o: Any, d: Any) -> tuple[Any, Any]:
    """Interval within ``|x| <= half`` along one axis. A parallel ray gets a huge interval or a far empty one."""
    inverse = 1 / jnp.where(jnp.abs(d) < _TINY, _TINY, d)
    middle, reach = -o * inverse, half * jnp.abs(inverse)
    return middle - reach, middle + reach


def _ball(radius: Any, o: Vec, d: Vec) -> tuple[Any, Any]:
    """A ball at the origin; ``d`` of unit length. The distance from the ray to the centre is taken first: the textbook
    discriminant loses all its digits in float32 when the ball is far away."""
    b = dot(o, d)
    q = (o[0] - b * d[0], o[1] - b * d[1], o[2] - b * d[2])
    good, root = _sqrt(radius * radius - dot(q, q))
    return _span(good, -b - root, -b + root)


def _tube(radius: Any, o: Vec, d: Vec) -> tuple[Any, Any]:
    """An endless cylinder along z."""
    a = jnp.maximum(d[0] * d[0] + d[1] * d[1], _TINY * _TINY)
    b = (o[0] * d[0] + o[1] * d[1]) / a
    qx, qy = o[0] - b * d[0], o[1] - b * d[1]
    good, root = _sqrt((radius * radius - qx * qx - qy * qy) / a)
    return _span(good, -b - root, -b + root)


def _plane(size: Vec, o: Vec, d: Vec) -> tuple[Any, Any]:
    front = d[2] < -_TINY
    t = -o[2] / jnp.where(front, d[2], -1)
    inside = jnp.ones_like(front)
    for axis in range(2):
        reach = jnp.abs(o[axis] + t * d[axis])
        inside &= (size[axis] <= 0) | (reach <= size[axis])
    return _span(front & inside, t, t)


def _sphere(size: Vec, o: Vec, d: Vec) -> tuple[Any, Any]:
    return _ball(size[0], o, d)


def _cylinder(size: Vec, o: Vec, d: Vec) -> tuple[Any, Any]:
    enter, leave = _tube(size[0], o, d)
    low, high = _slab(size[1], o[2], d[2])
    return jnp.maximum(enter, low), jnp.minimum(leave, high)


def _capsule(size: Vec, o: Vec, d: Vec) -> tuple[Any, Any]:
    """The union of a cylinder and two balls is convex, so its interval spans those of its parts."""
    enter, leave = _cylinder(size, o, d)
    good = enter <= leave
    enter, leave = _span(good, enter, leave)
    for end in (-1, 1):
        low, high = _ball(size[0], (o[0], o[1], o[2] + end * size[1]), d)
        enter, leave = jnp.minimum(enter, low), jnp.maximum(leave, high)
    return enter, leave


def _ellipsoid(size: Vec, o: Vec, d: Vec) -> tuple[Any, Any]:
    """A unit ball after scaling; distances along the ray scale with the direction's length."""
    o = (o[0] / size[0], o[1] / size[1], o[2] / size[2])
    d = (d[0] / size[0], d[1] / size[1], d[2] / size[2])
    scale = lax.rsqrt(dot(d, d))
    enter, leave = _ball(1, o, (d[0] * scale, d[1] * scale, d[2] * scale))
    return enter * scale, leave * scale


def _box(size: Vec, o: Vec, d: Vec) -> tuple[Any, Any]:
    spans = [_slab(size[i], o[i], d[i]) for i in range(3)]
    enter = jnp.maximum(jnp.maximum(spans[0][0], spans[1][0]), spans[2][0])
    leave = jnp.minimum(jnp.minimum(spans[0][1], spans[1][1]), spans[2][1])
    return enter, leave


_SPANS = {
    PLANE: _plane,
    SPHERE: _sphere,
    CAPSULE: _capsule,
    ELLIPSOID: _ellipsoid,
    CYLINDER: _cylinder,
    BOX: _box,
}


def span(kind: int, size: Vec, o: Vec, d: Vec) -> tuple[Any, Any]:
    """Where rays enter and leave a shape, in its own frame.

    Args:
      kind: one of ``PLANE SPHERE CAPSULE ELLIPSOID CYLINDER BOX``.
      size: MuJoCo's ``geom_size`` (radii and half lengths, metres).
      o, d: origin and direction (of unit length) in the geom's frame.

    Returns:
      ``enter, leave``, metres along the ray, possibly negative; no intersection where ``enter > leave``.
    """
    return _SPANS[kind](size, o, d)


def skin(kind: int, size: Vec, p: Vec) -> tuple[Any, Vec]:
    """How far a point near a shape's surface lies outside it, and the outward unit normal there, in the geom's frame.

    The distance is exact to first order, which is what ``meet`` needs. On an edge, the face that the point is furthest
    outside of counts.
    """
    zero = jnp.zeros_like(p[0])
    if kind == PLANE:
        return p[2], (zero, zero, jnp.ones_like(p[0]))
    if kind == BOX:
        depth = [jnp.abs(p[i]) - size[i] for i in range(3)]
        first = (depth[0] >= depth[1]) & (depth[0] >= depth[2])
        second = ~first & (depth[1] >= depth[2])
        faces = (first, second, ~first & ~second)
        outside = jnp.where(first, depth[0], jnp.where(second, depth[1], depth[2]))
        return outside, tuple(jnp.where(faces[i], jnp.sign(p[i]), zero) for i in range(3))  # type: ignore[return-value]
    if kind == CYLINDER:
        rho = jnp.sqrt(jnp.maximum(p[0] * p[0] + p[1] * p[1], 1e-20))
        round_side, flat_side = rho - size[0], jnp.abs(p[2]) - size[1]
        cap = flat_side > round_side
        normal = jnp.where(cap, zero, p[0] / rho), jnp.where(cap, zero, p[1] / rho), jnp.where(cap, jnp.sign(p[2]), 0)
        return jnp.where(cap, flat_side, round_side), normal
    if kind == ELLIPSOID:
        steep = (p[0] / (size[0] * size[0]), p[1] / (size[1] * size[1]), p[2] / (size[2] * size[2]))
        scale = lax.rsqrt(jnp.maximum(dot(steep, steep), 1e-30))
        return (dot(steep, p) - 1) * scale / 2, (steep[0] * scale, steep[1] * scale, steep[2] * scale)
    away = (p[0], p[1], p[2] - jnp.clip(p[2], -size[1], size[1])) if kind == CAPSULE else p
    square = jnp.maximum(dot(away, away), 1e-30)
    scale = lax.rsqrt(square)
    return square * scale - size[0], (away[0] * scale, away[1] * scale, away[2] * scale)


def to_local(pos: Array, mat: Array, o: Vec, d: Vec) -> tuple[Vec, Vec]:
    """Rays in the frame of one geom at ``pos [3]``, ``mat [3, 3]``."""
    away = (o[0] - pos[0], o[1] - pos[1], o[2] - pos[2])
    back = mat.T
    return rotate(back, away), rotate(back, d)


def nearest(
    kinds: Kinds,
    size: Float[Array, "geoms 3"],
    pos: Float[Array, "geoms 3"],
    mat: Float[Array, "geoms 3 3"],
    o: Vec,
    d: Vec,
    near: Any,
    inside: bool,
    tie: float = 0.0,
) -> tuple[Float[Array, " rays"], Int[Array, " rays"]]:
    """The nearest hit among many geoms, one scan a shape (memory: a few floats a ray, whatever the number of geoms).

    Args:
      kinds: which geoms to look at, by shape; static.
      size, pos, mat: of all the model's geoms.
      o, d: origins (scalars if shared by all rays) and unit directions.
      near: hits closer than this are passed over (scalar or one a ray).
      inside: whether a ray that starts inside a shape meets its far side (as ``mj_ray``) or sees through it (as a
        rasteriser that culls back faces).
      tie: a geom must be nearer by this share of the distance to win over those looked at before it, so that surfaces
        that coincide do not speckle.

    Returns:
      Distance (``inf`` for none) and geom id (-1 for none).
    """
    shape, dtype = jnp.shape(d[0]), d[0].dtype
    best = (jnp.full(shape, _FAR, dtype), jnp.full(shape, -1, jnp.int32))
    for kind, ids in kinds:
        which = jnp.asarray(ids, jnp.int32)

        def visit(carry: Any, geom: Any, kind: int = kind) -> tuple[Any, None]:
            geom_size, geom_pos, geom_mat, index = geom
            enter, leave = span(kind, split(geom_size), *to_local(geom_pos, geom_mat, o, d))
            t = jnp.where(enter >= near, enter, leave) if inside else enter
            closer = (enter <= leave) & (t >= near) & (t < carry[0] * (1 - tie))
            return (jnp.where(closer, t, carry[0]), jnp.where(closer, index, carry[1])), None

        best, _ = lax.scan(visit, best, (size[which], pos[which], mat[which], which))
    return best


def blocked(
    kinds: Kinds,
    size: Float[Array, "geoms 3"],
    pos: Float[Array, "geoms 3"],
    mat: Float[Array, "geoms 3 3"],
    o: Vec,
    d: Vec,
    near: Any,
    far: Any,
) -> Array:
    """Whether anything is entered between ``near`` and ``far`` along each ray (a shadow test). ``bool[rays]``."""
    shape = jnp.broadcast_shapes(jnp.shape(o[0]), jnp.shape(d[0]))
    hit = jnp.zeros(shape, bool)
    for kind, ids in kinds:
        which = jnp.asarray(ids, jnp.int32)

        def visit(carry: Any, geom: Any, kind: int = kind) -> tuple[Any, None]:
            enter, leave = span(kind, split(geom[0]), *to_local(geom[1], geom[2], o, d))
            return carry | ((enter <= leave) & (enter > near) & (enter < far)), None

        hit, _ = lax.scan(visit, hit, (size[which], pos[which], mat[which]))
    return hit


def meet(
    kinds: Kinds,
    size: Float[Array, "geoms 3"],
    pos: Float[Array, "geoms 3"],
    mat: Float[Array, "geoms 3 3"],
    o: Vec,
    d: Vec,
    geom: Int[Array, " rays"],
    t: Float[Array, " rays"],
) -> tuple[Array, Vec, Vec]:
    """Distance, outward normal (world) and local point where each ray meets *its* geom, differentiable in everything.

    The search for the nearest geom stays outside the gradient. Here the distance ``t`` that it found gets the gradient
    of the implicit equation "the point lies on the skin", so the backward pass keeps a few numbers a ray; the slope is
    bounded, so that a ray which grazes its geom does not make it explode. Rays without a geom get finite rubbish.
    """
    hit = (geom >= 0) & jnp.isfinite(t)
    t = jnp.where(hit, lax.stop_gradient(t), 0)
    lookup = jnp.maximum(geom, 0)
    own_pos, own_size = split(pos[lookup]), split(size[lookup])
    own = mat.reshape(-1, 9)[lookup]
    columns = [(own[:, i], own[:, 3 + i], own[:, 6 + i]) for i in range(3)]
    rows = [(own[:, 3 * i], own[:, 3 * i + 1], own[:, 3 * i + 2]) for i in range(3)]
    away: Vec = tuple(o[i] + t * d[i] - own_pos[i] for i in range(3))  # type: ignore[assignment]
    here: Vec = tuple(dot(column, away) for column in columns)  # type: ignore[assignment]
    local_d: Vec = tuple(dot(column, d) for column in columns)  # type: ignore[assignment]

    numbers = np.zeros(pos.shape[0], np.int32)
    for kind, ids in kinds:
        numbers[list(ids)] = kind
    own_kind = jnp.asarray(numbers)[lookup]

    def at(p: Vec) -> tuple[Any, Vec]:
        out, n = jnp.zeros_like(t), (jnp.zeros_like(t),) * 3
        for kind in dict.fromkeys(kind for kind, _ in kinds):
            mine = hit & (own_kind == kind)
            # Where another shape is meant, its numbers would make this one's arithmetic overflow: harmless stand-ins.
            outside, normal = skin(
                kind,
                tuple(jnp.where(mine, a, 1) for a in own_size),  # type: ignore[arg-type]
                tuple(jnp.where(mine, a, 1) for a in p),  # type: ignore[arg-type]
            )
            out = jnp.where(mine, outside, out)
            n = tuple(jnp.where(mine, normal[i], n[i]) for i in range(3))  # type: ignore[assignment]
        return out, n

    outside, n = at(here)
    slope = lax.stop_gradient(dot(n, local_d))
    slope = jnp.where(jnp.abs(slope) < 1e-2, jnp.where(slope < 0, -1e-2, 1e-2), slope)
    t = _slide(t, jnp.ones_like(t), outside, slope)
    p: Vec = tuple(_slide(here[i], local_d[i], outside, slope) for i in range(3))  # type: ignore[assignment]
    _, n = at(p)  # the same numbers as before, but turning as the point slides over the skin
    return t, tuple(dot(row, n) for row in rows), p  # type: ignore[return-value]


@jax.custom_jvp
def _slide(value: Any, rate: Any, outside: Any, slope: Any) -> Any:
    """``value``, whose gradient knows that the ray's end stays on the skin: it moves by ``-outside / slope`` along the
    ray, and the value by ``rate`` times that."""
    return value


@_slide.defjvp
def _slide_jvp(primals: Any, tangents: Any) -> tuple[Any, Any]:
    value, rate, _, slope = primals
    return value, tangents[0] - rate * tangents[2] / slope
