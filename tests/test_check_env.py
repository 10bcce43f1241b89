"""check_env accepts what keeps the contract, and names what is wrong with each of many environments that do not."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces as gym_spaces

from mjxlab.envs import State, check_env, fresh_state, make, spaces
from mjxlab.errors import ConfigError


@pytest.fixture(autouse=True)
def _compile_quickly() -> Iterator[None]:
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)


class Good:
    """Noisy steps on a line, a goal, parameters drawn at reset, a dict of observations."""

    name = "good"
    episode_length = 10
    observation_space: Any = gym_spaces.Dict({"x": spaces.unbounded(2), "near": gym_spaces.Discrete(2)})
    action_space: Any = spaces.unit_box(2)

    def state(self, x: jax.Array, key: jax.Array, speed: jax.Array) -> State:
        near = jnp.abs(x[0]) < 1
        return fresh_state(
            {"x": x},
            {"x": x, "near": near.astype(jnp.int32)},
            key,
            params={"speed": speed},
            metrics={"x": x[0]},
            achieved=x,
            commanded=jnp.zeros_like(x),
            success=near,
        )

    def reset(self, key: jax.Array) -> State:
        speed = jax.random.uniform(key, (), jnp.result_type(float))
        return self.state(jnp.full((2,), speed), jax.random.fold_in(key, 1), speed)

    def step(self, state: State, action: jax.Array) -> State:
        noise = jax.random.uniform(state.key, (2,), jnp.result_type(float))
        x = state.data["x"] + state.params["speed"] * action.astype(noise.dtype) + noise
        new = self.state(x, jax.random.fold_in(state.key, 1), state.params["speed"])
        return new.replace(reward=x[0], terminated=x[1] > 5)


def test_a_good_one_passes_in_silence() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(Good())


@pytest.mark.parametrize("name", ["fast", "toy_match", "toy_cut"])
def test_toys_pass(name: str) -> None:
    check_env(make(name), steps=8, worlds=2)


RNG = np.random.default_rng()

# Each of these breaks one thing. ``mutant(words …)`` collects them; the words must be in the message.

MUTANTS: list[tuple[type, tuple[str, ...]]] = []


def mutant(*words: str) -> Any:
    def collect(cls: type) -> type:
        MUTANTS.append((cls, words))
        return cls

    return collect


def after_reset(name: str, change: Any, *words: str, also_step: bool = True) -> None:
    """A mutant whose states have one field changed."""

    class Mutant(Good):
        def reset(self, key: jax.Array) -> State:
            state = super().reset(key)
            return state.replace(**{name: change(getattr(state, name))})

        def step(self, state: State, action: jax.Array) -> State:
            new = super().step(state, action)
            return new.replace(**{name: change(getattr(new, name))}) if also_step else new

    Mutant.__name__ = f"{name}_{len(MUTANTS)}"
    MUTANTS.append((Mutant, words))


def attribute(name: str, value: Any, *words: str) -> None:
    """A mutant with one class attribute changed."""
    MUTANTS.append((type(f"{name}_{len(MUTANTS)}", (Good,), {name: value}), words))


attribute("episode_length", 0, "episode_length", "0", "at least 1")
attribute("observation_space", (2,), "observation_space", "tuple", "gymnasium space")
attribute("action_space", spaces.box(-2.0, 2.0, (2,)), "action_space", "-2.0", "[-1, 1]")
attribute("action_space", gym_spaces.Text(3), "action_space", "Text", "Box")

after_reset("reward", lambda x: x.astype(jnp.int32), "reward", "int32[]", "floating-point scalar")
after_reset("reward", lambda x: jnp.zeros((2, 2)), "reward", "float32[2,2]")
after_reset("terminated", lambda x: x.astype(jnp.float32), "terminated", "float32[]", "bool[]")
after_reset("truncated", lambda x: x[None], "truncated", "bool[1]", "bool[]")
after_reset("success", lambda x: x.astype(jnp.int32), "success", "int32[]", "bool[]")
after_reset("success", lambda x: None, "success is None", "achieved")
after_reset("key", jax.random.key_data, "key", "uint32[2]", "typed key")
after_reset("metrics", lambda x: {"all": jnp.zeros((2,))}, "metrics['all']", "float32[2]", "scalar")
after_reset("metrics", lambda x: [x["x"]], "metrics", "list", "dict")
after_reset("metrics", lambda x: {"x": x["x"], "more": x["x"]}, "step drops metrics['more']", also_step=False)
after_reset("info", lambda x: {"a": jnp.zeros((2,))}, "step drops info['a']", also_step=False)
after_reset("obs", lambda x: x | {"x": x["x"][:1]}, "obs['x']", "(1,)", "(2,)")
after_reset("obs", lambda x: {"x": x["x"]}, "obs has keys ['x']", "['near', 'x']")
after_reset("obs", lambda x: x | {"near": x["x"][0]}, "obs['near']", "float32", "int")
after_reset("obs", lambda x: x | {"near": x["near"] + 2}, "obs['near'] is 3", "[0, 1]")
after_reset("obs", lambda x: x | {"x": x["x"] / 0}, "obs['x'] is not finite", "after reset")
after_reset("terminated", lambda x: ~x, "terminated", "True after reset")


@mutant("the result is tuple", "State")
class Tuple(Good):
    def reset(self, key: jax.Array) -> Any:
        return super().reset(key).obs, {}


@mutant("after step", "reward has a weak type")
class Weak(Good):
    def step(self, state: State, action: jax.Array) -> State:
        return super().step(state, action).replace(reward=jnp.where(action[0] > 0, 1.0, 0.0))


@mutant("data['x'] is float32[2] after reset and float32[3] after step")
class Grows(Good):
    def step(self, state: State, action: jax.Array) -> State:
        new = super().step(state.replace(data={"x": state.data["x"][:2]}), action)
        return new.replace(data={"x": jnp.concatenate([new.data["x"], action[:1]])})


@mutant("in double precision", "data['x'] is float32[2] after reset and float64[2] after step")
class SinglePrecision(Good):
    def reset(self, key: jax.Array) -> State:
        state = super().reset(key)
        return state.replace(data={"x": state.data["x"].astype(jnp.float32)})

    def step(self, state: State, action: jax.Array) -> State:
        return super().step(state.replace(data={"x": state.data["x"].astype(jnp.result_type(float))}), action)


@mutant("step cannot be traced", "bool")
class Branches(Good):
    def step(self, state: State, action: jax.Array) -> State:
        return super().step(state, action) if action[0] > 0 else state


@mutant("step raised ZeroDivisionError", "by zero")
class Raises(Good):
    def step(self, state: State, action: jax.Array) -> State:
        return super().step(state, action / (1 // 0))


@mutant("step leaks a tracer", "self.last", "State")
class Leaks(Good):
    last: Any = None

    def step(self, state: State, action: jax.Array) -> State:
        self.last = action
        return super().step(state, action)


@mutant("leaks a tracer", "one call", "another")
class LeaksAside(Good):
    kept: Any = dataclasses.field

    def __init__(self) -> None:
        self.hidden = type("Box", (), {})()  # opaque to PyTrees

    def step(self, state: State, action: jax.Array) -> State:
        before, self.hidden.it = getattr(self.hidden, "it", action), action
        return super().step(state, action + before.astype(action.dtype))


@mutant("step calls reset", "vectorize")
class AutoResets(Good):
    def step(self, state: State, action: jax.Array) -> State:
        new = super().step(state, action)
        fresh = self.reset(new.key)
        return jax.tree.map(lambda a, b: jnp.where(new.terminated, a, b), fresh, new).replace(terminated=new.terminated)


@mutant("step calls _reset", "vectorize")
class AutoResetsInside(Good):
    def __init__(self) -> None:
        self.env = self

    def _reset(self, key: jax.Array) -> State:
        return super().reset(key)

    def step(self, state: State, action: jax.Array) -> State:
        new = super().step(state, action)
        return jax.lax.cond(new.terminated, lambda: self._reset(new.key), lambda: new)


@mutant("reset gives equal states for two keys", "deterministic_reset")
class OneStart(Good):
    def reset(self, key: jax.Array) -> State:
        return super().reset(jax.random.key(0)).replace(key=jax.random.fold_in(key, 1))


def host_noise() -> jax.Array:
    """Numbers that come from outside, new ones at every call."""
    shape = jax.ShapeDtypeStruct((2,), np.float32)
    return jax.pure_callback(lambda: RNG.normal(size=2).astype(np.float32), shape, vmap_method="sequential").astype(
        jnp.result_type(float)
    )


@mutant("reset gives two states for one key", "draw all randomness from the key")
class HostNoise(Good):
    def reset(self, key: jax.Array) -> State:
        state = super().reset(key)
        return state.replace(obs=state.obs | {"x": host_noise()})


@mutant("step gives two results for one state and action", "draw all randomness")
class HostNoiseInStep(Good):
    def step(self, state: State, action: jax.Array) -> State:
        return super().step(state, action.astype(jnp.result_type(float)) + host_noise())


@mutant("params are equal after two resets", "constant_params")
class FixedParams(Good):
    def reset(self, key: jax.Array) -> State:
        return super().reset(key).replace(params={"speed": jnp.ones((), jnp.result_type(float))})


@mutant("params['fields'] is missing", "randomise")
class ForgetsToRandomise(Good):
    def randomise(self, key: jax.Array) -> dict[str, jax.Array]:
        return {"body_mass": jax.random.uniform(key, (2,))}


@mutant("params['fields'] are equal after two resets", "drawn at reset")
class RandomisesOnce(ForgetsToRandomise):
    def reset(self, key: jax.Array) -> State:
        state = super().reset(key)
        drawn = {name: x.astype(jnp.result_type(float)) for name, x in self.randomise(jax.random.key(0)).items()}
        return state.replace(params=state.params | {"fields": drawn})

    def step(self, state: State, action: jax.Array) -> State:
        return super().step(state, action).replace(params=state.params)


@mutant("key does not advance", "split it")
class SameNoise(Good):
    def step(self, state: State, action: jax.Array) -> State:
        return super().step(state, action).replace(key=state.key)


@mutant("reset outside of jit differs from reset under jit", "obs['x']", "keep nothing between calls")
class Counts(Good):
    calls = 0.0

    def reset(self, key: jax.Array) -> State:
        self.calls += 1.0
        state = super().reset(key)
        return state.replace(obs=state.obs | {"x": state.obs["x"] + self.calls})


@mutant("step outside of jit differs from step under jit", "reward")
class KnowsOfJit(Good):
    def step(self, state: State, action: jax.Array) -> State:
        new = super().step(state, action)
        return new if isinstance(action, jax.core.Tracer) else new.replace(reward=new.reward + 1)


@jax.custom_batching.custom_vmap
def centred(x: jax.Array) -> jax.Array:
    return x


@centred.def_vmap
def _centred_over_all_worlds(size: int, batched: Any, x: jax.Array) -> tuple[jax.Array, bool]:
    return x - x.mean(0, keepdims=True), True


@mutant("reset under vmap differs from reset of one world", "obs['x']")
class Normalises(Good):
    def reset(self, key: jax.Array) -> State:
        state = super().reset(key)
        return state.replace(obs=state.obs | {"x": centred(state.obs["x"])})


@mutant("step under vmap differs from step of one world", "reward")
class NormalisesReward(Good):
    def step(self, state: State, action: jax.Array) -> State:
        new = super().step(state, action)
        return new.replace(reward=centred(new.reward))


@mutant("reward is not finite at step 6 of random actions")
class Diverges(Good):
    def reset(self, key: jax.Array) -> State:
        return super().reset(key).replace(info={"t": jnp.zeros((), jnp.int32)})

    def step(self, state: State, action: jax.Array) -> State:
        t = state.info["t"] + 1
        new = super().step(state, action)
        return new.replace(info={"t": t}, reward=jnp.log(5.5 - t.astype(new.reward.dtype)), terminated=t < 0)


@mutant("data is not finite at step 1")
class BadData(Good):
    def step(self, state: State, action: jax.Array) -> State:
        new = super().step(state, action)
        return new.replace(data={"x": new.data["x"] * jnp.inf}, obs=state.obs)


@mutant("of random actions, obs['x'][", "[-1.0, 1.0] by observation_space")
class LeavesItsSpace(Good):
    observation_space = gym_spaces.Dict({"x": spaces.unit_box(2), "near": gym_spaces.Discrete(2)})


@pytest.mark.parametrize(("cls", "words"), MUTANTS, ids=[cls.__name__ for cls, _ in MUTANTS])
def test_mutants_are_caught(cls: type, words: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError) as error:
        check_env(cls(), steps=8)
    message = str(error.value)
    assert message.startswith("check_env(good): ") and "\n" not in message
    assert all(word in message for word in words), message


def test_what_is_missing() -> None:
    with pytest.raises(ConfigError, match=r"check_env\(object\): observation_space is missing"):
        check_env(object())


class HandsOnItsKey(Good):
    def reset(self, key: jax.Array) -> State:
        return super().reset(key).replace(key=key)


def test_a_key_used_twice_is_a_warning() -> None:
    with pytest.warns(UserWarning, match="key: reset hands on the key that it was given"):
        check_env(HandsOnItsKey(), steps=2, worlds=2)


def test_what_is_meant_is_accepted() -> None:
    check_env(OneStart(), deterministic_reset=True, constant_params=True, steps=2, worlds=2)
