"""Domain randomisation: model fields drawn anew at each reset, for each world by itself.

A *randomisation* is a function ``fn(key, model) -> fields``: from a key and the ``MjModel`` it draws a dict of model
fields (``"body_mass"``, ``"geom_friction"``, ``"opt.gravity"`` …), each of the field's full shape. A MuJoCo environment
takes it as its ``randomise=`` argument, keeps it bound to its model as ``env.randomise`` (a function of the key alone,
or None), calls that at every reset, and stores what was drawn in ``State.params["fields"]``, from where every
physics step reads it::

    env = mjxlab.make("ant", randomise=combine(mass(0.8, 1.2), friction(0.5, 1.5)))

Functions that return fields are in ``mjxlab.physics.perturb``; those here are the same ones with the range given first.
A world's key follows from its global number and its episode, so worlds differ, devices differ, and episodes differ.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import jax
import mujoco
from jaxtyping import Array, Key

from mjxlab.envs._trees import describe
from mjxlab.envs.base import Env, env_name
from mjxlab.errors import ConfigError, MjxlabError
from mjxlab.physics import perturb

Fields = dict[str, Array]
Randomise = Callable[[Key[Array, ""], mujoco.MjModel], Fields]
Hook = Callable[[Key[Array, ""]], Fields]


def bind(fn: Randomise | None, model: mujoco.MjModel) -> Hook | None:
    """``fn`` as a function of the key alone, checked once without computing anything; None for None.

    Raises:
      ConfigError: ``fn`` does not return a dict, or a field is unknown or of the wrong shape.
    """
    if fn is None:
        return None
    drawn = jax.eval_shape(lambda key: fn(key, model), jax.random.key(0))
    if not isinstance(drawn, dict):
        raise ConfigError(f"randomise: the function returned {type(drawn).__name__}; expected a dict of model fields")
    for name, value in drawn.items():
        try:
            own = jax.eval_shape(lambda name=name: perturb.field(model, name))
        except MjxlabError as error:
            raise ConfigError(f"randomise: {error}") from error
        if value.shape != own.shape:
            raise ConfigError(f"randomise: {name} is {describe(value)}; expected {describe(own)}, as in the model")

    def hook(key: Key[Array, ""]) -> Fields:
        return fn(key, model)

    return hook


def randomise(env: Env, fn: Randomise | None) -> Env:
    """A MuJoCo environment like ``env`` that draws its model fields with ``fn`` (None: no longer draws any).

    Raises:
      ConfigError: ``env`` has no physics engine, or ``fn`` does not fit its model.
    """
    engine = getattr(env, "engine", None)
    if engine is None or not hasattr(env, "randomise"):
        raise ConfigError(f"environment {env_name(env)!r} has no MuJoCo model whose fields could be randomised")
    new: Any = copy.copy(env)
    new.randomise = bind(fn, engine.model)
    return new


def combine(*fns: Randomise) -> Randomise:
    """All of them, each with a key of its own.

    Raises (when bound):
      ConfigError: two of them draw the same field.
    """

    def all_of_them(key: Key[Array, ""], model: mujoco.MjModel) -> Fields:
        fields: Fields = {}
        for i, fn in enumerate(fns):
            drawn = fn(jax.random.fold_in(key, i), model)
            for name in drawn:
                if name in fields:
                    raise ConfigError(f"randomise: {name} is drawn twice by what is combined; draw it once")
            fields |= drawn
        return fields

    return all_of_them


def draw(function: Callable[..., Fields], *args: Any, **kwargs: Any) -> Randomise:
    """One of the functions of ``mjxlab.physics.perturb`` that return fields, with all but its key and model given.

    Example:
      >>> heavy_or_light = draw(perturb.mass, 0.8, 1.2, shared=True)
    """
    return lambda key, model: function(key, model, *args, **kwargs)


def mass(low: float, high: float, **kwargs: Any) -> Randomise:
    """Masses and inertias of the bodies times factors from [low, high]."""
    return draw(perturb.mass, *_range("mass", low, high), **kwargs)


def friction(low: float, high: float, **kwargs: Any) -> Randomise:
    """Friction coefficients of all geoms times one factor from [low, high]."""
    return draw(perturb.friction, *_range("friction", low, high), **kwargs)


def damping(low: float, high: float, **kwargs: Any) -> Randomise:
    """Damping of the joints times factors from [low, high]."""
    return draw(perturb.joint_damping, *_range("damping", low, high), **kwargs)


def gains(low: float, high: float, **kwargs: Any) -> Randomise:
    """Strength of the actuators times factors from [low, high]."""
    return draw(perturb.gains, *_range("gains", low, high), **kwargs)


def gravity(low: float, high: float, **kwargs: Any) -> Randomise:
    """Gravity times a factor from [low, high]."""
    return draw(perturb.gravity, *_range("gravity", low, high), **kwargs)


def _range(name: str, low: float, high: float) -> tuple[float, float]:
    if not 0 <= low <= high < float("inf"):
        raise ConfigError(f"randomise {name}: the range is [{low!r}, {high!r}]; expected 0 <= low <= high")
    return low, high
