"""CPPO's details, one by one, on tiny tasks; and that it learns without any reward."""

from __future__ import annotations

import functools
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces
from jax.sharding import Mesh

from mjxlab import catalogue, spmd
from mjxlab.agents import cppo
from mjxlab.envs import fast, toys
from mjxlab.envs.base import fresh_state
from mjxlab.envs.vectorize import vectorize
from mjxlab.errors import ConfigError
from mjxlab.rl import cppo_advantage, distributions, goals
from mjxlab.rl.contrastive import IdentifiabilityWarning
from mjxlab.rl.counter import Counter
from mjxlab.rl.cppo_networks import log_std, see, see_goal
from mjxlab.rl.evaluate import make_evaluate


class Line:
    """Five places in a row; step left, right or stay. Goal: another place. No features beside the achieved place."""

    name = "line"
    engine = None
    episode_length = 5

    def __init__(self, masked: bool = False):
        self.masked = masked
        self.observation_space = spaces.Box(-1, 1, (2,))
        self.action_space = spaces.Discrete(3)

    def _obs(self, place, goal):
        flat = jnp.concatenate([place, goal])
        if not self.masked:
            return flat
        allowed = jnp.concatenate([place > -0.9, place < 0.9, jnp.ones((1,), bool)])
        return {"action_mask": allowed, "numbers": flat}

    def reset(self, key):
        place, other = jax.random.split(key)
        start = jax.random.randint(place, (1,), 0, 5, jnp.int32)
        goal = (start + jax.random.randint(other, (1,), 1, 5, jnp.int32)) % 5
        start, goal = ((x.astype(jnp.result_type(float)) - 2) / 2 for x in (start, goal))
        return fresh_state(
            start, self._obs(start, goal), key, params=goal, achieved=start, commanded=goal, success=jnp.zeros((), bool)
        )

    def step(self, state, action):
        move = jnp.array([-0.5, 0.5, 0.0])[action].astype(state.data.dtype)
        place = jnp.clip(state.data + move, -1, 1)
        success = jnp.abs(place - state.params)[0] < 0.1
        return state.replace(data=place, obs=self._obs(place, state.params), achieved=place, success=success)


CONFIG = cppo.Config(
    num_envs=8,
    rollout_length=6,
    episode_length=4,
    epochs=2,
    batch_size=24,
    critic_widths=(8,),
    policy_widths=(8,),
    repr_dim=4,
    value_samples=4,
    normalise_obs=True,
)
ADAPTIVE = CONFIG.replace(adaptive_entropy=True, entropy_lr=0.5, entropy_cost=0.01, target_entropy=-1.0)
BOX, CHOICES, MASKED = fast.Fast(), Line(), Line(masked=True)
TRACES: list[cppo.Config] = []  # of ``learner``'s updates


@functools.cache
def learner(config: cppo.Config = CONFIG, env=BOX):
    made = cppo.make(env, config)

    def update(state, key):
        TRACES.append(config)
        return made.update(state, key, None)

    return jax.jit(made.init), jax.jit(update)


@functools.cache
def second_state(env=BOX):
    """A state whose parameters (and for the box statistics) are not the fresh ones."""
    init, update = learner(CONFIG, env)
    state = init(jax.random.key(0))
    if env is BOX:
        return update(state, jax.random.key(1))[0]
    move = jax.random.normal(jax.random.key(1), (100,))
    return state.replace(params=jax.tree.map(lambda x: x + 0.3 * move[: x.size].reshape(x.shape), state.params))


@jax.jit
def update_with(config, state, key):
    """One program for all values of the floats."""
    return cppo.make(BOX, config).update(state, key, None)


@functools.cache
def collected(env=BOX):
    """The networks, and what the update from ``second_state`` with key 2 collects and makes of it."""
    state = second_state(env)
    vec = vectorize(goals.Rewardless(env), CONFIG.num_envs, episode_length=CONFIG.episode_length)
    networks = cppo.make_networks(env, CONFIG)
    keys = jax.random.split(jax.random.key(2), 5)

    @jax.jit
    def everything(state):
        _, transitions = cppo.collect(vec, networks, CONFIG, state, keys[0])
        rows = cppo.critic_rows(networks, CONFIG, state.normaliser, transitions, keys[1])
        samples, found = cppo.policy_rows(networks, CONFIG, state.params, state.normaliser, transitions, keys[2])
        return transitions, rows, samples, found

    return state, networks, *everything(state)


def flat_rows(tree):
    return jax.tree.map(lambda x: x.reshape(48, *x.shape[2:]), tree)


def assert_same_bits(a, b) -> None:
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        if spmd.is_key(x):
            x, y = jax.random.key_data(x), jax.random.key_data(y)
        np.testing.assert_array_equal(x, y)


# --- data ---------------------------------------------------------------------------------------------------------------


def test_the_critic_learns_from_hindsight_goals_and_the_policy_from_commanded_ones() -> None:
    state, _, transitions, rows, samples, _ = collected()
    stats = state.normaliser
    np.testing.assert_allclose(samples.obs, see(CONFIG, stats, transitions.obs), rtol=1e-5)
    np.testing.assert_allclose(samples.obs[..., :2], rows.state, rtol=1e-5)
    # goals in hindsight are places that the same episode came to later, and not those commanded
    places = np.asarray(see_goal(CONFIG, stats, transitions.final_obs[..., :2]))
    ids = np.asarray(goals.trajectory_ids(transitions.done))
    for t in range(6):
        for world in range(8):
            later = [k for k in range(t, 6) if ids[k, world] == ids[t, world]]
            assert min(np.abs(places[k, world] - np.asarray(rows.goal)[t, world]).max() for k in later) < 1e-5
    assert bool(rows.valid.all())
    assert np.abs(rows.goal - samples.obs[..., 2:]).max() > 0.1


def test_goals_are_scaled_as_achieved_ones_are() -> None:
    state = second_state()
    x = jnp.array([0.3, -0.2])
    both = see(CONFIG, state.normaliser, jnp.concatenate([x, x]))
    np.testing.assert_array_equal(both[:2], both[2:])
    np.testing.assert_array_equal(see_goal(CONFIG, state.normaliser, x), both[2:])
    assert not np.allclose(both[:2], x, atol=1e-2)


def test_published_bookkeeping_drops_last_steps() -> None:
    state, networks, transitions, _, _, _ = collected()
    config = CONFIG.replace(final_goals=False)
    rows = cppo.critic_rows(networks, config, state.normaliser, transitions, jax.random.key(0))
    last = np.vstack([np.asarray(transitions.done)[:-1], np.ones((1, 8), bool)])
    np.testing.assert_array_equal(rows.valid, ~last)
    batch = flat_rows(rows)
    loss, _ = cppo.critic_loss(networks, config, state.params["critic"], batch)
    # what stands in the rows that are left out does not matter
    noise = jax.random.normal(jax.random.key(1), batch.goal.shape)
    other = batch.replace(goal=jnp.where(batch.valid[:, None], batch.goal, noise))
    np.testing.assert_allclose(cppo.critic_loss(networks, config, state.params["critic"], other)[0], loss, rtol=1e-5)


def test_the_state_holds_no_replay() -> None:
    shapes = []
    for length in (6, 60):
        made = cppo.make(BOX, CONFIG.replace(rollout_length=length))
        shapes.append([x.shape for x in jax.tree.leaves(jax.eval_shape(made.init, jax.random.key(0)))])
    assert shapes[0] == shapes[1]
    assert second_state().stale == ()


class _BadReward(fast.Fast):
    def step(self, state, action):
        return super().step(state, action).replace(reward=jnp.full((), jnp.nan))


def test_rewards_never_enter() -> None:
    states = []
    for env in (BOX, _BadReward()):
        init, update = learner(CONFIG, env)
        state = init(jax.random.key(0))
        for seed in range(2):
            state, metrics = update(state, jax.random.key(seed))
        assert int(metrics["nonfinite_worlds"]) == 0
        states.append((state.params, state.opt_state, state.normaliser, state.worlds.obs, metrics))
    assert_same_bits(*states)


# --- advantages -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("env", [CHOICES, MASKED], ids=["all", "masked"])
def test_discrete_advantages_have_mean_0_under_the_policy(env) -> None:
    state, networks, transitions, _, samples, found = collected(env)
    goal = samples.obs[..., 1:]
    q = cppo_advantage.q_all_actions(
        networks, CONFIG, state.params["critic"], samples.obs[..., :1], goal, goal, samples.mask
    )
    probs = networks.policy(state.params["actor"], samples.obs, samples.mask).probs()
    value = (probs * q).sum(-1)
    total = jnp.zeros_like(value)
    for action in range(3):
        advantage, v = cppo_advantage.advantage_discrete(q, probs, jnp.full(value.shape, action, jnp.int32))
        np.testing.assert_allclose(v, value, rtol=1e-6)
        total += probs[..., action] * advantage
    np.testing.assert_allclose(total, 0, atol=2e-6)  # rounding of f, which is of the order of 1
    # each action's f is that of a call for it alone
    for action in range(3):
        one = cppo_advantage.q_values(
            networks,
            CONFIG,
            state.params["critic"],
            samples.obs[..., :1],
            networks.encode(jnp.full(value.shape, action, jnp.int32)),
            goal,
            goal,
        )
        allowed = np.ones(value.shape, bool) if samples.mask is None else np.asarray(samples.mask)[..., action]
        np.testing.assert_allclose(q[..., action], np.where(allowed, one, 0), rtol=1e-5)
    # and the rollout's advantages are these, standardised over all of it
    taken, _ = cppo_advantage.advantage_discrete(q, probs, transitions.action)
    np.testing.assert_allclose(samples.advantage, (taken - taken.mean()) / (taken.std() + 1e-8), rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(found["advantage_std"], taken.std(), rtol=1e-4)
    np.testing.assert_allclose([samples.advantage.mean(), samples.advantage.std()], [0, 1], atol=1e-5)


def test_masked_actions_have_no_probability_no_entropy_and_no_part_in_v() -> None:
    state, networks, transitions, _, samples, _ = collected(MASKED)
    mask = np.asarray(samples.mask)
    assert not mask.all()
    dist = networks.policy(state.params["actor"], samples.obs, samples.mask)
    assert float(jnp.where(mask, 0, dist.probs()).max()) == 0
    assert np.take_along_axis(mask, np.asarray(transitions.action)[..., None], -1).all()
    free = networks.policy(state.params["actor"], samples.obs, None).logits
    weights = np.where(mask, np.exp(free), 0)
    weights /= weights.sum(-1, keepdims=True)
    entropy = -(weights * np.log(np.where(mask, weights, 1))).sum(-1)
    np.testing.assert_allclose(dist.entropy(), entropy, rtol=1e-4, atol=1e-6)
    q = jax.random.normal(jax.random.key(0), mask.shape)
    _, value = cppo_advantage.advantage_discrete(q, dist.probs(), transitions.action)
    _, other = cppo_advantage.advantage_discrete(jnp.where(mask, q, 7.0), dist.probs(), transitions.action)
    np.testing.assert_array_equal(value, other)
    np.testing.assert_allclose(value, (weights * np.asarray(q)).sum(-1), rtol=1e-4, atol=1e-6)


def test_sampled_values_converge_to_the_expectation() -> None:
    # one action component's expectation by a fine grid of actions, the other's held still by a tiny deviation
    state, networks, _, _, samples, _ = collected()
    obs = samples.obs[0]
    dist = networks.policy(state.params["actor"], obs, None)
    dist = distributions.TanhNormal(dist.loc, dist.scale.at[:, 1].set(1e-6).at[:, 0].set(0.8))
    place, goal = obs[..., :2], obs[..., 2:]
    z = jnp.linspace(-6, 6, 401)
    weights = jnp.exp(-0.5 * z**2) / jnp.exp(-0.5 * z**2).sum()
    raw = dist.loc[:, None] + dist.scale[:, None] * jnp.stack([z, jnp.zeros_like(z)], 1)[None]

    def spread(x):
        return jnp.broadcast_to(x[:, None], (8, 401, 2))

    f = cppo_advantage.q_values(
        networks, CONFIG, state.params["critic"], spread(place), networks.encode(raw), spread(goal), goal[:, None]
    )
    exact = f @ weights
    deviation = jnp.sqrt(f**2 @ weights - exact**2)
    count = 4096
    sampled = cppo_advantage.sampled_q(
        networks,
        CONFIG.replace(value_samples=count),
        state.params["critic"],
        dist,
        place,
        goal,
        goal,
        jax.random.split(jax.random.key(3), 8),
    )
    assert float(deviation.min()) > 1e-3
    z_scores = (sampled.mean(-1) - exact) / (deviation / count**0.5)
    assert float(jnp.abs(z_scores).max()) < 4  # 8 of them
    np.testing.assert_allclose(sampled.std(-1), deviation, rtol=0.1)
    # A has mean 0 under the policy, within 3 standard errors: both estimates are of the same expectation
    advantage, _ = cppo_advantage.advantage_continuous(sampled[:, ::2].mean(0), sampled[:, 1::2].mean(0)[:, None])
    error = float(jnp.sqrt(2 * (deviation**2).mean() / (8 * count / 2)))
    assert abs(float(advantage.mean())) < 3 * error


def test_advantages_carry_no_gradient() -> None:
    for env in (BOX, CHOICES):
        state, networks, transitions, _, _, _ = collected(env)

        def total(params, env=env, state=state, networks=networks, transitions=transitions):
            config = CONFIG.replace(gae_kind="smooth_adv")
            rows, found = cppo.policy_rows(networks, config, params, state.normaliser, transitions, jax.random.key(0))
            return jnp.sum(jnp.square(rows.advantage)) + found["value"] + jnp.sum(rows.obs)

        for gradient in jax.tree.leaves(jax.grad(total)(state.params)):
            np.testing.assert_array_equal(gradient, 0)


def test_smooth_advantages_against_a_loop() -> None:
    key = jax.random.key(0)
    a, v, w = jax.random.normal(key, (3, 9, 4))
    done = jax.random.bernoulli(key, 0.3, (9, 4))
    smooth = functools.partial(cppo_advantage.smooth_advantage, done=done, discount=0.9, next_value=w)
    np.testing.assert_array_equal(smooth("none", a, v, lam=0.5), a)
    np.testing.assert_allclose(smooth("smooth_adv", a, v, lam=0.0), a, rtol=1e-6)
    for kind, delta in (
        ("smooth_adv", a),
        ("value_diff", 0.9 * w - v),
        ("q_as_reward", a + v + 0.9 * w - v),
    ):
        expected, later = np.zeros((9, 4)), np.zeros(4)
        for t in reversed(range(9)):
            later = np.asarray(delta)[t] + 0.9 * 0.5 * (1 - np.asarray(done)[t]) * later
            expected[t] = later
        np.testing.assert_allclose(smooth(kind, a, v, lam=0.5), expected, rtol=1e-4, atol=1e-5)


def test_values_of_the_ablations_are_of_the_states_after_the_steps() -> None:
    state, networks, transitions, _, samples, _ = collected(CHOICES)
    config = CONFIG.replace(gae_kind="value_diff", gae_lambda=0.0)
    rows, _ = cppo.policy_rows(networks, config, state.params, state.normaliser, transitions, jax.random.key(0))
    after = see(CONFIG, state.normaliser, transitions.final_obs)
    goal = samples.obs[..., 1:]

    def value(obs):
        q = cppo_advantage.q_all_actions(networks, CONFIG, state.params["critic"], obs[..., :1], goal, goal)
        return (networks.policy(state.params["actor"], obs, None).probs() * q).sum(-1)

    expected = 0.99 * value(after) - value(samples.obs)
    expected = (expected - expected.mean()) / expected.std()
    np.testing.assert_allclose(rows.advantage, expected, rtol=1e-3, atol=1e-4)


def test_shuffled_goals_are_those_of_others_and_reach_nothing_else() -> None:
    goal = jnp.arange(48.0).reshape(6, 8, 1)
    mixed = cppo_advantage.shuffled_goals(jax.random.key(0), goal)
    np.testing.assert_array_equal(np.sort(mixed.ravel()), np.arange(48))
    assert (np.asarray(mixed) == np.asarray(goal)).mean() < 0.2
    state, networks, transitions, rows, samples, _ = collected()
    control = CONFIG.replace(shuffle_goals=True)
    keys = jax.random.split(jax.random.key(2), 5)
    other, _ = cppo.policy_rows(networks, control, state.params, state.normaliser, transitions, keys[2])
    np.testing.assert_allclose(other.obs, samples.obs, rtol=1e-5)
    assert np.corrcoef(other.advantage.ravel(), samples.advantage.ravel())[0, 1] < 0.95
    same = cppo.critic_rows(networks, control, state.normaliser, transitions, keys[1])
    np.testing.assert_allclose(same.goal, rows.goal, rtol=1e-5)


# --- policy ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("env", [BOX, CHOICES, MASKED], ids=["box", "discrete", "masked"])
def test_at_the_first_minibatch_the_ratio_is_1(env) -> None:
    state, networks, _, _, samples, _ = collected(env)
    _, parts = cppo.ppo_loss(networks, CONFIG, state.params["actor"], flat_rows(samples), 0.0)
    assert abs(float(parts["kl"])) < 1e-8
    assert float(parts["clip_fraction"]) == 0


@pytest.mark.x64
def test_ratios_before_and_after_squashing_are_equal() -> None:
    state, networks = second_state(), cppo.make_networks(BOX, CONFIG)
    params = jax.tree.map(lambda x: x.astype(jnp.float64), state.params["actor"])
    moved = jax.tree.map(lambda x: x + 0.1, params)
    obs = jax.random.normal(jax.random.key(0), (64, 4))
    old, new = (networks.policy(p, obs, None) for p in (params, moved))
    raw = old.sample(jax.random.key(1))
    before = new.log_prob(raw) - old.log_prob(raw)
    after = new.log_prob_action(jnp.tanh(raw)) - old.log_prob_action(jnp.tanh(raw))
    assert float(jnp.abs(before).max()) > 0.1
    np.testing.assert_allclose(before, after, atol=1e-9)


def test_log_deviations_stay_in_their_range() -> None:
    raw = jnp.array([-50.0, 0.0, 50.0])
    np.testing.assert_allclose(log_std(raw, float(np.exp(-1.5))), [-5, -1.5, 2], atol=1e-5)
    np.testing.assert_allclose(jnp.exp(log_std(raw, 0.7))[1], 0.7, rtol=1e-5)


def test_decoupled_and_interleaved_loops_are_the_same() -> None:
    state = second_state()
    (one, m1), (two, m2) = (
        update_with(ADAPTIVE.replace(loop=kind), state, jax.random.key(5)) for kind in ("decoupled", "interleaved")
    )
    for a, b in zip(jax.tree.leaves((one.params, m1)), jax.tree.leaves((two.params, m2)), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def test_separate_epochs_and_batches() -> None:
    config = CONFIG.replace(critic_epochs=3, critic_batch_size=16, epochs=1, batch_size=48)
    state, metrics = learner(config)[1](second_state(), jax.random.key(2))
    steps = {k: int(jax.tree.leaves(s)[0]) - 4 for k, s in state.opt_state.items()}
    assert steps == {"critic": 9, "actor": 1}
    assert np.isfinite(metrics["critic_loss"])
    # the policy's only step was from ratios of 1, with advantages of mean 0
    assert abs(float(metrics["kl"])) < 1e-8
    assert abs(float(metrics["policy_loss"])) < 1e-5


def test_the_entropy_bonus_follows_the_entropy_within_bounds() -> None:
    state = jax.eval_shape(cppo.make(BOX, ADAPTIVE).init, jax.random.key(0))
    assert state.log_entropy_cost.shape == ()
    for target, end in ((100.0, 0.05), (-100.0, 0.003)):
        _, metrics = update_with(ADAPTIVE.replace(target_entropy=target), second_state(), jax.random.key(5))
        np.testing.assert_allclose(metrics["entropy_cost"], end, rtol=1e-5)
    # one step in the middle of the range: a factor exp(entropy_lr (target - entropy)) for each of 4 minibatches
    state, metrics = update_with(
        ADAPTIVE.replace(entropy_lr=1e-3, target_entropy=1.0), second_state(), jax.random.key(5)
    )
    moved = float(state.log_entropy_cost - second_state().log_entropy_cost)
    np.testing.assert_allclose(moved, 4e-3 * (1.0 - float(metrics["entropy"])), rtol=1e-3)


def test_a_gradient_that_is_not_finite_changes_nothing_and_is_counted() -> None:
    sound, (_, update) = second_state(), learner()
    broken = sound.replace(params=jax.tree.map(jnp.copy, sound.params))
    broken.params["critic"]["params"]["goal"]["Dense_1"]["bias"] = jnp.full(4, jnp.inf)
    after, metrics = update(broken, jax.random.key(2))
    # neither network: the critic's advantages are not finite either
    assert int(metrics["skipped_updates"]) == 8
    assert_same_bits((broken.params, broken.opt_state), (after.params, after.opt_state))
    after, metrics = update(after.replace(params=sound.params), jax.random.key(3))
    assert int(metrics["skipped_updates"]) == 8
    assert not np.array_equal(jax.tree.leaves(after.params)[0], jax.tree.leaves(sound.params)[0])


@pytest.mark.slow
def test_a_stale_critic_learns_from_the_rollout_of_some_updates_ago() -> None:
    config = CONFIG.replace(critic_data="stale", stale_lag=2)
    init, update = learner(config)
    state = init(jax.random.key(0))
    fresh, _ = learner()[1](state.replace(stale=()), jax.random.key(1))
    stores, first = [], None
    for seed in (1, 2, 3):
        state, _ = update(state, jax.random.key(seed))
        stores.append(np.asarray(state.stale.goal))
        first = state if first is None else first
    # the first update has nothing older than its own rollout: as on-policy
    for a, b in zip(jax.tree.leaves(first.params), jax.tree.leaves(fresh.params), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
    assert stores[0].shape[:3] == (8, 2, 6)
    np.testing.assert_array_equal(stores[1][:, 0], stores[0][:, 1])
    np.testing.assert_array_equal(stores[2][:, 0], stores[1][:, 1])
    assert not np.array_equal(stores[2][:, 1], stores[2][:, 0])


# --- everywhere -----------------------------------------------------------------------------------------------------------


def test_same_seed_same_bits_and_one_trace() -> None:
    init, update = learner()
    runs, traced = [], len(TRACES)
    for _ in range(2):
        state = init(jax.random.key(0))
        for seed in range(2):
            state, metrics = update(state, jax.random.key(seed))
        runs.append((state.params, metrics))
    assert_same_bits(*runs)
    assert len(TRACES) <= traced + 1


@pytest.mark.slow
def test_seeds_and_hyperparameters_in_one_program() -> None:
    configs = [CONFIG.replace(entropy_cost=0.01), CONFIG.replace(lr=3e-3, discount=0.5, entropy_cost=0.1, rho=0.3)]
    keys = jax.random.split(jax.random.key(4), 2)
    init, _ = learner()
    states = [init(k) for k in keys]
    stacked = jax.tree.map(lambda *x: jnp.stack([jnp.asarray(a) for a in x]), *configs)
    together, metrics = jax.jit(jax.vmap(lambda c, s, k: cppo.make(BOX, c).update(s, k, None)))(
        stacked, jax.tree.map(lambda *x: jnp.stack(x), *states), keys
    )
    for i, config in enumerate(configs):
        alone, expected = learner(config)[1](states[i], keys[i])
        for name in ("critic_loss", "entropy", "accuracy", "advantage_std", "critic_grad_norm"):
            np.testing.assert_allclose(metrics[name][i], expected[name], rtol=1e-3, atol=1e-5, err_msg=name)
        for a, b in zip(jax.tree.leaves(together.params), jax.tree.leaves(alone.params), strict=True):
            np.testing.assert_allclose(a[i], b, rtol=2e-3, atol=1e-4)


@pytest.mark.parametrize(
    ("env", "change"),
    [
        (BOX, {"critic_loss": "sym", "shuffle_goals": True, "critic_data": "stale"}),
        pytest.param(CHOICES, {"mask_duplicates": True, "gae_kind": "smooth_adv"}, marks=pytest.mark.slow),
    ],
    ids=["box", "discrete"],
)
def test_one_device_and_two_agree(env, change: dict) -> None:
    config = CONFIG.replace(max_grad_norm=None, epochs=1, batch_size=48, **change)
    made = cppo.make(env, config)
    state = jax.jit(made.init)(jax.random.key(0))
    one, metrics_one = jax.jit(made.update)(state, jax.random.key(1), None)
    mesh = Mesh(np.array(jax.devices()[:2]), ("device",))
    specs, whole = spmd.partition_specs(state), spmd.REPLICATED
    update = jax.shard_map(
        lambda s, k: made.update(s, k, None),
        mesh=mesh,
        in_specs=(specs, whole),
        out_specs=(specs, whole),
        check_vma=False,
    )
    two, metrics_two = jax.jit(update)(state, jax.random.key(1))
    # Adam's first moment after one step is the gradient itself, up to a factor
    for name in ("actor", "critic"):
        a, b = (np.asarray(jax.tree.leaves(s.opt_state[name])[1]) for s in (one, two))
        assert np.abs(a - b).max() <= 1e-5 * np.abs(a).max(), name
    np.testing.assert_allclose(one.normaliser.mean, two.normaliser.mean, rtol=1e-5)
    for name in metrics_one:
        if not isinstance(metrics_one[name], Counter):
            np.testing.assert_allclose(metrics_one[name], metrics_two[name], rtol=1e-4, atol=1e-6, err_msg=name)


@pytest.mark.x64
@pytest.mark.parametrize("env", [BOX, MASKED], ids=["box", "masked"])
def test_double_precision_and_stable_types(env) -> None:
    config = CONFIG.replace(critic_data="stale", adaptive_entropy=True, gae_kind="q_as_reward", film=True, skip=True)
    made = cppo.make(env, config)
    before = jax.eval_shape(made.init, jax.random.key(0))
    after, _ = jax.eval_shape(lambda s, k: made.update(s, k, None), before, jax.random.key(1))
    assert jax.tree.map(lambda x: (x.shape, x.dtype), before) == jax.tree.map(lambda x: (x.shape, x.dtype), after)
    floats = [x.dtype for x in jax.tree.leaves((before.params, before.opt_state, before.normaliser))]
    assert jnp.dtype(jnp.float64) in floats and jnp.dtype(jnp.float32) not in floats


def test_types_are_stable_and_strong() -> None:
    made = cppo.make(BOX, CONFIG)
    before = jax.eval_shape(made.init, jax.random.key(0))
    after, _ = jax.eval_shape(lambda s, k: made.update(s, k, None), before, jax.random.key(1))
    kinds = [[(x.shape, x.dtype, x.weak_type) for x in jax.tree.leaves(s)] for s in (before, after)]
    assert kinds[0] == kinds[1]
    assert not any(weak for _, _, weak in kinds[0])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"batch_size": 10}, "batch_size: got 10, expected a divisor of 48 (rollout_length 6 times num_envs 8)"),
        ({"batch_size": 12}, "batch_size: got 12, expected a divisor of 48"),
        ({"critic_batch_size": 7}, "critic_batch_size: got 7, expected a divisor of 48"),
        ({"lr": 0.0}, "lr: got 0.0, expected a number above 0"),
        ({"energy": "euclid"}, "energy: got 'euclid', expected one of norm, l2, dot, cosine"),
        ({"critic_loss": "nce"}, "critic_loss: got 'nce', expected one of fwd, bwd, sym, binary"),
        ({"gae_kind": "gae"}, "gae_kind: got 'gae', expected one of none, smooth_adv, value_diff, q_as_reward"),
        ({"loop": "interleaved", "critic_epochs": 5}, "loop: got 'interleaved' with 4 steps of the policy and 10"),
        ({"lr_schedule": "linear"}, "total_updates: got None, expected the run's updates"),
        ({"value_samples": 0}, "value_samples: got 0, expected an integer of at least 1"),
        ({"state_only": 1}, "state_only: got 1, expected True or False"),
        ({"skip": True, "policy_widths": (8, 8, 8, 8, 9)}, "policy_widths: got (8, 8, 8, 8, 9), expected equal widths"),
        ({"entropy_min": 0.1}, "entropy_min: got 0.1, expected at most entropy_max"),
        ({"init_std": 0.0}, "init_std: got 0.0"),
    ],
)
def test_bad_configs_give_one_clear_line(change: dict, message: str) -> None:
    with pytest.raises(ConfigError) as error:
        CONFIG.replace(**change).validate()
    assert str(error.value).startswith(message)
    assert "\n" not in str(error.value)


def test_what_cannot_be_trained_on_is_refused() -> None:
    with pytest.raises(ConfigError, match="environment toy_sign: its states have no achieved goal"):
        cppo.make(toys.Sign(), CONFIG)
    with pytest.raises(ConfigError, match="batch_size: got 10"):
        cppo.make(BOX, CONFIG.replace(batch_size=10))
    with pytest.raises(ConfigError, match="CPPO needs .*TiB .*lower num_envs or rollout_length"):
        huge = CONFIG.replace(num_envs=2**20, rollout_length=2**16, batch_size=256)
        cppo.make(BOX, huge).init(jax.random.key(0))
    with pytest.raises(ConfigError, match="rhoo: CPPO's Config has no such field; did you mean rho?"):
        cppo.config_for("fast", rhoo=1.0)
    for name in cppo.presets:
        cppo.config_for(name)
    assert catalogue.system("cppo").load() is cppo


def test_a_config_without_rho_warns() -> None:
    with pytest.warns(IdentifiabilityWarning, match="rho: got 0"):
        CONFIG.replace(rho=0.0).validate()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        CONFIG.replace(rho=0.0, critic_loss="sym").validate()


# --- learning -------------------------------------------------------------------------------------------------------------


def trained(env, config: cppo.Config, updates: int):
    """Figures of 64 fresh episodes after training, and the state."""
    made = cppo.make(env, config)

    @jax.jit
    def run(key):
        def step(state, u):
            return made.update(state, jax.random.fold_in(key, u), None)

        return jax.lax.scan(step, made.init(key), jnp.arange(updates, dtype=jnp.int32))[0]

    state = run(jax.random.key(0))
    return jax.jit(make_evaluate(env, made, 64))(state, jax.random.key(1)), state


@pytest.mark.slow
def test_it_learns_a_line_and_not_with_shuffled_goals() -> None:
    config = CONFIG.replace(
        num_envs=16, rollout_length=20, episode_length=None, batch_size=160, lr=3e-3, discount=0.7, entropy_cost=0.03
    ).replace(critic_widths=(32,), policy_widths=(32,), repr_dim=8)
    figures, _ = trained(CHOICES, config, 60)
    control, _ = trained(CHOICES, config.replace(shuffle_goals=True), 60)
    assert float(figures["success"]) >= 0.9
    assert float(control["success"]) <= 0.5


@pytest.mark.slow
def test_it_brings_a_point_to_its_goal_and_not_with_shuffled_goals() -> None:
    config = CONFIG.replace(
        num_envs=16, rollout_length=32, episode_length=None, epochs=4, batch_size=128, lr=1e-3, discount=0.9
    ).replace(critic_widths=(64, 64), policy_widths=(64, 64), repr_dim=16, value_samples=16)
    figures, _ = trained(BOX, config, 60)
    control, _ = trained(BOX, config.replace(shuffle_goals=True), 60)
    assert float(figures["success"]) >= 0.7
    assert float(control["success"]) <= 0.3
