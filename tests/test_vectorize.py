"""Many worlds against a plain Python loop over one-world calls, number by number."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

from mjxlab.envs import State, fresh_state, spaces, vectorize
from mjxlab.envs._pool import block_size
from mjxlab.envs.vectorize import VecState
from mjxlab.errors import ConfigError
from mjxlab.physics import where

N, T, LIMIT = 8, 160, 7
NEVER = 2**30


@pytest.fixture(autouse=True)
def _compile_quickly(request: pytest.FixtureRequest) -> Iterator[None]:
    """Most of the time here goes into compiling; the walk's numbers are exact, so that optimisation changes nothing."""
    jax.config.update("jax_disable_most_optimizations", request.function is not test_pool_is_fresh_bit_for_bit)
    yield
    jax.config.update("jax_disable_most_optimizations", False)


class Walk:
    """A random walk on multiples of 1/8, so that sums are exact in any order and programs can be compared bit by bit.

    Ends when it strays beyond 2; NaN where the action says so; a goal task whose goal is drawn at reset.
    """

    name = "walk"
    episode_length = LIMIT
    observation_space = spaces.unbounded(2)
    action_space = spaces.unit_box(1)

    def __init__(self) -> None:
        self.traces = 0

    def state(self, x: jax.Array, key: jax.Array, goal: jax.Array) -> State:
        return fresh_state(
            {"x": x},
            {"x": x, "goal": goal},
            key,
            params={"goal": goal},
            metrics={"height": x[1]},
            info={"twice": 2 * x},
            achieved=x,
            commanded=goal,
            success=x[0] > goal[0],
        )

    def reset(self, key: jax.Array) -> State:
        bits = jax.random.bits(key, (4,), jnp.uint32)
        # the goal has 24 bits, so that no two are equal by chance
        goal = (bits[2:] >> 8).astype(jnp.int32).astype(jnp.result_type(float)) / 2**22 - 2
        return self.state(eighths(bits[:2], 4), jax.random.fold_in(key, 1), goal)

    def step(self, state: State, action: jax.Array) -> State:
        self.traces += 1
        push = jnp.where(action[0] > 1.5, jnp.nan, action[0].astype(jnp.result_type(float)))
        x = state.data["x"] + eighths(jax.random.bits(state.key, (2,), jnp.uint32), 6) + push
        new = self.state(x, jax.random.fold_in(state.key, 1), state.params["goal"])
        return new.replace(reward=x[0], terminated=jnp.abs(x[1]) > 2)


def eighths(bits: jax.Array, largest: int) -> jax.Array:
    """Multiples of 1/8 from -largest/8 to largest/8."""
    whole = (bits % jnp.uint32(2 * largest + 1)).astype(jnp.int32) - largest
    return whole.astype(jnp.result_type(float)) / 8


def actions(worlds: int = N) -> np.ndarray:
    """Multiples of 1/8 in [-1, 1], and now and then a 2, which makes a world not finite."""
    rng = np.random.default_rng(0)
    a = rng.integers(-8, 9, (T, worlds, 1)) / 8
    a[rng.random(a.shape) < 0.02] = 2.0
    return a.astype(np.float32)


def rollout(vec: Any, vstate: VecState, a: Any, refill_every: Any = NEVER) -> Any:
    """The VecState after every step, time first, without the pool (whose idle slots hold what they like)."""

    n = vstate.base_key.shape[0]

    def one(vstate: VecState, at: Any) -> Any:
        t, action = at
        vstate = where(jnp.broadcast_to(t % refill_every == refill_every - 1, (n,)), vec.refill(vstate), vstate)
        vstate = vec.step(vstate, action)
        return vstate, vstate.replace(pool=None, pool_full=None, pool_due=None)

    return jax.lax.scan(one, vstate, (jnp.arange(len(a), dtype=jnp.int32), a))[1]


@functools.cache
def program(mode: str) -> Callable[..., Any]:
    """One compiled program for many tests: ``(key, index, actions, refill_every) -> VecState`` of all steps."""
    vec = vectorize(Walk(), N, reset=mode)
    return jax.jit(lambda key, index, a, every: rollout(vec, vec.reset(key, index), a, every))


def run(mode: str, key: Any = None, index: Any = None, a: Any = None, every: int = NEVER) -> Any:
    """The program's result as NumPy arrays, keys as their data."""
    key = jax.random.key(7) if key is None else key
    index = np.arange(N, dtype=np.int32) if index is None else index
    return host(program(mode)(key, index, actions() if a is None else a, np.int32(every)))


def host(tree: Any) -> Any:
    def leaf(x: Any) -> Any:
        is_key = isinstance(x, jax.Array) and jnp.issubdtype(x.dtype, jax.dtypes.prng_key)
        return np.asarray(jax.random.key_data(x) if is_key else x)

    return jax.tree.map(leaf, tree)


def equal(x: Any, y: Any) -> None:
    """Every leaf bit for bit, NaN equal to NaN."""
    x, y = host(x), host(y)
    assert jax.tree.structure(x) == jax.tree.structure(y)
    for (path, a), b in zip(jax.tree_util.tree_flatten_with_path(x)[0], jax.tree.leaves(y), strict=True):
        np.testing.assert_array_equal(a, b, err_msg=jax.tree_util.keystr(path))


def hand_loop(key: jax.Array, a: np.ndarray, first: bool = False) -> list[dict[str, Any]]:
    """What ``vectorize`` should do, said in Python, one world at a time. For each world its records, one a step."""
    env = Walk()
    reset, step = jax.jit(lambda k, e: env.reset(jax.random.fold_in(k, e))), jax.jit(env.step)
    worlds = []
    for i in range(a.shape[1]):
        base = jax.random.fold_in(key, i)
        episode, elapsed, total, height, reached, records = 0, 0, 0.0, 0.0, False, []
        state = reset(base, np.int32(0))
        for t in range(len(a)):
            before, state = state, step(state, a[t, i])
            elapsed += 1
            bad = not np.isfinite(state.obs["x"]).all()
            reward = 0.0 if bad else float(state.reward)
            terminated = bad or bool(state.terminated)
            truncated = elapsed == LIMIT and not bad
            total, height = total + reward, height + (0.0 if bad else float(state.metrics["height"]))
            reached = reached or (bool(state.success) and not bad)
            seen = before if bad else state
            record = {
                "reward": reward,
                "terminated": terminated,
                "truncated": truncated,
                "final_obs": seen.obs,
                "final_achieved": seen.achieved,
                "final_commanded": seen.commanded,
                "final_success": bool(state.success) and not bad,
                "episode_return": total,
                "episode_length": elapsed,
                "episode_metrics": {"height": height},
                "reached": reached,
                "nonfinite": bad,
            }
            if terminated or truncated:
                episode += 1
                state, elapsed, total, height = reset(base, np.int32(0 if first else episode)), 0, 0.0, 0.0
                reached = False
            records.append(host(record | {"elapsed": elapsed, "episode": episode, "state": state}))
        worlds.append(records)
    return worlds


@functools.cache
def expected(first: bool) -> list[Any]:
    return hand_loop(jax.random.key(7), actions(), first)


def compare(found: Any, worlds: list[Any]) -> None:
    for i, records in enumerate(worlds):
        for t, record in enumerate(records):
            for name, value in record.items():
                have = jax.tree.map(lambda x, t=t, i=i: x[t, i], getattr(found, name))
                same = jax.tree.map(np.array_equal, value, have)
                assert jax.tree.all(same), (t, i, name, value, have)


@pytest.mark.parametrize("mode", ["pool", "fresh", "first"])
def test_hand_loop(mode: str) -> None:
    compare(run(mode, every=5), expected(mode == "first"))


def test_hand_loop_met_every_case() -> None:
    records = [record for records in expected(False) for record in records]
    ends = {(bool(r["terminated"]), bool(r["truncated"])) for r in records}
    assert ends == {(False, False), (True, False), (False, True), (True, True)}
    assert sum(r["nonfinite"] for r in records) > 5
    assert 0.1 < np.mean([r["final_success"] for r in records]) < 0.9
    assert any(r["reached"] and not r["final_success"] for r in records)
    assert not all(r["reached"] for r in records)


def test_final_obs_is_obs_unless_the_episode_ended() -> None:
    found = run("pool")
    done = found.terminated | found.truncated
    x, final = found.obs["x"], found.final_obs["x"]
    assert (x[~done] == final[~done]).all()
    assert (x[done] != final[done]).any(-1).mean() > 0.9


def test_guard_spares_the_neighbours() -> None:
    a = np.where(actions() > 1, 0, actions())
    hurt = a.copy()
    hurt[20, 3] = 2.0
    clean, found = run("pool", a=a), run("pool", a=hurt)
    others = np.arange(N) != 3
    equal(jax.tree.map(lambda x: x[:, others], found), jax.tree.map(lambda x: x[:, others], clean))
    equal(jax.tree.map(lambda x: x[:20], found), jax.tree.map(lambda x: x[:20], clean))
    assert found.nonfinite.sum() == 1 and found.nonfinite[20, 3]
    assert found.terminated[20, 3] and not found.truncated[20, 3] and found.reward[20, 3] == 0
    equal(found.final_obs["x"][20, 3], found.obs["x"][19, 3])
    numbers = (found.obs, found.final_obs, found.reward, found.episode_return, found.metrics, found.state.data)
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(numbers))


def test_guard_off_lets_nan_through() -> None:
    vec = vectorize(Walk(), N, guard=False)
    hit = jax.jit(lambda key: vec.step(vec.reset(key), jnp.full((N, 1), 2.0)))(jax.random.key(0))
    assert np.isnan(hit.reward).all() and not hit.nonfinite.any() and not hit.terminated.any()


class Wobble(Walk):
    """A walk with irrational numbers in it, whose last bits depend on how a program is compiled."""

    def reset(self, key: jax.Array) -> State:
        x = 4 * jax.random.uniform(key, (2,)) - 2
        return self.state(jnp.sin(3 * x) / jnp.sqrt(1 + x**2), jax.random.fold_in(key, 1), jnp.exp(x))

    def step(self, state: State, action: jax.Array) -> State:
        x = state.data["x"] * 1.1 + jax.random.uniform(state.key, (2,)) + action
        new = self.state(x, jax.random.fold_in(state.key, 1), state.params["goal"])
        return new.replace(reward=jnp.cos(x[0]), terminated=jnp.abs(x[1]) > 1.5)


def test_pool_is_fresh_bit_for_bit() -> None:
    worlds, push = 96, jnp.full((400, 96, 1), -0.3)

    def records(mode: str) -> Callable[[int], Any]:
        vec = vectorize(Wobble(), worlds, reset=mode)
        whole = jax.jit(lambda key, every: rollout(vec, vec.reset(key), push, every))
        return lambda every: host(whole(jax.random.key(1), np.int32(every)))

    fresh = records("fresh")(NEVER)
    assert fresh.episode[-1].min() > 50  # ends are frequent
    assert block_size(worlds) < worlds  # and filled in blocks
    pool = records("pool")
    equal(pool(NEVER), fresh)
    equal(pool(7), fresh)


def test_no_start_comes_twice() -> None:
    def starts(mode: str) -> np.ndarray:
        found = run(mode)
        return found.state.params["goal"][found.terminated | found.truncated]  # what is drawn with the start

    for mode in ("pool", "fresh"):
        assert len(starts(mode)) > 150 and len(np.unique(starts(mode), axis=0)) == len(starts(mode))
    assert len(np.unique(starts("first"), axis=0)) == N


def test_seeds_by_vmap() -> None:
    vec = vectorize(Walk(), N)
    keys = jax.random.split(jax.random.key(2), 4).reshape(2, 2)
    many = host(jax.jit(jax.vmap(jax.vmap(lambda key: rollout(vec, vec.reset(key), actions()))))(keys))
    for i in range(2):
        for j in range(2):
            equal(jax.tree.map(lambda x, i=i, j=j: x[i, j], many), run("pool", keys[i, j]))


def test_two_devices_give_what_one_gives() -> None:
    mesh = jax.make_mesh((2,), ("device",), axis_types=(AxisType.Auto,))
    share = vectorize(Walk(), N // 2)  # a device's share: reset numbers its worlds globally

    def shard(key: Any, a: Any) -> Any:
        return rollout(share, share.reset(key), a, 5)

    split = jax.shard_map(shard, mesh=mesh, in_specs=(P(), P(None, "device")), out_specs=P(None, "device"))
    found = host(jax.jit(split)(jax.random.key(7), actions()))
    equal(found, run("pool"))
    left, right = np.split(found.state.params["goal"], 2, axis=1)
    assert not set(left.ravel()) & set(right.ravel())  # each device draws its own


def test_a_world_is_its_global_number() -> None:
    index = np.array([5, 0, 6, 100, 101, 102, 103, 2**20], np.int32)
    whole, a = run("pool"), actions()
    some = run("pool", index=index, a=a[:, index % N])
    equal(*(jax.tree.map(lambda x, i=i: x[:, i], tree) for tree, i in ((some, [0, 1, 2]), (whole, [5, 0, 6]))))


class Counted(Walk):
    """Counts, when it runs, how many worlds were reset."""

    def __init__(self) -> None:
        super().__init__()
        self.words: list[Any] = []

    def reset(self, key: jax.Array) -> State:
        jax.debug.callback(self._count, jax.random.key_data(key)[0])
        return super().reset(key)

    def _count(self, word: Any) -> None:
        self.words.append(word)  # callbacks come from several threads


def test_no_reset_is_computed_without_need() -> None:
    """Under vmap over seeds, where a plain cond or while_loop would compute resets at every step."""
    seeds, n, block = 2, 64, block_size(128)
    env = Counted()
    vec = vectorize(env, n, episode_length=1000)
    reset, step = (jax.jit(jax.vmap(f)) for f in (vec.reset, vec.step))

    def resets(f: Any, *args: Any) -> tuple[int, Any]:
        env.words.clear()
        out = jax.block_until_ready(f(*args))
        jax.effects_barrier()
        return sum(map(np.size, env.words)), out

    count, vstate = resets(reset, jax.random.split(jax.random.key(0), seeds))
    assert count == seeds * n
    # put every world where it does not end by itself; then one is made to end
    calm = vstate.replace(state=vstate.state.replace(data=jax.tree.map(jnp.zeros_like, vstate.state.data)))
    still = jnp.zeros((seeds, n, 1))
    one = still.at[1, 5, 0].set(2.0)
    count, after = resets(step, calm, still)
    assert count == 0 and not after.done.any()
    count, after = resets(step, calm, one)
    assert count == block and after.done.sum() == 1  # the pool was empty: its block, which then is full but for it
    assert after.pool_full.sum() == block - 1
    count, full = resets(step, vec.refill(calm), still)
    assert count == seeds * n and full.pool_full.all() and not full.pool_due.any()
    full = full.replace(state=calm.state)
    count, after = resets(step, full, one)
    assert count == 0 and after.done.sum() == 1  # the pool was full
    count, after = resets(step, vec.refill(after.replace(state=calm.state)), still)
    assert count == block and after.pool_full.all()


def test_blocks_divide_the_worlds() -> None:
    for n in [*range(1, 200), 509, 512, 1000, 2048, 4099]:
        assert n % block_size(n) == 0
    assert block_size(4096) <= 4096 // 8
    assert block_size(509) == 509  # no divisor: all at once rather than one by one


def test_compiles_once_and_can_be_donated() -> None:
    env = Walk()
    vec = vectorize(env, N)
    step = jax.jit(vec.step, donate_argnums=0)
    vstate = vec.reset(jax.random.key(0))  # not jitted: no buffer may serve two fields
    kind = jax.tree.map(lambda x: (x.shape, x.dtype, getattr(x, "weak_type", False)), vstate)
    for a in actions()[:4]:
        vstate = step(vstate, a)
        assert jax.tree.map(lambda x: (x.shape, x.dtype, getattr(x, "weak_type", False)), vstate) == kind
    assert env.traces == 1


def test_gradients_pass() -> None:
    """The reward is a sum of noise and of all pushes since the reset, so its slope is the age of the episode."""
    vec = vectorize(Walk(), N, episode_length=3)

    def gain(push: jax.Array) -> Any:
        found = rollout(vec, vec.reset(jax.random.key(0)), jnp.broadcast_to(push, (8, N, 1)))
        return found.reward.sum(), found.episode_length

    slope, length = jax.jit(jax.grad(gain, has_aux=True))(jnp.zeros((), jnp.float32))
    assert float(slope) == int(length.sum()) and (length == 1).sum() > 2 * N  # episodes ended on the way


class Team(Walk):
    """Two members, each with its own reward, in one world that ends for both."""

    def state(self, x: jax.Array, key: jax.Array, goal: jax.Array) -> State:
        return super().state(x, key, goal).replace(reward=jnp.zeros_like(x), obs=jnp.stack([x, goal]))

    def step(self, state: State, action: jax.Array) -> State:
        new = super().step(state, action[0])
        return new.replace(reward=new.data["x"])


def test_teams_have_a_reward_each() -> None:
    vec = vectorize(Team(), N)
    a = np.repeat(actions()[:20, :, None], 2, axis=2)
    found = host(jax.jit(lambda key: rollout(vec, vec.reset(key), a))(jax.random.key(7)))
    alone = run("pool")
    assert found.reward.shape == (20, N, 2) and found.terminated.shape == (20, N)
    np.testing.assert_array_equal(found.reward[..., 0], alone.reward[:20])
    np.testing.assert_array_equal(found.episode_return[..., 0], alone.episode_return[:20])


@pytest.mark.x64
def test_double_precision() -> None:
    vec = vectorize(Walk(), N)
    a = actions().astype(np.float64)[:20]
    found = host(jax.jit(lambda key: rollout(vec, vec.reset(key), a, 5))(jax.random.key(7)))
    assert found.reward.dtype == found.episode_return.dtype == found.obs["x"].dtype == np.float64
    assert found.elapsed.dtype == found.episode.dtype == found.episode_length.dtype == np.int32
    compare(found, hand_loop(jax.random.key(7), a))


class Shrinks(Walk):
    def step(self, state: State, action: jax.Array) -> State:
        return super().step(state, action).replace(info={"twice": jnp.zeros((1,))})


class Drops(Walk):
    def step(self, state: State, action: jax.Array) -> State:
        return super().step(state, action).replace(metrics={})


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda: vectorize(Walk(), 0), ["num_envs", "0", "at least 1"]),
        (lambda: vectorize(Walk(), 4, reset="cached"), ["reset", "'cached'", "'pool'", "'fresh'", "'first'"]),
        (lambda: vectorize(Walk(), 4, episode_length=0), ["episode_length", "0", "at least 1"]),
        (lambda: _steps(Shrinks()), ["info['twice']", "float32[2]", "float32[1]"]),
        (lambda: _steps(Drops()), ["step drops metrics['height']"]),
    ],
)
def test_one_clear_line(build: Any, words: list[str]) -> None:
    with pytest.raises(ConfigError) as error:
        build()
    assert "\n" not in str(error.value) and all(word in str(error.value) for word in words)


def _steps(env: Walk) -> VecState:
    vec = vectorize(env, 2)
    return jax.eval_shape(lambda key: vec.step(vec.reset(key), jnp.zeros((2, 1))), jax.random.key(0))
