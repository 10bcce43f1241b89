"""Engine ``warp``: MuJoCo Warp's kernels through MJX, for NVIDIA GPUs.

Single precision, not differentiable. Warp keeps the contacts of all worlds in one array whose size it must know
beforehand, so the batch is gathered here, from any stack of ``vmap``s, before MJX is called.
"""

from __future__ import annotations

import contextvars
import copy
import functools
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NoReturn

import jax
import jax.numpy as jnp
import mujoco
import numpy as np
from jax.custom_batching import custom_vmap

from mjxlab._compat import lenient
from mjxlab.errors import EngineError, ModelError
from mjxlab.physics import derived
from mjxlab.physics.load import has_warp
from mjxlab.physics.mjx import MjxEngine, State, quiet

# number of worlds of the call that is being traced
_worlds: contextvars.ContextVar[int] = contextvars.ContextVar("mjxlab_worlds", default=1)


class WarpEngine(MjxEngine):
    """See the module. Made by ``make_engine(model, "warp")``.

    Args:
      contacts: most contacts of one world, on average over the batch; None for Warp's guess from the model.
      constraints: most constraint rows of one world; None for Warp's guess.
      device: "gpu", or "cpu" to run Warp's CPU kernels (for checks: they are slow).

    Raises:
      EngineError: no NVIDIA GPU, or warp-lang is not installed.
    """

    kind = "warp"
    impl = "warp"

    def __init__(
        self,
        model: mujoco.MjModel,
        outputs: Sequence[str],
        contacts: int | None = None,
        constraints: int | None = None,
        device: str = "gpu",
    ) -> None:
        if not has_warp():
            raise EngineError("engine 'warp' needs warp-lang: pip install 'mjxlab[warp]' (and an NVIDIA GPU)")
        if device not in ("gpu", "cpu"):
            raise EngineError(f"device: expected 'gpu' or 'cpu', got {device!r}")
        if device == "gpu" and jax.default_backend() != "gpu":
            raise EngineError(
                f"engine 'warp' needs an NVIDIA GPU, and JAX runs on {jax.default_backend()!r} here; "
                "use kind='mujoco' on a CPU, kind='mjx' elsewhere"
            )
        import warp

        warp.config.quiet = True  # else a line for each of some hundred kernels
        self._device = jax.devices(device)[0]
        self._contacts, self._constraints = contacts, constraints
        super().__init__(model, outputs)
        self._start_jit = _gather(_refuse_derivative(self._start))
        self._steps: dict[int, Callable[..., Any]] = {}
        self._step_jit = self._run_steps

    def _run_steps(self, state: State, late: State, fields: State, ctrl: State, substeps: int) -> tuple[State, State]:
        if substeps not in self._steps:
            self._steps[substeps] = _gather(_refuse_derivative(functools.partial(self._substeps, substeps=substeps)))
        return self._steps[substeps](state, late, fields, ctrl)

    def _put(self, fields: Iterable[str]) -> tuple[Any, Any, Any]:
        key = (derived.switched(fields), _worlds.get())
        if key not in self._cache:
            with jax.ensure_compile_time_eval(), lenient(), quiet():
                host = derived.switch_on(self.model, key[0]) if key[0] else copy.copy(self.model)
                # Warp never resets a world by itself, and refuses the flag that says so
                host.opt.disableflags &= ~int(mujoco.mjtDisableBit.mjDSBL_AUTORESET)
                model = self.mjx.put_model(host, impl="warp", device=self._device)
                data = self._make_data(host, key[1])
                zero = jax.tree.map(lambda x: not np.asarray(x).any(), data)
            self._cache[key] = (model, data, zero)
        return self._cache[key]

    def _make_data(self, host: mujoco.MjModel, worlds: int) -> Any:
        make: Callable[..., Any] = lambda n: self.mjx.make_data(  # noqa: E731
            host, impl="warp", device=self._device, naconmax=n, njmax=self._constraints
        )
        contacts = self._contacts
        if contacts is None:
            contacts = int(make(None)._impl.naconmax)
        return make(max(1, contacts) * worlds)

    def _constants(self, model: Any, blank: Any, fields: Iterable[str]) -> State:
        """By MJX-JAX's kinematics on a copy of the model, since Warp's cannot run alone."""
        if not set(fields) & derived.TRIGGERS:
            return {}
        if not hasattr(self, "_jax_engine"):
            try:
                self._jax_engine = MjxEngine(self.model, ("qpos",))
            except ModelError as error:
                raise EngineError(f"these fields vary masses or sizes, whose constants need MJX-JAX: {error}") from None
        old, new = self._jax_engine._put(fields)[0], {}
        for name in fields:
            value = getattr(model.opt, name[4:]) if name.startswith("opt.") else getattr(model, name)
            new[name] = value.astype(jnp.result_type(float)) if jnp.issubdtype(value.dtype, jnp.floating) else value
        old = old.tree_replace(new)
        changes = derived.constants(self.mjx, self.model, old, self._jax_engine._blank(fields), fields)
        return {name: value.astype(getattr(model, name).dtype) for name, value in changes.items()}

    def _constrained(self, fields: Iterable[str]) -> bool:
        return True  # Warp has no early end without constraints, and no loop that JAX sees

    def _reversible(self, function: Callable[[State, Any], Any], fields: Iterable[str]) -> Callable[[State, Any], Any]:
        return function

    def _refresh(self, model: Any, data: Any) -> Any:
        """Fresh positions and velocities; sensors of the acceleration stage stay those of the last substep."""
        fresh = self.mjx.forward(model, data)
        if not self._acc_sensors:
            return fresh
        late = np.zeros(self.model.nsensordata, bool)
        for stage, start, dim in zip(
            self.model.sensor_needstage, self.model.sensor_adr, self.model.sensor_dim, strict=True
        ):
            late[start : start + dim] = stage == mujoco.mjtStage.mjSTAGE_ACC
        return fresh.replace(sensordata=jnp.where(late, data.sensordata, fresh.sensordata))


def _gather(function: Callable[..., Any]) -> Callable[..., Any]:
    """``function`` of one world, called once with all worlds however many ``vmap``s there are."""

    def level(axes: int) -> Callable[..., Any]:
        @custom_vmap
        def call(*args: Any) -> Any:
            leads = {x.shape[:axes] for x in jax.tree.leaves(args)}
            lead = leads.pop() if leads else ()
            worlds = math.prod(lead)
            token = _worlds.set(worlds)
            try:
                if not axes:
                    return function(*args)
                flat = jax.tree.map(lambda x: x.reshape(worlds, *x.shape[axes:]), args)
                out = jax.vmap(function)(*flat)
                return jax.tree.map(lambda x: x.reshape(*lead, *x.shape[1:]), out)
            finally:
                _worlds.reset(token)

        @call.def_vmap
        def rule(size: int, batched: Any, *args: Any) -> tuple[Any, Any]:
            spread = jax.tree.map(lambda x, b: x if b else jnp.broadcast_to(x, (size, *x.shape)), args, tuple(batched))
            out = level(axes + 1)(*spread)
            return out, jax.tree.map(lambda _: True, out)

        return call

    return level(0)


def _refuse_derivative(function: Callable[..., Any]) -> Callable[..., Any]:
    wrapped = jax.custom_jvp(function)

    def rule(primals: Any, tangents: Any) -> NoReturn:
        raise EngineError("engine 'warp' cannot be differentiated; use make_engine(model, kind='mjx')")

    wrapped.defjvp(rule)
    return wrapped
