"""Mazes for robots: walls that hold, shortest ways against a search, two engines; the contract of robots' goal tasks."""

from __future__ import annotations

import functools
import heapq

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import mjxlab
from mjxlab import physics
from mjxlab.envs import check_env, maze
from mjxlab.envs.goal import AntGoal
from mjxlab.envs.maze_layout import Layout, blocks
from mjxlab.errors import ConfigError

MAZES = ("point_big_maze", "ant_u_maze")
ROBOTS = ("reacher_goal", "arm_push", "arm_reach", "point_u_maze", "point_big_maze", "ant_goal", "ant_u_maze")


@functools.cache
def _env(name, **kwargs):
    return mjxlab.make(name, **kwargs)


def _play(env, policy, worlds, steps, key=0):
    """States of episodes, [steps, worlds, ...]; they go on after their end."""

    @jax.jit
    def run(key):
        def step(state, key):
            state = jax.vmap(env.step)(state, policy(state, key))
            kept = state.data.qpos, state.achieved, state.commanded, state.success, state.reward, state.terminated
            return state, kept

        state = jax.vmap(env.reset)(jax.random.split(key, worlds))
        return jax.lax.scan(step, state, jax.random.split(key, steps))[1]

    names = ("qpos", "achieved", "commanded", "success", "reward", "terminated")
    return dict(zip(names, (np.asarray(x) for x in run(jax.random.key(key))), strict=True))


def _scripted(env):
    return lambda state, key: jax.vmap(env.scripted)(state)


# the layout


def test_walls_are_the_drawing():
    wall = np.random.default_rng(0).random((9, 12)) < 0.5
    covered = np.zeros_like(wall, int)
    for top, left, rows, columns in blocks(wall):
        covered[top : top + rows, left : left + columns] += 1
    np.testing.assert_array_equal(covered, wall)


@pytest.mark.parametrize(("name", "cell"), [("point_big_maze", 1.0), ("ant_u_maze", 3.0)])
def test_the_model_has_the_walls_of_the_drawing(name, cell):
    env = _env(name)
    model, layout = env.engine.model, env.layout
    boxes = [i for i in range(model.ngeom) if model.geom(i).name.startswith("wall_")]
    assert len(boxes) == len(layout.walls)
    h, w = layout.free.shape
    for row in range(h):
        for column in range(w):
            place = np.array([(column - (w - 1) / 2) * cell, ((h - 1) / 2 - row) * cell])
            inside = [(np.abs(place - model.geom_pos[i][:2]) < model.geom_size[i][:2]).all() for i in boxes]
            assert sum(inside) == (not layout.free[row, column])
    # the drawing reads from north to south
    assert layout.centres[0][1] == layout.centres[:, 1].max() and len(layout.centres) == layout.free.sum()


def _search(layout, start, step):
    """Lengths of ways from one place over a fine grid, in 16 directions (Dijkstra)."""
    x, y = (np.arange(-half, half + 1e-9, step) for half in np.array(layout.extent) / 2 - layout.margin)
    grow = layout.margin - 1e-6
    apart = [
        (np.abs(x[:, None] - wx) < hx + grow) & (np.abs(y[None] - wy) < hy + grow) for wx, wy, hx, hy in layout.walls
    ]
    free = ~np.any(apart, axis=0)
    moves = [(i, j) for i in range(-2, 3) for j in range(-2, 3) if np.gcd(abs(i), abs(j)) == 1]
    origin = int(np.argmin(np.abs(x - start[0]))), int(np.argmin(np.abs(y - start[1])))
    best, queue = {origin: 0.0}, [(0.0, origin)]
    while queue:
        length, (i, j) = heapq.heappop(queue)
        if length > best[i, j]:
            continue
        for di, dj in moves:
            a, b = i + di, j + dj
            if not (0 <= a < len(x) and 0 <= b < len(y) and free[a, b] and free[a, j] and free[i, b]):
                continue
            new = length + step * np.hypot(di, dj)
            if new < best.get((a, b), np.inf):
                best[a, b] = new
                heapq.heappush(queue, (new, (a, b)))
    return best, x, y


@pytest.mark.parametrize(("name", "start"), [("point_big_maze", 0), ("point_big_maze", 17), ("ant_u_maze", 0)])
def test_shortest_ways_equal_a_search_over_a_fine_grid(name, start):
    layout = _env(name).layout
    step = 0.05 * layout.cell
    start = layout.centres[start]
    best, x, y = _search(layout, start, step)
    chosen = [list(best)[i] for i in np.random.default_rng(0).integers(0, len(best), 60)]
    goals = jnp.asarray([[x[i], y[j]] for i, j in chosen], jnp.float32)
    lengths, first = jax.jit(jax.vmap(lambda g: layout.ways(jnp.asarray(start, jnp.float32), g)))(goals)
    searched = np.array([best[c] for c in chosen])
    # a grid's way is at most 3 % longer than the straight one; start, goal and corners lie off it by half a step
    lengths = np.asarray(lengths)
    assert (lengths <= searched + 2 * step).all() and (searched <= 1.03 * lengths + 3 * step).all()
    assert (lengths / np.linalg.norm(np.asarray(goals) - start, axis=1)).max() > 1.15
    # from the first corner on, the rest of the way
    rest = jax.jit(jax.vmap(lambda a, g: layout.ways(a, g)[0]))(first, goals)
    np.testing.assert_allclose(np.linalg.norm(np.asarray(first) - start, axis=1) + rest, lengths, atol=1e-4)
    back = jax.jit(jax.vmap(lambda g: layout.ways(g, jnp.asarray(start, jnp.float32))[0]))(goals)
    np.testing.assert_allclose(back, lengths, atol=1e-4)


@pytest.mark.parametrize("name", ["point_big_maze", "point_u_maze"])
def test_a_ball_that_touches_a_wall_or_a_corner_sees_its_way(name):
    env = _env(name)
    # the divider of the U, and the walls round it
    divider = np.array([[-0.5, 0, 1, 0.5], [-2, 0, 0.5, 2], [2, 0, 0.5, 2], [0, -2, 2, 0.5], [0, 2, 2, 0.5]])
    walls, path = (
        (divider, env.path) if name == "point_u_maze" else (env.layout.walls, lambda a, b: env.layout.ways(a, b)[0])
    )
    places = np.random.default_rng(0).uniform(-3.5, 3.5, (40000, 2))
    gap = _gap(walls, places)
    touching = places[(gap > 0.148) & (gap < 0.16) & (np.abs(places).max(1) < (1.5 if name == "point_u_maze" else 3.5))]
    lengths = jax.jit(jax.vmap(lambda place: path(place, jnp.array([1.0, -1.0]))))(jnp.asarray(touching, jnp.float32))
    assert len(touching) > 50 and np.asarray(lengths).max() < 20


def test_ways_in_an_empty_room_are_straight():
    layout = Layout("#####\n#   #\n#   #\n#####", 1.0, 0.1)
    a, b = jnp.array([-1.0, 0.4]), jnp.array([1.1, -0.4])
    length, first = layout.ways(a, b)
    assert float(length) == pytest.approx(np.hypot(2.1, 0.8), abs=1e-6) and (first == b).all()
    assert layout.corners.size == 0 and layout.longest == pytest.approx(np.hypot(2, 1))


def test_the_way_from_cell_to_cell_leads_through_free_neighbours():
    layout = _env("point_big_maze").layout
    onward, cells = layout.next_cell, layout.cells
    n = len(cells)
    steps = np.where(np.eye(n, dtype=bool), 0, 1)
    assert (np.abs(cells[onward] - cells[:, None]).sum(-1) == steps).all()  # a neighbour, or already there
    here = np.tile(np.arange(n)[:, None], (1, n))
    for _ in range(n):
        here = onward[here, np.arange(n)]
    assert (here == np.arange(n)).all()


# starts and goals


@pytest.mark.parametrize("name", MAZES)
def test_starts_and_goals_are_uniform_over_pairs_of_cells(name):
    env = _env(name)
    layout, n = env.layout, len(env.layout.cells)
    poses = jax.jit(jax.vmap(env.reset_pose))(jax.random.split(jax.random.key(0), 8192))
    jitter = {"point_big_maze": (0.3, 0.3), "ant_u_maze": (0.35, 0.8)}[name]
    places = poses["qpos"][:, :2], poses["mocap_pos"][:, 0, :2]
    cells = [np.asarray(jax.jit(jax.vmap(layout.cell_of))(place)) for place in places]
    for cell, place, most in zip(cells, places, jitter, strict=True):
        away = np.abs(np.asarray(place) - layout.centres[cell])
        assert away.max() <= most + 1e-5 and away.max() > 0.9 * most
        counts = np.bincount(cell, minlength=n)
        assert ((counts - 8192 / n) ** 2 / (8192 / n)).sum() < n - 1 + 4 * np.sqrt(2 * n)
    assert (cells[0] != cells[1]).all()
    pairs = np.bincount(cells[0] * n + cells[1], minlength=n * n)[np.flatnonzero(~np.eye(n, dtype=bool))]
    assert ((pairs - pairs.mean()) ** 2 / pairs.mean()).sum() < pairs.size - 1 + 4 * np.sqrt(2 * pairs.size)


@pytest.mark.parametrize("name", MAZES)
def test_far_goals_lie_at_the_other_end(name):
    env = _env(name, goals="far")
    poses = jax.jit(jax.vmap(env.reset_pose))(jax.random.split(jax.random.key(0), 64))
    ends = [jax.vmap(env.layout.cell_of)(p) for p in (poses["qpos"][:, :2], poses["mocap_pos"][:, 0, :2])]
    assert (env.layout.ends == np.asarray(ends).T).all()


# physics


def _gap(walls, places):
    """Distance from each place, [..., 2], to the nearest wall."""
    outside = np.maximum(np.abs(places[..., None, :] - walls[:, :2]) - walls[:, 2:], 0)
    return np.linalg.norm(outside, axis=-1).min(-1)


def _crossed(layout, path):
    """Whether the straight line between two places, one after the other, [steps, ..., 2], meets a wall."""
    parts = np.linspace(0, 1, 21)[:, None, None, None]
    return (_gap(layout.walls, path[:-1] + parts * (path[1:] - path[:-1])) == 0).any()


@pytest.mark.parametrize("push", [False, True])
def test_the_ball_never_gets_into_or_through_a_wall(push):
    env = _env("point_big_maze")

    def policy(state, key):
        # either noise, or full force in one direction, a new one every 40 steps
        if push:
            return jax.vmap(lambda k: jax.random.rademacher(jax.random.fold_in(k, 1), (2,), jnp.float32))(state.key)
        return jax.random.uniform(key, (24, 2), jnp.float32, -1.0, 1.0)

    paths = [_play(env, policy, 24, 500 if not push else 80, key)["achieved"] for key in range(1 if not push else 5)]
    for path in paths:
        assert _gap(env.layout.walls, path).min() > 0.15 - 0.02  # the ball's radius, less 2 cm
        assert not _crossed(env.layout, path)
        assert np.ptp(path, axis=0).max() > 0.5


class _Straight(maze.AntUMaze):
    """Its scripted gait goes straight for the goal, wall or no wall."""

    heading = AntGoal.heading


@pytest.mark.parametrize("policy", ["random", "straight"])
def test_the_ant_never_gets_into_or_through_a_wall(policy):
    env = _Straight(outputs=("time",), goals="far")

    def noise(state, key):
        return jax.random.uniform(key, (12, 8), jnp.float32, -1.0, 1.0)

    out = _play(env, noise if policy == "random" else _scripted(env), 12, 500)
    alive = ~np.cumsum(out["terminated"], 0).astype(bool)
    assert _gap(env.layout.walls, out["achieved"])[alive].min() > 0.25 - 0.05  # the torso's radius, less 5 cm
    assert not _crossed(env.layout, np.where(alive[..., None], out["achieved"], out["achieved"][0]))
    assert alive.sum() > 300  # a random ant falls over sooner or later, after some 50 steps
    if policy == "straight":
        assert alive[-1].any()
        # it stands at the wall that it would have to go through: the divider's north face is 1.5 m north
        assert (out["achieved"][-1, alive[-1], 1] > 1.5).all() and not out["success"].any()
        assert (out["achieved"][-1, alive[-1], 1] < 2.6).mean() > 0.6


def test_a_scripted_player_solves_the_big_maze_and_chance_does_not():
    env = _env("point_big_maze")
    out = _play(env, _scripted(env), 48, env.episode_length)
    assert out["success"][-1].mean() >= 0.95
    assert out["reward"].max() <= 0 and out["reward"].min() >= -1
    chance = _play(env, lambda s, k: jax.random.uniform(k, (48, 2), jnp.float32, -1.0, 1.0), 48, env.episode_length)
    assert chance["success"].any(0).mean() <= 0.25 and chance["reward"].sum() < out["reward"].sum()


@pytest.mark.slow
def test_the_ant_can_walk_through_the_u():
    env = _env("ant_u_maze", outputs=("time",))
    out = _play(env, _scripted(env), 24, 1500)
    alive = ~np.cumsum(out["terminated"], 0).astype(bool)
    # the trot makes 0.5 m/s and falls now and then: it needs longer than an episode for the furthest goals
    assert (out["success"] & alive).any(0).mean() >= 0.6
    noise = _play(env, lambda s, k: jax.random.uniform(k, (24, 8), jnp.float32, -1.0, 1.0), 24, 1000)
    ended = np.cumsum(noise["terminated"], 0).astype(bool)  # what a fallen ant drifts over afterwards does not count
    assert (noise["success"] & ~ended).any(0).mean() <= 0.15


@pytest.mark.slow
@pytest.mark.parametrize(("name", "tolerance"), [("point_big_maze", 1e-4), ("ant_u_maze", 2e-3)])
def test_two_engines_agree(name, tolerance):
    """Five control steps against a wall; measured differences are about a fifth of the tolerances (metres, radians)."""
    ours, theirs = (mjxlab.make(name, engine=engine) for engine in ("mujoco", "mjx"))
    goal = jnp.array([[0.0, 0.0, 0.05]])
    if name == "point_big_maze":
        pose = {"qpos": jnp.array([0.0, 3.34]), "mocap_pos": goal}  # at the north wall
        action = jnp.array([0.7, 1.0])
    else:
        # the torso 3 cm from the west wall
        home = jnp.asarray(ours.home, jnp.float32).at[:2].set(jnp.array([-4.22, 3.0]))
        pose, action = {"qpos": home, "qvel": jnp.zeros(14).at[0].set(-1.0), "mocap_pos": goal}, jnp.full((8,), 0.3)
    states = [env.start(jax.random.key(0), **pose) for env in (ours, theirs)]
    steps = [physics.jit(env.step) for env in (ours, theirs)]
    for _ in range(5):
        states = [step(state, action) for step, state in zip(steps, states, strict=True)]
    a, b = (np.asarray(state.data.qpos) for state in states)
    np.testing.assert_allclose(a, b, atol=tolerance)
    np.testing.assert_allclose(states[0].reward, states[1].reward, atol=20 * tolerance)
    # and the wall was felt
    assert a[1] < 3.3505 if name == "point_big_maze" else a[0] > -4.27


# rewards and the contract


def test_dense_rewards_of_mazes():
    big, euclid = _env("point_big_maze"), _env("point_big_maze", dense="euclid")
    # two places on either side of a wall: near in a straight line only
    pose = {"qpos": jnp.array([-3.0, 1.0]), "mocap_pos": jnp.array([[-1.0, 1.0, 0.05]])}
    state = big.start(jax.random.key(0), **pose)
    around = float(big.path(state.data))
    after = jax.jit(big.step)(state, jnp.zeros(2))
    assert around > 1.5 * 2 and float(after.reward) == pytest.approx(-around / big.layout.longest, abs=1e-3)
    assert float(after.metrics["distance"]) == pytest.approx(2, abs=1e-3)
    after = jax.jit(euclid.step)(euclid.start(jax.random.key(0), **pose), jnp.zeros(2))
    assert float(after.reward) == pytest.approx(-2 / np.hypot(7, 7), abs=1e-3)

    u, straight = _env("point_u_maze"), _env("point_u_maze", dense="euclid")
    pose = {"qpos": jnp.array([-1.0, 1.0]), "mocap_pos": jnp.array([[-1.0, -1.0, 0.05]])}
    rewards = [jax.jit(e.step)(e.start(jax.random.key(0), **pose), jnp.zeros(2)).reward for e in (u, straight)]
    around = float(u.path(jnp.array([-1.0, 1.0]), jnp.array([-1.0, -1.0])))
    np.testing.assert_allclose(rewards, [-around / 6, -2 / 18**0.5], atol=1e-3)


def test_the_ant_is_paid_for_progress_along_the_way():
    path, euclid = _env("ant_u_maze", goals="far"), _env("ant_u_maze", goals="far", dense="euclid")
    pose = path.reset_pose(jax.random.key(0))
    pose["qvel"] = jnp.zeros(14).at[0].set(3.0)  # eastwards: along the way, and hardly nearer to the goal
    goal = pose["mocap_pos"][0, :2]

    def left(env, place):
        return float(env.layout.ways(place, goal)[0] if env is path else jnp.linalg.norm(place - goal))

    for env in (path, euclid):
        before = env.start(jax.random.key(0), **pose)
        after = jax.jit(env.step)(before, jnp.zeros(8))
        progress = (left(env, before.achieved) - left(env, after.achieved)) / env.dt
        assert float(after.metrics["reward_progress"]) == pytest.approx(progress, abs=1e-3)
        metre = left(env, before.achieved) - left(env, before.achieved + jnp.array([1.0, 0.0]))
        assert metre > 0.9 if env is path else abs(metre) < 0.3


@pytest.mark.parametrize("name", ROBOTS)
def test_every_robot_task_keeps_the_contract(name):
    env = _env(name)
    state = jax.jit(env.reset)(jax.random.key(0))
    n = env.goal_size
    np.testing.assert_array_equal(state.obs[-n:], state.commanded)
    np.testing.assert_array_equal(state.obs[-2 * n : -n], state.achieved)
    assert state.achieved.shape == state.commanded.shape == (n,)
    # another goal in the same world changes nothing else that is seen
    moved = env.engine.set(state.data, mocap_pos=state.data.mocap_pos + jnp.array([[0.1, -0.2, 0.0]]))
    obs = np.asarray(env.observe(moved))
    np.testing.assert_array_equal(obs[:-n], state.obs[:-n])
    assert (obs[-n:] != np.asarray(state.obs[-n:])).any()
    # success is a matter of achieved and commanded alone
    reached = env.reached(state.achieved, state.commanded)
    assert bool(reached) == bool(state.success) is False and bool(env.reached(state.commanded, state.commanded))
    edge = state.commanded[None] + jnp.zeros((1, n)).at[0, 0].set(env.radius) * jnp.array([[0.99], [1.01]])
    both = jnp.broadcast_to(state.commanded[None], edge.shape)
    assert [bool(env.reached(a, c)) for a, c in zip(edge, both, strict=True)] == [True, False]
    sparse = mjxlab.make(name, reward="sparse", terminate_on_success=True)
    shapes = jax.eval_shape(sparse.step, state, jnp.zeros(env.action_space.shape))
    assert set(shapes.metrics) >= {"distance", "reward_success"}


@pytest.mark.parametrize("name", ["point_big_maze", pytest.param("ant_u_maze", marks=pytest.mark.slow)])
def test_check_env(name):
    check_env(mjxlab.make(name), plain=False)


@pytest.mark.slow
@pytest.mark.parametrize("name", ROBOTS)
def test_ppo_trains_on_two_devices(name):
    from mjxlab.agents import ppo

    env = mjxlab.make(name)
    config = ppo.config_for(name, num_envs=16, rollout_length=8, num_minibatches=2, epochs=1)
    _, history = mjxlab.fit(
        ppo.make(env, config), steps=2, key=jax.random.key(0), devices=2, sinks=(), env=env, config=config
    )
    parts = [values for key, values in history.items() if "loss" in key or "grad" in key]
    assert parts and all(np.isfinite(part).all() for part in parts)


@pytest.mark.parametrize(
    ("name", "wrong", "told"),
    [
        ("point_big_maze", {"goals": "near"}, "goals is 'near'"),
        ("point_big_maze", {"dense": "l1"}, "dense is 'l1'"),
        ("point_big_maze", {"board": "#####\n# # #\n#####"}, "cannot be reached"),
        ("point_u_maze", {"dense": "l1"}, "dense is 'l1'"),
        ("ant_u_maze", {"distance": (1.0, 2.0)}, "distance: goals of ant_u_maze"),
        ("ant_u_maze", {"board": "###\n# #\n###"}, "1 free cells"),
        ("ant_u_maze", {"engine": "bullet"}, "'bullet'"),
    ],
)
def test_errors(name, wrong, told):
    with pytest.raises(mjxlab.errors.MjxlabError) as caught:
        mjxlab.make(name, **wrong)
    assert told in str(caught.value) and "\n" not in str(caught.value)
    assert isinstance(caught.value, ConfigError) or "engine" in wrong
