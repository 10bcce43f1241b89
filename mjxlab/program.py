"""The device programs of the training loop: many updates, and an evaluation, each compiled once ahead of its use."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import jaxpr_as_fun
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from mjxlab import spmd
from mjxlab.errors import ConfigError
from mjxlab.learner import Learner
from mjxlab.memory import tree_bytes

CAPACITY = 1024  # most updates of one call
METRIC_BYTES = 16 << 20  # bound on the metrics that a call brings back
BATCH_BYTES = 64 << 20  # bound on the batches that a call takes along


def compiler_options(jaxpr: Any) -> dict[str, Any]:
    """Compile options that the physics inside a program asks for."""
    from mjxlab import physics

    return dict(physics.compiler_options(jaxpr))


def compile_once(traced: Any) -> Callable[..., Any]:
    """Compile a program that will run a single time: on a CPU without optimisation, which takes half as long."""
    options = compiler_options(traced.jaxpr)
    if jax.local_devices()[0].platform == "cpu":
        try:
            return traced.lower().compile(compiler_options=options | {"xla_backend_optimization_level": 0})
        except jax.errors.JaxRuntimeError:  # a version that does not know the option
            pass
    return traced.lower().compile(compiler_options=options or None)


def _aval(x: Any, sharding: NamedSharding) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding)


def _paths(tree: Any) -> dict[str, Any]:
    return {jax.tree_util.keystr(p, simple=True, separator="."): x for p, x in jax.tree.leaves_with_path(tree)}


def check_same(before: Any, after: Any) -> None:
    """Raise ``ConfigError`` where an update changes the structure, a shape or a dtype of the state."""
    old, new = _paths(before), _paths(after)
    for name in [*old, *new]:
        a, b = ("nothing" if x is None else f"{x.dtype.name}{list(x.shape)}" for x in (old.get(name), new.get(name)))
        if a != b:
            raise ConfigError(f"update: makes the state's {name} {b}, expected {a} as it was")
    if jax.tree.structure(before) != jax.tree.structure(after):
        raise ConfigError("update: gives a state of another PyTree structure than it was given")


class Updates:
    """``state, metrics, finite = updates(state, key, start, count, batches)``: ``count`` updates in one device call.

    The number of updates is an argument of the program, not part of it: one compiled program serves every count up to
    ``capacity``, so that results cannot depend on how updates are grouped into calls. The state given is donated.

    Attributes:
      capacity: most updates of a call.
      traces: how often Python ran ``learner.update`` (once).
      compile_seconds: time spent tracing, lowering and compiling.
      options: compile options that the physics asked for.
      checked: paths of the state's replicated float arrays, in the order of ``finite``.
    """

    def __init__(
        self,
        learner: Learner,
        mesh: Mesh,
        state: Any,
        *,
        key: jax.Array,
        batch: Any = None,
        capacity: int | None = None,
        precision: str = "float32",
    ) -> None:
        """Compile.

        Args:
          learner: its ``update``.
          mesh: see ``spmd.make_mesh``.
          state: arrays or shapes, global.
          key: one of the kind that calls will pass.
          batch: one batch (arrays), global, or None.
          capacity: by default as many as memory bounds allow, at most 1024.
          precision: of matrix products, see ``jax.default_matmul_precision``.
        """
        started = time.perf_counter()
        self.mesh, self.traces = mesh, 0
        self.specs = spmd.partition_specs(state)
        spmd.check_divisible(state, self.specs, mesh.size)
        self.batch_specs = jax.tree.map(
            lambda x: PartitionSpec(None, spmd.AXIS) if np.ndim(x) else PartitionSpec(), batch
        )
        self.capacity = max(1, min(CAPACITY, BATCH_BYTES // max(tree_bytes(batch), 1)))
        if capacity is not None:
            self.capacity = max(self.capacity, capacity)
        self._wanted, self._batch_rows = capacity or 1, self.capacity
        self.checked: list[str] = []
        self._checked_replicas = mesh.size == 1

        placed = spmd.shardings(mesh, self.specs)
        stacked = jax.tree.map(
            lambda x, s: jax.ShapeDtypeStruct((self.capacity, *np.shape(x)), x.dtype, sharding=NamedSharding(mesh, s)),
            batch,
            self.batch_specs,
        )
        if batch is not None:
            spmd.check_divisible(stacked, self.batch_specs, mesh.size, "batch")
        everywhere = NamedSharding(mesh, PartitionSpec())
        word = jax.ShapeDtypeStruct((), jnp.uint32, sharding=everywhere)
        program = jax.shard_map(
            lambda *args: self._program(learner, *args),
            mesh=mesh,
            in_specs=(self.specs, PartitionSpec(), PartitionSpec(), PartitionSpec(), self.batch_specs),
            out_specs=(self.specs, PartitionSpec(), PartitionSpec()),
            check_vma=False,
        )
        with jax.default_matmul_precision(precision):
            traced = jax.jit(program, donate_argnums=0).trace(
                jax.tree.map(_aval, state, placed), _aval(key, everywhere), word, word, stacked
            )
        self.options = compiler_options(traced.jaxpr)
        self._compiled = traced.lower().compile(compiler_options=self.options or None)
        self.compile_seconds = time.perf_counter() - started

    def _program(self, learner: Learner, state: Any, key: Any, start: Any, count: Any, batches: Any) -> Any:
        """What each device runs."""

        def update(state: Any, index: Any, batch: Any) -> tuple[Any, Any]:
            self.traces += 1
            return learner.update(state, jax.random.fold_in(key, index), batch)

        def pick(i: Any) -> Any:
            return jax.tree.map(lambda b: lax.dynamic_index_in_dim(b, i, keepdims=False), batches)

        # Traced once, on its own, as the loop needs the shapes of the metrics before it starts.
        closed, (after, metrics) = jax.make_jaxpr(update, return_shape=True)(state, start, pick(0))
        check_same(state, after)
        if not isinstance(metrics, dict):
            raise ConfigError(f"update: gives metrics of type {type(metrics).__name__}, expected a dict")
        room = max(self._wanted, METRIC_BYTES // max(tree_bytes(metrics), 1))
        self.capacity = rows = min(self.capacity, room)
        run, outputs = jaxpr_as_fun(closed), jax.tree.structure((after, metrics))

        def one(i: Any, carry: tuple[Any, Any]) -> tuple[Any, Any]:
            state, kept = carry
            leaves = jax.tree.leaves((state, start + i.astype(start.dtype), pick(i)))
            state, now = jax.tree.unflatten(outputs, run(*leaves))
            # weak types would make the carry's type another one than the argument's
            state, now = jax.tree.map(_strong, (state, now))
            return state, jax.tree.map(lambda rows, row: lax.dynamic_update_index_in_dim(rows, row, i, 0), kept, now)

        kept = jax.tree.map(lambda m: jnp.zeros((rows, *m.shape), m.dtype), metrics)
        before = self._finite(state)
        state, kept = lax.fori_loop(jnp.int32(0), count.astype(jnp.int32), one, (state, kept))
        return state, kept, jnp.stack([before, self._finite(state)])

    def _finite(self, state: Any) -> jax.Array:
        """bool[checked]: which of the replicated float arrays are finite."""
        specs = jax.tree.leaves(self.specs, is_leaf=lambda x: isinstance(x, PartitionSpec))
        found = {
            jax.tree_util.keystr(path, simple=True, separator="."): jnp.isfinite(leaf).all()
            for (path, leaf), spec in zip(jax.tree.leaves_with_path(state), specs, strict=True)
            if spmd.AXIS not in spec and jnp.issubdtype(leaf.dtype, jnp.inexact)
        }
        self.checked = list(found)
        return jnp.stack(list(found.values())) if found else jnp.zeros((0,), bool)

    def __call__(
        self, state: Any, key: Any, start: int, count: int, batches: list[Any] | None = None
    ) -> tuple[Any, dict[str, Any], np.ndarray]:
        """Run ``count`` updates.

        Args:
          state: on the mesh; it is consumed.
          key: of the run; update u uses ``fold_in(key, u)``.
          start: number of the first update.
          count: how many, at most ``capacity``.
          batches: ``count`` batches, or None.

        Returns:
          The new state, the metrics as NumPy arrays with the updates on axis 0, and whether each of ``checked`` was
          finite before (row 0) and after (row 1).
        """
        stacked = None
        if batches is not None:
            stacked = jax.tree.map(lambda *xs: _stack(xs, self._batch_rows), *batches)
            stacked = spmd.place(stacked, self.mesh, self.batch_specs)
        small = spmd.place((key, np.uint32(start), np.uint32(count)), self.mesh, (spmd.REPLICATED,) * 3)
        state, metrics, finite = self._compiled(state, *small, stacked)
        if not self._checked_replicas:
            self._check_replicas(state, metrics)
        metrics, finite = jax.device_get((metrics, finite))
        return state, jax.tree.map(lambda x: x[:count], metrics), finite

    def _check_replicas(self, state: Any, metrics: Any) -> None:
        """Once, after the first call: what is said to be the same on all devices must be."""
        self._checked_replicas = True
        wrong = spmd.unequal_replicas(state, self.specs)
        wrong += spmd.unequal_replicas(metrics, jax.tree.map(lambda _: spmd.REPLICATED, metrics))
        if wrong:
            raise ConfigError(
                f"update: gives each device another {', '.join(wrong[:5])}, expected one value for all; reduce it with "
                'mjxlab.spmd.pmean or psum, or mark its field with metadata={"axis": "device"}'
            )


def _strong(x: Any) -> Any:
    return x if spmd.is_key(x) else jnp.asarray(x, x.dtype)


def _stack(batches: tuple[Any, ...], length: int) -> np.ndarray:
    first = np.asarray(batches[0])
    rows = np.empty((length, *first.shape), first.dtype)
    for i, batch in enumerate(batches):
        rows[i] = batch
    rows[len(batches) :] = 0  # never read, but never garbage either
    return rows


class Evaluation:
    """``metrics = evaluation(state, key)``: ``evaluate`` under ``shard_map``, compiled once; the state stays intact.

    Every device runs ``evaluate`` on its share of the state. One that knows of the device axis (through
    ``mjxlab.spmd``) splits the work; any other does the same work on each, which is slower but as right.
    """

    def __init__(
        self,
        evaluate: Callable[[Any, Any], dict[str, Any]],
        mesh: Mesh,
        state: Any,
        *,
        key: jax.Array,
        precision: str = "float32",
    ) -> None:
        """Compile. ``state``: arrays or shapes, global; the rest as for ``Updates``."""
        started = time.perf_counter()
        self.mesh, specs = mesh, spmd.partition_specs(state)
        everywhere = NamedSharding(mesh, PartitionSpec())
        program = jax.shard_map(
            evaluate, mesh=mesh, in_specs=(specs, PartitionSpec()), out_specs=PartitionSpec(), check_vma=False
        )
        with jax.default_matmul_precision(precision):
            traced = jax.jit(program).trace(
                jax.tree.map(_aval, state, spmd.shardings(mesh, specs)), _aval(key, everywhere)
            )
        if not isinstance(traced.out_info, dict):
            raise ConfigError(f"evaluate: gives {type(traced.out_info).__name__}, expected a dict of metrics")
        self._compiled = traced.lower().compile(compiler_options=compiler_options(traced.jaxpr) or None)
        self.compile_seconds = time.perf_counter() - started

    def __call__(self, state: Any, key: Any) -> dict[str, Any]:
        """NumPy metrics."""
        return jax.device_get(self._compiled(state, spmd.place(key, self.mesh, spmd.REPLICATED)))
