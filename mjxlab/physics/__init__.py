"""Physics: one interface, three engines.

``make_engine`` gives an engine whose ``init``, ``step`` and ``set`` are pure functions of one world. Submodules
(``render``, ``perturb``) load when first used.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

import jax

from mjxlab.errors import EngineError
from mjxlab.physics.branch import branch
from mjxlab.physics.data import Data, where
from mjxlab.physics.engine import DEFAULT_OUTPUTS, Engine
from mjxlab.physics.ffi import export_checks
from mjxlab.physics.load import Model, has_warp, load_model
from mjxlab.physics.options import compiler_options, jit, mjx_options

__all__ = [
    "Data",
    "Engine",
    "auto_kind",
    "branch",
    "compiler_options",
    "export_checks",
    "jit",
    "load_model",
    "make_engine",
    "mjx_options",
    "where",
]

KINDS = ("auto", "mujoco", "mjx", "warp")
_OPTIONS = {"mujoco": ("route",), "mjx": (), "warp": ("contacts", "constraints", "device")}


def make_engine(
    model: Model,
    kind: str = "auto",
    outputs: Sequence[str] = DEFAULT_OUTPUTS,
    **options: Any,
) -> Engine:
    """A physics engine for one robot model.

    Args:
      model: an ``MjModel`` (copied), the path of an MJCF file, or an XML string.
      kind: "mujoco" (C code on CPU threads), "mjx" (JAX, differentiable), "warp" (NVIDIA GPUs), or "auto": mujoco on a
        CPU, warp on an NVIDIA GPU where warp-lang is installed, mjx elsewhere.
      outputs: the MjData fields to return from every call; each costs a copy.
      options: of the engine: ``route="ffi"|"callback"`` for mujoco; ``contacts``, ``constraints`` (most of one world)
        and ``device`` for warp.

    Raises:
      ModelError: the model cannot be loaded, or the engine does not support something in it.
      EngineError: an unknown kind or output, or an engine that cannot run here.
    """
    if kind not in KINDS:
        raise EngineError(f"kind: expected one of {', '.join(KINDS)}, got {kind!r}")
    loaded = load_model(model)
    if kind == "auto":
        kind = auto_kind()
    unknown = set(options) - set(_OPTIONS[kind])
    if unknown:
        known = ", ".join(_OPTIONS[kind]) or "none"
        raise EngineError(f"engine {kind!r} has no option {', '.join(sorted(unknown))}; its options are {known}")
    if kind == "mujoco":
        from mjxlab.physics.cpu import MujocoEngine

        return MujocoEngine(loaded, outputs, **options)
    if kind == "warp":
        from mjxlab.physics.warp import WarpEngine

        return WarpEngine(loaded, outputs, **options)
    from mjxlab.physics.mjx import MjxEngine

    return MjxEngine(loaded, outputs)


def auto_kind() -> str:
    """The engine that ``kind="auto"`` chooses for JAX's default backend."""
    platform = jax.default_backend()
    if platform == "cpu":
        return "mujoco"
    nvidia = platform == "gpu" and "nvidia" in jax.devices()[0].device_kind.lower()
    return "warp" if nvidia and has_warp() else "mjx"


_LAZY = ("render", "perturb", "viewer")


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return importlib.import_module(f"mjxlab.physics.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
