"""Mutants: does a test notice when what it guards is broken?

A mutant patches one function for a while, runs one test of the suite in this process, and requires that the test fails,
by an assertion: a crash would prove nothing. The same test must pass unpatched, by the same route.
"""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import importlib
import importlib.util
import inspect
import itertools
import pathlib
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import jax
import pytest

TESTS = pathlib.Path(__file__).resolve().parent.parent

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
      arguments: values for parameters of the test that are no fixtures (``parametrize``).
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
        """Run the test in a new copy of its module, so that nothing that the module keeps outlives the patch.

        It is given its own fixtures, and those of ``conftest.py`` and pytest; in double precision if it is marked so.
        """
        name, function = self.test.split(":")
        module = fresh_copy(name)
        test = getattr(module, function)
        marks = {mark.name for mark in getattr(test, "pytestmark", [])}
        with contextlib.ExitStack() as stack:
            if "x64" in marks:
                stack.enter_context(jax.enable_x64(True))
            fixtures = Fixtures(module, request, stack, dict(self.arguments))
            test(**fixtures.for_parameters(test))

    def is_noticed(self, request: pytest.FixtureRequest) -> None:
        """Fail unless the test passes without the patch and refuses with it."""
        with _compiling_quickly():
            self.run_test(request)
            with self.active():
                try:
                    self.run_test(request)
                except (*REFUSALS, *self.refusals):
                    return
        pytest.fail(f"{self.test} does not notice that {self.target} {self.breaks}")


@contextlib.contextmanager
def _compiling_quickly() -> Iterator[None]:
    """What is computed matters here, not how fast, and compiling is most of the time."""
    jax.config.update("jax_disable_most_optimizations", True)
    try:
        yield
    finally:
        jax.config.update("jax_disable_most_optimizations", False)


class Fixtures:
    """Values for the parameters of a test: given ones, then the module's fixtures, then those of the whole suite."""

    def __init__(
        self,
        module: types.ModuleType,
        request: pytest.FixtureRequest,
        stack: contextlib.ExitStack,
        made: dict[str, Any],
    ) -> None:
        self.module, self.request, self.stack, self.made = module, request, stack, made

    def for_parameters(self, function: Callable[..., Any]) -> dict[str, Any]:
        return {name: self.value(name) for name in inspect.signature(function).parameters}

    def value(self, name: str) -> Any:
        if name not in self.made:
            self.made[name] = self._make(name)
        return self.made[name]

    def _make(self, name: str) -> Any:
        if name == "tmp_path":  # another one for each run
            return self.request.getfixturevalue("tmp_path_factory").mktemp("mutant")
        fixture = getattr(self.module, name, None)
        if fixture is None or not hasattr(fixture, "__wrapped__"):
            return self.request.getfixturevalue(name)
        function = inspect.unwrap(fixture)
        value = function(**self.for_parameters(function))
        return self.stack.enter_context(_as_context(value)) if inspect.isgenerator(value) else value


@contextlib.contextmanager
def _as_context(generator: Iterator[Any]) -> Iterator[Any]:
    yield next(generator)
    next(generator, None)


_copies = itertools.count()


def fresh_copy(name: str) -> types.ModuleType:
    """A module of the suite, executed anew under a name of its own; modules that are no files of it as they are."""
    path = TESTS / f"{name}.py"
    if not path.exists():
        return importlib.import_module(name)
    spec = importlib.util.spec_from_file_location(f"{name}_copy{next(_copies)}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look themselves up there
    spec.loader.exec_module(module)
    return module


def locate(target: str) -> tuple[Any, str]:
    """The object that holds the attribute, and the attribute's name."""
    module, path = target.split(":")
    owner: Any = importlib.import_module(module)
    *parents, attribute = path.split(".")
    for parent in parents:
        owner = getattr(owner, parent)
    return owner, attribute
