"""Goal tasks: rewards, ends, solvability, and the maze's shortest ways."""

from __future__ import annotations

import functools
import heapq

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import mjxlab
from mjxlab.envs.goal import crosses_wall, disc


@functools.cache
def _env(name, **kwargs):
    return mjxlab.make(name, **kwargs)


def _episodes(env, policy, worlds=32, steps=None):
    @jax.jit
    def run(key):
        def step(state, key):
            keys, size = jax.random.split(key, worlds), env.action_space.shape
            action = (
                jax.vmap(env.scripted)(state)
                if policy == "scripted"
                else jax.vmap(lambda k: jax.random.uniform(k, size, minval=-1.0, maxval=1.0))(keys)
            )
            state = jax.vmap(env.step)(state, action)
            return state, (state.success, state.reward, state.terminated)

        state = jax.vmap(env.reset)(jax.random.split(key, worlds))
        return jax.lax.scan(step, state, jax.random.split(key, steps or env.episode_length))[1]

    return tuple(np.asarray(x) for x in run(jax.random.key(4)))


@pytest.mark.parametrize("name", ["reacher_goal", pytest.param("point_u_maze", marks=pytest.mark.slow)])
def test_a_scripted_controller_solves_the_task_and_chance_does_not(name):
    env = _env(name)
    success, reward, terminated = _episodes(env, "scripted")
    assert success[-1].mean() >= 0.95 and not terminated.any() and reward.max() <= 0 and reward.min() >= -1.011
    chance, other, _ = _episodes(env, "random")
    assert chance[-1].mean() <= 0.1 and other.sum(0).mean() < reward.sum(0).mean()


@pytest.mark.slow
def test_the_ant_can_walk_to_its_goals():
    env = _env("ant_goal", outputs=("time",))
    success, reward, terminated = _episodes(env, "scripted", worlds=16)
    assert success.any(0).mean() >= 0.85 and terminated.any(0).mean() <= 0.15
    chance, other, _ = _episodes(env, "random", worlds=16)
    assert chance[-1].mean() <= 0.1 and other.sum(0).mean() < reward.sum(0).mean()


def test_ant_goal_reward_and_end():
    env = _env("ant_goal")
    state = env.reset(jax.random.key(0))
    after = jax.jit(env.step)(state, 0.5 * jnp.ones(8))
    goal = np.asarray(state.commanded)
    approach = np.linalg.norm(np.asarray(state.achieved) - goal) - np.linalg.norm(np.asarray(after.achieved) - goal)
    assert float(after.reward) == pytest.approx(approach / 0.05 + 1 - 0.05 * 8 * 0.25, abs=1e-4)
    home = jnp.asarray(env.home, jnp.float32)
    for height, ends in ((0.19, True), (0.21, False), (0.99, False), (1.01, True)):
        data = env.start(jax.random.key(0), qpos=home.at[2].set(height)).data
        assert bool(env.terminated(data)) == ends
    goals = jax.jit(jax.vmap(env.reset_pose))(jax.random.split(jax.random.key(0), 128))["mocap_pos"][:, 0, :2]
    far = np.linalg.norm(np.asarray(goals), axis=1)
    assert far.min() >= 1 and far.max() <= 10 and far.max() > 9


def test_sparse_reward_is_success_and_success_may_end_the_episode():
    env = _env("point_u_maze", reward="sparse", terminate_on_success=True)
    here = jnp.array([1.0, 0.3])
    near = env.start(jax.random.key(0), qpos=here, mocap_pos=jnp.array([[1.0, 0.15, 0.05]]))
    far = env.start(jax.random.key(0), qpos=here, mocap_pos=jnp.array([[1.0, -0.5, 0.05]]))
    step = jax.jit(env.step)
    for state, good in ((near, True), (far, False)):
        after = step(state, jnp.zeros(2))
        assert float(after.reward) == good and bool(after.success) == good and bool(after.terminated) == good
        assert bool(state.success) == good and float(after.metrics["distance"]) < 1
    stays = _env("point_u_maze")
    assert not bool(jax.jit(stays.step)(near, jnp.zeros(2)).terminated)


def test_success_is_a_matter_of_the_radius():
    env = _env("reacher_goal")
    state = env.reset(jax.random.key(0))
    tip = np.asarray(state.achieved)
    for offset, good in ((0.0199, True), (0.0201, False)):
        goal = jnp.asarray([[tip[0] + offset, tip[1], 0.01]], jnp.float32)
        assert bool(env.success(env.engine.set(state.data, mocap_pos=goal))) == good


def test_ring_of_goals_is_uniform_in_area():
    points = np.asarray(jax.jit(jax.vmap(lambda k: disc(k, 1.0, 2.0)))(jax.random.split(jax.random.key(0), 2048)))
    square = (points**2).sum(1)
    assert square.min() >= 1 - 1e-5 and square.max() <= 4 + 1e-5
    np.testing.assert_allclose(square.mean(), 2.5, atol=0.08)  # radius² is uniform in [1, 4]
    np.testing.assert_allclose(points.mean(0), 0, atol=0.1)


def _search(start, cell=0.05):
    """Lengths of ways from one place over a fine grid, 16 directions, to where the ball's centre can be (Dijkstra)."""
    axis = np.arange(-1.35, 1.351, cell)
    free = ~((axis[:, None] < 0.66) & (np.abs(axis[None]) < 0.66))
    moves = [(i, j) for i in range(-2, 3) for j in range(-2, 3) if np.gcd(abs(i), abs(j)) == 1]
    origin = tuple(round((v + 1.35) / cell) for v in start)
    best, queue = {origin: 0.0}, [(0.0, origin)]
    while queue:
        length, (i, j) = heapq.heappop(queue)
        if length > best[i, j]:
            continue
        for di, dj in moves:
            a, b = i + di, j + dj
            if not (0 <= a < len(axis) and 0 <= b < len(axis)):
                continue
            # all four corners of the box between the two places: no cutting through the wall
            clear = free[a, b] and free[a, j] and free[i, b]
            new = length + cell * np.hypot(di, dj)
            if clear and new < best.get((a, b), np.inf):
                best[a, b] = new
                heapq.heappush(queue, (new, (a, b)))
    return best, axis


def test_shortest_ways_equal_a_search_over_a_grid():
    env = _env("point_u_maze")
    start = np.array([-1.0, 1.0])
    best, axis = _search(start)
    rng = np.random.default_rng(0)
    chosen = [list(best)[i] for i in rng.integers(0, len(best), 40)]
    goals = jnp.asarray([[axis[i], axis[j]] for i, j in chosen], jnp.float32)
    ours = np.asarray(jax.jit(jax.vmap(lambda g: env.path(jnp.asarray(start, jnp.float32), g)))(goals))
    searched = np.array([best[c] for c in chosen])
    # a grid's way is at most 3 % longer than the straight one, and its corners are cut by half a cell at most
    assert (ours <= searched + 0.05).all() and (searched <= 1.03 * ours + 0.12).all()
    assert ours.max() > 4.5  # round the wall and back: straight through it would be 2.5 at most


@pytest.mark.parametrize(
    ("a", "b", "blocked"),
    [
        ((-1.0, 1.0), (-1.0, -1.0), True),
        ((-1.0, 1.0), (1.0, 1.0), False),
        ((1.0, 1.0), (1.0, -1.0), False),
        ((0.0, 1.0), (1.0, 0.0), True),
        ((0.9, 1.0), (1.0, 0.0), False),
        ((1.0, -0.9), (-1.2, 0.9), True),
    ],
)
def test_wall_blocks_the_view(a, b, blocked):
    assert bool(crosses_wall(jnp.array(a), jnp.array(b))) == blocked == bool(crosses_wall(jnp.array(b), jnp.array(a)))


def test_the_ball_does_not_go_through_walls():
    env = _env("point_u_maze")
    state = env.start(jax.random.key(0), qpos=jnp.array([0.0, 1.0]))
    step = jax.jit(env.step)
    for _ in range(60):
        state = step(state, jnp.array([0.0, -1.0]))
    y = float(state.data.qpos[1])
    assert 0.64 < y < 0.66  # the wall's face is at 0.5, the ball's radius 0.15


def test_far_goals_lie_at_the_other_end():
    env = _env("point_u_maze", goals="far")
    poses = jax.jit(jax.vmap(env.reset_pose))(jax.random.split(jax.random.key(0), 16))
    goals = np.asarray(poses["mocap_pos"])[:, 0]
    assert (np.asarray(poses["qpos"])[:, 1] > 0.6).all() and (goals[:, :2] < -0.6).all()
