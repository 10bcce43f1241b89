"""What may be read, written and varied: outputs, state inputs, and per-world model fields, with their shapes."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Iterable

import mujoco
import numpy as np

from mjxlab.errors import EngineError

#: State fields that ``init`` and ``set`` write, as named in MjData.
INPUTS = (
    "time",
    "qpos",
    "qvel",
    "act",
    "ctrl",
    "qacc_warmstart",
    "qfrc_applied",
    "xfrc_applied",
    "eq_active",
    "mocap_pos",
    "mocap_quat",
    "userdata",
)

# MuJoCo fills these only for sensors that need them; in a batch they would otherwise hold another world's numbers.
_ON_DEMAND = {
    "cacc": {"accelerometer", "force", "torque", "framelinacc", "frameangacc"},
    "cfrc_int": {"accelerometer", "force", "torque", "framelinacc", "frameangacc"},
    "cfrc_ext": {"accelerometer", "force", "torque", "framelinacc", "frameangacc"},
    "subtree_linvel": {"subtreelinvel", "subtreeangmom"},
    "subtree_angmom": {"subtreelinvel", "subtreeangmom"},
}
# never computed by a step
_NEVER = frozenset({"qfrc_inverse"})
# computed with accelerations: of the last substep's start, since a step ends after the velocity stage
_ACCELERATION = frozenset(
    {
        "qacc",
        "qacc_smooth",
        "qfrc_smooth",
        "qfrc_constraint",
        "qfrc_actuator",
        "actuator_force",
        "act_dot",
        "cacc",
        "cfrc_int",
        "cfrc_ext",
    }
)
# computed from positions alone
_POSITION = frozenset(
    {
        "xpos",
        "xquat",
        "xmat",
        "xipos",
        "ximat",
        "xanchor",
        "xaxis",
        "geom_xpos",
        "geom_xmat",
        "site_xpos",
        "site_xmat",
        "cam_xpos",
        "cam_xmat",
        "light_xpos",
        "light_xdir",
        "subtree_com",
        "cdof",
        "cinert",
        "ten_J",
        "ten_length",
        "actuator_length",
        "actuator_moment",
        "ncon",
    }
)
_VELOCITY = frozenset(
    {
        "cvel",
        "cdof_dot",
        "ten_velocity",
        "actuator_velocity",
        "qfrc_bias",
        "qfrc_passive",
        "qfrc_spring",
        "qfrc_damper",
        "qfrc_gravcomp",
        "qfrc_fluid",
        "subtree_linvel",
        "subtree_angmom",
    }
)
_MATRICES = frozenset({"xmat", "ximat", "geom_xmat", "site_xmat", "cam_xmat"})


@dataclasses.dataclass(frozen=True)
class Spec:
    """Shape and kind ("f", "i" or "b") of one array of one world."""

    shape: tuple[int, ...]
    kind: str

    @property
    def size(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64))


def _suggest(name: str, names: Iterable[str]) -> str:
    close = difflib.get_close_matches(name, list(names), n=3)
    return f"; did you mean {', '.join(close)}?" if close else ""


def output_spec(model: mujoco.MjModel, name: str) -> Spec:
    """Shape of an output. Rotation matrices are (n, 3, 3), as in MJX.

    Raises:
      EngineError: not a field that a batch can return, or one that MuJoCo computes on demand only.
    """
    from mujoco import batch

    if name not in batch.DATA_FIELDS:
        where = "a model field: read engine.model" if hasattr(model, name) else "not an MjData field of fixed size"
        raise EngineError(f"outputs: {name!r} is {where}{_suggest(name, batch.DATA_FIELDS)}")
    sensors = {mujoco.mjtSensor(t).name.removeprefix("mjSENS_").lower() for t in model.sensor_type}
    if name in _NEVER or (name in _ON_DEMAND and not sensors & _ON_DEMAND[name]):
        needed = ", ".join(sorted(_ON_DEMAND.get(name, ())))
        hint = f"add a sensor of type {needed.replace(', ', ' or ')}" if needed else "read a sensor instead"
        raise EngineError(f"outputs: {name!r} is not computed by a step of this model; {hint}")
    if name == "energy" and not model.opt.enableflags & mujoco.mjtEnableBit.mjENBL_ENERGY:
        raise EngineError("outputs: 'energy' needs <option><flag energy='enable'/></option> in the model")
    if name == "eq_active":
        return Spec((model.neq,), "b")
    value = np.asarray(getattr(mujoco.MjData(model), name))
    shape = (value.shape[0], 3, 3) if name in _MATRICES else value.shape
    return Spec(tuple(shape), "f" if value.dtype.kind == "f" else "i")


def acceleration_outputs(model: mujoco.MjModel, outputs: Iterable[str]) -> tuple[str, ...]:
    """The outputs that come from the acceleration stage (``sensordata`` where a sensor of it does), or may do."""
    sensors = bool((model.sensor_needstage == mujoco.mjtStage.mjSTAGE_ACC).any())
    early = _POSITION | _VELOCITY | set(INPUTS) | (set() if sensors else {"sensordata"})
    return tuple(name for name in outputs if name not in early)


def fresh_stage(model: mujoco.MjModel, outputs: Iterable[str]) -> int:
    """The last stage (mjtStage) that must run on the new state so that no output is a substep old."""
    stages = mujoco.mjtStage
    last = stages.mjSTAGE_NONE.value
    for name in outputs:
        if name == "sensordata":
            early = [int(s) for s in model.sensor_needstage if s != stages.mjSTAGE_ACC]
            last = max([last, *early])
        elif name in _POSITION:
            last = max(last, stages.mjSTAGE_POS.value)
        elif name not in INPUTS and name not in _ACCELERATION:
            last = stages.mjSTAGE_VEL.value
    return last


def input_spec(model: mujoco.MjModel, name: str) -> Spec:
    """Shape of a state field that ``init`` and ``set`` accept.

    Raises:
      EngineError: not such a field.
    """
    if name not in INPUTS:
        raise EngineError(f"{name!r} is not a state field; expected one of {', '.join(INPUTS)}{_suggest(name, INPUTS)}")
    shapes = {
        "time": (),
        "qpos": (model.nq,),
        "act": (model.na,),
        "ctrl": (model.nu,),
        "xfrc_applied": (model.nbody, 6),
        "eq_active": (model.neq,),
        "mocap_pos": (model.nmocap, 3),
        "mocap_quat": (model.nmocap, 4),
        "userdata": (model.nuserdata,),
    }
    return Spec(shapes.get(name, (model.nv,)), "b" if name == "eq_active" else "f")


def field_spec(model: mujoco.MjModel, name: str) -> Spec:
    """Shape of a model field that may vary between worlds (``body_mass``, ``opt.gravity`` …).

    Raises:
      EngineError: no such field, or one that all worlds share (sizes, asset data, addresses).
    """
    from mujoco import batch

    if name == "opt.disableflags":
        raise EngineError("field 'opt.disableflags' is the engine's own (autoreset is off); it cannot vary")
    if name not in batch.MODEL_FIELDS:
        data = name in batch.DATA_FIELDS
        reason = "is state: use engine.set" if data else "cannot vary between worlds"
        known = hasattr(model, name) or hasattr(model.opt, name.removeprefix("opt."))
        if not known and not data:
            reason = "is not a model field"
        raise EngineError(f"field {name!r} {reason}{_suggest(name, batch.MODEL_FIELDS)}")
    value = np.asarray(getattr(model.opt, name[4:]) if name.startswith("opt.") else getattr(model, name))
    return Spec(tuple(value.shape), "f" if value.dtype.kind == "f" else "i")


def field_value(model: mujoco.MjModel, name: str) -> np.ndarray:
    """The model's own value of a field, float64 or int32 (a copy)."""
    field_spec(model, name)
    return np.array(getattr(model.opt, name[4:]) if name.startswith("opt.") else getattr(model, name))
