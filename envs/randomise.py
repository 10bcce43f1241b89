"""Domain randomisation: model fields drawn anew at each reset, for each world by itself.

A *randomisation* is a function ``fn(key, model) -> fields``: from a key and the ``MjModel`` it draws a dict of model
fields (``"body_mass"``, ``"geom_friction"``, ``"opt.gravity"`` …), each of the field's full shape. A MuJoCo environment
takes it as its ``randomise=`` argument, keeps it bound to its model as ``env.randomise`` (a function of the key alone,
or None), calls that at every reset, and stores what was drawn in ``State.params["fields"]``, from where every
physics step reads it::

    env = mjxlab.make("ant", randomise=combine(mass(0.8, 1.2), friction(0.5, 1.5)))

A world's key follows from its global number and its episode, so worlds differ, devices differ, and episodes differ.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from typing import Any

import jax
import jax.numpy as jnp
import mujoco
import numpy as np
from jaxtyping import Array, Key

from mjxlab.envs._trees import describe
from mjxlab.envs.base import Env, env_name
from mjxlab.errors import ConfigError

Fields = dict[str, Array]
Randomise = Callable[[Key[Array, ""], mujoco.MjModel], Fields]
Hook = Callable[[Key[Array, ""]], Fields]


def model_field(model: mujoco.MjModel, name: str) -> np.ndarray:
    """A model's own value of a field; dots reach into ``opt`` (``"opt.gravity"``).

    Raises:
      ConfigError: no such field.
    """
    value: Any = model
    for part in name.split("."):
        value = getattr(value, part, None)
    if value is None or callable(value):
        raise ConfigError(f"randomise: {name!r} is not a field of MuJoCo's model")
    return np.asarray(value)


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
        own = model_field(model, name)
        if value.shape != own.shape:
            raise ConfigError(f"randomise: {name} is {describe(value)}; expected shape {own.shape} as in the model")

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


def scale(field: str, low: float, high: float, *, each: bool = False, rows: Iterable[int] | None = None) -> Randomise:
    """Multiply a model field by a factor, log-uniform in [low, high].

    Args:
      field: name of the field (axis 0: bodies, geoms, joints, actuators …).
      low, high: the range, 0 < low <= high.
      each: a factor for every row of axis 0, not one for all.
      rows: only these rows of axis 0.

    Raises:
      ConfigError: a range that is empty or not positive.
    """
    return _scale((field,), low, high, each, rows)


def mass(low: float, high: float, *, each: bool = False, bodies: Iterable[int] | None = None) -> Randomise:
    """Scale masses and, by the same factors, inertias (as a change of density does)."""
    return _scale(("body_mass", "body_inertia"), low, high, each, bodies)


def damping(low: float, high: float, *, each: bool = False) -> Randomise:
    """Scale the damping of the joints."""
    return scale("dof_damping", low, high, each=each)


def friction(low: float, high: float, *, each: bool = False, geoms: Iterable[int] | None = None) -> Randomise:
    """Scale the friction coefficients of the geoms (sliding, torsional and rolling alike)."""
    return scale("geom_friction", low, high, each=each, rows=geoms)


def gains(low: float, high: float, *, each: bool = False) -> Randomise:
    """Scale the actuators' strength: gain and bias together, so that position servos keep their set-points."""
    return _scale(("actuator_gainprm", "actuator_biasprm"), low, high, each, None)


def gravity(low: float, high: float) -> Randomise:
    """Scale gravity."""
    return scale("opt.gravity", low, high)


def _scale(names: tuple[str, ...], low: float, high: float, each: bool, rows: Iterable[int] | None) -> Randomise:
    if not 0 < low <= high < float("inf"):
        raise ConfigError(f"randomise {names[0]}: the range is [{low!r}, {high!r}]; expected 0 < low <= high")
    chosen = None if rows is None else np.asarray(list(rows), np.int32)

    def draw(key: Key[Array, ""], model: mujoco.MjModel) -> Fields:
        dtype = jnp.result_type(float)
        count = model_field(model, names[0]).shape[0]
        log = jax.random.uniform(key, (count if each else 1,), dtype, jnp.log(low), jnp.log(high))
        factor = jnp.broadcast_to(jnp.exp(log), (count,))
        if chosen is not None:
            listed = np.zeros(count, bool)
            listed[chosen] = True
            factor = jnp.where(listed, factor, jnp.ones_like(factor))
        fields = {}
        for name in names:
            own = jnp.asarray(model_field(model, name), dtype)
            fields[name] = own * factor.reshape((count,) + (1,) * (own.ndim - 1))
        return fields

    return draw
