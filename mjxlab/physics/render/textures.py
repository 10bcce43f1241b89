"""Textures, as far as the ray caster has them: checkered planes, mean colours, a sky of three colours.

A plane with a two-dimensional checker texture (MuJoCo's ``builtin="checker"``, or any image of 2 x 2 even blocks) is
drawn by a formula that knows its own average over a pixel, so that it does not flicker towards the horizon. Any other
texture is drawn in its mean colour, on any shape.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp
import mujoco
import numpy as np

SKY = np.array([[0.42, 0.60, 0.84], [0.87, 0.91, 0.96], [0.72, 0.76, 0.82]])
"""Zenith, horizon and nadir where the model has no skybox."""


class Textures(NamedTuple):
    """Per geom: colours of even and odd cells, of the line round every 2 x 2 cells, cells a metre along x and y (0: no
    checker), and the line's share of a texture's width."""

    tint: np.ndarray
    second: np.ndarray
    mark: np.ndarray
    cells: np.ndarray
    mark_width: np.ndarray


def read(model: mujoco.MjModel) -> Textures:
    """The textures of all geoms."""
    n = model.ngeom
    out = Textures(np.ones((n, 3)), np.ones((n, 3)), np.ones((n, 3)), np.zeros((n, 2)), np.zeros(n))
    for i in range(n):
        material = int(model.geom_matid[i])
        texture = _texture_of(model, material)
        if texture < 0:
            continue
        image = pixels(model, texture)
        out.tint[i] = out.second[i] = image.reshape(-1, 3).mean(0)
        if (
            model.geom_type[i] != mujoco.mjtGeom.mjGEOM_PLANE
            or model.tex_type[texture] != mujoco.mjtTexture.mjTEXTURE_2D
        ):
            continue
        checker = _checker(image)
        if checker is None:
            continue
        even, odd, line, width = checker
        out.tint[i], out.second[i], out.mark[i], out.mark_width[i] = even, odd, line, width
        repeat = np.array(model.mat_texrepeat[material], float)
        for axis in range(2):
            half = float(model.geom_size[i, axis])
            if half > 0 and not model.mat_texuniform[material]:
                repeat[axis] /= half
        out.cells[i] = repeat  # a texture is 2 / repeat metres wide and has two cells
    return out


def pixels(model: mujoco.MjModel, texture: int) -> np.ndarray:
    """``float[rows, columns, 3]`` in [0, 1]."""
    height, width = int(model.tex_height[texture]), int(model.tex_width[texture])
    channels = int(model.tex_nchannel[texture])
    start = int(model.tex_adr[texture])
    image = np.asarray(model.tex_data[start : start + height * width * channels], float) / 255
    image = image.reshape(height, width, channels)
    return np.repeat(image[..., :1], 3, axis=2) if channels < 3 else image[..., :3]


def _texture_of(model: mujoco.MjModel, material: int) -> int:
    if material < 0:
        return -1
    roles = model.mat_texid[material]
    return int(roles[mujoco.mjtTextureRole.mjTEXROLE_RGB])


def _checker(image: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, float] | None:
    """Even colour, odd colour, colour of the edge, and the edge's share of the width; None if it is no checker."""
    height, width = image.shape[:2]
    if height < 8 or width < 8:
        return None
    rows, columns = (height // 4, 3 * height // 4), (width // 4, 3 * width // 4)
    a, b = image[rows[0], columns[0]], image[rows[0], columns[1]]
    edge = image[0, 0]
    top, bottom = slice(2, height // 2 - 2), slice(height // 2 + 2, -2)
    left, right = slice(2, width // 2 - 2), slice(width // 2 + 2, -2)
    inner = (image[top, left], image[top, right], image[bottom, right], image[bottom, left])
    if not all(np.allclose(part, colour) for part, colour in zip(inner, (a, b, a, b), strict=True)):
        return None
    border = np.concatenate([image[0], image[-1], image[:, 0], image[:, -1]])
    marked = np.allclose(border, edge) and not (np.allclose(edge, a) and np.allclose(edge, b))
    return a, b, edge, 2 / width if marked else 0.0


def sky(model: mujoco.MjModel) -> np.ndarray:
    """Colours of zenith, horizon and nadir ``[3, 3]``: the model's skybox, or ``SKY``."""
    for i in range(model.ntex):
        if model.tex_type[i] == mujoco.mjtTexture.mjTEXTURE_SKYBOX:
            image = pixels(model, i)
            size = image.shape[1]
            if image.shape[0] != 6 * size:  # one picture for all six faces
                return np.stack([image[:2].mean((0, 1)), np.median(image, (0, 1)), image[-2:].mean((0, 1))])
            faces = image.reshape(6, size, size, 3)  # right, left, up, down, front, back
            middle = faces[[0, 1, 4, 5], size // 2]
            return np.stack([np.median(faces[2], (0, 1)), np.median(middle, (0, 1)), np.median(faces[3], (0, 1))])
    return SKY


def even_share(x: Any, y: Any, width_x: Any, width_y: Any) -> Any:
    """Share of even cells of a unit checkerboard, averaged over a ``width_x`` by ``width_y`` box about ``x, y``.

    The board is a product of two square waves, so its box average is a product of differences of triangle waves
    (the integral of a square wave). Cell (0, 0) is even. Shapes: all alike; result in [0, 1].
    """

    def wave(x: Any, width: Any) -> Any:
        width = jnp.maximum(width, 1e-4)

        def triangle(x: Any) -> Any:  # the integral of a wave that is +1 on [0, 1) and -1 on [1, 2)
            x = x - 2 * jnp.floor(x / 2)
            return jnp.where(x < 1, x, 2 - x)

        return (triangle(x + width / 2) - triangle(x - width / 2)) / width

    return 0.5 + 0.5 * wave(x, width_x) * wave(y, width_y)


def line_share(x: Any, y: Any, width_x: Any, width_y: Any, thickness: Any) -> Any:
    """Share of a grid of lines at even integers, ``thickness`` wide, averaged over the same box."""

    def one(x: Any, width: Any) -> Any:
        width = jnp.maximum(width, 1e-4)

        def integral(x: Any) -> Any:
            x = (x + thickness / 2) / 2
            return jnp.floor(x) * thickness + jnp.minimum(2 * (x - jnp.floor(x)), thickness)

        return (integral(x + width / 2) - integral(x - width / 2)) / width

    a, b = one(x, width_x), one(y, width_y)
    return a + b - a * b
