"""Environments by name."""

from __future__ import annotations

import importlib
import pathlib
import sys
from collections.abc import Iterator
from typing import Any

import jax
import pytest

import mjxlab
from mjxlab.envs import Env, make, names, register, registry, spec
from mjxlab.envs.fast import Fast
from mjxlab.errors import ConfigError, MjxlabError, UnknownNameError

OWN = """pendulum inverted_double_pendulum cartpole reacher hopper half_cheetah walker ant humanoid arm_reach
reacher_goal arm_push ant_goal point_u_maze point_big_maze ant_u_maze four_rooms random_maze key_door sokoban_lite
lights_out_lite fast""".split()


@pytest.fixture(autouse=True)
def _leave_no_names() -> Iterator[None]:
    before = dict(registry._specs)
    yield
    registry._specs.clear()
    registry._specs.update(before)
    registry._installed.cache_clear()


def message(error: type[Exception], call: Any) -> str:
    with pytest.raises(error) as caught:
        call()
    assert isinstance(caught.value, MjxlabError) and "\n" not in str(caught.value)
    return str(caught.value)


def test_the_first_environments_are_there() -> None:
    assert set(OWN) < set(names()) and len(names("toy")) == 7
    grids = {"four_rooms", "key_door", "lights_out_lite", "random_maze", "sokoban_lite"}
    robots = {"ant_goal", "ant_u_maze", "arm_push", "arm_reach", "point_big_maze", "point_u_maze", "reacher_goal"}
    assert set(names("grid")) == grids and set(names("goal")) == grids | robots | {"fast"}
    assert all(spec(name).description for name in OWN)


@pytest.mark.parametrize("name", names())
def test_each_can_be_made(name: str) -> None:
    env = make(name)
    assert isinstance(env, Env) and env.episode_length >= 1
    assert env.name == name  # type: ignore[attr-defined]
    shapes = jax.eval_shape(env.reset, jax.random.key(0))
    assert shapes.reward.shape == ()


def test_mjxlab_make_is_this_one() -> None:
    assert mjxlab.make("fast", speed=0.5).speed == 0.5


def test_nothing_is_imported_before_it_is_made() -> None:
    register("later", "no_such_module_anywhere:Thing")
    assert "later" in names()
    text = message(ConfigError, lambda: make("later"))
    assert "'later'" in text and "'no_such_module_anywhere:Thing'" in text and "No module" in text
    register("attribute", "mjxlab.envs.fast:Slow")
    assert "Slow" in message(ConfigError, lambda: make("attribute"))


def test_unknown_names_are_told_with_what_is_near() -> None:
    text = message(UnknownNameError, lambda: make("half_cheeta"))
    assert "'half_cheeta'" in text and "'half_cheetah'" in text
    assert "pendulum" in message(UnknownNameError, lambda: spec("xyzzy"))


class Robot(Fast):
    def __init__(self, size: float = 1.0, engine: str = "auto"):
        super().__init__()
        self.size, self.kind = size, engine


def build(**kwargs: Any) -> Robot:
    """A factory that hands everything on."""
    return Robot(**kwargs)


def test_arguments() -> None:
    register("robot", Robot)
    register("built", build)
    for name in ("robot", "built"):
        env: Any = make(name, engine="mjx", size=2.0)
        assert env.size == 2.0 and env.kind == "mjx"
        text = message(ConfigError, lambda name=name: make(name, sise=2.0))
        assert f"'{name}'" in text and "'sise'" in text
    assert "size, engine" in message(ConfigError, lambda: make("robot", sise=2.0))
    assert "engine is 'mjx'" in message(ConfigError, lambda: make("fast", engine="mjx"))
    assert "speed" in message(ConfigError, lambda: make("fast", speed=-1.0))


def test_what_is_no_environment_is_told() -> None:
    register("nothing", lambda: object())
    text = message(ConfigError, lambda: make("nothing"))
    assert "'nothing'" in text and "object" in text and "no reset" in text


def test_an_error_inside_is_not_taken_for_a_wrong_argument() -> None:
    def broken(size: float = 1.0) -> Any:
        return build(length=size)

    register("broken", broken)
    with pytest.raises(TypeError, match="length"):
        make("broken")


def test_names_are_not_taken_twice_by_accident() -> None:
    register("robot", Robot)
    register("robot", Robot)  # the same again: a module that is imported twice
    assert "robot" in message(ConfigError, lambda: register("robot", build))
    register("robot", build, replace=True)
    assert spec("robot").entry is build
    assert "'a b'" in message(ConfigError, lambda: register("a b", Robot))
    assert "'module:attribute'" in message(ConfigError, lambda: register("other", "mjxlab.envs.fast.Fast"))


def test_installed_packages_add_theirs(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A package on the path declares an entry point; it is imported when its environment is made."""
    info = tmp_path / "my_robots-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: my_robots\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[mjxlab.envs]\nplug = my_robots:Plug\nant = my_robots:Plug\n")
    (tmp_path / "my_robots.py").write_text("from mjxlab.envs.fast import Fast\nclass Plug(Fast):\n    name = 'plug'\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    importlib.invalidate_caches()
    registry._installed.cache_clear()
    assert "plug" in names() and "plug" in names("installed") and "my_robots" in spec("plug").description
    assert "my_robots" not in sys.modules
    assert type(make("plug")).__name__ == "Plug"
    assert spec("ant").entry == "mjxlab.envs.locomotion:Ant"  # ours are not taken over
    sys.modules.pop("my_robots")
