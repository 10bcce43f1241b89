"""Loading a robot model, with one clear line when it cannot be loaded."""

from __future__ import annotations

import copy
import hashlib
import importlib.metadata
import os
from collections.abc import Callable
from typing import TypeAlias

import mujoco
import numpy as np

from mjxlab.errors import ModelError

Model: TypeAlias = mujoco.MjModel | str | os.PathLike[str]


def load_model(model: Model) -> mujoco.MjModel:
    """An ``MjModel`` of the caller's own, from an ``MjModel`` (copied), the path of an MJCF file, or an XML string.

    Raises:
      ModelError: the file does not exist, or MuJoCo cannot read it; one line with the file's name.
    """
    if isinstance(model, mujoco.MjModel):
        return copy.copy(model)
    if isinstance(model, str) and model.lstrip().startswith("<"):
        return _compile("XML string", lambda: mujoco.MjModel.from_xml_string(model))
    if not isinstance(model, (str, os.PathLike)):
        raise ModelError(f"model: expected an MjModel, a path or an XML string, got {type(model).__name__}")
    path = os.fspath(model)
    if not os.path.isfile(path):
        what = "is a directory" if os.path.isdir(path) else "no such file"
        raise ModelError(f"model {path!r}: {what}; expected the path of an MJCF file")
    if path.endswith(".mjb"):
        return _compile(path, lambda: mujoco.MjModel.from_binary_path(path))
    return _compile(path, lambda: mujoco.MjModel.from_xml_path(path))


def _compile(name: str, build: Callable[[], mujoco.MjModel]) -> mujoco.MjModel:
    try:
        return build()
    except (ValueError, mujoco.FatalError) as error:
        raise ModelError(f"model {name!r}: {one_line(error)}") from None


def one_line(error: object) -> str:
    """A message on one line: MuJoCo's parser writes several."""
    return "; ".join(part.strip() for part in str(error).splitlines() if part.strip())


def content_hash(model: mujoco.MjModel) -> str:
    """Hex digest of everything in a model and of MuJoCo's version: equal in every process that loads the same file."""
    buffer = np.zeros(mujoco.mj_sizeModel(model), np.uint8)
    mujoco.mj_saveModel(model, None, buffer)
    return hashlib.sha256(mujoco.__version__.encode() + buffer.tobytes()).hexdigest()


def has_warp() -> bool:
    """Whether the distribution ``warp-lang`` is installed (any folder named "warp" can be imported)."""
    try:
        importlib.metadata.distribution("warp-lang")
    except importlib.metadata.PackageNotFoundError:
        return False
    return True
