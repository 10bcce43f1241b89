"""rejax's PPO, evaluations excluded, with our sizes: worlds, steps, minibatches, epochs, widths, activation.

Its ``train`` evaluates every ``eval_freq`` steps, so ``train_iteration`` is called instead, several in one jitted loop
as ``train`` itself does, with the state donated. Returns are means over 128 episodes of its own evaluation.
"""

from __future__ import annotations

import jax
import rejax
from _serve import serve, settings, versions_of

task = settings()
update = task["num_envs"] * task["rollout_length"]
UPDATES = task["updates_per_call"]


def algorithm():
    """rejax's PPO with the task's sizes."""
    return rejax.PPO.create(
        env=task["env"],
        num_envs=task["num_envs"],
        num_steps=task["rollout_length"],
        num_epochs=task["epochs"],
        num_minibatches=task["num_minibatches"],
        learning_rate=task["lr"],
        gamma=task["discount"],
        gae_lambda=task["gae_lambda"],
        clip_eps=task["clip"],
        vf_coef=task["value_coef"],
        ent_coef=task["entropy_cost"],
        normalize_observations=False,
        normalize_rewards=False,
        agent_kwargs={"activation": task["activation"], "hidden_layer_sizes": tuple(task["policy_widths"])},
    )


algo = algorithm()
step = jax.jit(lambda ts: jax.lax.fori_loop(0, UPDATES, lambda _, s: algo.train_iteration(s), ts), donate_argnums=0)
evaluate = jax.jit(lambda ts, key: algo.eval_callback(algo, ts, key)[1].mean())


def start(seed):
    """Its training state."""
    return jax.jit(algo.init_state)(jax.random.PRNGKey(seed))


def training():
    """A burst of whole updates, evaluations left out."""
    box = [start(0)]

    def burst():
        box[0] = jax.block_until_ready(step(box[0]))
        return UPDATES * update

    return burst


def learned(env_steps, seed):
    """Mean return after that many steps."""
    ts = start(seed)
    calls = -(-env_steps // (UPDATES * update))
    for _ in range(calls):
        ts = step(ts)
    return {"return": float(evaluate(ts, jax.random.PRNGKey(1000 + seed))), "env_steps": calls * UPDATES * update}


serve({"training": training}, versions_of("rejax", "gymnax", "jax", "jaxlib", "flax"), learned)
