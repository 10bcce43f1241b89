"""PPO learns what can be known exactly: the toys' values and best actions, and a small control task."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces

from mjxlab.agents import ppo
from mjxlab.envs import fast, toys
from mjxlab.envs.base import fresh_state
from mjxlab.rl import distributions
from mjxlab.rl.evaluate import make_evaluate

GAMMA = 0.9
CONFIG = ppo.Config(
    num_envs=16, rollout_length=8, lr=3e-3, discount=GAMMA, policy_widths=(16,), value_widths=(16,), num_minibatches=2
)


def train(env, config: ppo.Config, updates: int, seed: int = 0):
    """A trained state, the learner, the metrics of all updates: one compiled program."""
    learner = ppo.make(env, config)

    def run(key):
        def step(state, u):
            return learner.update(state, jax.random.fold_in(key, u), None)

        return jax.lax.scan(step, learner.init(key), jnp.arange(updates))

    state, metrics = jax.jit(run)(jax.random.key(seed))
    return state, learner, metrics


@pytest.mark.parametrize(
    ("env", "seen"),
    [
        pytest.param(toys.Constant(), [0.0], marks=pytest.mark.slow),
        pytest.param(toys.Sign(), [-1.0, 1.0], marks=pytest.mark.slow),
        (toys.Delay(), [0.0, 1.0]),
        (toys.Steer(discrete=False), [0.0]),
        (toys.Match(), [-1.0, 1.0]),
        (toys.Match(discrete=False), [-1.0, 1.0]),
        (toys.Cut(), [0.0, 1.0]),
    ],
    ids=lambda x: f"{x.name}{'' if x.discrete else '_box'}" if hasattr(x, "name") else "",
)
def test_values_and_actions_of_the_toys(env, seen: list[float]) -> None:
    state, learner, _ = train(env, CONFIG, 250)
    networks = ppo.make_networks(env, CONFIG)
    obs = jnp.array(seen)[:, None]
    values = jax.jit(lambda s, o: networks.value(s.params, ppo.see(CONFIG, s.normaliser, o)))(state, obs)
    truth = env.value(obs, GAMMA)
    np.testing.assert_allclose(values, truth, atol=0.1 * max(1.0, float(jnp.abs(truth).max())))
    if isinstance(env, toys.Steer | toys.Match):
        act = jax.jit(lambda s, o: learner.act(s, (), o, jax.random.key(0), True)[0])
        for row in obs:
            np.testing.assert_allclose(act(state, row), env.best_action(row), atol=0.1)


def test_point_to_goal() -> None:
    env = fast.Fast()
    config = CONFIG.replace(
        rollout_length=32, num_minibatches=4, normalise_rewards=True, policy_widths=(32,), value_widths=(32,)
    )
    state, learner, metrics = train(env, config, 120)
    found = jax.jit(make_evaluate(env, learner, 64))(state, jax.random.key(1))
    assert float(found["success"]) >= 0.95
    returns = np.asarray(metrics["episode_return"])
    assert returns[-10:].mean() > returns[:10].mean() + 5
    assert int(state.env_steps) == 120 * 16 * 32
    np.testing.assert_array_equal(metrics["env_steps"].numpy(), (1 + np.arange(120)) * 512)


class Masked:
    """Four actions, of which the observation allows two at a time; the higher one of these pays 1."""

    name = "masked"
    engine = None
    episode_length = 1
    observation_space = spaces.Dict({"action_mask": spaces.MultiBinary(4), "x": spaces.Box(-1, 1, (4,))})
    action_space = spaces.Discrete(4)

    def reset(self, key):
        mask = jax.random.permutation(key, jnp.array([True, True, False, False]))
        obs = {"action_mask": mask, "x": mask.astype(jnp.result_type(float))}
        return fresh_state(mask, obs, key)

    def step(self, state, action):
        allowed = state.data[action]
        best = jnp.max(jnp.where(state.data, jnp.arange(4, dtype=jnp.int32), 0))
        reward = jnp.where(allowed, (action == best).astype(jnp.result_type(float)), -100.0)
        return state.replace(reward=reward, terminated=jnp.ones((), bool))


def test_masked_actions_are_never_taken() -> None:
    state, learner, metrics = train(Masked(), CONFIG, 80)
    assert float(metrics["reward"].min()) >= 0  # a forbidden action would have cost 100, from the first update on
    assert float(metrics["reward"][-5:].mean()) > 0.95
    assert int(state.skipped) == 0
    networks = ppo.make_networks(Masked(), CONFIG)
    obs = jax.vmap(Masked().reset)(jax.random.split(jax.random.key(0), 8)).obs
    dist = jax.jit(lambda s, o: ppo.policy(networks, CONFIG, s, o))(state, obs)
    assert isinstance(dist, distributions.Categorical)
    np.testing.assert_array_equal(np.asarray(dist.probs())[~np.asarray(obs["action_mask"])], 0.0)
    assert learner.carry(state, jax.random.key(0)) == ()


def test_a_shared_trunk_learns_too() -> None:
    env = toys.Match()
    config = CONFIG.replace(shared=True, activation="relu", layer_norm=True, value_clip=0.5, target_kl=0.02, lr=1e-3)
    _, _, metrics = train(env, config, 150)
    assert float(metrics["reward"][-5:].mean()) > 0.95
