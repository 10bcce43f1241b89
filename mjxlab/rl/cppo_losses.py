"""CPPO's data and losses: a rollout digested for the critic and for the policy, and the loss of a minibatch of each."""

from __future__ import annotations

from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Key

from mjxlab import spmd
from mjxlab.rl import contrastive, goals, losses, normalise
from mjxlab.rl.cppo_advantage import judge, shuffled_goals, smooth_advantage
from mjxlab.rl.cppo_config import Config, Scalar
from mjxlab.rl.cppo_networks import GoalNetworks, see, see_goal
from mjxlab.rl.rollout import Transition


@flax.struct.dataclass
class CriticRows:
    """What the contrastive loss needs of each step.

    Attributes:
      state, commanded, goal: as the networks take them; ``goal`` is in hindsight.
      action: encoded.
      valid: whether the row has a goal in its future.
    """

    state: Float[Array, "*rows state"]
    commanded: Float[Array, "*rows goal"]
    action: Float[Array, "*rows action"]
    goal: Float[Array, "*rows goal"]
    valid: Bool[Array, "*rows"]


@flax.struct.dataclass
class PolicyRows:
    """What PPO's loss needs of each step.

    Attributes:
      obs: as the networks take it, with the commanded goal.
      action: raw. log_prob: its log-probability under the rollout's policy.
      advantage: standardised.
      mask: allowed actions, or None.
    """

    obs: Float[Array, "*rows obs"]
    action: Any
    log_prob: Float[Array, "*rows"]
    advantage: Float[Array, "*rows"]
    mask: Bool[Array, "*rows choices"] | None


def critic_rows(
    networks: GoalNetworks,
    config: Config,
    stats: normalise.RunningStatistics,
    transitions: Transition,
    key: Key[Array, ""],
) -> CriticRows:
    """The rollout with goals in hindsight. Axes (time, envs) stay."""
    size = networks.spec.goal_size
    raw, _ = goals.flat(networks.spec, transitions.obs)
    after, _ = goals.flat(networks.spec, transitions.final_obs)
    state, commanded = goals.split(see(config, stats, raw), size)
    steps = goals.GoalBatch(
        state=state,
        action=networks.encode(transitions.action),
        achieved=goals.achieved(after if config.final_goals else raw, size),
        goal=commanded,
        traj_id=goals.trajectory_ids(transitions.done),
        valid=jnp.ones_like(transitions.done),
    )
    steps = goals.relabel(steps, key, config.discount, first=config.first)
    return CriticRows(state, commanded, steps.action, see_goal(config, stats, steps.goal), steps.valid)


def policy_rows(
    networks: GoalNetworks,
    config: Config,
    params: dict[str, Any],
    stats: normalise.RunningStatistics,
    transitions: Transition,
    key: Key[Array, ""],
) -> tuple[PolicyRows, dict[str, Array]]:
    """The rollout with advantages, standardised over all devices. Axes (time, envs) stay.

    Returns:
      The rows; mean and standard deviation of V and of A before it was standardised.
    """
    raw, mask = goals.flat(networks.spec, transitions.obs)
    obs = see(config, stats, raw)
    goal = goals.split(obs, networks.spec.goal_size)[1]
    value_key, next_key, shuffle_key = jax.random.split(key, 3)
    if config.shuffle_goals:
        goal = shuffled_goals(shuffle_key, goal)
    advantage, value = judge(networks, config, params, obs, goal, transitions.action, mask, value_key)
    next_value = None
    if config.gae_kind in ("value_diff", "q_as_reward"):
        after, after_mask = goals.flat(networks.spec, transitions.final_obs)
        seen = see(config, stats, after)
        _, next_value = judge(networks, config, params, seen, goal, transitions.action, after_mask, next_key)
    advantage = smooth_advantage(
        config.gae_kind, advantage, value, next_value, transitions.done, config.discount, config.gae_lambda
    )
    mean = spmd.pmean(advantage.mean())
    found = {
        "value": spmd.pmean(value.mean()),
        "advantage": mean,
        "advantage_std": jnp.sqrt(spmd.pmean(jnp.square(advantage - mean).mean())),
    }
    rows = PolicyRows(
        obs=obs,
        action=transitions.action,
        log_prob=transitions.extras["log_prob"],
        advantage=lax.stop_gradient(losses.normalise_advantages(advantage)),
        mask=mask,
    )
    return rows, found


def critic_loss(
    networks: GoalNetworks, config: Config, params: Any, batch: CriticRows
) -> tuple[Float[Array, ""], dict[str, Array]]:
    """The contrastive loss of one minibatch, over the goals of all devices, and its parts.

    Every device works out the loss of the whole minibatch from the gathered representations; averaged over devices the
    gradient is that of the loss.
    """
    phi = networks.phi(params, batch.state, batch.action, batch.commanded)
    psi = networks.psi(params, batch.goal)
    phi, psi = spmd.all_gather((phi, psi))
    mask = None
    if config.mask_duplicates:
        goal, valid = spmd.all_gather((batch.goal, batch.valid))
        mask = contrastive.duplicate_mask(goal, valid=valid)
    elif not config.final_goals:
        mask = contrastive.valid_mask(spmd.all_gather(batch.valid))
    logits = contrastive.energy(config.energy, phi, psi) / config.temperature
    total = contrastive.contrastive_loss(config.critic_loss, logits, config.rho, mask)
    return total, {"critic_loss": total, **contrastive.contrastive_metrics(logits, mask)}


def ppo_loss(
    networks: GoalNetworks, config: Config, params: Any, batch: PolicyRows, bonus: Scalar
) -> tuple[Float[Array, ""], dict[str, Array]]:
    """Clipped surrogate minus ``bonus`` times the entropy, on one minibatch: the device's share of it, and its parts.

    Ratios and entropy are those of the raw action, before any squashing.
    """
    dist = networks.policy(params, batch.obs, batch.mask)
    log_ratio = dist.log_prob(batch.action) - batch.log_prob
    policy_loss = losses.clipped_surrogate(log_ratio, batch.advantage, config.clip)
    entropy = dist.entropy().mean()
    total = policy_loss - bonus * entropy
    return total, {
        "policy_loss": policy_loss,
        "entropy": entropy,
        "kl": losses.approx_kl(log_ratio),
        "clip_fraction": losses.clip_fraction(log_ratio, config.clip),
    }
