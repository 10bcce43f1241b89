"""The trajectory replay, beside a plain NumPy ring buffer; goals in hindsight; whole episodes; two devices."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh

from mjxlab import spmd
from mjxlab.errors import ConfigError
from mjxlab.memory import tree_bytes
from mjxlab.rl import replay

WORLDS, CAPACITY = 4, 50
EXAMPLE = {"number": jnp.zeros((), jnp.int32), "pair": jnp.zeros((2,))}
ADD = jax.jit(replay.add)


def stream(seed: int, chunks: list[int], chance: float = 0.15, limit: int = 12):
    """Rollouts with ends by chance and by a time limit; each step knows its world, episode and place in it."""
    rng = np.random.default_rng(seed)
    episode, place, made = np.zeros(WORLDS, int), np.zeros(WORLDS, int), np.zeros(WORLDS, int)
    for length in chunks:
        rows, done = np.zeros((length, WORLDS, 3), int), np.zeros((length, WORLDS), bool)
        for t in range(length):
            for w in range(WORLDS):
                rows[t, w] = made[w], episode[w], place[w]
                done[t, w] = rng.random() < chance or place[w] == limit - 1
                made[w] += 1
                place[w] = 0 if done[t, w] else place[w] + 1
                episode[w] += done[t, w]
        yield rows, done


def fill(seed: int, chunks: list[int], **how):
    store = replay.init(EXAMPLE, WORLDS, CAPACITY)
    history = [[] for _ in range(WORLDS)]  # (number, episode, place, done) of every step ever made
    for rows, done in stream(seed, chunks, **how):
        steps = {"number": jnp.asarray(rows[..., 0], jnp.int32), "pair": jnp.asarray(rows[..., 1:], jnp.float32)}
        store = ADD(store, steps, jnp.asarray(done))
        for w in range(WORLDS):
            history[w] += [(*rows[t, w], done[t, w]) for t in range(len(rows))]
    return store, history


@pytest.mark.parametrize(
    ("chunks", "how"),
    [([7], {}), ([7] * 12, {}), ([50, 50, 3], {}), ([1] * 60, {}), ([9] * 15, {"chance": 0.0, "limit": 10**9})],
    ids=["part", "wraps", "whole", "singles", "one episode longer than the store"],
)
def test_equals_a_plain_ring_buffer(chunks, how) -> None:
    store, history = fill(3, chunks, **how)
    for w in range(WORLDS):
        kept = history[w][-CAPACITY:]
        assert int(store.size[w]) == len(kept)
        for back, (number, episode, place, done) in enumerate(reversed(kept)):
            slot = (int(store.position[w]) - 1 - back) % CAPACITY
            assert int(store.data["number"][w, slot]) == number
            np.testing.assert_array_equal(store.data["pair"][w, slot], [episode, place])
            assert int(store.elapsed[w, slot]) == place and bool(store.done[w, slot]) == done
            newest = max(n for n, e, _, _ in kept if e == episode)
            assert int(store.data["number"][w, int(store.last[w, slot])]) == newest


def test_memory_is_known_beforehand_and_does_not_grow() -> None:
    store, _ = fill(0, [7] * 12)
    assert tree_bytes(store) == replay.replay_bytes(EXAMPLE, WORLDS, CAPACITY)
    with pytest.raises(ConfigError, match="replay_size: got 50, expected at least the 51 steps"):
        next_rows = {"number": jnp.zeros((51, WORLDS), jnp.int32), "pair": jnp.zeros((51, WORLDS, 2))}
        replay.add(store, next_rows, jnp.zeros((51, WORLDS), bool))


@pytest.mark.parametrize("chunks", [[9], [9] * 13], ids=["part", "full"])
def test_hindsight_goals_are_geometric_and_of_the_same_episode(chunks) -> None:
    store, history = fill(5, chunks)
    count, gamma = 40_000, 0.8

    @jax.jit
    def draw(key):
        picks = replay.sample(store, key, count)
        goal = replay.future(store, jax.random.fold_in(key, 1), picks, gamma)
        return replay.take(store.data, picks.world, picks.slot), replay.take(store.data, picks.world, goal), picks

    step, goal, picks = draw(jax.random.key(0))
    np.testing.assert_array_equal(step["pair"][:, 0], goal["pair"][:, 0])  # the episode
    ahead = np.asarray(goal["number"] - step["number"])
    np.testing.assert_array_equal(ahead, np.asarray(goal["pair"] - step["pair"])[:, 1])
    later = np.asarray(picks.later)
    assert ahead.min() == 0 and (ahead <= later).all()
    for n in range(6):  # chi-square of the truncated law, n + 1 outcomes
        seen = np.bincount(ahead[later == n], minlength=n + 1)
        law = gamma ** np.arange(n + 1)
        expected = seen.sum() * law / law.sum()
        assert ((seen - expected) ** 2 / expected).sum() < n + 5 * np.sqrt(2 * n + 1)
    # every stored step is as likely as any other
    stored = sum(min(len(h), CAPACITY) for h in history)
    hits = np.bincount(np.asarray(picks.world) * CAPACITY + np.asarray(picks.slot), minlength=WORLDS * CAPACITY)
    hits = hits[hits > 0]
    assert hits.size == stored
    assert ((hits - count / stored) ** 2 / (count / stored)).sum() < stored + 5 * np.sqrt(2 * stored)


def test_whole_episodes_are_whole() -> None:
    store, history = fill(7, [9] * 13)
    data, there = jax.jit(lambda k: replay.episodes(store, k, 500, 12))(jax.random.key(0))
    found = set()
    for numbers, pairs, mask in zip(*map(np.asarray, (data["number"], data["pair"], there)), strict=True):
        length = mask.sum()
        assert length and mask[:length].all()
        np.testing.assert_array_equal(pairs[:length, 1], np.arange(length))
        assert len(set(pairs[:length, 0])) == 1
        np.testing.assert_array_equal(np.diff(numbers[:length]), 1)
        found.add((numbers[0], int(pairs[0, 0]), int(length)))
    expected = set()
    for kept in (h[-CAPACITY:] for h in history):
        for episode in {e for _, e, _, _ in kept}:
            rows = [r for r in kept if r[1] == episode]
            if rows[0][2] == 0 and rows[-1][3]:
                expected.add((rows[0][0], episode, len(rows)))
    assert found == expected


def test_no_episode_is_whole_before_one_has_ended() -> None:
    store, _ = fill(7, [5], chance=0.0)
    _, there = replay.episodes(store, jax.random.key(0), 4, 12)
    assert not bool(there.any())


def test_two_devices_hold_and_draw_what_one_does() -> None:
    store, _ = fill(9, [9] * 8)
    rows, done = next(stream(1, [6]))
    steps = {"number": jnp.asarray(rows[..., 0], jnp.int32), "pair": jnp.asarray(rows[..., 1:], jnp.float32)}

    def both(store, steps, done, key):
        store = replay.add(store, steps, done)
        picks = replay.sample(store, key, 32)
        goal = replay.future(store, key, picks, 0.9)
        return store, replay.take(store.data, picks.world, picks.slot), replay.take(store.data, picks.world, goal)

    arguments = (store, steps, jnp.asarray(done), jax.random.key(3))
    one = jax.jit(both)(*arguments)
    time_first = jax.P(None, "device")
    sharded = jax.shard_map(
        both,
        mesh=Mesh(np.array(jax.devices()[:2]), ("device",)),
        in_specs=(spmd.SPLIT, time_first, time_first, spmd.REPLICATED),
        out_specs=spmd.SPLIT,
        check_vma=False,
    )
    jax.tree.map(np.testing.assert_array_equal, one, jax.jit(sharded)(*arguments))
