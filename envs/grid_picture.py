"""Pictures of grid worlds, in NumPy: layers of things, painted one over the other."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

FLOOR = (238, 238, 234)
LINE = (214, 214, 210)

#: colour, shape and size (share of a cell) of every kind of thing
STYLES: dict[str, tuple[tuple[int, int, int], str, float]] = {
    "wall": ((72, 78, 90), "square", 1.0),
    "goal": ((41, 174, 92), "square", 0.8),
    "door": ((60, 110, 200), "square", 1.0),
    "open_door": ((170, 195, 235), "square", 1.0),
    "key": ((235, 180, 30), "diamond", 0.6),
    "box": ((160, 105, 55), "square", 0.62),
    "agent": ((222, 110, 50), "disc", 0.56),
    "agent_with_key": ((235, 180, 30), "diamond", 0.34),
    "dark": ((72, 78, 90), "square", 0.92),
    "lit": ((250, 205, 70), "square", 0.92),
    "wanted": ((41, 174, 92), "disc", 0.36),
}
_OTHER = ((150, 90, 170), "disc", 0.5)


def paint(layers: Mapping[str, np.ndarray], tile: int = 24) -> np.ndarray:
    """uint8[h tile, w tile, 3] of boards bool[h, w], the first at the bottom. Names without a style get a violet disc."""
    h, w = next(iter(layers.values())).shape
    frame = np.empty((h * tile, w * tile, 3), np.uint8)
    frame[:] = FLOOR
    frame[::tile] = LINE
    frame[:, ::tile] = LINE
    # how far a pixel lies from the middle of its cell, in cells
    axis = np.abs((np.arange(tile) + 0.5) / tile - 0.5)
    down, right = axis[:, None], axis[None]
    reach = {"square": np.maximum(down, right), "disc": np.hypot(down, right), "diamond": down + right}
    for name, board in layers.items():
        colour, form, size = STYLES.get(name, _OTHER)
        stamp = reach[form] <= size / 2
        frame[np.kron(np.asarray(board, bool), stamp)] = colour
    return frame
