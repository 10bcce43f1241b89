"""Brax, and MuJoCo Playground, whose learner is Brax's: environment, policy, PPO, with our sizes.

``settings["suite"]`` says which. env and inference: the training wrapper's step (vmap, time limit, autoreset) under
``lax.scan`` in one jit, with Brax's PPO network and its normaliser. training: ``brax.training.agents.ppo.train`` without
evaluations; one burst is one of its epochs, by its own clock ("training/sps"), which leaves out what is between
epochs. Its first two epochs compile and are the warm-up. It wants ``batch_size * num_minibatches`` to be a multiple of
the worlds; an update takes unrolls of ``unroll_length`` steps until they are filled.

Brax 0.14.2 calls a function that JAX 0.10 removed; the line below the first imports puts it back.
"""

from __future__ import annotations

import functools
import queue
import threading

import jax
import jax.numpy as jnp
from _serve import serve, settings, versions_of

jax.device_put_replicated = lambda x, devices: jax.tree.map(lambda a: jnp.stack([a] * len(devices)), x)

from brax.training.acme import running_statistics, specs  # noqa: E402
from brax.training.agents.ppo import networks, train  # noqa: E402

task = settings()
worlds = task["num_envs"]
CHUNK = task.get("chunk", 20)  # steps of every world in one call
update = worlds * task["rollout_length"]

if task["suite"] == "brax":
    from brax import envs

    env = envs.get_environment(task["env"], backend="mjx")
    wrap = envs.training.wrap
else:
    from mujoco_playground import registry, wrapper

    env = registry.load(task["env"], config_overrides={"impl": "jax"})
    wrap = wrapper.wrap_for_brax_training

make_networks = functools.partial(
    networks.make_ppo_networks,
    policy_hidden_layer_sizes=tuple(task["policy_widths"]),
    value_hidden_layer_sizes=tuple(task["value_widths"]),
    activation={"tanh": jnp.tanh, "swish": jax.nn.swish, "relu": jax.nn.relu}[task["activation"]],
)


def make(policy):
    """A burst of control steps, with the policy's actions or random ones."""
    wrapped = wrap(env, episode_length=task["episode_length"], action_repeat=1)
    state = jax.jit(wrapped.reset)(jax.random.split(jax.random.PRNGKey(0), worlds))
    net = make_networks(env.observation_size, env.action_size, running_statistics.normalize)
    normaliser = running_statistics.init_state(specs.Array((env.observation_size,), jnp.dtype("float32")))
    params = (normaliser, net.policy_network.init(jax.random.PRNGKey(1)))
    act = networks.make_inference_fn(net)(params)

    def chunk(state, key):
        def step(state, key):
            if policy:
                action, _ = act(state.obs, key)
            else:
                action = jax.random.uniform(key, (worlds, env.action_size), minval=-1.0, maxval=1.0)
            return wrapped.step(state, action), None

        return jax.lax.scan(step, state, jax.random.split(key, CHUNK))[0]

    run = jax.jit(chunk)
    box = [state, jax.random.PRNGKey(2)]

    def burst():
        box[1], key = jax.random.split(box[1])
        box[0] = jax.block_until_ready(run(box[0], key))
        return CHUNK * worlds

    return burst


def training():
    """Brax's PPO in a thread of its own; a burst is what it does between two reports."""
    go: queue.Queue = queue.Queue()
    done: queue.Queue = queue.Queue()
    epochs, per_epoch = 10_000, task["updates_per_call"] * update

    def progress(step, metrics):
        if "training/sps" not in metrics:
            return
        done.put((per_epoch, per_epoch / float(metrics["training/sps"])))
        go.get()

    def run():
        try:
            train.train(
                env,
                num_timesteps=epochs * per_epoch,
                num_evals=epochs + 1,
                run_evals=False,
                progress_fn=progress,
                episode_length=task["episode_length"],
                num_envs=worlds,
                unroll_length=task["unroll_length"],
                batch_size=update // task["num_minibatches"] // task["unroll_length"],
                num_minibatches=task["num_minibatches"],
                num_updates_per_batch=task["epochs"],
                learning_rate=task["lr"],
                discounting=task["discount"],
                gae_lambda=task["gae_lambda"],
                clipping_epsilon=task["clip"],
                reward_scaling=task["reward_scale"],
                entropy_cost=task["entropy_cost"],
                normalize_observations=True,
                network_factory=make_networks,
                seed=0,
                **({} if task["suite"] == "brax" else {"wrap_env_fn": wrap}),
            )
        except BaseException as error:
            done.put(error)

    threading.Thread(target=run, daemon=True).start()
    first = [True]

    def burst():
        if not first[0]:
            go.put(None)
        first[0] = False
        outcome = done.get()
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    return burst


serve(
    {"env": lambda: make(False), "inference": lambda: make(True), "training": training},
    versions_of("brax", "playground", "jax", "jaxlib", "mujoco", "mujoco-mjx", "flax"),
)
