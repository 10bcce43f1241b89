"""gymnax 1.x: the environment alone, and with a policy of the same size as ours.

As its users run it: ``jax.vmap`` of ``env.step`` (which resets by itself) under ``lax.scan``, all in one jit. The policy
is a plain MLP, its action is sampled; gymnax brings no learner.
"""

from __future__ import annotations

import gymnax
import jax
import jax.numpy as jnp
from _serve import serve, settings, versions_of

CHUNK = 256  # steps of every world in one call
task = settings()
env, params = gymnax.make(task["env"])
worlds = task["num_envs"]


def weights(key):
    """Random weights of the policy's layers."""
    sizes = [env.observation_space(params).shape[0], *task["policy_widths"], env.action_space(params).n]
    keys = jax.random.split(key, len(sizes))
    return [
        (jax.random.normal(k, (a, b)) / a**0.5, jnp.zeros(b))
        for k, a, b in zip(keys, sizes[:-1], sizes[1:], strict=False)
    ]


def logits(layers, obs):
    """The policy: dense layers."""
    activation = {"tanh": jnp.tanh, "swish": jax.nn.swish, "relu": jax.nn.relu}[task["activation"]]
    for matrix, bias in layers[:-1]:
        obs = activation(obs @ matrix + bias)
    matrix, bias = layers[-1]
    return obs @ matrix + bias


def make(policy):
    """A burst of control steps, with the policy's actions or random ones."""
    layers = weights(jax.random.PRNGKey(1))

    def chunk(state, obs, key):
        def step(carry, key):
            state, obs = carry
            act_key, step_key = jax.random.split(key)
            if policy:
                action = jax.random.categorical(act_key, logits(layers, obs))
            else:
                action = jax.random.randint(act_key, (worlds,), 0, env.action_space(params).n)
            obs, state, reward, *_ = jax.vmap(env.step, in_axes=(0, 0, 0, None))(
                jax.random.split(step_key, worlds), state, action, params
            )
            return (state, obs), reward.sum()

        (state, obs), rewards = jax.lax.scan(step, (state, obs), jax.random.split(key, CHUNK))
        return state, obs, rewards.sum()

    run = jax.jit(chunk, donate_argnums=(0, 1))
    keys = jax.random.split(jax.random.PRNGKey(0), worlds)
    obs, state = jax.jit(jax.vmap(env.reset, in_axes=(0, None)))(keys, params)
    box = [state, obs, jax.random.PRNGKey(2)]

    def burst():
        box[2], key = jax.random.split(box[2])
        box[0], box[1], total = run(box[0], box[1], key)
        jax.block_until_ready(total)
        return CHUNK * worlds

    return burst


serve(
    {"env": lambda: make(False), "inference": lambda: make(True)},
    versions_of("gymnax", "jax", "jaxlib"),
)
