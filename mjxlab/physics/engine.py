"""The interface that every physics engine has, and the checks that all of them share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import mujoco
from jaxtyping import Array, Float

from mjxlab.errors import EngineError
from mjxlab.physics import names
from mjxlab.physics.data import Data

#: What is returned after each step unless asked otherwise.
DEFAULT_OUTPUTS = ("qpos", "qvel", "xpos", "sensordata")


class Engine:
    """Steps one world; ``vmap`` its methods for many. Pure: use under ``jit``, nested ``vmap`` and ``shard_map``.

    Attributes:
      kind: "mujoco", "mjx" or "warp".
      model: the engine's copy of the model (autoreset is off). Read sizes, ids and ranges from it.
      outputs: names of the fields that ``Data`` shows.
    """

    kind: str = ""

    def __init__(self, model: mujoco.MjModel, outputs: Sequence[str]) -> None:
        # MuJoCo silently resets a world that holds a NaN; the caller's guard must see it instead
        model.opt.disableflags |= mujoco.mjtDisableBit.mjDSBL_AUTORESET
        self.model = model
        self.outputs = tuple(outputs)
        if isinstance(outputs, str) or not all(isinstance(name, str) for name in self.outputs):
            raise EngineError(f"outputs: expected a tuple of MjData field names, got {outputs!r}")
        if len(set(self.outputs)) != len(self.outputs):
            raise EngineError(f"outputs: a name appears twice in {self.outputs}")
        self.specs = {name: names.output_spec(model, name) for name in self.outputs}

    def init(
        self,
        fields: Mapping[str, Any] | None = None,
        qpos: Any = None,
        qvel: Any = None,
        **more: Any,
    ) -> Data:
        """One world at the model's defaults, with what is named replaced; outputs are fresh (``mj_forward``).

        Args:
          fields: per-world model fields by name (``body_mass``, ``opt.gravity`` …); None or {} for the model's own.
          qpos, qvel: Float[nq], Float[nv]; None for ``qpos0`` and zeros.
          more: other state: act, ctrl, mocap_pos, mocap_quat, eq_active, time, xfrc_applied, qfrc_applied,
            qacc_warmstart, userdata.

        Raises:
          EngineError: an unknown name or a wrong shape, one line.
        """
        values = self._values({"qpos": qpos, "qvel": qvel, **more})
        checked = self._fields(fields)
        if "qpos0" in checked and "qpos" not in values:
            values["qpos"] = checked["qpos0"]
        return self._init(checked, values)

    def step(self, data: Data, fields: Mapping[str, Any] | None, ctrl: Any, substeps: int = 1) -> Data:
        """Advance one world by ``substeps`` physics steps of ``model.opt.timestep`` seconds.

        Positions, velocities and their sensors are of the new state. Forces, accelerations and the sensors of these
        (touch, force, accelerometer) are of the last substep, as after ``mj_step``.

        Args:
          fields: as for ``init``; they may change from step to step.
          ctrl: Float[nu] in MuJoCo's units (``model.actuator_ctrlrange``), held for all substeps.
          substeps: static, at least 1.
        """
        self._check_data(data)
        if isinstance(substeps, bool) or not isinstance(substeps, int) or substeps < 1:
            raise EngineError(f"substeps: expected an integer of at least 1, got {substeps!r}")
        return self._step(data, self._fields(fields), self._value("ctrl", ctrl), substeps)

    def set(self, data: Data, fields: Mapping[str, Any] | None = None, **values: Any) -> Data:
        """Write parts of one world's state; everything not named keeps its bits; outputs are fresh after.

        Args:
          fields: as for ``init`` (they matter for the outputs alone: nothing moves).
          values: qpos, qvel, act, ctrl, time, eq_active, mocap_pos, mocap_quat, xfrc_applied, qfrc_applied,
            qacc_warmstart, userdata.
        """
        self._check_data(data)
        return self._set(data, self._fields(fields), self._values(values))

    def sensor(self, data: Data, name: str) -> Float[Array, "*worlds dim"]:
        """A sensor's numbers, a slice of ``data.sensordata``.

        Raises:
          EngineError: the model has no such sensor, or ``sensordata`` is not an output.
        """
        index = mujoco.mj_name2id(self.model, mujoco.mjtObj.mjOBJ_SENSOR, name)
        if index < 0:
            known = [self.model.sensor(i).name for i in range(self.model.nsensor)]
            raise EngineError(f"sensor {name!r} is not in the model; its sensors are {', '.join(known) or 'none'}")
        start, dim = int(self.model.sensor_adr[index]), int(self.model.sensor_dim[index])
        return data.sensordata[..., start : start + dim]

    # what an engine implements

    def _init(self, fields: dict[str, jax.Array], values: dict[str, jax.Array]) -> Data:
        raise EngineError(f"engine {self.kind!r} has no init")

    def _step(self, data: Data, fields: dict[str, jax.Array], ctrl: jax.Array, substeps: int) -> Data:
        raise EngineError(f"engine {self.kind!r} has no step")

    def _set(self, data: Data, fields: dict[str, jax.Array], values: dict[str, jax.Array]) -> Data:
        raise EngineError(f"engine {self.kind!r} has no set")

    def _state_shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes of one world's ``data.state``."""
        return {}

    def _check_field(self, name: str) -> None:
        """Raise where this engine cannot vary a field that MuJoCo can."""

    # checks

    def _check_data(self, data: Any) -> None:
        if not isinstance(data, Data):
            raise EngineError(f"data: expected the Data of engine.init, got {type(data).__name__}")
        if data.kind != self.kind:
            raise EngineError(f"data of engine {data.kind!r} was given to engine {self.kind!r}")
        expected = self._state_shapes()
        given = {name: tuple(jnp.shape(value)) for name, value in data.state.items()}
        if given != expected or jnp.shape(data.finite) != ():
            if jnp.ndim(data.finite):
                raise EngineError(
                    f"data holds worlds along {jnp.ndim(data.finite)} axes; the engine steps one: use jax.vmap"
                )
            raise EngineError("data is of another model: its state has other sizes than this engine's")

    def _value(self, name: str, value: Any) -> jax.Array:
        return _array(name, value, names.input_spec(self.model, name))

    def _values(self, values: Mapping[str, Any]) -> dict[str, jax.Array]:
        return {name: self._value(name, value) for name, value in sorted(values.items()) if value is not None}

    def _fields(self, fields: Mapping[str, Any] | None) -> dict[str, jax.Array]:
        if fields is None:
            return {}
        if not isinstance(fields, Mapping):
            raise EngineError(f"fields: expected a dict of model fields, got {type(fields).__name__}")
        checked = {}
        for name in sorted(fields):
            spec = names.field_spec(self.model, name)
            self._check_field(name)
            checked[name] = _array(f"field {name}", fields[name], spec)
        return checked


def _array(name: str, value: Any, spec: names.Spec) -> jax.Array:
    """``value`` as an array of the spec's shape, in JAX's float (also for flags) or int32."""
    dtype = jnp.int32 if spec.kind == "i" else jnp.result_type(float)
    array = jnp.asarray(value)
    if array.shape != spec.shape:
        hint = "; the engine steps one world: use jax.vmap for many" if array.shape[1:] == spec.shape else ""
        raise EngineError(f"{name}: expected shape {spec.shape}, got {array.shape}{hint}")
    return array.astype(dtype)
