"""Advantages from a contrastive critic: how much likelier an action makes the commanded goal than the policy does.

f(s, a, g) estimates log p(g | s, a) / p(g), with p(g | s, a) the discounted density of the goals that follow. So

    A(s, a, g) = f(s, a, g) - E_{b ~ pi(. | s, g)} f(s, b, g)

is free of p(g). It is not free of a c(s, a) that the loss may leave in f: see ``mjxlab.rl.contrastive``.
Nothing here carries a gradient: advantages are data of the update.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int, Key

from mjxlab import spmd
from mjxlab.rl import contrastive, distributions, returns
from mjxlab.rl.cppo_config import Config, Scalar
from mjxlab.rl.cppo_networks import GoalNetworks
from mjxlab.rl.rollout import world_keys
from mjxlab.rl.shuffle import permutation

ROWS = 1 << 14  # encoder rows at a time: bounds the memory that advantages take


def q_values(
    networks: GoalNetworks, config: Config, params: Any, state: Array, action: Array, commanded: Array, goal: Array
) -> Float[Array, "*rows"]:
    """f of each row (inputs as the networks take them). Axes of size 1 of ``goal`` are stretched."""
    phi = networks.phi(params, state, action, commanded)
    return contrastive.energy_pairs(config.energy, phi, networks.psi(params, goal)) / config.temperature


def q_all_actions(
    networks: GoalNetworks,
    config: Config,
    params: Any,
    state: Float[Array, "*rows state"],
    commanded: Float[Array, "*rows goal"],
    goal: Float[Array, "*rows goal"],
    mask: Bool[Array, "*rows choices"] | None = None,
) -> Float[Array, "*rows choices"]:
    """f of every action, in one batched call of the encoder; 0 for those that are not allowed.

    Args:
      state: ``[features, achieved]``.
      commanded: what phi sees of the command, if it sees it.
      goal: what f is asked about.
    """
    choices = networks.actions

    def repeat(x: Array) -> Array:
        return jnp.broadcast_to(x[..., None, :], (*x.shape[:-1], choices, x.shape[-1]))

    actions = jnp.broadcast_to(jnp.eye(choices, dtype=state.dtype), (*state.shape[:-1], choices, choices))
    q = q_values(networks, config, params, repeat(state), actions, repeat(commanded), goal[..., None, :])
    return q if mask is None else jnp.where(mask, q, 0)


def advantage_discrete(
    q: Float[Array, "*rows choices"], probs: Float[Array, "*rows choices"], action: Int[Array, "*rows"]
) -> tuple[Float[Array, "*rows"], Float[Array, "*rows"]]:
    """(A, V) with V = sum_b pi(b) f(b), exact. ``probs`` of actions that are not allowed are 0."""
    value = (probs * q).sum(-1)
    return jnp.take_along_axis(q, action[..., None], -1)[..., 0] - value, value


def advantage_continuous(
    q: Float[Array, "*rows"], sampled: Float[Array, "*rows samples"]
) -> tuple[Float[Array, "*rows"], Float[Array, "*rows"]]:
    """(A, V) with V the mean of f over K actions of the policy, which are other draws than the action taken.

    V is unbiased; its variance is that of f under the policy, over K.
    """
    value = sampled.mean(-1)
    return q - value, value


def sampled_q(
    networks: GoalNetworks,
    config: Config,
    params: Any,
    dist: distributions.Normal,
    state: Float[Array, "envs state"],
    commanded: Float[Array, "envs goal"],
    goal: Float[Array, "envs goal"],
    keys: Key[Array, " envs"],
) -> Float[Array, "envs samples"]:
    """f of ``config.value_samples`` actions that the policy draws in each world."""
    count = config.value_samples
    noise = jax.vmap(lambda k: jax.random.normal(k, (count, networks.actions), state.dtype))(keys)
    raw = dist.loc[:, None] + dist.scale[:, None] * noise

    def repeat(x: Array) -> Array:
        return jnp.broadcast_to(x[:, None], (x.shape[0], count, x.shape[-1]))

    return q_values(networks, config, params, repeat(state), networks.encode(raw), repeat(commanded), goal[:, None, :])


def judge(
    networks: GoalNetworks,
    config: Config,
    params: dict[str, Any],
    obs: Float[Array, "time envs obs"],
    goal: Float[Array, "time envs goal"],
    action: Any,
    mask: Any,
    key: Key[Array, ""],
) -> tuple[Float[Array, "time envs"], Float[Array, "time envs"]]:
    """(A, V) of a rollout, without gradient, some time steps at a time.

    Args:
      params: of policy and critic, as they are before the update.
      obs: as the networks take it; the policy's expectation is under its commanded goal.
      goal: what the critic is asked about: the commanded goal (or another, for the control).
      action: raw. mask: allowed actions, or None.
      key: of the K actions that V is the mean over; a world's draws do not depend on the number of devices.
    """
    length, envs = obs.shape[:2]

    def step(inputs: Any) -> tuple[Array, Array]:
        t, obs, goal, action, mask = inputs
        dist = networks.policy(params["actor"], obs, mask)
        size = networks.spec.goal_size
        state, commanded = obs[..., :-size], obs[..., -size:]
        if isinstance(dist, distributions.Categorical):
            q = q_all_actions(networks, config, params["critic"], state, commanded, goal, mask)
            return advantage_discrete(q, dist.probs(), action)
        keys = world_keys(key, envs, t)
        sampled = sampled_q(networks, config, params["critic"], dist, state, commanded, goal, keys)
        taken = q_values(networks, config, params["critic"], state, networks.encode(action), commanded, goal)
        return advantage_continuous(taken, sampled)

    each = envs * (networks.actions if networks.discrete else config.value_samples)
    at_once = max(n for n in range(1, length + 1) if length % n == 0 and (n == 1 or n * each <= ROWS))
    times = jnp.arange(length, dtype=jnp.int32)
    return lax.stop_gradient(lax.map(step, (times, obs, goal, action, mask), batch_size=at_once))


def smooth_advantage(
    kind: str,
    advantage: Float[Array, "time *batch"],
    value: Float[Array, "time *batch"],
    next_value: Float[Array, "time *batch"] | None,
    done: Bool[Array, "time *batch"],
    discount: Scalar,
    lam: Scalar,
) -> Float[Array, "time *batch"]:
    """What becomes of A = f - V along a rollout.

    ``none``: A itself, as in the paper. ``smooth_adv``: A_t + discount lam (1 - done_t) (the same of t + 1); lam 0 is none.
    Two ablations, for which f is taken for what it is not: ``value_diff``: GAE of V with rewards of 0;
    ``q_as_reward``: GAE of V with f as the reward. In both the value goes on where an episode ends, since f is the logarithm
    of a density and its end is not worth 0.

    Args:
      next_value: V after each step, before any reset; only the ablations need it.
    """
    never = jnp.zeros_like(done)
    if kind == "none":
        return advantage
    zero = jnp.zeros_like(advantage)
    if kind == "smooth_adv":
        return returns.gae(advantage, zero, zero, never, done, discount=discount, lam=lam)[0]
    assert next_value is not None
    reward = zero if kind == "value_diff" else advantage + value
    return returns.gae(reward, value, next_value, never, done, discount=discount, lam=lam)[0]


def shuffled_goals(key: Key[Array, ""], goal: Float[Array, "time envs goal"]) -> Float[Array, "time envs goal"]:
    """Every sample gets the goal of another one, by a random order of all samples of all devices."""
    length, envs = goal.shape[:2]
    whole = spmd.all_gather(goal, axis=1)
    order = permutation(key, length * whole.shape[1]).reshape(length, whole.shape[1])
    mine = lax.dynamic_slice_in_dim(order, spmd.axis_index() * envs, envs, axis=1)
    return whole.reshape(-1, goal.shape[-1])[mine]
