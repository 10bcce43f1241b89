"""What ``fit(batches=…)`` accepts, and how each kind resumes."""

from __future__ import annotations

import base64
import copy
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import jax
import numpy as np

from mjxlab.errors import ConfigError

Batches = Callable[[int], Any] | Iterable[Any]


class Feed:
    """Batches by update number, from any of the kinds below. A batch is a PyTree of arrays; all have one shape.

    ============================================ ============================================================
    ``batches``                                  resumes at update u by
    ============================================ ============================================================
    a function ``step -> batch``                 calling it with u: the simplest exact form
    indexable, with a length                     ``batches[u % len(batches)]``
    an iterator with ``state_dict()`` and        its state, kept in the checkpoint
    ``load_state_dict()`` (or ``get_state()``
    and ``set_state()``, as Grain has them)
    any other iterable                           starting it anew and skipping u batches; exact if it gives the
                                                 same sequence each time
    ============================================ ============================================================

    A batch is global: all processes give the same one, and each device is sent its part of axis 0.
    """

    def __init__(self, batches: Batches | None) -> None:
        self._source, self._next = batches, 0
        self._iterator: Iterator[Any] | None = None
        self._held: list[Any] = []
        self._before: Any = None
        self._structure: Any = None
        if batches is not None and not callable(batches) and not self._indexable:
            if isinstance(batches, dict) or not isinstance(batches, Iterable):
                raise ConfigError(
                    f"batches: got {type(batches).__name__}, expected a function of the step, a sequence or an iterable"
                )
            self._iterator = iter(batches)

    @property
    def _indexable(self) -> bool:
        source = self._source
        return hasattr(source, "__getitem__") and hasattr(source, "__len__") and not isinstance(source, dict)

    def state(self) -> Any:
        """What a checkpoint keeps of the position: the iterator's own state, or None."""
        if self._held:
            return self._before  # a batch was read to learn its shapes, but not used yet
        for owner in (self._iterator, self._source):
            for get in ("state_dict", "get_state"):
                if self._iterator is not None and hasattr(owner, get):
                    return copy.deepcopy(getattr(owner, get)())
        return None

    def seek(self, step: int, state: Any = None) -> None:
        """Continue with the batch of update ``step``; ``state`` is what ``state()`` gave there."""
        self._next, self._held = step, []
        if self._iterator is None:
            return
        for owner in (self._iterator, self._source):
            for put in ("load_state_dict", "set_state"):
                if state is not None and hasattr(owner, put):
                    getattr(owner, put)(state)
                    return
        for _ in range(step):
            self._draw()

    def first(self) -> Any:
        """The next batch, without moving on: its shapes are what the program is compiled for."""
        if self._source is None:
            return None
        if not self._held:
            self._before = self.state()
            self._held = [self._read(self._next)]
        return self._held[0]

    def take(self, count: int) -> list[Any] | None:
        """The next ``count`` batches; None if the learner collects its own."""
        if self._source is None:
            return None
        taken, self._held = self._held[:count], self._held[count:]
        taken += [self._read(self._next + i) for i in range(len(taken), count)]
        self._next += count
        return taken

    def _read(self, step: int) -> Any:
        source: Any = self._source
        if self._iterator is not None:
            batch = self._draw()
        elif callable(source):
            batch = source(step)
        else:
            if len(source) == 0:
                raise ConfigError("batches: got an empty sequence, expected at least one batch")
            batch = source[step % len(source)]
        batch = jax.tree.map(_array, batch)
        described = jax.tree.map(lambda x: (x.shape, x.dtype.name), batch)
        if self._structure is None:
            self._structure = described
        elif described != self._structure:
            raise ConfigError(f"batches: batch {step} has shapes {described}, expected {self._structure} as the first")
        return batch

    def _draw(self) -> Any:
        assert self._iterator is not None
        try:
            return next(self._iterator)
        except StopIteration:
            raise ConfigError(
                "batches: came to an end before the last update; pass itertools.cycle(…), a sequence, or fewer steps"
            ) from None


def encode(state: Any) -> Any:
    """An iterator's state as plain JSON, to be kept in a checkpoint: numbers, strings, bytes, arrays, nested."""
    if isinstance(state, bytes):
        return {"__bytes__": base64.b64encode(state).decode()}
    if isinstance(state, np.ndarray | np.generic):
        return {"__bytes__": base64.b64encode(state.tobytes()).decode(), "dtype": state.dtype.str, "shape": state.shape}
    if isinstance(state, dict) and all(isinstance(k, str) for k in state):
        return {k: encode(v) for k, v in state.items()}
    if isinstance(state, list | tuple):
        return [encode(v) for v in state]
    if state is None or isinstance(state, bool | int | float | str):
        return state
    raise ConfigError(
        f"batches: its state holds a {type(state).__name__}, expected numbers, strings, bytes, arrays, lists and dicts"
    )


def decode(saved: Any) -> Any:
    """What ``encode`` was given; tuples come back as lists."""
    if isinstance(saved, dict) and "__bytes__" in saved:
        raw = base64.b64decode(saved["__bytes__"])
        if "dtype" not in saved:
            return raw
        return np.frombuffer(raw, saved["dtype"]).reshape(saved["shape"]).copy()
    if isinstance(saved, dict):
        return {k: decode(v) for k, v in saved.items()}
    return [decode(v) for v in saved] if isinstance(saved, list) else saved


def _array(x: Any) -> np.ndarray:
    """NumPy, in the dtype that JAX will give it (float64 becomes float32 unless x64 is on)."""
    x = np.asarray(x)
    return x.astype(jax.dtypes.canonicalize_dtype(x.dtype), copy=False)
