"""PPO's details, one by one: each of these is something that implementations get wrong without anybody noticing."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh

from mjxlab import spmd
from mjxlab.agents import ppo
from mjxlab.envs import fast
from mjxlab.envs.vectorize import vectorize
from mjxlab.errors import ConfigError
from mjxlab.rl import distributions, normalise, returns
from mjxlab.rl.counter import Counter
from mjxlab.rl.ppo import _adapt
from mjxlab.rl.ppo_config import schedule

# one gradient step per update, so that its effect can be worked out by hand
CONFIG = ppo.Config(
    num_envs=8,
    rollout_length=6,
    episode_length=4,
    epochs=1,
    num_minibatches=1,
    policy_widths=(8,),
    value_widths=(8,),
    squash="clip",
    init_std=2.0,
    max_grad_norm=0.01,
    lr_schedule="linear",
    total_updates=100,
)
ENV = fast.Fast()


TRACES: list[ppo.Config] = []


def learner(config: ppo.Config = CONFIG):
    return _learner(config)


@functools.cache
def _learner(config: ppo.Config):
    made = ppo.make(ENV, config)

    def update(state, key):
        TRACES.append(config)
        return made.update(state, key, None)

    return jax.jit(made.init), jax.jit(update)


@functools.cache
def second_state():
    """A state whose observation statistics are not the fresh ones."""
    init, update = learner()
    return update(init(jax.random.key(0)), jax.random.key(1))[0]


def collected(config: ppo.Config = CONFIG):
    return _collected(config)


@functools.cache
def _collected(config: ppo.Config):
    """What the update from ``second_state`` with key 2 collects."""
    state = second_state()
    vec = vectorize(ENV, config.num_envs, episode_length=config.episode_length)
    networks = ppo.make_networks(ENV, config)
    rollout_key, _ = jax.random.split(jax.random.key(2))

    @jax.jit
    def both(state, key):
        worlds, transitions = ppo.collect(vec, networks, config, state, key)
        samples = ppo.prepare(networks, config, state.params, state.normaliser, transitions, worlds.obs, 1.0)
        return worlds, transitions, samples

    worlds, transitions, samples = both(state, rollout_key)
    return state, networks, worlds, transitions, samples


def test_log_probabilities_are_of_the_unclipped_action() -> None:
    state, networks, _, transitions, _ = collected()
    raw = transitions.action
    assert float((jnp.abs(raw) > 1).mean()) > 0.2  # many samples lie outside of the bounds
    seen = normalise.normalise(state.normaliser, transitions.obs)
    dist = jax.vmap(lambda x: networks.policy(state.params, x, None))(seen)
    np.testing.assert_allclose(transitions.extras["log_prob"], dist.log_prob(raw), rtol=1e-4, atol=1e-4)
    # the same worlds, stepped with clipped actions, give the same rewards: the environment took those
    vec = vectorize(ENV, 8, episode_length=4)
    step = vec.step(state.worlds, jnp.clip(raw[0], -1, 1))
    np.testing.assert_allclose(step.reward, transitions.reward[0], rtol=1e-5)


def test_the_loss_sees_what_the_rollout_saw() -> None:
    # with the parameters of the rollout every ratio is 1, which holds only if observations are normalised alike
    state, networks, _, transitions, samples = collected()
    rows = jax.tree.map(lambda x: x.reshape(48, *x.shape[2:]), samples)
    _, parts = ppo.loss(networks, CONFIG, state.params, rows, 0.0)
    assert float(parts["kl"]) < 1e-8
    assert float(parts["clip_fraction"]) == 0
    _, update = learner()
    after, metrics = update(state, jax.random.key(2))
    assert float(metrics["kl"]) < 1e-8
    # the statistics have moved afterwards, by this rollout's observations exactly
    expected = normalise.update(state.normaliser, transitions.obs)
    np.testing.assert_allclose(after.normaliser.mean, expected.mean, rtol=1e-5)
    assert not np.allclose(after.normaliser.mean, state.normaliser.mean, rtol=1e-4)
    assert int(after.normaliser.count) == 2 * 48


def test_value_targets_are_the_gae_returns_and_bootstrap_from_final_obs() -> None:
    state, networks, worlds, transitions, samples = collected()

    def value(obs):
        return networks.value(state.params, normalise.normalise(state.normaliser, obs))

    # the plain way: the critic on every observation and on every final observation
    values, finals = jax.vmap(value)(transitions.obs), jax.vmap(value)(transitions.final_obs)
    following = jnp.concatenate([values[1:], value(worlds.obs)[None]])
    after = jnp.where(transitions.done, finals, following)
    assert bool(transitions.truncated.any())
    advantages, targets = returns.gae(
        transitions.reward, values, after, transitions.terminated, transitions.truncated, discount=0.99, lam=0.95
    )
    np.testing.assert_allclose(samples.advantage, advantages, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(samples.target, targets, rtol=1e-4, atol=1e-5)
    wrong = jnp.where(transitions.done, jnp.zeros_like(finals), following)  # a truncation taken for a termination
    assert not np.allclose(after, wrong, atol=1e-3)


def test_gradients_are_clipped_by_their_global_norm() -> None:
    init, update = learner()
    _, metrics = update(init(jax.random.key(0)), jax.random.key(1))
    assert float(metrics["grad_norm"]) > 0.01
    # after one step Adam's first moment is 0.1 times the clipped gradient
    state = second_state()
    moment = jax.tree.leaves(state.opt_state)[1]
    np.testing.assert_allclose(jnp.linalg.norm(moment) / 0.1, 0.01, rtol=1e-4)


def test_the_step_counter_does_not_overflow() -> None:
    _, update = learner()
    state = second_state().replace(env_steps=Counter.of(2**32 - 20))
    state, metrics = update(state, jax.random.key(2))
    assert int(metrics["env_steps"]) == int(state.env_steps) == 2**32 - 20 + 48


def test_a_gradient_that_is_not_finite_changes_nothing_and_is_counted() -> None:
    sound, (_, update) = second_state(), learner()
    broken = sound.replace(params=jax.tree.map(jnp.copy, sound.params))
    broken.params["params"]["value_head"]["bias"] = jnp.array([jnp.inf])
    after, metrics = update(broken, jax.random.key(2))
    assert int(metrics["skipped_updates"]) == 1
    for name in ("params", "opt_state"):
        for a, b in zip(jax.tree.leaves(getattr(broken, name)), jax.tree.leaves(getattr(after, name)), strict=True):
            np.testing.assert_array_equal(a, b)
    # and once the cause is gone the run goes on
    after, metrics = update(after.replace(params=sound.params), jax.random.key(3))
    assert int(metrics["skipped_updates"]) == 1
    assert np.isfinite(metrics["grad_norm"])
    assert not np.array_equal(jax.tree.leaves(after.params)[0], jax.tree.leaves(sound.params)[0])


def test_a_world_that_is_not_finite_does_not_reach_the_parameters() -> None:
    class Breaks(fast.Fast):
        def step(self, state, action):
            state = super().step(state, action)
            bad = jnp.where(state.obs[2] > 0.5, jnp.nan, 0.0)  # worlds whose goal lies on the right
            return state.replace(data=state.data + bad, obs=state.obs + bad, reward=state.reward + bad)

    made = ppo.make(Breaks(), CONFIG)
    state, metrics = jax.jit(made.update)(jax.jit(made.init)(jax.random.key(0)), jax.random.key(1), None)
    assert int(metrics["nonfinite_worlds"]) > 0
    assert int(metrics["skipped_updates"]) == 0
    for tree in (state.params, state.opt_state, state.normaliser):
        assert all(np.isfinite(x).all() for x in jax.tree.leaves(tree))


def test_same_seed_same_bits_and_one_trace() -> None:
    init, update = learner()
    runs = []
    for _ in range(2):
        state = init(jax.random.key(0))
        for seed in range(3):
            state, metrics = update(state, jax.random.key(seed))
        runs.append(jax.tree.leaves((state.params, metrics)))
    assert TRACES.count(CONFIG) == 1  # of all the calls in this module
    for a, b in zip(*runs, strict=True):
        np.testing.assert_array_equal(a, b)


def test_seeds_and_hyperparameters_in_one_program() -> None:
    configs = [CONFIG, CONFIG.replace(lr=3e-3, discount=0.5, entropy_cost=0.1, clip=0.1)]
    keys = jax.random.split(jax.random.key(4), 2)
    init, _ = learner()
    states = [init(k) for k in keys]
    stacked = jax.tree.map(lambda *x: jnp.stack([jnp.asarray(a) for a in x]), *configs)
    together, metrics = jax.jit(jax.vmap(lambda c, s, k: ppo.make(ENV, c).update(s, k, None)))(
        stacked, jax.tree.map(lambda *x: jnp.stack(x), *states), keys
    )
    for i, config in enumerate(configs):
        alone, expected = learner(config)[1](states[i], keys[i])
        for name in ("loss", "entropy", "reward", "lr", "grad_norm"):
            np.testing.assert_allclose(metrics[name][i], expected[name], rtol=2e-4, atol=1e-6, err_msg=name)
        for a, b in zip(jax.tree.leaves(together.params), jax.tree.leaves(alone.params), strict=True):
            np.testing.assert_allclose(a[i], b, rtol=1e-3, atol=1e-5)


def test_one_device_and_two_agree() -> None:
    config = CONFIG.replace(max_grad_norm=None, normalise_rewards=True, target_kl=0.01)
    made = ppo.make(ENV, config)
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
    a, b = (np.asarray(jax.tree.leaves(s.opt_state)[1]) for s in (one, two))
    assert np.abs(a - b).max() <= 1e-5 * np.abs(a).max()
    np.testing.assert_allclose(one.worlds.obs, two.worlds.obs, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(one.normaliser.mean, two.normaliser.mean, rtol=1e-5)
    np.testing.assert_allclose(one.reward_stats.var, two.reward_stats.var, rtol=1e-5)
    assert int(one.env_steps) == int(two.env_steps) == 48
    for name in metrics_one:
        if not isinstance(metrics_one[name], Counter):
            np.testing.assert_allclose(metrics_one[name], metrics_two[name], rtol=1e-4, atol=1e-6, err_msg=name)


@pytest.mark.x64
def test_double_precision_and_stable_types() -> None:
    config = CONFIG.replace(num_minibatches=2, normalise_rewards=True, squash="tanh", state_std=True, target_kl=0.1)
    made = ppo.make(ENV, config)
    before = jax.eval_shape(made.init, jax.random.key(0))
    after, _ = jax.eval_shape(lambda s, k: made.update(s, k, None), before, jax.random.key(1))
    assert jax.tree.map(lambda x: (x.shape, x.dtype), before) == jax.tree.map(lambda x: (x.shape, x.dtype), after)
    floats = [x.dtype for x in jax.tree.leaves((before.params, before.opt_state, before.normaliser))]
    assert jnp.dtype(jnp.float64) in floats and jnp.dtype(jnp.float32) not in floats


def test_types_are_stable_and_strong() -> None:
    made = ppo.make(ENV, CONFIG)
    before = jax.eval_shape(made.init, jax.random.key(0))
    after, _ = jax.eval_shape(lambda s, k: made.update(s, k, None), before, jax.random.key(1))
    kinds = [[(x.shape, x.dtype, x.weak_type) for x in jax.tree.leaves(s)] for s in (before, after)]
    assert kinds[0] == kinds[1]
    assert not any(weak for _, _, weak in kinds[0])


def test_schedules() -> None:
    at = jnp.array([0.0, 0.25, 1.0, 2.0])
    np.testing.assert_allclose(jax.vmap(lambda f: schedule("linear", f, 0.2))(at), [1, 0.8, 0.2, 0.2], rtol=1e-6)
    np.testing.assert_allclose(jax.vmap(lambda f: schedule("cosine", f, 0.0))(at[:3]), [1, 0.853553, 0], atol=1e-6)
    np.testing.assert_allclose(jax.vmap(lambda f: schedule("constant", f, 0.0))(at), 1.0)
    _, update = learner()
    state = second_state().replace(update=jnp.int32(50))
    np.testing.assert_allclose(update(state, jax.random.key(0))[1]["lr"], 0.5 * 3e-4, rtol=1e-5)


def test_step_size_follows_the_kl() -> None:
    one = jnp.float32(1.0)
    np.testing.assert_allclose(_adapt(one, jnp.float32(0.03), 0.01), 1 / 1.5, rtol=1e-6)
    np.testing.assert_allclose(_adapt(one, jnp.float32(0.001), 0.01), 1.5, rtol=1e-6)
    np.testing.assert_allclose(_adapt(one, jnp.float32(0.01), 0.01), 1.0)
    np.testing.assert_allclose(_adapt(jnp.float32(0.01), jnp.float32(1.0), 0.01), 0.01)


def test_acting_is_deterministic_when_asked_and_in_bounds() -> None:
    made, state = ppo.make(ENV, CONFIG), second_state()
    obs = jnp.array([0.1, 0.2, -0.3, 0.4])
    actions = [made.act(state, (), obs, jax.random.key(i), d)[0] for d in (True, False) for i in range(2)]
    np.testing.assert_array_equal(actions[0], actions[1])
    assert not np.array_equal(actions[2], actions[3])
    assert all(np.abs(a).max() <= 1 for a in actions)


def test_noise_behind_an_action_is_kept_for_the_entropy() -> None:
    _, _, _, transitions, _ = collected(CONFIG.replace(squash="tanh"))
    noise = transitions.extras["noise"]
    assert noise.shape == transitions.action.shape
    assert abs(float(noise.mean())) < 0.3 and 0.7 < float(noise.std()) < 1.3
    dist = distributions.TanhNormal(jnp.zeros(2), jnp.ones(2))
    np.testing.assert_allclose(dist.noise(dist.sample(jax.random.key(0))), jax.random.normal(jax.random.key(0), (2,)))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"lr": float("nan")}, "lr: got nan, expected a number above 0"),
        ({"lr": -1.0}, "lr: got -1.0"),
        ({"discount": 1.5}, "discount: got 1.5, expected a number at least 0 and at most 1"),
        ({"max_grad_norm": 0.0}, "max_grad_norm: got 0.0, expected a number above 0 or None"),
        ({"clip": "0.2"}, "clip: got '0.2'"),
        ({"num_envs": 0}, "num_envs: got 0, expected an integer of at least 1"),
        ({"epochs": 2.0}, "epochs: got 2.0"),
        ({"squash": "sigmoid"}, "squash: got 'sigmoid', expected one of tanh, clip"),
        ({"shared": "no"}, "shared: got 'no', expected True or False"),
        ({"policy_widths": (32, 0)}, "policy_widths: got"),
        ({"lr_schedule": "cosine", "total_updates": None}, "total_updates: got None"),
        ({"num_minibatches": 7}, "num_minibatches: got 7, expected a divisor of 6"),
        ({"init_std": 1e-4}, "init_std: got 0.0001, expected more than min_std"),
    ],
)
def test_bad_configs_give_one_clear_line(change: dict, message: str) -> None:
    with pytest.raises(ConfigError) as error:
        CONFIG.replace(**change).validate()
    assert str(error.value).startswith(message)
    assert "\n" not in str(error.value)


def test_config_for_refuses_unknown_fields() -> None:
    with pytest.raises(ConfigError, match="num_env: PPO's Config has no such field; did you mean num_envs?"):
        ppo.config_for("pendulum", num_env=3)
    assert ppo.config_for("some_env", lr=1e-3).lr == 1e-3
    for name in ppo.presets:
        ppo.config_for(name)


def test_what_cannot_fit_in_memory_is_refused_with_numbers() -> None:
    huge = CONFIG.replace(num_envs=2**20, rollout_length=2**16)
    with pytest.raises(ConfigError, match=r"PPO needs .*TiB \(worlds .*rollout .*lower num_envs or rollout_length"):
        ppo.make(ENV, huge).init(jax.random.key(0))
    parts = ppo.memory_bytes(ENV, CONFIG)
    # 4 observation numbers are kept four times over, 48 rows
    assert parts["rollout"] >= 48 * 4 * 4 * 4
    state = second_state()
    params = sum(x.nbytes for x in jax.tree.leaves(state.params))
    assert parts["parameters"] == 4 * params
