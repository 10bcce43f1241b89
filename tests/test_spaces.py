"""Spaces: what is sampled lies inside, what is outside is told, and gymnasium agrees."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces as gym

from mjxlab.envs import spaces
from mjxlab.errors import ConfigError


@pytest.fixture(autouse=True)
def _compile_quickly() -> Iterator[None]:
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)


HALF = gym.Box(np.array([0, -np.inf, -np.inf], np.float32), np.array([np.inf, 2, np.inf], np.float32))
ALL = [
    spaces.box(-2.0, 3.0, (2, 3)),
    HALF,
    gym.Box(-3, 200, (4,), np.int32),
    gym.Discrete(5, start=-2),
    gym.MultiDiscrete([2, 7]),
    gym.MultiBinary(3),
    gym.Dict({"a": spaces.unit_box(2), "b": gym.Tuple((gym.Discrete(2), HALF))}),
]


@pytest.mark.parametrize("space", ALL, ids=str)
def test_samples_lie_inside_and_fill_the_space(space: Any) -> None:
    keys = jax.random.split(jax.random.key(0), 300)
    many = jax.jit(jax.vmap(lambda key: spaces.sample(space, key)))(keys)
    host = jax.tree.map(np.asarray, many)
    for i in range(20):
        one = jax.tree.map(lambda x, i=i: x[i], host)
        assert spaces.problem(space, one) is None
        if not isinstance(space, gym.Dict):  # gymnasium is strict about dtypes of parts
            assert space.contains(np.asarray(one, space.dtype))
    assert sum(np.prod(x.shape[1:], dtype=int) for x in jax.tree.leaves(host)) == spaces.flat_size(space)
    for x in jax.tree.leaves(host):
        assert (x.reshape(300, -1).std(0) > 0).all()


def test_bounded_samples_are_uniform() -> None:
    keys = jax.random.split(jax.random.key(1), 3000)
    x = jax.jit(jax.vmap(lambda key: spaces.sample(spaces.box(-2.0, 3.0, (1,)), key)))(keys)
    x = np.asarray(x)
    np.testing.assert_allclose([x.min(), x.max(), x.mean()], [-2, 3, 0.5], atol=0.1)
    n = jax.jit(jax.vmap(lambda key: spaces.sample(gym.Discrete(3, start=1), key)))(keys)
    assert n.dtype == jnp.int32 and (np.abs(np.bincount(n)[1:] - 1000) < 100).all()


@pytest.mark.parametrize(
    ("space", "x", "words"),
    [
        (spaces.unit_box(2), np.array([0.0, 1.5], np.float32), ["obs[1] is 1.5", "[-1.0, 1.0]"]),
        (spaces.unit_box(2), np.array([0.0, np.nan], np.float32), ["obs[1] is nan"]),
        (spaces.unit_box(2), np.zeros(3, np.float32), ["(3,)", "(2,)"]),
        (spaces.unit_box(2), np.zeros(2, np.int32), ["int32", "float32"]),
        (gym.Discrete(3), np.int32(3), ["obs is 3", "[0, 2]"]),
        (gym.Discrete(3), np.float32(1), ["float32", "int64"]),
        (gym.MultiDiscrete([2, 2]), np.array([0, 2]), ["obs[1] is 2"]),
        (gym.Dict({"a": gym.Discrete(2)}), {"b": np.int32(0)}, ["['b']", "['a']"]),
        (gym.Dict({"a": gym.Discrete(2)}), {"a": np.int32(2)}, ["obs['a'] is 2"]),
        (gym.Tuple((gym.Discrete(2),)), (np.int32(0), np.int32(0)), ["tuple of 1"]),
    ],
)
def test_what_is_outside_is_told(space: Any, x: Any, words: list[str]) -> None:
    found = spaces.problem(space, x)
    assert found is not None and all(word in found for word in words), found


def test_kinds() -> None:
    assert spaces.is_discrete(gym.Discrete(2)) and spaces.is_discrete(gym.MultiDiscrete([2]))
    assert not spaces.is_discrete(spaces.unit_box(1))
    for call in (spaces.flat_size, lambda space: spaces.sample(space, jax.random.key(0))):
        with pytest.raises(ConfigError, match="Text"):
            call(gym.Text(3))


def test_actions_scale_to_a_range_and_back() -> None:
    low, high = np.array([-2.0, 0.0]), np.array([2.0, 10.0])
    action = jnp.array([[0.0, -1.0], [1.0, 0.5], [-3.0, 3.0]], jnp.float32)
    ctrl = spaces.scale_action(action, low, high)
    np.testing.assert_allclose(ctrl, [[0, 0], [2, 7.5], [-2, 10]])
    np.testing.assert_allclose(spaces.unscale_action(ctrl, low, high), jnp.clip(action, -1, 1), atol=1e-6)


@pytest.mark.x64
def test_double_precision() -> None:
    x = jax.jit(lambda key: spaces.sample(spaces.unit_box(2), key))(jax.random.key(0))
    assert x.dtype == jnp.float64 and spaces.problem(spaces.unit_box(2), np.asarray(x)) is None
    assert jax.eval_shape(lambda key: spaces.sample(gym.Discrete(2), key), jax.random.key(0)).dtype == jnp.int32
