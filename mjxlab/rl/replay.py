"""Trajectory replay on the device: each world's last ``capacity`` steps, in the order in which they were made.

A ring per world, worlds on axis 0 (so that axis "device" splits them); its size is fixed and does not follow the run's
length. Each step knows the slot of the last stored step of its episode, so that a later step of the same episode is found
without a search, and never one of another episode: an ended episode's last step is its end; the running one's is the
newest step.

Sampling does not depend on the number of devices: worlds are drawn from within the groups of ``mjxlab.rl.shuffle``, each
with a key of its own, and every group gives an equal share of a batch.
"""

from __future__ import annotations

from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int, Key

from mjxlab import spmd
from mjxlab.errors import ConfigError
from mjxlab.memory import tree_bytes
from mjxlab.rl import goals
from mjxlab.rl.shuffle import num_groups

Scalar = float | Float[Array, ""]


@flax.struct.dataclass
class Replay:
    """The store. All worlds are written in step, so ``position`` and ``size`` are the same in each.

    Attributes:
      data: PyTree with leaves (worlds, capacity, …).
      last: slot of the last stored step of each step's episode.
      elapsed: steps of its episode before each step (kept below 2^30).
      done: the step ended its episode.
      position: where the next step goes. size: stored steps.
      open: stored steps of the running episode. age: all its steps, stored or not.
    """

    data: Any
    last: Int[Array, "worlds capacity"]
    elapsed: Int[Array, "worlds capacity"]
    done: Bool[Array, "worlds capacity"]
    position: Int[Array, " worlds"]
    size: Int[Array, " worlds"]
    open: Int[Array, " worlds"]
    age: Int[Array, " worlds"]

    @property
    def capacity(self) -> int:
        """Steps per world."""
        return self.done.shape[1]


@flax.struct.dataclass
class Picks:
    """Chosen steps of this device: world and slot, and how many steps of the same episode are stored after each."""

    world: Int[Array, " rows"]
    slot: Int[Array, " rows"]
    later: Int[Array, " rows"]


def replay_bytes(example: Any, worlds: int, capacity: int) -> int:
    """Bytes of a replay, from shapes alone. ``example``: one step's data (arrays or ``jax.ShapeDtypeStruct``)."""
    return worlds * capacity * (tree_bytes(example) + 9) + 16 * worlds


def init(example: Any, worlds: int, capacity: int) -> Replay:
    """An empty replay.

    Args:
      example: one step's data.
      worlds: on this device.
      capacity: steps per world.
    """
    if capacity < 1:
        raise ConfigError(f"replay_size: got {capacity}, expected at least 1")

    def zeros() -> Int[Array, " worlds"]:
        return jnp.zeros((worlds,), jnp.int32)

    return Replay(
        data=jax.tree.map(lambda x: jnp.zeros((worlds, capacity, *x.shape), x.dtype), example),
        last=jnp.zeros((worlds, capacity), jnp.int32),
        elapsed=jnp.zeros((worlds, capacity), jnp.int32),
        done=jnp.zeros((worlds, capacity), bool),
        position=zeros(),
        size=zeros(),
        open=zeros(),
        age=zeros(),
    )


def add(replay: Replay, steps: Any, done: Bool[Array, "time worlds"]) -> Replay:
    """The replay after a rollout; the oldest steps make room.

    Args:
      replay: as ``init`` or ``add`` gives it.
      steps: PyTree with leaves (time, worlds, …).
      done: where episodes ended, by termination or by the time limit.

    Raises:
      ConfigError: the rollout is longer than the replay.
    """
    length, capacity = done.shape[0], replay.capacity
    if length > capacity:
        raise ConfigError(f"replay_size: got {capacity}, expected at least the {length} steps of a rollout")
    time = jnp.arange(length, dtype=jnp.int32)
    index = (replay.position[0] + time) % capacity  # the same in every world
    time = time[None]
    done = done.T
    final = done.at[:, -1].set(True)
    end = lax.cummin(jnp.where(final, time, length), axis=1, reverse=True)
    # number of the first step after the last end before each step; -1: the episode began before this rollout
    ended_before = jnp.concatenate([jnp.zeros_like(done[:, :1]), done[:, :-1]], 1)
    begin = lax.cummax(jnp.where(ended_before, time, -1), axis=1)
    elapsed = jnp.where(begin < 0, replay.age[:, None] + time, time - begin)

    slot = jnp.arange(capacity, dtype=jnp.int32)[None]
    running = ((replay.position[:, None] - 1 - slot) % capacity) < replay.open[:, None]
    last = jnp.where(running, index[end[:, :1]], replay.last)
    any_end = done.any(1)
    since = length - 1 - jnp.max(jnp.where(done, time, -1), 1)

    def put(store: Array, new: Array) -> Array:
        return store.at[:, index].set(new.astype(store.dtype), unique_indices=True, mode="promise_in_bounds")

    return Replay(
        data=jax.tree.map(lambda store, new: put(store, jnp.moveaxis(new, 0, 1)), replay.data, steps),
        last=put(last, index[end]),
        elapsed=put(replay.elapsed, elapsed),
        done=put(replay.done, done),
        position=(replay.position + length) % capacity,
        size=jnp.minimum(replay.size + length, capacity),
        open=jnp.where(any_end, since, jnp.minimum(replay.open + length, capacity)),
        age=jnp.where(any_end, since, jnp.minimum(replay.age + length, 2**30)),
    )


def groups_of(local_worlds: int) -> tuple[int, Int[Array, " groups"]]:
    """G over all devices, and the global numbers of this device's groups."""
    devices = spmd.axis_size()
    groups = num_groups(local_worlds * devices)
    if groups % devices:
        raise ConfigError(f"devices: got {devices}, expected a divisor of {groups} (the groups that worlds form)")
    return groups, spmd.global_index(groups // devices)


def group_keys(key: Key[Array, ""], local_worlds: int) -> Key[Array, " groups"]:
    """A key for each of this device's groups of worlds: the same on any number of devices."""
    return jax.vmap(jax.random.fold_in, in_axes=(None, 0))(key, groups_of(local_worlds)[1])


def sample(replay: Replay, key: Key[Array, ""], count: int) -> Picks:
    """Stored steps, uniformly and with replacement; the replay must hold one.

    Args:
      replay: of this device.
      key: the same on all devices.
      count: over all devices, a multiple of the groups of worlds. A device gets its share, group by group.
    """
    worlds = replay.position.shape[0]
    groups, mine = groups_of(worlds)
    if count % groups:
        raise ConfigError(f"batch_size: got {count}, expected a multiple of {groups} (the groups that worlds form)")
    members = worlds // mine.shape[0]

    def draw(key: Array) -> tuple[Array, Array]:
        which, when = jax.random.split(key)
        world = jax.random.randint(which, (count // groups,), 0, members, jnp.int32)
        return world, jax.random.randint(when, (count // groups,), 0, replay.size[0], jnp.int32)

    world, age = jax.vmap(draw)(group_keys(key, worlds))
    world = (world + members * jnp.arange(mine.shape[0], dtype=jnp.int32)[:, None]).reshape(-1)
    slot = (replay.position[0] - 1 - age.reshape(-1)) % replay.capacity
    return Picks(world, slot, (replay.last[world, slot] - slot) % replay.capacity)


def future(replay: Replay, key: Key[Array, ""], picks: Picks, gamma: Scalar) -> Int[Array, " rows"]:
    """For each picked step the slot of one of the same episode, k >= 0 steps later with P(k) proportional to gamma^k.

    The law is truncated at the episode's last stored step. k = 0 is the step itself, whose *outcome* lies in its future.
    """
    worlds = replay.position.shape[0]
    keys = group_keys(key, worlds)
    rows = picks.slot.shape[0] // keys.shape[0]
    u = jax.vmap(lambda k: jax.random.uniform(k, (rows,), jnp.result_type(float)))(keys)
    return (picks.slot + goals.geometric(u.reshape(-1), picks.later + 1, gamma)) % replay.capacity


def take(tree: Any, world: Int[Array, "*rows"], slot: Int[Array, "*rows"]) -> Any:
    """The data of those steps; ``tree`` has leaves (worlds, capacity, …)."""
    return jax.tree.map(lambda x: x[world, slot], tree)


def episodes(replay: Replay, key: Key[Array, ""], count: int, length: int) -> tuple[Any, Bool[Array, "episodes time"]]:
    """Whole episodes of this device: uniformly among those of which every step, from first to last, is stored.

    Args:
      replay: of this device.
      key: of the draw, with replacement.
      count: number of episodes.
      length: steps of each that are returned: at least the longest episode, or its beginning is what one gets.

    Returns:
      The data, leaves (episodes, time, …), and which steps there are (none at all where no episode is whole).
    """
    capacity = replay.capacity
    age = (replay.position[:, None] - 1 - jnp.arange(capacity, dtype=jnp.int32)[None]) % capacity
    whole = replay.done & (age < replay.size[:, None]) & (age + replay.elapsed < replay.size[:, None])
    weight = jnp.where(whole, 0.0, -jnp.inf).astype(jnp.result_type(float)).reshape(-1)
    some = whole.any()
    pick = jax.random.categorical(key, jnp.where(some, weight, jnp.zeros_like(weight)), shape=(count,))
    world, slot = jnp.divmod(pick.astype(jnp.int32), capacity)
    before = replay.elapsed[world, slot]
    time = jnp.arange(length, dtype=jnp.int32)[None]
    slots = (slot[:, None] - before[:, None] + time) % capacity
    there = (time <= before[:, None]) & some
    return take(replay.data, jnp.broadcast_to(world[:, None], slots.shape), slots), there
