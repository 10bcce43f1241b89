"""Engine ``mujoco``: MuJoCo's own C code on CPU threads, inside compiled JAX programs.

A step is one custom call for any stack of ``vmap``s. The state is MuJoCo's integration state, float64 bits carried as
uint32 pairs, so a compiled rollout equals a plain ``mj_step`` loop bit for bit, with 64-bit JAX on or off. Model
fields and controls are rounded to JAX's float before they reach MuJoCo.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import jax
import jax.numpy as jnp
import mujoco

from mjxlab.errors import EngineError
from mjxlab.physics import callback, ffi, host
from mjxlab.physics.data import Data
from mjxlab.physics.engine import Engine
from mjxlab.physics.load import content_hash


def _serve(text: bytes, operands: list[ffi.Buffer], results: list[ffi.Buffer]) -> None:
    """The custom call's handler: leading axes of the state are worlds, however many ``vmap`` made."""
    plan = host.Plan.parse(text)
    state = results[0]
    nsim = 1
    for i in range(state.rank - 1):
        nsim *= state.dims[i]
    if nsim:
        host.find_host(plan.engine).run(plan, nsim, [b.data for b in operands], [b.data for b in results])


class MujocoEngine(Engine):
    """See the module. Made by ``make_engine(model, "mujoco")``."""

    kind = "mujoco"

    def __init__(self, model: mujoco.MjModel, outputs: Sequence[str], route: str | None = None) -> None:
        super().__init__(model, outputs)
        if route not in (None, "ffi", "callback"):
            raise EngineError(f"route: expected 'ffi', 'callback' or None, got {route!r}")
        # the FFI target exists for CPUs; a program whose default device is a GPU reaches the host by a callback
        if route != "ffi":
            callback.prepare(certain=route == "callback")
        self.route = route or ("ffi" if jax.default_backend() == "cpu" else "callback")
        if self.route == "callback":
            callback.check()
        self.digest = hashlib.sha256(f"{content_hash(model)}:{self.outputs}:1".encode()).hexdigest()[:32]
        self.host = host.host_for(self.digest, model, self.specs)
        self._calls: dict[tuple[host.Plan, bool], Callable[..., Any]] = {}
        if self.route == "ffi":
            ffi.register(_serve)

    def _state_shapes(self) -> dict[str, tuple[int, ...]]:
        return {"bits": (2 * self.host.nstate,)}

    def _init(self, fields: dict[str, jax.Array], values: dict[str, jax.Array]) -> Data:
        return self._run("init", 0, values, fields)

    def _set(self, data: Data, fields: dict[str, jax.Array], values: dict[str, jax.Array]) -> Data:
        return self._run("set", 0, values, fields, data)

    def _step(self, data: Data, fields: dict[str, jax.Array], ctrl: jax.Array, substeps: int) -> Data:
        after = self._run("step", substeps, {"ctrl": ctrl}, fields, data)
        views = {name: getattr(after, name) for name in self.outputs}
        return Data(self.kind, self.outputs, after.state, data.finite & after.finite, views)

    def _run(
        self,
        op: str,
        substeps: int,
        values: dict[str, jax.Array],
        fields: dict[str, jax.Array],
        data: Data | None = None,
    ) -> Data:
        width = jnp.dtype(jnp.result_type(float)).itemsize
        plan = host.Plan(self.digest, op, substeps, tuple(values), tuple(fields), width)
        operands = ([] if data is None else [data.state["bits"]]) + list(values.values()) + list(fields.values())
        key = (plan, jax.config.jax_enable_x64)
        if key not in self._calls:
            self._calls[key] = self._make_call(plan)
        bits, finite, *outputs = self._calls[key](*operands)
        return Data(self.kind, self.outputs, {"bits": bits}, finite, dict(zip(self.outputs, outputs, strict=True)))

    def _make_call(self, plan: host.Plan) -> Callable[..., Any]:
        floating = jnp.dtype(f"float{8 * plan.width}")
        kinds = {"f": floating, "i": jnp.dtype(jnp.int32), "b": jnp.dtype(bool)}
        results = [
            jax.ShapeDtypeStruct((2 * self.host.nstate,), jnp.uint32),
            jax.ShapeDtypeStruct((), jnp.bool_),
            *(jax.ShapeDtypeStruct(spec.shape, kinds[spec.kind]) for spec in self.specs.values()),
        ]

        @jax.custom_jvp
        def call(*operands: jax.Array) -> Any:
            if self.route == "ffi":
                return jax.ffi.ffi_call(ffi.TARGET, results, vmap_method="broadcast_all")(*operands, plan=plan.text())
            rank = operands[0].ndim if operands else 0  # vmap hides its axes here, so this is one world's
            return jax.pure_callback(
                lambda *arrays: callback.serve(plan, arrays, rank, results),
                results,
                *operands,
                vmap_method="broadcast_all",
            )

        @call.defjvp
        def refuse(primals: Any, tangents: Any) -> NoReturn:
            raise EngineError(
                "engine 'mujoco' cannot be differentiated (it is compiled C code); "
                "use make_engine(model, kind='mjx'), or stop_gradient on what enters the simulation"
            )

        return call
