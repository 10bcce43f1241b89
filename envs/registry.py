"""Environments by name: ``register``, ``make``, ``names``, ``spec``.

An entry is a factory (usually a class), or the string ``"module:attribute"`` of one, which is imported only when the
environment is made. Another package adds environments to mjxlab without being imported by declaring, in its
``pyproject.toml``::

    [project.entry-points."mjxlab.envs"]
    my_robot = "my_package.robots:MyRobot"

Names with a colon, such as ``gymnax:CartPole-v1``, are environments of other suites (``mjxlab.envs.adapters``).
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import importlib
import importlib.metadata
import inspect
import re
from collections.abc import Callable, Iterable
from typing import Any

from mjxlab.envs.adapters import PREFIXES
from mjxlab.envs.base import Env
from mjxlab.errors import ConfigError, UnknownNameError

GROUP = "mjxlab.envs"
_PARTS = ("reset", "step", "observation_space", "action_space", "episode_length")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.\-]*")


@dataclasses.dataclass(frozen=True)
class EnvSpec:
    """What is known of an environment before it is made.

    Attributes:
      name: what ``make`` is called with.
      entry: the factory, or ``"module:attribute"`` of it.
      tags: words to search by (``"locomotion"``, ``"goal"``, ``"toy"`` …).
      description: one line.
    """

    name: str
    entry: str | Callable[..., Any]
    tags: tuple[str, ...] = ()
    description: str = ""

    def load(self) -> Callable[..., Any]:
        """The factory itself, imported if need be."""
        if not isinstance(self.entry, str):
            return self.entry
        module, _, attribute = self.entry.partition(":")
        try:
            found: Any = importlib.import_module(module)
            return functools.reduce(getattr, attribute.split("."), found)
        except (ImportError, AttributeError) as error:
            raise ConfigError(f"environment {self.name!r} cannot be loaded from {self.entry!r}: {error}") from error


_specs: dict[str, EnvSpec] = {}


def register(
    name: str,
    entry: str | Callable[..., Any],
    *,
    tags: Iterable[str] = (),
    description: str = "",
    replace: bool = False,
) -> EnvSpec:
    """Make an environment known as ``name``.

    Args:
      name: letters, digits, ``_``, ``-`` and ``.``.
      entry: a factory that returns an environment, or ``"module:attribute"`` of one. Keyword arguments of ``make``
        go to it; it is given ``engine`` if it has such a parameter.
      tags: words to search by.
      description: one line for listings.
      replace: allow a name that is taken.

    Raises:
      ConfigError: the name is malformed or taken, or the entry is neither callable nor ``"module:attribute"``.
    """
    if not _NAME.fullmatch(name):
        raise ConfigError(f"environment name {name!r}: expected letters, digits, '_', '-' and '.' only")
    if isinstance(entry, str) and not re.fullmatch(r"[\w.]+:[\w.]+", entry):
        raise ConfigError(f"environment {name!r}: entry is {entry!r}; expected 'module:attribute' or a callable")
    new = EnvSpec(name, entry, tuple(tags), description)
    if name in _specs and not replace and _specs[name] != new:
        raise ConfigError(
            f"environment name {name!r} is taken by {_specs[name].entry!r}; pass replace=True to replace it"
        )
    _specs[name] = new
    return new


@functools.cache
def _installed() -> dict[str, EnvSpec]:
    """Environments that other installed packages declare; nothing of theirs is imported here."""
    return {
        point.name: EnvSpec(point.name, point.value, ("installed",), f"from {point.dist.name if point.dist else '?'}")
        for point in importlib.metadata.entry_points(group=GROUP)
    }


def names(tag: str | None = None) -> list[str]:
    """All registered names, those of installed packages included, in order; with ``tag``, those that carry it."""
    known = _installed() | _specs
    return sorted(name for name, entry in known.items() if tag is None or tag in entry.tags)


def spec(name: str) -> EnvSpec:
    """What is known of ``name``.

    Raises:
      UnknownNameError: no such environment; the message lists the closest names.
    """
    known = _installed() | _specs
    suite, colon, inner = name.partition(":")
    if colon and name not in known:
        return _of_suite(suite, inner, name)
    if name not in known:
        close = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
        hint = f"did you mean {' or '.join(map(repr, close))}?" if close else f"known: {', '.join(sorted(known))}"
        raise UnknownNameError(f"unknown environment {name!r}; {hint}")
    return known[name]


def _of_suite(suite: str, inner: str, name: str) -> EnvSpec:
    """What ``suite:inner`` is made by."""
    if suite not in PREFIXES:
        known = ", ".join(f"{prefix}:" for prefix in PREFIXES)
        raise UnknownNameError(f"unknown environment {name!r}; before the colon, one of {known} is expected")
    adapter = getattr(importlib.import_module("mjxlab.envs.adapters"), f"from_{suite}")
    return EnvSpec(name, functools.partial(adapter, inner), ("adapted", suite), f"from {suite}")


def make(name: str, engine: str | None = "auto", **kwargs: Any) -> Env:
    """An environment by name.

    Args:
      name: a registered name (``mjxlab.envs.names()`` lists them), or one of another suite behind its prefix:
        ``"gymnax:CartPole-v1"``, ``"brax:ant"``, ``"playground:CartpoleBalance"``, ``"jumanji:Maze-v0"``,
        ``"jaxmarl:MPE_simple_spread_v3"``.
      engine: physics engine: ``"auto"``, ``"mujoco"``, ``"mjx"`` or ``"warp"``. Environments without
        physics take ``"auto"`` only.
      **kwargs: go to the environment.

    Raises:
      UnknownNameError: no such environment.
      ConfigError: an argument that the environment does not take; the message lists those that it does.
    """
    factory = spec(name).load()
    parameters = inspect.signature(factory).parameters
    anything = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    accepted = [n for n, p in parameters.items() if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    adapted = ":" in name and name not in names()  # its further arguments go to the other suite
    if "engine" in accepted or (anything and not adapted):
        kwargs = {"engine": engine, **kwargs}
    elif engine not in ("auto", None):
        raise ConfigError(f"environment {name!r} has no physics engine: engine is {engine!r}, expected 'auto'")
    for argument in () if anything else kwargs:
        if argument not in accepted:
            raise ConfigError(_unknown_argument(name, argument, accepted))
    try:
        env = factory(**kwargs)
    except TypeError as error:
        # a factory that takes **kwargs and hands them on
        found = re.search(r"unexpected keyword argument '(\w+)'", str(error))
        if found is None or found[1] not in kwargs:
            raise
        raise ConfigError(_unknown_argument(name, found[1], accepted)) from error
    lacking = [part for part in _PARTS if not hasattr(env, part)]
    if lacking:
        raise ConfigError(f"environment {name!r}: its entry returned {type(env).__name__}, which has no {lacking[0]}")
    return env


def _unknown_argument(name: str, argument: str, accepted: list[str]) -> str:
    takes = ", ".join(accepted) or "no arguments"
    return f"environment {name!r} does not take {argument!r}; it takes {takes}"


_OWN = """
pendulum | classic:Pendulum | classic | swing a pole up and hold it
inverted_double_pendulum | classic:InvertedDoublePendulum | classic | balance two poles on a cart
cartpole | classic:Cartpole | classic | balance a pole on a cart
reacher | classic:Reacher | classic | bring a two-link arm's tip to a target
hopper | locomotion:Hopper | locomotion | hop forward on one leg
half_cheetah | locomotion:HalfCheetah | locomotion | run forward in the plane
walker | locomotion:Walker | locomotion | walk forward in the plane on two legs
ant | locomotion:Ant | locomotion | run forward on four legs
humanoid | locomotion:Humanoid | locomotion | run forward on two legs
arm_reach | arm:ArmReach | arm goal | bring a 7-joint arm's hand within 5 cm of a goal
arm_push | arm:ArmPush | arm goal | push a puck to a goal with a 7-joint arm
reacher_goal | goal:ReacherGoal | goal | bring a two-link arm's tip within 2 cm of a goal
ant_goal | goal:AntGoal | goal | walk to a goal on four legs
point_u_maze | goal:PointUMaze | goal maze | drive a point through a U-shaped maze to a goal
point_big_maze | maze:PointBigMaze | goal maze | drive a point through a maze with loops and dead ends to a goal
ant_u_maze | maze:AntUMaze | goal maze | walk through a U-shaped maze to a goal on four legs
four_rooms | grid_nav:FourRooms | goal grid maze | go to a cell of a house of four rooms
random_maze | grid_nav:RandomMaze | goal grid maze | go to a cell of a maze that is new in every episode
key_door | grid_key_door:KeyDoor | goal grid | fetch a key, pass a door, go to a cell
sokoban_lite | grid_sokoban:SokobanLite | goal grid | push a box to a cell, without getting it stuck
lights_out_lite | grid_lights:LightsOutLite | goal grid | switch lights, with their neighbours, into a given pattern
fast | fast:Fast | toy goal | a point that moves as told, without physics
toy_constant | toys:Constant | toy | one step, reward 1: the value is 1
toy_sign | toys:Sign | toy | one step, reward = observation = value
toy_delay | toys:Delay | toy | reward 1 at the second step: values gamma and 1
toy_steer | toys:Steer | toy | one step, reward for the right action: best value 1
toy_match | toys:Match | toy | one step, the action must fit the observation: best value 1
toy_cut | toys:Cut | toy | never ends, only cut: values gamma / (1 - gamma), 1 / (1 - gamma)
"""

for _line in _OWN.strip().splitlines():
    _own, _entry, _tags, _description = (part.strip() for part in _line.split("|"))
    register(_own, f"mjxlab.envs.{_entry}", tags=_tags.split(), description=_description)
