"""Grid tasks: dynamics and shortest ways against small NumPy games, mazes, distributions of starts, the goal contract."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import mjxlab
from mjxlab import physics
from mjxlab.envs import check_env, grid, grid_lights, grid_nav, grid_picture, grid_sokoban
from mjxlab.errors import ConfigError

NAMES = ("four_rooms", "random_maze", "key_door", "sokoban_lite", "lights_out_lite")
MOVES = [(-1, 0), (1, 0), (0, -1), (0, 1), (0, 0)]


def _slow_but(*quick):
    """All tasks, those not named marked slow."""
    return [name if name in quick else pytest.param(name, marks=pytest.mark.slow) for name in NAMES]


@functools.cache
def _env(name, **kwargs):
    return mjxlab.make(name, **({"noise": 0.0} if name == "four_rooms" else {}), **kwargs)


@functools.cache
def _starts(name, worlds, seed=0, **kwargs):
    """That many episodes' starts, in NumPy."""
    reset = jax.jit(jax.vmap(_env(name, **kwargs).reset))
    states = reset(jax.random.split(jax.random.key(seed), worlds))
    return jax.device_get(states.replace(key=None)), states


@functools.cache
def _played(name, worlds=48, steps=60, policy="random", **kwargs):
    """Actions and states of episodes, [steps, worlds, ...]."""
    env = _env(name, **kwargs)

    @jax.jit
    def run(states, key):
        def step(state, key):
            if policy == "random":
                action = jax.random.randint(key, (worlds,), 0, env.action_space.n, jnp.int32)
            else:
                action = jax.vmap(env.scripted)(state)
            after = jax.vmap(env.step)(state, action)
            return after, (action, after.replace(key=None))

        return jax.lax.scan(step, states, jax.random.split(key, steps))[1]

    return jax.device_get(run(_starts(name, worlds, **kwargs)[1], jax.random.key(1)))


# the games anew, in NumPy: a state is a tuple, a step a plain function


def _walk(free, here, move):
    there = here[0] + move[0], here[1] + move[1]
    return there if free[there] else here


def _walker(params):
    def step(state, action):
        return _walk(params["free"], state, MOVES[action])

    return step, lambda state: state == tuple(params["goal"])


def _door(params, size=7):
    free = np.zeros((size, size), bool)
    free[1:-1, 1:-1] = True
    free[:, params["door"][1]] = False
    opened = free.copy()
    opened[tuple(params["door"])] = True

    def step(state, action):
        here, has = state
        here = _walk(opened if has else free, here, MOVES[action])
        return here, has or here == tuple(params["key"])

    return step, lambda state: state[0] == tuple(params["goal"])


def _sokoban(params):
    free = params["free"]

    def step(state, action):
        (r, c), box = state
        d = MOVES[action]
        there = r + d[0], c + d[1]
        if d != (0, 0) and there == box:
            beyond = _walk(free, box, d)
            return ((r, c), box) if beyond == box else (there, beyond)
        return _walk(free, (r, c), d), box

    return step, lambda state: state[1] == tuple(params["goal"])


def _lights(params):
    n = len(params["goal"])

    def step(state, action):
        board = np.array(state, bool).reshape(n, n)
        if action < n * n:
            for d in MOVES:
                r, c = action // n + d[0], action % n + d[1]
                if 0 <= r < n and 0 <= c < n:
                    board[r, c] ^= True
        return tuple(board.ravel().tolist())

    return step, lambda state: state == tuple(params["goal"].ravel().tolist())


GAMES = {
    "four_rooms": (_walker, lambda d: tuple(d["agent"].tolist())),
    "random_maze": (_walker, lambda d: tuple(d["agent"].tolist())),
    "key_door": (_door, lambda d: (tuple(d["agent"].tolist()), bool(d["key"]))),
    "sokoban_lite": (_sokoban, lambda d: (tuple(d["agent"].tolist()), tuple(d["box"].tolist()))),
    "lights_out_lite": (_lights, lambda d: tuple(d["lights"].ravel().tolist())),
}


def _of(tree, *index):
    return {name: x[index] for name, x in tree.items()}


def _fewest(step, won, start, actions):
    """Steps of the shortest way, by breadth-first search; None if there is none."""
    seen, ring, length = {start}, [start], 0
    while ring:
        if any(won(state) for state in ring):
            return length
        ring = list({step(state, a) for state in ring for a in range(actions)} - seen)
        seen.update(ring)
        length += 1
    return None


@pytest.mark.parametrize("name", NAMES)
def test_dynamics_are_those_of_an_independent_game(name):
    env, (rules, read) = _env(name), GAMES[name]
    first, _ = _starts(name, 48)
    actions, after = _played(name)
    for world in range(48):
        step, won = rules(_of(first.params, world))
        state = read(_of(first.data, world))
        for t in range(60):
            state = step(state, int(actions[t, world]))
            assert state == read(_of(after.data, t, world))
            assert won(state) == after.success[t, world]
    moved = (after.achieved[1:] != after.achieved[:-1]).any(-1)
    assert 0.005 < moved.mean() < 0.95 and after.success.any() and not after.terminated.any()
    assert (actions.max(), actions.min()) == (env.action_space.n - 1, 0)


@pytest.mark.parametrize("name", NAMES)
def test_steps_to_go_are_those_of_a_search_and_every_episode_can_be_solved(name):
    env, (rules, read) = _env(name), GAMES[name]
    first, _ = _starts(name, 48)
    _, after = _played(name)
    lost = 0
    for world in range(40):
        step, won = rules(_of(first.params, world))
        fewest = _fewest(step, won, read(_of(first.data, world)), env.action_space.n)
        assert fewest is not None and fewest == first.metrics["distance"][world] > 0
        if name == "lights_out_lite" and world > 10:
            continue  # the search is slow
        later = _fewest(step, won, read(_of(after.data, 30, world)), env.action_space.n)
        assert after.metrics["distance"][30, world] == (env.longest if later is None else later)
        lost += later is None
    assert (lost > 0) == (name == "sokoban_lite")  # there alone can a game be lost


@pytest.mark.parametrize("name", NAMES)
def test_the_scripted_player_takes_the_fewest_steps_and_holds_the_goal(name):
    env = _env(name)
    first, _ = _starts(name, 512)
    _, after = _played(name, worlds=512, steps=env.longest, policy="scripted")
    due = first.metrics["distance"][None] <= np.arange(1, env.longest + 1)[:, None]
    np.testing.assert_array_equal(after.success, due)
    assert after.success[-1].all() and env.longest <= env.episode_length
    np.testing.assert_allclose(after.reward, -after.metrics["distance"] / env.longest, atol=1e-6)
    assert first.metrics["distance"].max() >= 0.4 * env.longest


def test_the_bounds_on_steps_hold():
    # size 7: from corner to corner, with the wall furthest east
    env = _env("key_door")
    cell = functools.partial(jnp.array, dtype=jnp.int32)
    worst = env.steps_to_go(
        {"agent": cell([5, 3]), "key": jnp.array(False)},
        {"key": cell([1, 1]), "door": cell([5, 4]), "goal": cell([1, 5])},
    )
    assert int(worst) == 6 + 7 + 5 == env.longest
    moves = np.asarray(_starts("sokoban_lite", 512)[0].params["moves"])
    assert moves[moves < grid_sokoban.LOST].max() <= _env("sokoban_lite").longest
    for braid in (0.0, 1.0):
        first, _ = _starts("random_maze", 512, braid=braid)
        assert first.params["steps"][first.params["free"]].max() <= _env("random_maze").longest


# mazes


@pytest.mark.parametrize(("n", "braid"), [(4, 0.0), (4, 1.0), (6, 0.0)])
def test_mazes_are_connected_and_perfect_or_without_dead_ends(n, braid):
    keys = jax.random.split(jax.random.key(0), 500)
    right, down = (np.asarray(x) for x in jax.jit(jax.vmap(lambda k: grid_nav.maze(k, n, braid)))(keys))
    free = np.asarray(jax.jit(jax.vmap(grid_nav.board_of))(right, down))
    assert free.shape[1:] == (2 * n + 1, 2 * n + 1)
    assert free[:, 1::2, 1::2].all() and not free[:, ::2, ::2].any()
    assert not free[:, [0, -1]].any() and not free[:, :, [0, -1]].any()
    edges = right.sum((1, 2)) + down.sum((1, 2))
    for board in free:
        seen, ring = set(), [(1, 1)]
        while ring:
            seen.update(ring)
            ring = [_walk(board, here, d) for here in ring for d in MOVES]
            ring = list(set(ring) - seen)
        assert len(seen) == board.sum()  # connected
    ways = np.sum([free[:, 1 + d : 2 * n + d : 2, 1 + r : 2 * n + r : 2] for d, r in MOVES[:4]], axis=0)
    if braid:
        assert (ways >= 2).all()
    else:
        assert (edges == n * n - 1).all()  # connected with as few openings as that: a tree
        assert (ways == 1).any((1, 2)).all()
    assert len({board.tobytes() for board in free}) > (330 if braid else 440)


def test_braid_is_the_share_of_dead_ends_that_are_opened():
    keys = jax.random.split(jax.random.key(0), 500)

    def dead(braid):
        right, down = jax.vmap(lambda k: grid_nav.maze(k, 5, braid))(keys)
        free = jax.vmap(grid_nav.board_of)(right, down)
        ways = sum(free[:, 1 + d : 10 + d : 2, 1 + r : 10 + r : 2].astype(jnp.int32) for d, r in MOVES[:4])
        return ways == 1

    before, after = (np.asarray(x) for x in jax.jit(lambda: (dead(0.0), dead(0.5)))())
    # half of them are opened by themselves, some more by a neighbour
    share = 1 - (before & after).sum() / before.sum()
    assert 0.5 < share < 0.65 and not (after & ~before).any()


def test_every_maze_of_two_by_two_is_drawn():
    right, down = jax.jit(jax.vmap(lambda k: grid_nav.maze(k, 2)))(jax.random.split(jax.random.key(0), 400))
    boards = np.concatenate([np.asarray(right).reshape(400, -1), np.asarray(down).reshape(400, -1)], 1)
    kinds, counts = np.unique(boards, axis=0, return_counts=True)
    assert len(kinds) == 4 and _chi_square(counts) < 16.3  # 3 degrees of freedom, p = 0.001


# distributions


def _chi_square(counts):
    expected = counts.sum() / counts.size
    return ((counts - expected) ** 2 / expected).sum()


def _bound(size):
    """Chi-square's quantile of about 1 - 3e-5 (four standard deviations)."""
    return (size - 1) + 4 * np.sqrt(2 * (size - 1))


def test_choice_among_allowed_entries_is_uniform():
    allowed = jnp.asarray(np.random.default_rng(0).random((7, 9)) < 0.4)
    keys = jax.random.split(jax.random.key(0), 8192)
    index = np.asarray(jax.jit(jax.vmap(lambda k: grid.choose(k, allowed)))(keys))
    counts = np.bincount(index, minlength=63)
    assert not counts[~np.asarray(allowed).ravel()].any()
    counts = counts[np.asarray(allowed).ravel()]
    assert _chi_square(counts) < _bound(counts.size)
    none = grid.choose(jax.random.key(0), jnp.zeros((3, 3), bool))
    assert int(none) == 0


def test_starts_and_goals_of_four_rooms_are_uniform_over_pairs():
    first, _ = _starts("four_rooms", 16384)
    free = _env("four_rooms").free
    for cells in (first.data["agent"], first.params["goal"]):
        counts = np.bincount(cells @ [11, 1], minlength=121)[free.ravel()]
        assert counts.sum() == 16384 and _chi_square(counts) < _bound(68)
    assert not first.success.any()
    # independent but for that: the mean of (goal - start) given the half of the start is what two uniform draws give
    north = first.data["agent"][:, 0] < 5
    np.testing.assert_allclose(first.params["goal"][north, 0].mean(), 5, atol=0.12)


def test_key_door_draws_uniformly():
    first, _ = _starts("key_door", 16384)
    agent, key, door, goal = first.data["agent"], first.params["key"], first.params["door"], first.params["goal"]
    assert (agent[:, 1] < door[:, 1]).all() and (key[:, 1] < door[:, 1]).all() and (goal[:, 1] > door[:, 1]).all()
    assert (agent != key).any(1).all() and not first.data["key"].any() and not first.success.any()
    assert _chi_square(np.unique(door, axis=0, return_counts=True)[1]) < _bound(15)
    here = door[:, 1] == 3
    for cells in (agent[here], key[here], goal[here]):
        counts = np.unique(cells, axis=0, return_counts=True)[1]
        assert counts.size == 10 and _chi_square(counts) < _bound(10)


def test_sokoban_starts_are_uniform_over_what_can_be_solved():
    # without pillars and on the smallest board there are few enough to count
    first, _ = _starts("sokoban_lite", 16384, size=5, pillars=0)
    goals = first.params["goal"] @ [5, 1]
    assert _chi_square(np.unique(goals, return_counts=True)[1]) < _bound(9)
    here = goals == goals[0]
    solvable = (first.params["moves"][0] > 0) & (first.params["moves"][0] < grid_sokoban.LOST)
    player, box = ((cell[here] - 1) @ [3, 1] for cell in (first.data["agent"], first.data["box"]))
    counts = np.bincount(player * 9 + box, minlength=81)
    assert counts[solvable.ravel()].sum() == here.sum()
    assert _chi_square(counts[solvable.ravel()]) < _bound(solvable.sum())


def test_lights_start_anywhere_and_goals_lie_up_to_four_presses_away():
    first, _ = _starts("lights_out_lite", 8192)
    number = first.data["lights"].reshape(-1, 9) @ (1 << np.arange(9))
    assert _chi_square(np.bincount(number, minlength=512)) < _bound(512)
    # on 3 x 3 lights a set of presses is the only one that does what it does
    counts = np.bincount(first.metrics["distance"].astype(int), minlength=5)
    assert counts[0] == 0 and counts.size == 5 and _chi_square(counts[1:]) < _bound(4)


def test_noise_is_the_share_of_actions_that_are_not_carried_out():
    env = mjxlab.make("four_rooms")
    keys = jax.random.split(jax.random.key(0), 4096)
    first = _starts("four_rooms", 1)[1]
    cell = jnp.array([1, 1], jnp.int32)

    @jax.jit
    def moved(keys):
        def one(key):
            state = env.start(key, {"agent": cell}, jax.tree.map(lambda x: x[0], first.params))
            return env.step(env.step(state, jnp.int32(grid.RIGHT)), jnp.int32(grid.DOWN)).data["agent"]

        return jax.vmap(one)(keys)

    down, right = (np.asarray(moved(keys)) - 1).T
    for share in (down, right):
        np.testing.assert_allclose(share.mean(), 0.9, atol=4 * np.sqrt(0.09 / 4096))
    np.testing.assert_allclose((down * right).mean(), 0.81, atol=0.025)  # a new draw at each step


# the single games


def test_the_door_is_shut_without_the_key():
    env = _env("key_door")
    _, after = _played("key_door", worlds=48, steps=60)
    first, states = _starts("key_door", 48)
    east = after.data["agent"][..., 1] >= first.params["door"][None, :, 1]
    assert east.any() and not (east & ~after.data["key"]).any()
    one = jax.tree.map(lambda x: x[0], states)
    beside = one.params["door"] + jnp.array([0, -1], jnp.int32)
    params = {**one.params, "key": jnp.array([0, 0], jnp.int32)}  # nowhere that one could step on
    for has in (False, True):
        data = env.move({"agent": beside, "key": jnp.array(has)}, params, jnp.int32(grid.RIGHT))
        assert bool((data["agent"] == (one.params["door"] if has else beside)).all()) and bool(data["key"]) == has


ROOM = """
#######
#     #
#     #
#   # #
#     #
#     #
#######
"""


def _push(agent, box, action):
    free = jnp.asarray(grid_nav.read_board(ROOM))
    data = {"agent": jnp.array(agent, jnp.int32), "box": jnp.array(box, jnp.int32)}
    after = _env("sokoban_lite").move(data, {"free": free}, jnp.int32(action))
    return tuple(after["agent"].tolist()), tuple(after["box"].tolist())


@pytest.mark.parametrize(
    ("agent", "box", "action", "expected"),
    [
        ((2, 2), (2, 3), grid.RIGHT, ((2, 3), (2, 4))),  # a push
        ((2, 2), (2, 3), grid.LEFT, ((2, 1), (2, 3))),  # never a pull
        ((2, 2), (2, 3), grid.STAY, ((2, 2), (2, 3))),
        ((2, 2), (2, 3), grid.UP, ((1, 2), (2, 3))),
        ((1, 4), (1, 5), grid.RIGHT, ((1, 4), (1, 5))),  # box at the wall
        ((1, 4), (2, 4), grid.DOWN, ((1, 4), (2, 4))),  # box at the pillar
        ((3, 2), (3, 3), grid.RIGHT, ((3, 2), (3, 3))),
        ((4, 4), (4, 5), grid.UP, ((4, 4), (4, 5))),  # the player at the pillar
        ((2, 4), (2, 5), grid.RIGHT, ((2, 4), (2, 5))),
        ((1, 5), (2, 5), grid.DOWN, ((2, 5), (3, 5))),  # past the pillar
        ((4, 5), (3, 5), grid.UP, ((3, 5), (2, 5))),
        ((5, 1), (1, 1), grid.DOWN, ((5, 1), (1, 1))),
        ((5, 1), (1, 1), 7, ((5, 1), (1, 1))),  # no such action: none
    ],
)
def test_pushes(agent, box, action, expected):
    assert _push(agent, box, action) == expected


def test_boxes_in_corners_and_at_wrong_walls_are_lost():
    room = jnp.asarray(grid_nav.read_board(ROOM)[1:-1, 1:-1])
    moves = np.asarray(jax.jit(grid_sokoban.solve)(room, jnp.array([0, 2], jnp.int32))).reshape(5, 5, 5, 5)
    lost = grid_sokoban.LOST
    for corner in ((0, 0), (0, 4), (4, 0), (4, 4)):
        assert (moves[..., corner[0], corner[1]] == lost).all()
    for row in range(5):
        assert (moves[:, :, row, 0] == lost).all()  # at the west wall, the goal is not
        assert (moves[:, :, 4, row] == lost).all()
    assert (
        moves[:, :, 0, 1] < lost
    ).sum() == 23  # along the goal's own wall it goes, from everywhere but box and pillar
    assert moves[0, 0, 0, 1] == 1 and moves[1, 2, 0, 2] == 0 and moves[2, 2, 1, 2] == 1
    assert moves[2, 3, 2, 3] == lost  # no situation: one on the other


def test_goals_are_where_a_box_can_be_pushed():
    room = jnp.asarray(grid_nav.read_board("#####\n#   #\n# ###\n## ##\n#####")[1:-1, 1:-1])
    expected = [[True, False, True], [False, False, False], [False, False, False]]
    np.testing.assert_array_equal(grid_sokoban.pushable(room), expected)


def test_lights_against_brute_force():
    n, size = 3, 9
    reach = np.zeros((512, n, n), bool)
    presses = ((np.arange(512)[:, None] >> np.arange(size)) & 1).astype(bool).reshape(-1, n, n)
    for d in MOVES:
        for r in range(n):
            for c in range(n):
                if 0 <= r + d[0] < n and 0 <= c + d[1] < n:
                    reach[:, r, c] ^= presses[:, r + d[0], c + d[1]]
    np.testing.assert_array_equal(jax.jit(jax.vmap(grid_lights.switch))(jnp.asarray(presses)), reach)
    assert len(np.unique(reach.reshape(512, -1), axis=0)) == 512
    env = _env("lights_out_lite")
    dark = jnp.zeros((n, n), bool)
    found = jax.jit(jax.vmap(lambda g: env.steps_to_go({"lights": dark}, {"goal": g})))(jnp.asarray(reach))
    np.testing.assert_array_equal(found, presses.sum((1, 2)))


@pytest.mark.parametrize(("n", "quiet"), [(2, 0), (3, 0), (4, 4), (5, 2), (6, 0), (7, 0)])
def test_lights_linear_algebra(n, quiet):
    # the numbers of sets that change nothing are known (Anderson and Feil 1998)
    inverse, sets = grid_lights.solver(n)
    rows, columns = np.divmod(np.arange(n * n), n)
    effect = (np.abs(rows[:, None] - rows) + np.abs(columns[:, None] - columns) <= 1).astype(int)
    assert len(sets) == 2**quiet == len(np.unique(sets, axis=0)) and not (sets @ effect % 2).any()
    pressed = np.random.default_rng(0).integers(0, 2, (64, n * n))
    made = pressed @ effect % 2
    solved = made @ inverse.T.astype(int) % 2
    np.testing.assert_array_equal(solved @ effect % 2, made)
    assert ((solved ^ pressed)[:, None] == sets).all(-1).any(-1).all()


def test_fewest_presses_where_several_sets_do_the_same():
    env = _env("lights_out_lite", size=4, presses=16)
    first, _ = _starts("lights_out_lite", 64, size=4, presses=16)
    pressed = ((np.arange(65536)[:, None] >> np.arange(16)) & 1).astype(np.uint8)
    rows, columns = np.divmod(np.arange(16), 4)
    effect = (np.abs(rows[:, None] - rows) + np.abs(columns[:, None] - columns) <= 1).astype(np.uint8)
    number = (pressed @ effect % 2).astype(np.int64) @ (1 << np.arange(16))
    fewest = np.full(65536, 99)
    np.minimum.at(fewest, number, pressed.sum(1))
    wrong = (first.data["lights"] ^ first.params["goal"]).reshape(-1, 16).astype(np.int64) @ (1 << np.arange(16))
    np.testing.assert_array_equal(first.metrics["distance"], fewest[wrong])
    assert env.action_space.n == 17 and first.metrics["distance"].max() <= 7 and first.metrics["distance"].min() > 0


# the contract


@pytest.mark.parametrize("name", NAMES)
def test_observations_end_with_achieved_and_commanded_and_hide_the_goal_elsewhere(name):
    env = _env(name)
    first, states = _starts(name, 48)
    n = env.goal_size
    np.testing.assert_array_equal(first.obs[:, -n:], first.commanded)
    np.testing.assert_array_equal(first.obs[:, -2 * n : -n], first.achieved)
    assert np.abs(first.obs).max() <= 1 and first.commanded.shape == (48, n)
    # another goal in the same world
    other = {**states.params, "goal": jnp.roll(states.params["goal"], 1, 0)}
    swapped = jax.jit(jax.vmap(env.start))(states.key, states.data, other)
    np.testing.assert_array_equal(swapped.obs[:, :-n], first.obs[:, :-n])
    assert (np.asarray(swapped.commanded) != first.commanded).any(1).mean() > 0.7
    # reached: what success says, also of other pairs, in batches of any shape
    np.testing.assert_array_equal(env.reached(states.achieved, states.commanded), first.success)
    pairs = jnp.broadcast_to(states.achieved[None], (48, 48, n))
    table = np.asarray(env.reached(jnp.swapaxes(pairs, 0, 1), pairs))
    np.testing.assert_array_equal(table, (first.achieved[:, None] == first.achieved[None]).all(-1))


@pytest.mark.parametrize("name", _slow_but("key_door", "lights_out_lite"))
def test_rewards_and_ends(name):
    variants = {
        "sparse": _env(name, reward="sparse", terminate_on_success=True),
        "dense": _env(name),
        "euclid": _env(name, dense="euclid"),
    }
    stay = variants["dense"].action_space.n - 1

    @jax.jit
    def approach(states):
        def step(_, states):
            after = jax.vmap(variants["dense"].step)(states, jax.vmap(variants["dense"].scripted)(states))
            return physics.where(states.metrics["distance"] > 1, after, states)

        return jax.lax.fori_loop(0, variants["dense"].longest, step, states)

    @jax.jit
    def steps(states):
        best = jax.vmap(variants["dense"].scripted)(states)
        idle = jnp.full_like(best, stay)
        return {
            kind: tuple(jax.vmap(env.step)(states, action) for action in (best, idle)) for kind, env in variants.items()
        }

    # worlds that are one best action away from success
    for kind, (won, idled) in steps(approach(_starts(name, 48)[1])).items():
        assert won.success.all() and not idled.success.any()
        assert bool(won.terminated.all()) == (kind == "sparse") and not idled.terminated.any()
        assert (np.asarray(won.reward) == (1.0 if kind == "sparse" else 0.0)).all()
        gap = np.linalg.norm(np.asarray(idled.achieved) - np.asarray(idled.commanded), axis=1)
        far = {"sparse": 0 * gap, "dense": 0 * gap + 1 / variants["dense"].longest, "euclid": gap / 8**0.5}[kind]
        if kind == "euclid" and name == "lights_out_lite":
            far = gap / 6  # two corners of [-1, 1]^9 are that far apart
        np.testing.assert_allclose(idled.reward, -far, atol=1e-6)
        assert (np.asarray(won.metrics["distance"]) == 0).all() and (np.asarray(idled.metrics["distance"]) == 1).all()


@pytest.mark.parametrize("name", _slow_but("sokoban_lite"))
def test_check_env(name):
    check_env(mjxlab.make(name), plain=name == "lights_out_lite")


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_ppo_trains_on_two_devices(name):
    from mjxlab.agents import ppo

    env = mjxlab.make(name)
    config = ppo.config_for(name, num_envs=16, rollout_length=8, num_minibatches=2, epochs=1)
    _, history = mjxlab.fit(
        ppo.make(env, config), steps=2, key=jax.random.key(0), devices=2, sinks=(), env=env, config=config
    )
    # episode figures are there only once an episode has ended
    parts = [values for key, values in history.items() if "loss" in key or "grad" in key]
    assert parts and all(np.isfinite(part).all() for part in parts)


@pytest.mark.parametrize(
    ("name", "wrong", "told"),
    [
        ("four_rooms", {"reward": "none"}, "reward is 'none'"),
        ("four_rooms", {"dense": "l1"}, "dense is 'l1'"),
        ("four_rooms", {"noise": 1.0}, "noise is 1.0"),
        ("four_rooms", {"engine": "mjx"}, "no physics engine"),
        ("four_rooms", {"episode_length": 0}, "episode_length is 0"),
        ("four_rooms", {"board": "###\n# #\n###"}, "board has 1 free cells"),
        ("four_rooms", {"board": "#####\n# # #\n#####"}, "cannot be reached"),
        ("four_rooms", {"board": "####\n#  #\n###"}, "rows of [3, 4] cells"),
        ("four_rooms", {"board": "####\n#   \n####"}, "free cell at its border"),
        ("random_maze", {"size": 8}, "size is 8; expected an odd number"),
        ("random_maze", {"braid": 2}, "braid is 2"),
        ("random_maze", {"colour": 1}, "does not take 'colour'"),
        ("key_door", {"size": 4}, "size is 4"),
        ("sokoban_lite", {"size": 10}, "size is 10"),
        ("sokoban_lite", {"pillars": 9}, "pillars is 9"),
        ("lights_out_lite", {"size": 8}, "size is 8"),
        ("lights_out_lite", {"presses": 10}, "presses is 10"),
    ],
)
def test_errors(name, wrong, told):
    with pytest.raises(ConfigError) as caught:
        mjxlab.make(name, **wrong)
    assert told in str(caught.value) and "\n" not in str(caught.value)


def test_a_batch_of_actions_is_refused():
    _, states = _starts("four_rooms", 1)
    with pytest.raises(ConfigError, match=r"shape \(3,\).*jax\.vmap"):
        _env("four_rooms").step(states, jnp.zeros(3, jnp.int32))


@pytest.mark.parametrize("name", NAMES)
def test_pictures_show_what_lies_where(name):
    env = _env(name)
    _, states = _starts(name, 1)
    state = jax.tree.map(lambda x: x[0], states)
    frame = env.render_frame(state, tile=10)
    h, w = env.shape
    assert frame.shape == (10 * h, 10 * w, 3) and frame.dtype == np.uint8
    middles = frame[5::10, 5::10]
    top = dict(reversed(env.layers(state).items()))
    for r in range(h):
        for c in range(w):
            found = next((thing for thing, board in top.items() if board[r, c]), None)
            colour = grid_picture.FLOOR if found is None else grid_picture.STYLES[found][0]
            assert tuple(middles[r, c].tolist()) == colour


@pytest.mark.x64
@pytest.mark.parametrize("name", NAMES)
def test_double_precision_plays_the_same_game(name):
    env = mjxlab.make(name)
    state = jax.jit(env.reset)(jax.random.key(3))
    after = jax.jit(env.step)(state, jnp.int32(1))
    assert after.obs.dtype == after.reward.dtype == jnp.float64 == after.metrics["distance"].dtype
    assert all(x.dtype in (jnp.int32, jnp.int16, jnp.int8, bool) for x in jax.tree.leaves((after.data, after.params)))
