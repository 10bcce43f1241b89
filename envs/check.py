"""``check_env``: does an environment keep the contract? For one's own environments, before training on them."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces as gym_spaces

from mjxlab.envs import _trees, spaces
from mjxlab.envs.base import State, env_name
from mjxlab.envs.vectorize import is_finite
from mjxlab.errors import ConfigError, MjxlabError
from mjxlab.physics import Data, jit


def check_env(
    env: Any,
    key: jax.Array | None = None,
    *,
    steps: int = 32,
    worlds: int = 4,
    deterministic_reset: bool | None = None,
    constant_params: bool | None = None,
    plain: bool | None = None,
    x64: bool = True,
) -> None:
    """Check that ``env`` keeps the contract of ``mjxlab.envs.Env``. Silence means that it does.

    What is checked, in this order: attributes and spaces; types of every field of ``State`` after reset and step (equal
    to each other, none weak), in single and double precision; that step never resets and leaves no tracer behind;
    that equal keys give equal states and different keys different ones; that plain, jitted and vmapped calls agree;
    that step's randomness advances; and, over random actions, that observations stay in their space and everything
    stays finite.

    Args:
      env: the environment.
      key: where all randomness of the check comes from (default: key 0).
      steps: how many steps of random actions to take.
      worlds: in how many worlds.
      deterministic_reset: all resets are meant to be equal (default: the environment's attribute, or False).
      constant_params: ``params`` are meant to be equal at all resets (likewise).
      plain: also call the environment outside of ``jit`` (default: unless its engine is mjx or warp, where it is slow).
      x64: also check the types in double precision.

    Raises:
      ConfigError: the first violation found, in one line that names the field.

    Warns:
      UserWarning: ``reset`` hands on the key that it was given, and ``step`` draws from it again.
    """
    kind = getattr(getattr(env, "engine", None), "kind", None)
    check = _Check(
        env,
        jax.random.key(0) if key is None else key,
        deterministic_reset=bool(_first(deterministic_reset, getattr(env, "deterministic_reset", False))),
        constant_params=bool(_first(constant_params, getattr(env, "constant_params", False))),
    )
    check.attributes()
    for double in (False, True) if x64 else (bool(jax.config.read("jax_enable_x64")),):
        with jax.enable_x64(double):
            check.types("in double precision, " if double else "")
    check.no_autoreset()
    check.keys()
    if _first(plain, kind not in ("mjx", "warp")):
        check.plain_calls()
    check.rollout(steps, worlds)


def _first(value: Any, default: Any) -> Any:
    return default if value is None else value


@dataclasses.dataclass
class _Check:
    """The checks, each a method that raises at the first violation."""

    env: Any
    key: jax.Array
    deterministic_reset: bool
    constant_params: bool

    def __post_init__(self) -> None:
        # once each, since compiling is what a check spends its time on
        self.reset = jit(lambda key: self.env.reset(key))
        self.step = jit(lambda state, action: self.env.step(state, action))

    def fail(self, message: str, cause: BaseException | None = None) -> NoReturn:
        raise ConfigError(f"check_env({env_name(self.env)}): {message}") from cause

    def call(self, what: str, function: Callable[..., Any], *args: Any) -> Any:
        """``function(*args)``; what goes wrong inside is told in one line."""
        try:
            out = function(*args)
        except MjxlabError:
            raise
        except jax.errors.UnexpectedTracerError as error:
            self.fail(f"{what} leaks a tracer: it keeps an array of one call and uses it in another", error)
        except (jax.errors.ConcretizationTypeError, jax.errors.TracerArrayConversionError) as error:
            line = str(error).strip().splitlines()[0]
            self.fail(f"{what} cannot be traced, since it looks at the value of an array: {line}", error)
        except Exception as error:
            line = (str(error).strip() or "no message").splitlines()[0]
            self.fail(f"{what} raised {type(error).__name__}: {line}", error)
        for path, value in _attributes(self.env):
            if isinstance(value, jax.core.Tracer):
                self.fail(f"{what} leaks a tracer: it writes to self{path}; keep what changes in State")
        return out

    def action(self, key: jax.Array) -> Any:
        return spaces.sample(self.env.action_space, key)

    # what the environment says of itself

    def attributes(self) -> None:
        for name in ("observation_space", "action_space", "episode_length", "reset", "step"):
            if not hasattr(self.env, name):
                self.fail(f"{name} is missing")
        for name in ("observation_space", "action_space"):
            if not isinstance(getattr(self.env, name), gym_spaces.Space):
                self.fail(f"{name} is {type(getattr(self.env, name)).__name__}; expected a gymnasium space")
        length = self.env.episode_length
        if isinstance(length, bool) or not isinstance(length, int) or length < 1:
            self.fail(f"episode_length is {length!r}; expected an integer of at least 1")
        space = self.env.action_space
        if isinstance(space, gym_spaces.Box):
            if not (np.all(space.low == -1) and np.all(space.high == 1)):
                self.fail(
                    f"action_space is a box from {space.low.min()} to {space.high.max()}; expected [-1, 1] "
                    "(scale inside step, e.g. with spaces.scale_action)"
                )
        elif not spaces.is_discrete(space):
            self.fail(f"action_space is {space}; expected a Box in [-1, 1], a Discrete or a MultiDiscrete")

    # types

    def types(self, mode: str) -> None:
        action = jax.eval_shape(self.action, self.key)
        first = self.call("reset", jax.eval_shape, lambda k: self.env.reset(k), self.key)
        self.fields(first, f"{mode}after reset, ")
        second = self.call("step", jax.eval_shape, lambda s, a: self.env.step(s, a), first, action)
        self.fields(second, f"{mode}after step, ")
        _trees.check_same(first, second, f"check_env({env_name(self.env)}): {mode}State".rstrip(", "))

    def fields(self, state: Any, when: str) -> None:
        if not isinstance(state, State):
            self.fail(f"{when}the result is {type(state).__name__}; expected a mjxlab.envs.State")
        for path, leaf in jax.tree_util.tree_flatten_with_path(state)[0]:
            if getattr(leaf, "weak_type", False):
                name = _trees.path_name(path)
                self.fail(
                    f"{when}{name} has a weak type (it comes from a Python number), which makes JAX compile twice; "
                    "give it a dtype, e.g. with jnp.asarray(x, dtype)"
                )
        reward = state.reward
        if not jnp.issubdtype(reward.dtype, jnp.floating) or reward.ndim > 1:
            self.fail(f"{when}reward is {_trees.describe(reward)}; expected a floating-point scalar (or one per agent)")
        for name in ("terminated", "truncated") + (("success",) if state.success is not None else ()):
            flag = getattr(state, name)
            if flag.dtype != bool or flag.shape != ():
                self.fail(f"{when}{name} is {_trees.describe(flag)}; expected bool[]")
        if not jnp.issubdtype(state.key.dtype, jax.dtypes.prng_key) or state.key.shape != ():
            self.fail(f"{when}key is {_trees.describe(state.key)}; expected one typed key (jax.random.key)")
        for name in ("metrics", "info"):
            if not isinstance(getattr(state, name), dict):
                self.fail(f"{when}{name} is {type(getattr(state, name)).__name__}; expected a dict")
        for name, value in state.metrics.items():
            if getattr(value, "shape", None) != ():
                self.fail(f"{when}metrics[{name!r}] is {_trees.describe(value)}; expected a scalar")
        goal = [name for name in ("achieved", "commanded", "success") if getattr(state, name) is None]
        if goal and len(goal) < 3:
            self.fail(
                f"{when}{goal[0]} is None; a goal task gives achieved, commanded and success, others none of them"
            )

    # resets

    def no_autoreset(self) -> None:
        """Trace step with every ``reset`` in sight replaced by a spy."""
        called: list[str] = []
        state = jax.eval_shape(lambda k: self.env.reset(k), self.key)
        action = jax.eval_shape(self.action, self.key)
        spied: list[tuple[Any, str]] = []
        try:
            for part in _layers(self.env):
                for name in ("reset", "_reset", "reset_env"):
                    method = getattr(part, name, None)
                    if callable(method) and _set_attribute(part, name, _spy(method, name, called)):
                        spied.append((part, name))
            jax.eval_shape(lambda s, a: self.env.step(s, a), state, action)
        finally:
            for part, name in spied:
                object.__delattr__(part, name)
        if called:
            self.fail(f"step calls {called[0]}: an environment never resets itself; vectorize does that")

    def keys(self) -> None:
        one, two = jax.random.split(jax.random.fold_in(self.key, 1))
        first = self.call("reset", self.reset, one)
        self.after_reset(first)
        if where := _difference(first, self.call("reset", self.reset, one), exact=True):
            self.fail(f"reset gives two states for one key: {where}; {_FROM_THE_KEY}")
        second = self.call("reset", self.reset, two)
        start = first.replace(key=second.key)
        if not self.deterministic_reset and not _difference(start, second, exact=True):
            self.fail("reset gives equal states for two keys; if they are meant to be, set deterministic_reset = True")
        fields = isinstance(first.params, dict) and first.params.get("fields")
        if getattr(self.env, "randomise", None) is not None and not fields:
            self.fail("params['fields'] is missing, although the environment has randomise: store there what it draws")
        drawn = {"params": (first.params, second.params)}
        if fields:
            drawn["params['fields']"] = (fields, second.params["fields"])
        for name, (a, b) in drawn.items():
            if jax.tree.leaves(a) and not self.constant_params and not _difference(a, b, exact=True):
                self.fail(
                    f"{name} are equal after two resets: what varies between worlds is drawn at reset, from its key; "
                    "if they are meant to be fixed, set constant_params = True"
                )
        self.step_key(first, one)

    def step_key(self, state: State, given: jax.Array) -> None:
        """Steps of one state under several keys: do they differ, and does the key move on?"""
        action = self.action(jax.random.fold_in(self.key, 2))
        first = self.call("step", self.step, state, action)
        if where := _difference(first, self.call("step", self.step, state, action), exact=True):
            self.fail(f"step gives two results for one state and action: {where}; {_FROM_THE_KEY}")
        other = self.call("step", self.step, state.replace(key=jax.random.fold_in(self.key, 3)), action)
        if not _difference(first.replace(key=other.key), other, exact=True):
            return  # the step draws nothing
        if _same_key(first.key, state.key):
            self.fail(
                "key does not advance: step draws from state.key and returns it unchanged; split it, return a new one"
            )
        if _same_key(state.key, given):
            warnings.warn(
                f"check_env({env_name(self.env)}): key: reset hands on the key that it was given, and step draws from "
                "it again; split it in reset",
                stacklevel=4,
            )

    # ways to call, and what happens over time

    def plain_calls(self) -> None:
        key, action = jax.random.fold_in(self.key, 4), self.action(jax.random.fold_in(self.key, 5))
        state = self.call("reset", lambda k: self.env.reset(k), key)
        self.agree("reset outside of jit", state, "under jit", self.call("reset", self.reset, key))
        # from the same state, so that what differs is the step
        jitted = self.call("step", self.step, state, action)
        self.agree(
            "step outside of jit",
            self.call("step", lambda s, a: self.env.step(s, a), state, action),
            "under jit",
            jitted,
        )

    def agree(self, what: str, a: Any, other: str, b: Any) -> None:
        if where := _difference(a, b):
            self.fail(f"{what} differs from {what.split()[0]} {other}: {where}; {_FROM_THE_KEY}")

    def rollout(self, steps: int, worlds: int) -> None:
        def one_step(carry: Any, key: jax.Array) -> Any:
            state, over = carry
            action = jax.vmap(self.action)(jax.random.split(key, worlds))
            state = jax.vmap(self.env.step)(state, action)
            sound = jax.vmap(lambda s: (is_finite(s), _finite_leaves(_numbers(s))))(state)
            return (state, over | state.terminated | state.truncated), (state.obs, sound, ~over)

        def run(keys: jax.Array, action: Any, noise: jax.Array) -> Any:
            start = jax.vmap(self.env.reset)(keys)
            first = jax.vmap(self.env.step)(start, action)
            over = start.terminated | start.truncated
            return start, first, jax.lax.scan(one_step, (start, over), jax.random.split(noise, steps))[1]

        keys, noise = (jax.random.fold_in(self.key, i) for i in (6, 7))
        keys = jax.random.split(keys, worlds)
        action = jax.vmap(self.action)(jax.random.split(noise, worlds))
        start, first, (obs, (sound, parts), live) = self.call("step", jit(run), keys, action, noise)
        for i in range(min(3, worlds)):
            before, after, push = _world((start, first, action), i)
            self.agree("reset under vmap", before, "of one world", self.call("reset", self.reset, keys[i]))
            self.agree("step under vmap", after, "of one world", self.call("step", self.step, before, push))
            self.after_reset(before)
        obs, sound, parts, live = jax.device_get((obs, sound, parts, live))
        for step, world in np.argwhere(live):
            when = f"at step {step + 1} of random actions"
            self.finite(_world(_world(parts, step), world), when)
            if not sound[step, world]:
                self.fail(f"data is not finite {when}")
            self.in_space(_world(_world(obs, step), world), when)

    def after_reset(self, state: State) -> None:
        for name in ("terminated", "truncated"):
            if getattr(state, name):
                self.fail(f"{name} is True after reset")
        self.finite(_finite_leaves(_numbers(state)), "after reset")
        if not is_finite(state):
            self.fail("data is not finite after reset")
        self.in_space(jax.device_get(state.obs), "after reset")

    def finite(self, flags: Any, when: str) -> None:
        for path, ok in jax.tree_util.tree_flatten_with_path(flags)[0]:
            if not ok:
                name, *rest = jax.tree_util.keystr(path).removeprefix("['").split("']", 1)
                self.fail(f"{name}{''.join(rest)} is not finite {when}")

    def in_space(self, obs: Any, when: str) -> None:
        if why := spaces.problem(self.env.observation_space, obs):
            self.fail(f"{when}, {why} by observation_space")


_FROM_THE_KEY = "draw all randomness from the key, and keep nothing between calls"


def _numbers(state: State) -> dict[str, Any]:
    """What must stay finite besides the data."""
    return {name: getattr(state, name) for name in ("obs", "reward", "metrics", "achieved", "commanded")}


def _world(tree: Any, i: Any) -> Any:
    return jax.tree.map(lambda x: x[i], tree)


def _finite_leaves(tree: Any) -> Any:
    """A flag for every leaf of a world's state (of ``tree``): all its numbers are finite."""

    def leaf(x: Any) -> Any:
        return jnp.isfinite(x).all() if jnp.issubdtype(x.dtype, jnp.floating) else jnp.ones((), bool)

    return jax.tree.map(leaf, tree)


def _same_key(a: jax.Array, b: jax.Array) -> bool:
    return bool((jax.random.key_data(a) == jax.random.key_data(b)).all())


def _difference(a: Any, b: Any, exact: bool = False) -> str | None:
    """The first field in which two states differ, with both values; None if none does.

    Not ``exact``: numbers may differ by rounding, and the engine's own state is left to its outputs, since it holds
    doubles as pairs of integers.
    """
    if not exact:
        a, b = _views(a), _views(b)
    left, right = (jax.tree_util.tree_flatten_with_path(t)[0] for t in (a, b))
    for (path, x), (_, y) in zip(left, right, strict=True):
        if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
            x, y = jax.random.key_data(x), jax.random.key_data(y)
        x, y = np.asarray(x), np.asarray(y)
        if exact or not np.issubdtype(x.dtype, np.floating):
            same = x == y
        else:
            slack = 1e-3 * (np.max(np.abs(x), initial=0.0, where=np.isfinite(x)) + 1e-2)
            with np.errstate(invalid="ignore"):  # inf - inf
                same = (x == y) | (np.abs(x - y) <= slack)
        if not np.all(same | ((x != x) & (y != y))):
            at = tuple(int(i) for i in np.argwhere(~np.atleast_1d(same))[0])
            return f"{_trees.path_name(path) or 'value'}{list(at)} is {np.atleast_1d(x)[at]} and {np.atleast_1d(y)[at]}"
    return None


def _views(state: State) -> State:
    data = state.data
    return state.replace(data=_outputs(data)) if isinstance(data, Data) else state


def _outputs(data: Data) -> dict[str, Any]:
    return {name: getattr(data, name) for name in dir(data) if name not in dir(Data)}


def _layers(env: Any) -> Iterator[Any]:
    """The environment and whatever it wraps as ``.env``."""
    for _ in range(16):
        yield env
        env = getattr(env, "env", None)
        if env is None:
            return


def _attributes(env: Any) -> Iterator[tuple[str, Any]]:
    """Every array-like thing that an environment and its wrapped ones keep, with where it is."""
    for depth, part in enumerate(_layers(env)):
        try:
            leaves = jax.tree_util.tree_flatten_with_path(dict(vars(part)))[0]
        except (TypeError, ValueError):  # no __dict__, or keys of a dict that do not sort
            continue
        for path, leaf in leaves:
            yield ".env" * depth + "." + jax.tree_util.keystr(path[:1], simple=True), leaf


def _set_attribute(thing: Any, name: str, value: Any) -> bool:
    if name in getattr(thing, "__dict__", {}):
        return False
    try:
        object.__setattr__(thing, name, value)
    except AttributeError:  # slots
        return False
    return True


def _spy(method: Callable[..., Any], name: str, called: list[str]) -> Callable[..., Any]:
    def spy(*args: Any, **kwargs: Any) -> Any:
        called.append(name)
        return method(*args, **kwargs)

    return spy
