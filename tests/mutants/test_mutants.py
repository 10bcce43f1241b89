"""Every mutant is noticed, and every invariant has one."""

from __future__ import annotations

import dataclasses
import pathlib

import pytest
from mutants.framework import Mutant
from mutants.table import MUTANTS

INVARIANTS = range(1, 13)


@pytest.mark.slow
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: f"{mutant.invariant}-{mutant.name}")
def test_is_noticed(mutant: Mutant, request: pytest.FixtureRequest) -> None:
    mutant.is_noticed(request)


@pytest.mark.parametrize("invariant", INVARIANTS)
def test_every_invariant_has_a_mutant(invariant: int) -> None:
    assert any(mutant.invariant == invariant for mutant in MUTANTS)


def test_the_readme_tells_of_each() -> None:
    lines = (pathlib.Path(__file__).parent / "README.md").read_text().splitlines()
    rows = {cells[1].strip(): line for line in lines if (cells := line.split("|"))[0] == "" and len(cells) > 4}
    for mutant in MUTANTS:
        row = rows[str(mutant.invariant)]
        assert f"`{mutant.name}`" in row
        assert f"`{mutant.test.split(':')[0]}`" in row


def test_names_are_unique() -> None:
    names = [mutant.name for mutant in MUTANTS]
    assert len(names) == len(set(names))


def _holds(value: int = 1) -> int:
    return value


def _notices() -> None:
    assert _holds() == 1


def _does_not_notice() -> None:
    assert _holds() in (1, 2)


def _mutant(test: str, replacement=lambda original: lambda: 2) -> Mutant:
    return Mutant("x", 1, "gives 2", f"{__name__}:_holds", replacement, f"{__name__}:{test}")


def test_the_framework_accepts_a_test_that_notices(request: pytest.FixtureRequest) -> None:
    _mutant("_notices").is_noticed(request)
    assert _holds() == 1  # the patch is gone


def test_the_framework_rejects_a_test_that_does_not_notice(request: pytest.FixtureRequest) -> None:
    with pytest.raises(pytest.fail.Exception, match="does not notice"):
        _mutant("_does_not_notice").is_noticed(request)


def test_a_test_that_fails_anyway_is_no_witness(request: pytest.FixtureRequest) -> None:
    mutant = dataclasses.replace(_mutant("_notices"), test=f"{__name__}:_always_fails")
    with pytest.raises(AssertionError, match="anyway"):
        mutant.is_noticed(request)


def _always_fails() -> None:
    raise AssertionError("anyway")


def test_a_crash_is_not_noticing(request: pytest.FixtureRequest) -> None:
    def crash(original):
        def broken():
            raise TypeError("broken patch")

        return broken

    with pytest.raises(TypeError, match="broken patch"):
        _mutant("_notices", crash).is_noticed(request)
