"""Frames to files: GIF and PNG, captions, grids. Frames are ``uint8[height, width, 3]``."""

from __future__ import annotations

import io
import os
import pathlib
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from mjxlab.errors import ConfigError, WorkLostError

Frame = np.ndarray
COLOURS = (255, 160, 96, 48)  # one of 256 is left for "as in the frame before"


def save_png(path: str | os.PathLike[str], frame: Any) -> pathlib.Path:
    """Write one frame as a PNG, whole or not at all.

    Raises:
      WorkLostError: the file cannot be written.
    """
    from PIL import Image

    data = io.BytesIO()
    Image.fromarray(_check(frame)).save(data, "PNG", optimize=True)
    return _write(path, data.getvalue())


def save_gif(
    path: str | os.PathLike[str],
    frames: Iterable[Any],
    fps: float = 25.0,
    *,
    max_bytes: int | None = None,
    loop: bool = True,
) -> pathlib.Path:
    """Write frames as a GIF, whole or not at all.

    All frames share one palette, chosen from a sample of them, without dithering: what does not move does not flicker,
    and compresses. A GIF counts time in hundredths of a second; durations are spread so that the total is right. Frames
    that are equal to the one before are merged into it (the total duration stays).

    Args:
      path: the file; its folder exists.
      frames: ``uint8[height, width, 3]`` each, all of one size.
      fps: frames a second, at most 50 (viewers slow down faster ones).
      max_bytes: take fewer colours, then every second frame only, until the file is no larger.
      loop: repeat for ever.

    Raises:
      ConfigError: no frames, frames of different sizes, an impossible rate, a limit that cannot be kept.
      WorkLostError: the file cannot be written.
    """
    film = [_check(frame) for frame in frames]
    if not film:
        raise ConfigError("frames: expected at least one, got none")
    for i, frame in enumerate(film):
        if frame.shape != film[0].shape:
            raise ConfigError(f"frames: expected one size, got {film[0].shape[:2]} and, at {i}, {frame.shape[:2]}")
    if not 0 < fps <= 50:
        raise ConfigError(f"fps: expected a rate above 0 and at most 50, got {fps}")
    data, smallest = b"", 0
    for stride in (1, 2, 4):
        for colours in COLOURS:
            data = _encode(film[::stride], fps / stride, colours, loop)
            if max_bytes is None or len(data) <= max_bytes:
                return _write(path, data)
            smallest = len(data)
    raise ConfigError(f"max_bytes: {max_bytes} cannot be kept, the smallest file has {smallest}")


def _encode(film: Sequence[Frame], fps: float, colours: int, loop: bool) -> bytes:
    from PIL import Image

    chosen = [film[i] for i in np.unique(np.linspace(0, len(film) - 1, 12).astype(int))]
    step = max(1, int(np.sqrt(sum(f.shape[0] * f.shape[1] for f in chosen) / 400_000)))
    sample = np.concatenate([f[::step, ::step].reshape(-1, 3) for f in chosen])[None]
    palette = Image.fromarray(np.ascontiguousarray(sample)).quantize(colours, Image.Quantize.MEDIANCUT)
    pictures = [Image.fromarray(f).quantize(palette=palette, dither=Image.Dither.NONE) for f in film]
    ticks = np.round(np.arange(len(film) + 1) * 100 / fps).astype(int)
    durations = [int(10 * max(t, 2)) for t in np.diff(ticks)]
    data = io.BytesIO()
    options: dict[str, Any] = {"loop": 0} if loop else {}
    pictures[0].save(
        data,
        "GIF",
        save_all=True,
        append_images=pictures[1:],
        duration=durations if len(film) > 1 else durations[0],
        optimize=False,
        disposal=1,
        **options,
    )
    return data.getvalue()


def tile(films: Sequence[Any], columns: int | None = None, gap: int = 2) -> np.ndarray:
    """Several films side by side in a grid; shorter ones hold their last frame.

    Args:
      films: each ``uint8[time, height, width, 3]`` (or a list of frames), of one height and width.
      columns: how many in a row; by default as square as can be.
      gap: white pixels between them.

    Returns:
      ``uint8[time, …, …, 3]``.
    """
    if not len(films):
        raise ConfigError("films: expected at least one, got none")
    stacks = [np.stack([_check(frame) for frame in film]) if len(film) else np.zeros((0,)) for film in films]
    for i, stack in enumerate(stacks):
        if stack.shape[1:] != stacks[0].shape[1:] or len(stack) == 0:
            raise ConfigError(f"films: expected frames of {stacks[0].shape[1:]}, got {stack.shape} at {i}")
    columns = columns or int(np.ceil(np.sqrt(len(stacks))))
    rows = -(-len(stacks) // columns)
    height, width = stacks[0].shape[1:3]
    length = max(len(stack) for stack in stacks)
    out = np.full((length, rows * (height + gap) - gap, columns * (width + gap) - gap, 3), 255, np.uint8)
    for i, stack in enumerate(stacks):
        top, left = i // columns * (height + gap), i % columns * (width + gap)
        held = np.minimum(np.arange(length), len(stack) - 1)
        out[:, top : top + height, left : left + width] = stack[held]
    return out


def caption(frames: Iterable[Any], text: str | Sequence[str], size: int | None = None) -> np.ndarray:
    """Frames with a line of text in the lower left corner, white with a dark rim.

    Args:
      frames: ``uint8[time, height, width, 3]`` or a list of frames.
      text: for all frames, or one for each.
      size: height of the letters in pixels; by default a sixteenth of the picture's, at least 10.
    """
    from PIL import Image, ImageDraw, ImageFont

    film = [_check(frame) for frame in frames]
    lines = [text] * len(film) if isinstance(text, str) else list(text)
    if len(lines) != len(film):
        raise ConfigError(f"text: expected one line or {len(film)}, got {len(lines)}")
    out = []
    for frame, line in zip(film, lines, strict=True):
        letters = size or max(10, frame.shape[0] // 16)
        font = ImageFont.load_default(letters)
        picture = Image.fromarray(frame)
        draw = ImageDraw.Draw(picture)
        draw.text(
            (letters // 2, frame.shape[0] - letters // 2),
            line,
            font=font,
            anchor="ld",
            fill=(255, 255, 255),
            stroke_width=max(1, letters // 10),
            stroke_fill=(30, 30, 30),
        )
        out.append(np.asarray(picture))
    return np.stack(out) if out else np.zeros((0, 0, 0, 3), np.uint8)


def _check(frame: Any) -> Frame:
    frame = np.asarray(frame)
    if frame.dtype != np.uint8 or frame.ndim != 3 or frame.shape[2] != 3:
        raise ConfigError(f"frame: expected uint8[height, width, 3], got {frame.dtype}{list(frame.shape)}")
    return np.ascontiguousarray(frame)


def _write(path: str | os.PathLike[str], data: bytes) -> pathlib.Path:
    """The file appears complete or not at all: written beside its place, then renamed."""
    path = pathlib.Path(path)
    hidden = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with open(hidden, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(hidden, path)
    except OSError as error:
        hidden.unlink(missing_ok=True)
        raise WorkLostError(f"{path}: could not be written ({error.strerror or error})") from error
    return path
