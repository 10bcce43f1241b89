"""Draw docs/img/tasks.png: a contact sheet of all goal tasks, one start of each.

    python scripts/task_pictures.py [OUT.png]

The robots are drawn by the ray caster in JAX, so no OpenGL is needed; the grids draw themselves.
"""

from __future__ import annotations

import sys
from pathlib import Path

import jax
import numpy as np
from PIL import Image, ImageDraw, ImageFont

import mjxlab
from mjxlab.envs import names
from mjxlab.physics import render

OUT = Path(__file__).resolve().parent.parent / "docs" / "img" / "tasks.png"
WIDTH, HEIGHT, CAPTION, COLUMNS = 224, 168, 18, 4
#: keys whose starts show the task well; 0 elsewhere
KEYS = {"ant_goal": 5, "sokoban_lite": 3}


def picture(name: str) -> np.ndarray:
    """uint8[HEIGHT, WIDTH, 3] of a start of the task."""
    env = mjxlab.make(name, **({"distance": (1.5, 2.5)} if name == "ant_goal" else {}))
    state = jax.jit(env.reset)(jax.random.key(KEYS.get(name, 0)))
    if env.engine is None:
        frame = Image.fromarray(env.render_frame(state))
        frame.thumbnail((WIDTH - 12, HEIGHT - 12), Image.Resampling.LANCZOS)
        sheet = Image.new("RGB", (WIDTH, HEIGHT), (255, 255, 255))
        sheet.paste(frame, ((WIDTH - frame.width) // 2, (HEIGHT - frame.height) // 2))
        return np.asarray(sheet)
    pose = jax.tree.map(lambda x: np.asarray(x)[None], env.pose(state))
    shot = render.frames(env.engine.model, pose, renderer="jax", width=WIDTH, height=HEIGHT)
    return np.asarray(next(iter(shot)))


def main() -> None:
    """Write the sheet."""
    out = Path(sys.argv[1]) if len(sys.argv) > 1 else OUT
    tasks = sorted(set(names("goal")) - set(names("toy")), key=lambda name: (name in names("grid"), name))
    rows = -(-len(tasks) // COLUMNS)
    sheet = Image.new("RGB", (COLUMNS * WIDTH, rows * (HEIGHT + CAPTION)), (255, 255, 255))
    write, font = ImageDraw.Draw(sheet), ImageFont.load_default(12)
    for number, name in enumerate(tasks):
        x, y = number % COLUMNS * WIDTH, number // COLUMNS * (HEIGHT + CAPTION)
        sheet.paste(Image.fromarray(picture(name)), (x, y))
        write.text((x + WIDTH // 2, y + HEIGHT + CAPTION // 2), name, (40, 44, 52), font, anchor="mm")
    out.parent.mkdir(parents=True, exist_ok=True)
    sheet.quantize(96).save(out, optimize=True)
    print(f"{out}: {len(tasks)} tasks, {out.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main()
