"""``mjxlab train``."""

from __future__ import annotations

import dataclasses
import json
import math
import pathlib
import signal
import types
from typing import Any, Literal

from mjxlab.commands.parse import changed, flags_of, parse
from mjxlab.configs import check_seed
from mjxlab.errors import ConfigError, WorkLostError

EVALUATION = "evaluation.json"
ENV_STEPS = 1_000_000  # a run's length where neither the user nor the preset says

HELP = """\
usage: mjxlab train AGENT ENV [flags]

Train an agent on an environment. `mjxlab train AGENT ENV --help` lists the flags, with that agent's own under --config,
set as they are for that environment. `mjxlab list` lists agents and environments.

The same command goes on with a run that was stopped: the newest checkpoint in --run-dir is taken up, to the bit.
SIGTERM saves and leaves with exit code 143, Ctrl-C with 130.

examples:
  mjxlab train ppo arm_reach --gif
  mjxlab train ppo ant --env-steps 1000000 --run-dir runs/ant --config.num-envs 512
  mjxlab train ppo pendulum --seed 3 --sinks console tensorboard"""


@dataclasses.dataclass
class Options:
    """Train an agent on an environment, or go on with a run.

    example: mjxlab train ppo arm_reach --gif
    """

    steps: int | None = None
    """Updates in all."""
    env_steps: int | None = None
    """Steps of the environment in all, instead of --steps; rounded up to whole updates."""
    seed: int = 0
    """All randomness comes from it."""
    run_dir: pathlib.Path | None = None
    """Run folder; runs/AGENT-ENV-SEED by default."""
    engine: Literal["auto", "mujoco", "mjx", "warp"] = "auto"
    """Physics engine."""
    sinks: tuple[str, ...] = ("console",)
    """Where metrics go: console, csv, tensorboard, wandb; metrics.jsonl is always written."""
    evaluate_every: int | None = None
    """Updates between evaluations; a twentieth of the run by default, 0 for none."""
    eval_episodes: int = 100
    """Episodes of an evaluation, each from a fresh start."""
    checkpoint_every: int | None = None
    """Updates between checkpoints, besides one in five minutes and one at the end."""
    matmul_precision: str = "float32"
    """Of all matrix products; "default" is faster on GPUs and TPUs."""
    devices: int | None = None
    """How many devices; all by default."""
    gif: bool = False
    """Leave policy.gif in the run folder."""


def main(words: list[str]) -> int:
    """Train; returns the exit code."""
    if len(words) < 2 or words[0].startswith("-") or words[1].startswith("-"):
        if set(words) & {"-h", "--help"}:
            print(HELP)
            return 0
        raise ConfigError("train: expected mjxlab train AGENT ENV (see mjxlab train --help)")
    agent, env_name, flags = words[0], words[1], words[2:]

    from mjxlab import catalogue, envs

    module = catalogue.system(agent).load()
    envs.spec(env_name)
    options, config = read_flags(agent, env_name, module.config_for(env_name), flags)
    check_seed(options.seed)
    return train(agent, env_name, module, options, config)


def train(agent: str, env_name: str, module: Any, options: Any, config: Any) -> int:
    """Train, then print how the policy does beside a random one; returns the exit code."""
    import jax

    from mjxlab import envs, fit, spmd
    from mjxlab.commands import play
    from mjxlab.policy import random_learner
    from mjxlab.rl.evaluate import make_evaluate

    spmd.initialize()
    env = envs.make(env_name, options.engine)
    engine = getattr(getattr(env, "engine", None), "kind", None)
    steps, config = length(options, config)
    config.validate()
    folder = options.run_dir or pathlib.Path("runs") / f"{agent}-{env_name}-{options.seed}"
    learner = module.make(env, config)
    evaluate = None if options.evaluate_every == 0 else make_evaluate(env, learner, options.eval_episodes)
    state, history = fit(
        learner,
        steps=steps,
        key=jax.random.key(options.seed),
        evaluate=evaluate,
        evaluate_every=options.evaluate_every or None,
        run_dir=folder,
        config=config,
        env=types.SimpleNamespace(name=env_name, engine=getattr(env, "engine", None)),  # by its registered name
        env_options={} if engine is None else {"engine": engine},
        agent=agent,
        sinks=tuple(dict.fromkeys((*options.sinks, "jsonl"))),
        checkpoint_every=options.checkpoint_every,
        devices=options.devices,
        matmul_precision=options.matmul_precision,
    )
    if history.interrupted is not None:
        return 128 + signal.Signals[history.interrupted]
    state = _on_one_device(state)  # every process takes part in gathering what is split over them
    if not spmd.is_main():
        return 0
    setting = (options.eval_episodes, options.seed + 1)
    figures = {
        "trained": _last_evaluation(history, steps) or play.score(env, learner, state, *setting),
        "random": _earlier(folder, "random", setting[0]) or play.score(env, random_learner(env), (), *setting),
    }
    print(f"after {steps:,} updates, over {options.eval_episodes} episodes with fresh starts:")
    for name, found in figures.items():
        print(f"  {name:8} {play.sentence(found)}")
    _write(folder / EVALUATION, json.dumps({"step": steps, **figures}, indent=1) + "\n")
    left = [name for name in ("curve.png",) if (folder / name).exists()]
    if options.gif:
        picture = folder / "policy.gif"
        if not _is_newer(picture, folder / "checkpoints"):
            print(f"drawing {picture} …", flush=True)
            play.save_gif(picture, *play.film(env, learner, state, options.seed + 2))
        left.append(picture.name)
    print(f"{folder}: {', '.join([*left, 'metrics.jsonl', 'checkpoints'])}")
    return 0


def _on_one_device(state: Any) -> Any:
    """The state, gathered from all devices of all processes onto the first one of this process."""
    import jax
    import jax.numpy as jnp

    from mjxlab import spmd

    def put(x: Any, host: Any) -> Any:
        here = jnp.asarray(host)
        return jax.random.wrap_key_data(here, impl=jax.random.key_impl(x)) if spmd.is_key(x) else here

    return jax.tree.map(put, state, spmd.to_host(state))


def _is_newer(path: pathlib.Path, than: pathlib.Path) -> bool:
    return path.exists() and path.stat().st_mtime >= than.stat().st_mtime


def _last_evaluation(history: Any, steps: int) -> dict[str, Any] | None:
    """The figures of the evaluation that ended the run, if there was one."""
    if not len(history.get("eval/step", ())) or history["eval/step"][-1] != steps:
        return None
    return {name.removeprefix("eval/"): history[name][-1].item() for name in history if name.startswith("eval/")}


def _earlier(folder: pathlib.Path, name: str, episodes: int) -> dict[str, Any] | None:
    """Figures that an earlier call left, which spares their program."""
    try:
        figures = json.loads((folder / EVALUATION).read_text())[name]
        return figures if figures["episodes"] == episodes else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def length(options: Any, config: Any) -> tuple[int, Any]:
    """The number of updates, and the config with its schedules stretched over them.

    Raises:
      ConfigError: both --steps and --env-steps, or the latter for an agent that does not step environments.
    """
    if options.steps is not None and options.env_steps is not None:
        raise ConfigError("train: got both --steps and --env-steps, expected one of them")
    counts = hasattr(config, "num_envs") and hasattr(config, "rollout_length")
    planned = getattr(config, "total_updates", None)
    if options.steps is not None:
        steps = options.steps
    elif options.env_steps is None and planned is not None:
        steps = planned
    elif counts:
        an_update = max(config.num_envs * config.rollout_length, 1)  # validate() refuses what is below
        steps = math.ceil((ENV_STEPS if options.env_steps is None else options.env_steps) / an_update)
    else:
        raise ConfigError("train: this agent does not count environment steps, expected --steps")
    scheduled = [f.name for f in dataclasses.fields(config) if f.name.endswith("_schedule")]
    if steps != planned and any(getattr(config, name) != "constant" for name in scheduled):
        config = config.replace(total_updates=steps)
    return steps, config


def _write(path: pathlib.Path, text: str) -> None:
    try:
        path.write_text(text)
    except OSError as error:
        raise WorkLostError(f"{path}: could not be written ({error.strerror or error})") from error


def read_flags(agent: str, env_name: str, default: Any, flags: list[str]) -> tuple[Options, Any]:
    """The options and the config that the flags ask for.

    Where ``--run-dir`` holds a run of the same agent and environment, what that run was started with takes the place of
    the defaults, so that a run goes on without its flags being said again.
    """
    from mjxlab.runs import Run

    own: dict[str, Any] = {}
    folder = _value_of("--run-dir", flags)
    if folder is not None and (pathlib.Path(folder) / "run.json").is_file():
        run = Run.open(folder)
        if (run.record.get("agent"), run.record.get("env")) == (agent, env_name):
            default = run.config(type(default))
            own = {name: run.record[name] for name in ("steps", "matmul_precision") if run.record.get(name) is not None}
            own["engine"] = (run.record.get("env_options") or {}).get("engine", "auto")
            if run.record["key"]["data"][:-1] == [0]:  # else a key that no seed gives: Run.start will say so
                own["seed"] = run.record["key"]["data"][-1]
    kind = flags_of(default)
    made = dataclasses.make_dataclass(
        "Options", [("config", kind, dataclasses.field(default_factory=kind))], bases=(Options,)
    )
    made.__doc__ = Options.__doc__
    options = parse(made, flags, f"train {agent} {env_name}", made(**own))
    return options, default.replace(**changed(default, options.config))


def _value_of(flag: str, words: list[str]) -> str | None:
    """The value that a flag will have, read before the flags are known."""
    spelt = [word.replace("_", "-") for word in words]
    for i, word in enumerate(spelt):
        if word == flag and i + 1 < len(words):
            return words[i + 1]
        if word.startswith(f"{flag}="):
            return words[i].partition("=")[2]
    return None
