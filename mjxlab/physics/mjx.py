"""Engine ``mjx``: MuJoCo rewritten in JAX (MJX). Runs on TPUs, GPUs and CPUs, and is differentiable.

The state that a world carries is small: what restarts the simulation, warm start included. Everything else is rebuilt
inside the step, so that environment states stay cheap to select, shard and save. Where model fields vary between
worlds, the constants that MuJoCo derives from them are recomputed in JAX (``derived``), at every call.

MJX's interface moves with each release: all that mjxlab calls of it is in this module, ``derived`` and ``warp``.
"""

from __future__ import annotations

import contextlib
import io
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import mujoco
import numpy as np
from jax import lax

from mjxlab._compat import lenient
from mjxlab.errors import EngineError, ModelError
from mjxlab.physics import derived, names, options, reverse
from mjxlab.physics.data import Data
from mjxlab.physics.engine import Engine

#: MuJoCo calls larger positions, velocities and accelerations bad (mjMAXVAL).
_LARGEST = 1e10

State = dict[str, jax.Array]


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """MJX prints on import where Warp is missing, and warns of its own deprecations."""
    with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def import_mjx() -> Any:
    """The module ``mujoco.mjx``, imported at first use and quietly."""
    with quiet():
        from mujoco import mjx
    return mjx


class MjxEngine(Engine):
    """See the module. Made by ``make_engine(model, "mjx")``."""

    kind = "mjx"
    impl = "jax"

    def __init__(self, model: mujoco.MjModel, outputs: Sequence[str]) -> None:
        super().__init__(model, outputs)
        self.mjx = import_mjx()
        self._cache: dict[Any, tuple[Any, Any, Any]] = {}
        self._inputs = tuple(name for name in names.INPUTS if names.input_spec(model, name).size)
        self._acc_sensors = bool((model.sensor_needstage == mujoco.mjtStage.mjSTAGE_ACC).any())
        # outputs of the acceleration stage, which must come from the last substep
        self._late = names.acceleration_outputs(model, self.outputs)
        self._check_model()
        self._step_jit: Callable[..., Any] = jax.jit(options.named(self._substeps), static_argnums=(4,))
        self._start_jit: Callable[..., Any] = jax.jit(options.named(self._start))

    # the model

    def _check_model(self) -> None:
        if self.model.nhistory:
            raise ModelError("engine 'mjx' has no delayed actuators or sensors; use kind='mujoco'")
        try:
            data = self._put(())[1]
        except (NotImplementedError, ValueError, TypeError, AssertionError) as error:
            text = " ".join(str(error).split())
            raise ModelError(f"engine {self.kind!r} cannot run this model: {text}; use kind='mujoco'") from None
        for name in self.outputs:
            found = _find(data, name)
            if found is None or np.size(found) != self.specs[name].size:  # MJX stores some in another form
                raise EngineError(f"outputs: engine {self.kind!r} has no {name!r}; use kind='mujoco'")

    def _put(self, fields: Iterable[str]) -> tuple[Any, Any, Any]:
        """MJX's (model, data, which leaves of data are zero) for the present float width and the varied fields."""
        switches = derived.switched(fields)
        key = (bool(jax.config.jax_enable_x64), switches)
        if key not in self._cache:
            # concrete arrays, whatever is being traced now: a tracer in the cache would leak
            with jax.ensure_compile_time_eval(), lenient(), quiet():
                model, data = self._make(derived.switch_on(self.model, switches) if switches else self.model)
                zero = jax.tree.map(lambda x: not np.asarray(x).any(), data)
            self._cache[key] = (model, data, zero)
        return self._cache[key]

    def _make(self, host: mujoco.MjModel) -> tuple[Any, Any]:
        model = self.mjx.put_model(host, impl=self.impl)
        return model, self.mjx.make_data(model, impl=self.impl)

    def _check_field(self, name: str) -> None:
        if not isinstance(_leaf(self._put(())[0], name), jax.Array):
            raise EngineError(
                f"field {name!r} cannot vary between worlds with engine {self.kind!r} (it shapes the program); "
                "use kind='mujoco'"
            )

    def _blank(self, fields: Iterable[str]) -> Any:
        """Data in which only the state matters, inside a program."""
        _, data, zero = self._put(fields)
        return jax.tree.map(lambda x, z: jnp.zeros(x.shape, x.dtype) if z else x, data, zero)

    def _changes(self, fields: State) -> State:
        """What differs from the model: the fields themselves, and the constants that follow from them."""
        if not fields:
            return {}
        model, _, _ = self._put(fields)
        old = {name: _leaf(model, name) for name in fields}
        changes = {n: v.astype(old[n].dtype).reshape(old[n].shape) for n, v in fields.items()}
        return {**changes, **self._constants(model.tree_replace(changes), self._blank(fields), fields)}

    def _constants(self, model: Any, blank: Any, fields: Iterable[str]) -> State:
        return derived.constants(self.mjx, self.model, model, blank, fields)

    def _changed(self, changes: State) -> Any:
        model, _, _ = self._put(changes)
        return model.tree_replace(changes) if changes else model

    # calls

    def _state_shapes(self) -> dict[str, tuple[int, ...]]:
        return {name: names.input_spec(self.model, name).shape for name in self._inputs}

    def _init(self, fields: State, values: State) -> Data:
        _, data, _ = self._put(())
        state = {name: getattr(data, name) for name in self._inputs}
        return self._started(fields, {**state, **self._cast(values)})

    def _set(self, data: Data, fields: State, values: State) -> Data:
        return self._started(fields, {**data.state, **self._cast(values)})

    def _started(self, fields: State, state: State) -> Data:
        views = self._start_jit(fields, state)
        return self._data(state, views, self._finite(state))

    def _step(self, data: Data, fields: State, ctrl: jax.Array, substeps: int) -> Data:
        state, views = self._step_jit(data.state, self._late_views(data), fields, self._cast({"ctrl": ctrl}), substeps)
        return self._data(state, views, data.finite & self._finite(state))

    def _data(self, state: State, views: State, finite: jax.Array) -> Data:
        return Data(self.kind, self.outputs, state, finite, views)

    def _late_views(self, data: Data) -> State:
        return {name: getattr(data, name) for name in self._late}

    def _cast(self, values: State) -> State:
        _, data, _ = self._put(())
        return {n: v.astype(getattr(data, n).dtype) for n, v in values.items() if n in self._inputs}

    def _finite(self, state: State) -> jax.Array:
        good = jnp.bool_(True)
        for name, value in state.items():
            if jnp.issubdtype(value.dtype, jnp.floating):
                good &= jnp.all(jnp.isfinite(value))
                if name in ("qpos", "qvel", "qacc_warmstart"):
                    good &= jnp.all(jnp.abs(value) <= jnp.asarray(_LARGEST, value.dtype))
        return good

    # traced inside the named jit

    def _start(self, fields: State, state: State) -> State:
        """Outputs of a state, without moving it."""
        with lenient(), quiet():
            start = self._reversible(self._forward, fields) if self._late else self._kinematics
            return start(self._changes(fields), state)

    def _substeps(self, state: State, late: State, fields: State, ctrl: State, substeps: int) -> tuple[State, State]:
        with lenient(), quiet():
            changes = self._changes(fields)
            advance = self._reversible(self._substep, fields)
            carry = ({**state, **ctrl}, late)
            if substeps == 1:
                carry = advance(changes, carry)
            else:
                carry, _ = lax.scan(lambda c, _: (advance(changes, c), None), carry, None, length=substeps)
            state, late = carry
            data = self._blank(fields).replace(**state)
            if "sensordata" in late:
                data = data.replace(sensordata=late["sensordata"])
            data = self._refresh(self._changed(changes), data)
            kept = [name for name in late if name != "sensordata"]  # its other sensors were just refreshed
            return state, {**late, **self._views(data, [*state, *kept])}

    def _reversible(self, function: Callable[[State, Any], Any], fields: Iterable[str]) -> Callable[[State, Any], Any]:
        """A function that calls MJX's solver, differentiable in both modes.

        The solver's loop runs until it converges, which JAX cannot reverse: a derivative takes it to its limit.
        """
        iterations = int(self.model.opt.iterations)
        if iterations <= 1 or not self._constrained(fields):
            return function
        wrapped = jax.custom_jvp(function)

        def rule(primals: Any, tangents: Any) -> Any:
            with lenient(), quiet():
                return jax.jvp(reverse.bounded(function, iterations), primals, tangents)

        wrapped.defjvp(rule)
        return wrapped

    def _substep(self, changes: State, carry: tuple[State, State]) -> tuple[State, State]:
        model, (state, late) = self._changed(changes), carry
        before = self._blank(changes).replace(**state)
        after = self.mjx.step(model, before)
        if self._acc_sensors and not self._constrained(changes):
            # MJX leaves its forward pass early where nothing constrains the model, before these sensors
            moved = after.replace(qpos=before.qpos, qvel=before.qvel, act=before.act, time=before.time)
            after = after.replace(sensordata=self.mjx.sensor_acc(model, moved).sensordata)
        state = {name: getattr(after, name).astype(value.dtype) for name, value in state.items()}
        return state, {name: self._view(after, name) for name in late}

    def _constrained(self, fields: Iterable[str]) -> bool:
        return bool(self._put(fields)[1]._impl.efc_J.size)

    def _forward(self, changes: State, state: State) -> State:
        model = self._changed(changes)
        data = self.mjx.forward(model, self._blank(changes).replace(**state))
        if self._acc_sensors and not self._constrained(changes):
            data = self.mjx.sensor_acc(model, data)
        return self._views(data, state)

    def _kinematics(self, changes: State, state: State) -> State:
        return self._views(self._refresh(self._changed(changes), self._blank(changes).replace(**state)), state)

    def _views(self, data: Any, known: Iterable[str]) -> State:
        return {name: self._view(data, name) for name in self.outputs if name not in known}

    def _refresh(self, model: Any, data: Any) -> Any:
        """Positions, velocities and their sensors of the present state; no collisions, no forces."""
        mjx = self.mjx
        data = mjx.kinematics(model, data)
        data = mjx.com_pos(model, data)
        data = mjx.camlight(model, data)
        data = mjx.tendon(model, data)
        data = mjx.transmission(model, data)
        data = mjx.sensor_pos(model, data)
        data = mjx.fwd_velocity(model, data)
        return mjx.sensor_vel(model, data)

    def _view(self, data: Any, name: str) -> jax.Array:
        spec = self.specs[name]
        dtype = {"f": jnp.result_type(float), "i": jnp.int32, "b": jnp.bool_}[spec.kind]
        return _find(data, name).reshape(spec.shape).astype(dtype)


def _leaf(model: Any, name: str) -> Any:
    holder = model.opt if name.startswith("opt.") else model
    name = name.removeprefix("opt.")
    return getattr(holder, name) if name in type(holder).__dataclass_fields__ else None


def _find(data: Any, name: str) -> Any:
    """A field of MJX's data, public or of its implementation; None if it has none."""
    for holder in (data, data._impl):
        if name in type(holder).__dataclass_fields__:
            return getattr(holder, name)
    return None
