"""The mutants. ``README.md`` beside this file says what each invariant is."""

from __future__ import annotations

from mutants.framework import Mutant

MUTANTS: list[Mutant] = []
