"""``curve.png``: how a run went."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from mjxlab.errors import WorkLostError

# what a panel shows: its title, the training metric, the evaluation's
_PANELS = (
    ("return", ("episode_return", "return", "return_mean"), ("eval/return_mean", "eval/episode_return")),
    ("success", ("success",), ("eval/success",)),
)
_SKIP = ("step", "env_steps", "lr", "entropy_cost", "episodes")


def curve(history: Mapping[str, np.ndarray], path: str | os.PathLike[str], title: str = "") -> bool:
    """Draw training and evaluation against environment steps (or updates): return and success, else the losses.

    Args:
      history: as ``fit`` returns it.
      path: of the PNG.
      title: above the picture.

    Returns:
      Whether there was anything to draw.

    Raises:
      WorkLostError: the file cannot be written.
    """
    panels = [(name, *_present(history, train, ev)) for name, train, ev in _PANELS]
    panels = [panel for panel in panels if panel[1] or panel[2]]
    if not panels:
        names = [k for k in history if "/" not in k and k not in _SKIP and _drawable(history[k])]
        names.sort(key=lambda k: "loss" not in k)
        panels = [(k, k, None) for k in names[:2]]
        panels += [(k.removeprefix("eval/"), None, k) for k in history if _is_eval(k) and _drawable(history[k])][:1]
    if not panels:
        return False

    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.2 * len(panels), 3.6), dpi=130, layout="constrained")
    FigureCanvasAgg(figure)
    for axes, (name, train, ev) in zip(np.atleast_1d(figure.subplots(1, len(panels))), panels, strict=True):
        _panel(axes, history, name, train, ev)
    if title:
        figure.suptitle(title, fontsize=11)
    hidden = pathlib.Path(path).with_suffix(".tmp.png")
    try:
        figure.savefig(hidden)
        os.replace(hidden, path)
    except OSError as error:
        hidden.unlink(missing_ok=True)
        raise WorkLostError(f"{path}: could not be written ({error.strerror or error})") from error
    return True


def _present(
    history: Mapping[str, np.ndarray], train: tuple[str, ...], ev: tuple[str, ...]
) -> tuple[str | None, str | None]:
    def first(group: tuple[str, ...]) -> str | None:
        return next((k for k in group if k in history and _drawable(history[k])), None)

    return first(train), first(ev)


def _is_eval(name: str) -> bool:
    return name.startswith("eval/") and name.removeprefix("eval/") not in ("step", "env_steps", "episodes")


def _drawable(values: np.ndarray) -> bool:
    return values.dtype != object and bool(np.isfinite(values).any())


def _axis(history: Mapping[str, np.ndarray], prefix: str) -> tuple[np.ndarray, str]:
    steps = history.get(f"{prefix}env_steps")
    if steps is not None and _drawable(steps):
        return steps, "environment steps"
    return history[f"{prefix}step"], "updates"


def _panel(axes: Any, history: Mapping[str, np.ndarray], name: str, train: str | None, ev: str | None) -> None:
    from matplotlib.ticker import EngFormatter

    label = "updates"
    if train is not None:
        x, label = _axis(history, "")
        y = history[train]
        seen = np.isfinite(y)
        axes.plot(x[seen], y[seen], color="#4c78a8", alpha=0.35, linewidth=0.9)
        axes.plot(x[seen], _smooth(y[seen]), color="#4c78a8", linewidth=1.8, label="training")
    if ev is not None:
        x, label = _axis(history, "eval/")
        y = history[ev]
        spread = history.get(ev.replace("_mean", "_std")) if ev.endswith("_mean") else None
        if spread is not None:
            axes.fill_between(x, y - spread, y + spread, color="#f58518", alpha=0.15, linewidth=0)
        axes.plot(x, y, color="#f58518", marker="o", markersize=4, linewidth=1.4, label="evaluation")
    if name == "success":
        axes.set_ylim(-0.03, 1.03)
    axes.set_xlabel(label)
    axes.set_ylabel(name)
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    axes.grid(alpha=0.25, linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=9, loc="best")


def _smooth(y: np.ndarray) -> np.ndarray:
    """Centred running mean over a fiftieth of the curve."""
    width = max(len(y) // 50, 1)
    padded = np.pad(y, (width, width), mode="edge")
    return np.convolve(padded, np.ones(2 * width + 1) / (2 * width + 1), mode="valid")
