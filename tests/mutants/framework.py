"""Mutants: does a test notice when what it guards is broken?

A mutant patches one function for a while, runs one test of the suite in this process, and requires that the test fails,
by an assertion: a crash would prove nothing. The same test must pass unpatched, by the same route.
"""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import importlib
import inspect
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import jax
import pytest

#: How a test says no. ``pytest.fail`` and ``pytest.raises`` that raised nothing are not AssertionErrors.
REFUSALS = (AssertionError, pytest.fail.Exception)


@dataclasses.dataclass(frozen=True)
class Mutant:
    """One way to break one invariant.

    Attributes:
      name: short, unique.
      invariant: its number in ``README.md`` beside this file.
      breaks: what is done, in a few words.
      target: what is patched, ``"module:attribute"`` or ``"module:Class.method"``.
      replacement: given the original, returns what takes its place.
      test: ``"module:function"`` of the test that must notice, the module as its file is called.
      arguments: values for parameters of the test that are no fixtures.
      refusals: exception types that count as noticing, besides a failed assertion.
    """

    name: str
    invariant: int
    breaks: str
    target: str
    replacement: Callable[[Any], Any]
    test: str
    arguments: dict[str, Any] = dataclasses.field(default_factory=dict)
    refusals: tuple[type[BaseException], ...] = ()

    @contextlib.contextmanager
    def active(self) -> Iterator[None]:
        """The patch, for the length of a block. Compiled programs are forgotten on both sides."""
        owner, attribute = locate(self.target)
        original = inspect.getattr_static(owner, attribute)
        plain = original.__func__ if isinstance(original, staticmethod | classmethod) else original
        broken = self.replacement(plain)
        if isinstance(original, staticmethod | classmethod):
            broken = type(original)(broken)
        jax.clear_caches()
        try:
            with mock.patch.object(owner, attribute, broken):
                yield
        finally:
            jax.clear_caches()
            gc.collect()

    def run_test(self, request: pytest.FixtureRequest) -> None:
        """Call the test with its fixtures (``conftest.py`` and pytest), in double precision if it is marked so."""
        module, function = self.test.split(":")
        test = getattr(importlib.import_module(module), function)
        marks = {mark.name for mark in getattr(test, "pytestmark", [])}
        values = {
            name: self.arguments[name] if name in self.arguments else request.getfixturevalue(name)
            for name in inspect.signature(test).parameters
        }
        with jax.enable_x64(True) if "x64" in marks else contextlib.nullcontext():
            test(**values)

    def is_noticed(self, request: pytest.FixtureRequest) -> None:
        """Fail unless the test passes without the patch and refuses with it."""
        self.run_test(request)
        with self.active():
            try:
                self.run_test(request)
            except (*REFUSALS, *self.refusals):
                return
        pytest.fail(f"{self.test} does not notice that {self.target} {self.breaks}")


def locate(target: str) -> tuple[Any, str]:
    """The object that holds the attribute, and the attribute's name."""
    module, path = target.split(":")
    owner: Any = importlib.import_module(module)
    *parents, attribute = path.split(".")
    for parent in parents:
        owner = getattr(owner, parent)
    return owner, attribute
