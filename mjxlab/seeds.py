"""Many runs of one learner in one program: seeds, and float fields of its config, by ``jax.vmap``.

Run number i of ``train_many`` is what ``mjxlab.fit`` makes of the same config and seed: the same initial state, the same
key for every update, up to the rounding of batched matrix products. Small networks leave most of a processor idle, so
that eight runs together take far less than eight times as long as one.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import jaxpr_as_fun

from mjxlab import cache, spmd
from mjxlab.errors import ConfigError
from mjxlab.learner import Learner
from mjxlab.loop import evaluation_key, init_key
from mjxlab.memory import tree_bytes
from mjxlab.program import METRIC_BYTES, check_same, compile_once, compiler_options
from mjxlab.rl.counter import Counter

Make = Callable[[Any, Any], Learner]


@dataclasses.dataclass(frozen=True)
class Trained:
    """What ``train_many`` returns; runs on axis 0 of everything.

    Attributes:
      metrics: by name ``[runs, updates, …]``.
      evaluation: by name ``[runs]``, of the trained policies; empty if none was asked for.
      state: the training states, on the device.
      compile_seconds: spent in tracing and compiling.
      run_seconds: spent in training and evaluating.
    """

    metrics: dict[str, np.ndarray]
    evaluation: dict[str, np.ndarray]
    state: Any
    compile_seconds: float
    run_seconds: float

    def tail(self, name: str, share: float = 0.15) -> np.ndarray:
        """float64[runs]: the mean of a metric over the last ``share`` of the updates, NaN (no episode ended) left out.

        Raises:
          ConfigError: no such metric.
        """
        if name not in self.metrics:
            raise ConfigError(f"metric {name!r}: not measured, expected one of {', '.join(sorted(self.metrics))}")
        return tail(self.metrics[name], share)


def tail(curves: np.ndarray, share: float = 0.15) -> np.ndarray:
    """float64[runs]: means over the last ``share`` of ``[runs, updates]``, at least one update; NaN only if all are."""
    last = np.asarray(curves, np.float64)[:, -max(1, round(share * curves.shape[1])) :]
    seen = np.isfinite(last)
    count = seen.sum(1)
    return np.where(count > 0, np.where(seen, last, 0).sum(1) / np.maximum(count, 1), np.nan)


def train_seeds(make: Make, env: Any, config: Any, seeds: Sequence[int], updates: int, **options: Any) -> Trained:
    """All seeds of one config in one program; see ``train_many``."""
    return train_many(make, env, [config] * len(seeds), seeds, updates, **options)


def train_many(
    make: Make,
    env: Any,
    configs: Sequence[Any],
    seeds: Sequence[int],
    updates: int,
    *,
    episodes: int = 0,
    deterministic: bool = True,
    calls: int = 10,
    tell: Callable[[str], None] | None = None,
    precision: str = "float32",
) -> Trained:
    """Train run i with ``configs[i]`` and ``seeds[i]``, all runs in one program that is compiled once.

    Args:
      make: ``make(env, config) -> Learner``, as every agent's module has it.
      env: the environment of one world.
      configs: one a run. They may differ in their floats (the leaves of the PyTree) alone.
      seeds: one a run; the run's key is ``jax.random.key(seed)``.
      updates: of every run.
      episodes: of the evaluation at the end (``rl.evaluate``: fresh starts and goals); 0: none.
      deterministic: how the evaluation acts.
      calls: in how many device calls, between which ``tell`` is told.
      tell: takes a line of progress.
      precision: of matrix products, see ``jax.default_matmul_precision``.

    Raises:
      ConfigError: an argument that cannot work, or configs that differ in a static field.
    """
    for name, value in (("updates", updates), ("calls", calls)):
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ConfigError(f"{name}: got {value!r}, expected an integer of at least 1")
    if not configs or len(configs) != len(seeds):
        raise ConfigError(f"seeds: got {len(seeds)}, expected one for each of the {len(configs)} configs, at least one")
    for config in dict.fromkeys(map(id, configs)):
        first = next(c for c in configs if id(c) == config)
        if hasattr(first, "validate"):
            first.validate()
    cache.enable()
    build, varied = _split(configs)
    keys = jnp.stack([jax.random.key(seed) for seed in seeds])

    def init(varied: Any, key: Any) -> Any:
        return make(env, build(varied)).init(init_key(key))

    def update(varied: Any, state: Any, key: Any, number: Any) -> Any:
        return make(env, build(varied)).update(state, jax.random.fold_in(key, number), None)

    def evaluate(varied: Any, state: Any, key: Any) -> Any:
        from mjxlab.rl.evaluate import make_evaluate

        play = make_evaluate(env, make(env, build(varied)), episodes, deterministic=deterministic)
        return play(state, evaluation_key(key, updates))

    clock = _Clock()
    with jax.default_matmul_precision(precision):
        with clock.compiling():
            start = compile_once(jax.jit(jax.vmap(init)).trace(varied, keys))
        with clock.running():
            state = jax.block_until_ready(start(varied, keys))
        chunk = -(-updates // min(calls, updates))
        with clock.compiling():
            program, chunk = _program(jax.vmap(update, in_axes=(0, 0, 0, None)), varied, state, keys, chunk)
        kept, done = [], 0
        while done < updates:
            count = min(chunk, updates - done)
            with clock.running():
                state, rows = program(varied, state, keys, jnp.uint32(done), jnp.uint32(count))
                rows = jax.device_get(rows)
            kept.append({name: _numbers(value)[:count] for name, value in rows.items()})
            done += count
            if tell is not None:
                tell(f"{done:,}/{updates:,} updates · {clock.run:.0f} s, compiled in {clock.compile:.0f} s")
        found: dict[str, Any] = {}
        if episodes:
            with clock.compiling():
                traced = jax.jit(jax.vmap(evaluate)).trace(varied, state, keys)
                play = traced.lower().compile(compiler_options=compiler_options(traced.jaxpr) or None)
            with clock.running():
                found = jax.device_get(play(varied, state, keys))
    metrics = {name: np.moveaxis(np.concatenate([rows[name] for rows in kept]), 0, 1) for name in kept[0]}
    return Trained(metrics, {k: np.asarray(v) for k, v in found.items()}, state, clock.compile, clock.run)


def _split(configs: Sequence[Any]) -> tuple[Callable[[Any], Any], tuple[jax.Array, ...]]:
    """``(build, varied)``: the leaves in which configs differ, as arrays [runs]; ``build`` puts one run's into a config.

    A leaf that is the same for all stays the Python number that it is, as in a single run.
    """
    flat = [jax.tree.flatten(config) for config in configs]
    leaves, structure = flat[0]
    for i, (_, other) in enumerate(flat):
        if other != structure:
            raise ConfigError(f"configs: number {i} differs from the first in a static field, expected floats only")
    columns = [list(column) for column in zip(*(leaves for leaves, _ in flat), strict=True)]
    varying = [i for i, column in enumerate(columns) if any(x is not column[0] and x != column[0] for x in column)]
    dtype = jnp.result_type(float)
    varied = tuple(jnp.asarray(np.asarray(columns[i], np.float64), dtype) for i in varying)

    def build(varied: tuple[Any, ...]) -> Any:
        mine = list(leaves)
        for i, value in zip(varying, varied, strict=True):
            mine[i] = value
        return jax.tree.unflatten(structure, mine)

    return build, varied


def _program(step: Any, varied: Any, state: Any, keys: Any, chunk: int) -> tuple[Callable[..., Any], int]:
    """The compiled ``(varied, state, keys, start, count) -> (state, metrics[chunk, runs, …])``, and ``chunk``, which
    may have become smaller for the metrics to fit. How many updates a call makes is an argument, not part of the program.
    """
    word = jax.ShapeDtypeStruct((), jnp.uint32)
    closed, (after, metrics) = jax.make_jaxpr(step, return_shape=True)(varied, state, keys, word)
    check_same(state, after)
    if not isinstance(metrics, dict):
        raise ConfigError(f"update: gives metrics of type {type(metrics).__name__}, expected a dict")
    rows = max(1, min(chunk, METRIC_BYTES // max(tree_bytes(metrics), 1)))
    call, outputs = jaxpr_as_fun(closed), jax.tree.structure((after, metrics))

    def run(varied: Any, state: Any, keys: Any, start: Any, count: Any) -> Any:
        def one(i: Any, carry: tuple[Any, Any]) -> tuple[Any, Any]:
            state, kept = carry
            state, now = jax.tree.unflatten(outputs, call(*jax.tree.leaves((varied, state, keys, start + i))))
            state, now = jax.tree.map(_strong, (state, now))
            return state, jax.tree.map(lambda rows, row: lax.dynamic_update_index_in_dim(rows, row, i, 0), kept, now)

        kept = jax.tree.map(lambda m: jnp.zeros((rows, *m.shape), m.dtype), metrics)
        return lax.fori_loop(jnp.uint32(0), count, one, (jax.tree.map(_strong, state), kept))

    traced = jax.jit(run, donate_argnums=1).trace(varied, state, keys, word, word)
    return traced.lower().compile(compiler_options=compiler_options(traced.jaxpr) or None), rows


def _strong(x: Any) -> Any:
    """Without a weak type, which would make the loop's carry of another type than its start."""
    return x if spmd.is_key(x) else jnp.asarray(x, x.dtype)


def _numbers(value: Any) -> np.ndarray:
    if isinstance(value, Counter):
        return value.numpy().astype(np.int64)
    return np.asarray(value)


class _Clock:
    """Seconds spent in compiling, and in running."""

    def __init__(self) -> None:
        self.compile = self.run = 0.0

    def compiling(self) -> Any:
        return _Stretch(self, "compile")

    def running(self) -> Any:
        return _Stretch(self, "run")


class _Stretch:
    def __init__(self, clock: _Clock, name: str) -> None:
        self.clock, self.name = clock, name

    def __enter__(self) -> None:
        self.started = time.perf_counter()

    def __exit__(self, *_: Any) -> None:
        spent = time.perf_counter() - self.started
        setattr(self.clock, self.name, getattr(self.clock, self.name) + spent)
