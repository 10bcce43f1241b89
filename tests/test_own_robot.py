"""The example of one's own robot: it is what the documentation shows, it passes the checks, and it learns."""

from __future__ import annotations

import importlib.util
import pathlib
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
import pytest

from mjxlab.envs import registry

HERE = pathlib.Path(__file__).resolve().parent
FILES = HERE / "own_robot"


@pytest.fixture
def beam() -> Iterator[Any]:
    spec = importlib.util.spec_from_file_location("own_robot_beam", FILES / "beam.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    registry._specs.pop("beam")


@pytest.mark.parametrize("name", ["beam.py", "beam.xml"])
def test_the_page_shows_the_files(name: str) -> None:
    page = HERE.parent / "docs" / "own_robot.md"
    if not page.exists():
        pytest.skip("no docs beside these tests")
    kind = {"py": "python", "xml": "xml"}[name.rpartition(".")[2]]
    assert f"```{kind}\n{(FILES / name).read_text()}```" in page.read_text()


def test_it_is_about_forty_lines() -> None:
    task = (FILES / "beam.py").read_text().split("def train")[0]
    assert len([line for line in task.splitlines() if line.strip()]) <= 40


def test_it_is_checked_and_trained(beam: Any) -> None:
    jax.config.update("jax_disable_most_optimizations", True)
    try:
        _, history = beam.train(updates=2, sinks=())
    finally:
        jax.config.update("jax_disable_most_optimizations", False)
    assert np.isfinite(history["loss"]).all() and np.isfinite(history["eval/return_mean"]).all()
    assert (history["eval/episodes"] == 64).all() and (history["eval/nonfinite"] == 0).all()


@pytest.mark.slow
def test_it_learns(beam: Any) -> None:
    """The ball stays on for 200 steps, near the middle: reached after about 40 updates; a level beam earns 95."""
    _, history = beam.train(sinks=())
    assert history["eval/length_mean"][-1] > 195 and history["eval/return_mean"][-1] > 140
