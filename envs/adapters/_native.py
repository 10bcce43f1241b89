"""What all adapters share: an environment of another suite behind our contract.

Other suites promote dtypes freely, return weak types, begin with Python numbers and end with arrays, and leave out at
``reset`` what ``step`` reports. ``Adapted`` traces one reset and one step of the native environment, settles on one
type for every array, and casts both to it, so that a loop's carry keeps its types. The native environment always
computes in single precision, for which it was written (many fail where ``jax_enable_x64`` is on); observations, rewards
and metrics come out in JAX's default float type.
"""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import importlib
import math
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces as gym_spaces
from jax import lax
from jaxtyping import Array, Key

from mjxlab._compat import lenient
from mjxlab.envs import _trees, spaces
from mjxlab.envs.base import State
from mjxlab.errors import ConfigError, UnknownNameError
from mjxlab.physics.mjx import quiet


@contextlib.contextmanager
def native() -> Iterator[None]:
    """Inside, other suites' code finds what it expects: free promotion and single precision. Also a decorator."""
    with lenient(), jax.enable_x64(False):
        yield


@contextlib.contextmanager
def making() -> Iterator[None]:
    """``native``, and quiet: for imports and constructors. Also a decorator."""
    with native(), quiet():
        yield


def need(package: str, adapter: str, extra: str | None) -> Any:
    """The module ``package``, imported now and quietly.

    Args:
      package: what to import.
      adapter: who asks, for the message.
      extra: the extra of mjxlab that brings it; None if it is one of its dependencies.

    Raises:
      ConfigError: it is not installed, or cannot be imported.
    """
    try:
        with making():
            return importlib.import_module(package)
    except ImportError as error:
        root = package.partition(".")[0]
        if error.name is not None and error.name.partition(".")[0] == root:
            wanted = f"'mjxlab[{extra}]'" if extra else root
            raise ConfigError(
                f"{adapter} needs the package {root}, which is not installed: pip install {wanted}"
            ) from error
        raise ConfigError(f"{adapter}: the package {root} cannot be imported: {error}") from error


def check_name(name: str, known: Iterable[str], suite: str) -> None:
    """Raise an ``UnknownNameError`` with what is near, unless ``name`` is one of ``known``."""
    known = sorted(known)
    if name not in known:
        close = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
        hint = f"did you mean {' or '.join(map(repr, close))}?" if close else f"known: {', '.join(known)}"
        raise UnknownNameError(f"unknown {suite} environment {name!r}; {hint}")


def check_length(length: Any) -> int:
    """``length`` if it can be a time limit."""
    if isinstance(length, bool) or not isinstance(length, int | np.integer) or length < 1:
        raise ConfigError(f"episode_length is {length!r}; expected an integer of at least 1")
    return int(length)


def raw_key(key: Key[Array, ""]) -> Array:
    """The words of a typed key, which is how other suites pass keys."""
    return jax.random.key_data(key)


def key_like() -> jax.ShapeDtypeStruct:
    """Shape and dtype of a raw key."""
    return jax.eval_shape(lambda: jax.random.key_data(jax.random.key(0)))


class Outcome(NamedTuple):
    """What the native environment gave: after a reset (reward and flags are not looked at) or a step."""

    data: Any
    obs: Any
    reward: Any = 0.0
    terminated: Any = False
    truncated: Any = False
    metrics: dict[str, Any] = {}  # noqa: RUF012 (never written to)
    info: dict[str, Any] = {}  # noqa: RUF012
    params: Any = ()
    goal: Any = None  # (achieved, commanded, success)


class Adapted:
    """A native environment that keeps our contract. A subclass defines ``_start`` and ``_advance``.

    Attributes:
      native: the other suite's environment.
      name: ``"suite:name"``.
      engine: None: the physics, if there is any, is the other suite's own.
      native_low, native_high: range of a continuous action as the native environment has it; [-1, 1] of ours is scaled
        to it.
    """

    engine: Any = None
    # how much a reset draws is the native environment's matter (a few always start alike): check_env does not mind
    deterministic_reset = True

    def __init__(
        self,
        native_env: Any,
        name: str,
        action_space: gym_spaces.Space,
        episode_length: int,
        *,
        native_range: tuple[Any, Any] | None = None,
        mark: bool = False,
    ) -> None:
        self.native = native_env
        self.name = name
        self.action_space = action_space
        self.episode_length = check_length(episode_length)
        self.native_low: Any = None if native_range is None else native_range[0]
        self.native_high: Any = None if native_range is None else native_range[1]
        self._types: Outcome | None = None

        # jitted, so that calls outside of jit do not go through thousands of single operations; a program with MJX in
        # it goes by the name that asks XLA's CPU compiler for the options that MJX wants
        def advance(key: Any, data: Any, action: Any, params: Any) -> Outcome:
            return self._advance(key, data, action, params)

        if mark:
            from mjxlab.physics.options import named

            advance = named(advance)
        self._reset_native = jax.jit(lambda key: self._start(key))
        self._step_native = jax.jit(advance)

    def _start(self, key: Any) -> Outcome:
        raise AttributeError(f"{type(self).__name__} defines no _start")

    def _advance(self, key: Any, data: Any, action: Any, params: Any) -> Outcome:
        raise AttributeError(f"{type(self).__name__} defines no _advance")

    def reset(self, key: Key[Array, ""]) -> State:
        """A fresh episode of the native environment."""
        key, start = jax.random.split(key)
        types = self.types()
        with native():
            out = self._reset_native(raw_key(start))
        out = out._replace(reward=jnp.zeros(types.reward.shape), terminated=False, truncated=False)
        return self._state(out, types, key)

    def step(self, state: State, action: Any) -> State:
        """One step of the native environment; it never resets."""
        key, use = jax.random.split(state.key)
        types, action = self.types(), self._native_action(action)
        with native():
            out = self._step_native(raw_key(use), state.data, action, state.params)
        return self._state(out._replace(params=state.params), types, key)

    def _state(self, out: Outcome, types: Outcome, key: Any) -> State:
        goal = None if out.goal is None else _public(_cast(out.goal, types.goal))
        achieved, commanded, success = (None, None, None) if goal is None else goal
        return State(
            data=_cast(out.data, types.data),
            obs=_public(_cast(out.obs, types.obs)),
            reward=_public(_cast(out.reward, types.reward)),
            terminated=jnp.asarray(out.terminated, bool),
            truncated=jnp.asarray(out.truncated, bool),
            key=key,
            params=_cast(out.params, types.params),
            metrics=_public(_filled(out.metrics, types.metrics)),
            info=_filled(out.info, types.info),
            achieved=achieved,
            commanded=commanded,
            success=success,
        )

    def _native_action(self, action: Any) -> Any:
        action, expected = jnp.asarray(action), self.action_space.shape
        if action.shape != expected:
            hint = "; one world: use jax.vmap for many" if action.shape[1:] == expected else ""
            raise ConfigError(f"action of {self.name!r} has shape {action.shape}; expected {expected}{hint}")
        if spaces.is_discrete(self.action_space):
            return action.astype(jnp.int32)
        action = action.astype(jnp.float32)
        if self.native_low is None:
            return jnp.clip(action, -1, 1)
        return spaces.scale_action(action, self.native_low, self.native_high)

    def types(self) -> Outcome:
        """Shape and dtype of everything that the native reset and step return, as ``jax.ShapeDtypeStruct``."""
        if self._types is None:
            with native():
                self._types = self._settle()
        return self._types

    def _settle(self) -> Outcome:
        key = key_like()
        action = jax.eval_shape(lambda: self._native_action(spaces.sample(self.action_space, jax.random.key(0))))
        now = jax.eval_shape(self._reset_native, key)
        now = now._replace(reward=jax.ShapeDtypeStruct((), jnp.float32))
        for turn in range(4):
            after = jax.eval_shape(self._step_native, key, now.data, action, now.params)
            real = jax.ShapeDtypeStruct(after.reward.shape, jnp.float32)
            merged = Outcome(
                data=self._common(now.data, after.data, "state"),
                obs=self._common(now.obs, after.obs, "observation"),
                reward=real,
                terminated=None,
                truncated=None,
                metrics=self._union(now.metrics, after.metrics, "metrics"),
                info=self._union(now.info, after.info, "info"),
                params=now.params,
                goal=self._common(now.goal, after.goal, "goal"),
            )
            if turn and _same(merged, now):
                break
            now = merged
        return now

    def _common(self, a: Any, b: Any, what: str) -> Any:
        if jax.tree.structure(a) != jax.tree.structure(b):
            raise ConfigError(
                f"{self.name}: reset and step give {what}s of different structure: "
                f"{jax.tree.structure(a)} and {jax.tree.structure(b)}"
            )
        for (path, x), y in zip(jax.tree_util.tree_flatten_with_path(a)[0], jax.tree.leaves(b), strict=True):
            if x.shape != y.shape:
                raise ConfigError(
                    f"{self.name}: {what}{_trees.path_name(path)} has shape {x.shape} after reset and {y.shape} after step"
                )
        return jax.tree.map(_wider, a, b)

    def _union(self, a: dict[str, Any], b: dict[str, Any], what: str) -> dict[str, Any]:
        both = {name: self._common(a[name], b[name], f"{what}[{name!r}]") for name in a if name in b}
        return {**jax.tree.map(_strong, {**a, **b}), **both}


def _strong(x: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(x.shape, x.dtype)


def _wider(x: Any, y: Any) -> jax.ShapeDtypeStruct:
    dtype = x.dtype if x.dtype == y.dtype else jnp.promote_types(x.dtype, y.dtype)
    return jax.ShapeDtypeStruct(x.shape, dtype)


def _same(a: Any, b: Any) -> bool:
    pairs = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    return jax.tree.structure(a) == jax.tree.structure(b) and all(x.dtype == y.dtype for x, y in pairs)


def _cast(tree: Any, types: Any) -> Any:
    """``tree`` in the dtypes of ``types``, none of them weak."""

    def leaf(x: Any, like: Any) -> Any:
        if jnp.issubdtype(like.dtype, jax.dtypes.prng_key):
            return x
        return lax.convert_element_type(x, like.dtype)

    return jax.tree.map(leaf, tree, types)


def _public(tree: Any) -> Any:
    """Single-precision numbers in JAX's default float type."""
    return jax.tree.map(lambda x: x.astype(jnp.result_type(float)) if x.dtype == jnp.float32 else x, tree)


def _filled(found: dict[str, Any], types: dict[str, Any]) -> dict[str, Any]:
    """``found``, with zeros for what is missing."""
    return {
        name: _cast(found[name], like) if name in found else jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), like)
        for name, like in types.items()
    }


def plain(tree: Any) -> Any:
    """Named tuples and dataclasses as dicts of their fields, lists as tuples; arrays as they are."""
    if isinstance(tree, tuple) and hasattr(tree, "_asdict"):
        return {name: plain(x) for name, x in tree._asdict().items()}
    if dataclasses.is_dataclass(tree) and not isinstance(tree, type) and not hasattr(tree, "dtype"):
        return {field.name: plain(getattr(tree, field.name)) for field in dataclasses.fields(tree)}
    if isinstance(tree, dict):
        return {str(name): plain(x) for name, x in tree.items()}
    if isinstance(tree, tuple | list):
        return tuple(plain(x) for x in tree)
    return tree


def scalars(metrics: Any) -> dict[str, Any]:
    """The entries of a native metrics dict that are single numbers."""
    return {str(name): jnp.asarray(x) for name, x in dict(metrics).items() if jnp.shape(x) == ()}


def array_space(like: Any, low: Any = None, high: Any = None) -> gym_spaces.Space:
    """The space of one array, from its shape and dtype and whatever bounds are known.

    Args:
      like: something with ``shape`` and ``dtype``.
      low, high: bounds that broadcast to the shape; left out where they do not.
    """
    dtype, shape = np.dtype(like.dtype), tuple(like.shape)
    if np.issubdtype(dtype, np.bool_):
        return gym_spaces.MultiBinary(shape) if shape else gym_spaces.Discrete(2)
    if np.issubdtype(dtype, np.integer):
        bottom: Any = np.iinfo(dtype).min
        top: Any = np.iinfo(dtype).max
        kind: Any = dtype.type
    else:
        bottom, top, kind = -np.inf, np.inf, np.float32
    return gym_spaces.Box(
        _bound(low, bottom, bottom, top, shape, kind), _bound(high, top, bottom, top, shape, kind), shape, kind
    )


def _bound(value: Any, default: Any, bottom: Any, top: Any, shape: tuple[int, ...], kind: Any) -> np.ndarray:
    try:
        full = np.broadcast_to(np.asarray(default if value is None else value), shape)
    except ValueError:
        full = np.full(shape, default)
    if np.issubdtype(kind, np.integer):
        # clip as Python integers: float64 cannot hold the ends of int64
        flat = [min(max(int(x) if math.isfinite(x) else (bottom if x < 0 else top), bottom), top) for x in full.ravel()]
        return np.asarray(flat, kind).reshape(shape)
    big = np.finfo(np.float32).max
    full = np.where(np.abs(full) >= big, np.copysign(np.inf, full), full)  # "as large as a float can be" means no bound
    return full.astype(kind)


def tree_space(like: Any, bounds: Any = None) -> gym_spaces.Space:
    """The space of an observation: its shape comes from ``like``, bounds from ``bounds`` as far as they fit.

    Args:
      like: a PyTree of dicts, tuples and ``jax.ShapeDtypeStruct``.
      bounds: a function of the path (a tuple of keys) that gives ``(low, high)`` or None.
    """

    def walk(part: Any, path: tuple[Any, ...]) -> gym_spaces.Space:
        if isinstance(part, dict):
            return gym_spaces.Dict({name: walk(x, (*path, name)) for name, x in part.items()})
        if isinstance(part, tuple):
            return gym_spaces.Tuple([walk(x, (*path, i)) for i, x in enumerate(part)])
        found = None if bounds is None else bounds(path)
        return array_space(part, *(found or (None, None)))

    return walk(like, ())


def action_box(
    low: Any, high: Any, shape: tuple[int, ...], name: str
) -> tuple[gym_spaces.Box, tuple[np.ndarray, np.ndarray]]:
    """Our box of [-1, 1] for native actions in [low, high], and that range.

    A scalar becomes a box of one number.

    Raises:
      ConfigError: a bound is not finite, so that nothing can be scaled to it.
    """
    size = shape or (1,)
    bottom, top = (np.broadcast_to(np.asarray(x, np.float32), shape).reshape(size) for x in (low, high))
    if not (np.isfinite(bottom).all() and np.isfinite(top).all()):
        raise ConfigError(
            f"{name}: actions range from {bottom.min()} to {top.max()}; expected finite bounds, which [-1, 1] is scaled to"
        )
    return spaces.box(-1.0, 1.0, size), (bottom, top)
