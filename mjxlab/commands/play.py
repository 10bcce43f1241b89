"""Playing a policy for people: figures over whole episodes, and frames of some of them."""

from __future__ import annotations

import pathlib
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from mjxlab.configs import SEEDS
from mjxlab.errors import ConfigError
from mjxlab.learner import Learner

FPS = 25  # GIF viewers slow down above this
MAX_FRAMES = 300
Figures = dict[str, Any]


def score(env: Any, learner: Learner, state: Any, episodes: int, seed: int, deterministic: bool = True) -> Figures:
    """Figures over ``episodes`` whole episodes with fresh starts and goals, as Python numbers.

    The starts depend on ``seed`` alone, so that two policies meet the same ones.
    """
    from mjxlab import physics
    from mjxlab.rl.evaluate import make_evaluate

    evaluate = physics.jit(make_evaluate(env, learner, episodes, deterministic=deterministic))
    return {name: value.item() for name, value in evaluate(state, _key(seed)).items()}


def _key(seed: int) -> jax.Array:
    return jax.random.key(seed % SEEDS)  # a run's own seed plus one or two


def sentence(figures: Figures) -> str:
    """The figures in one line."""
    parts = [f"success {figures['success']:.2f}"] if "success" in figures else []
    parts.append(f"return {figures['return_mean']:.4g} ± {figures['return_std']:.3g}")
    parts.append(f"length {figures['length_mean']:.4g}")
    if figures.get("nonfinite"):
        parts.append(f"{figures['nonfinite']} not finite")
    return "   ".join(parts)


def film(env: Any, learner: Learner, state: Any, seed: int, episodes: int = 4) -> tuple[list[np.ndarray], float]:
    """Frames (uint8[h, w, 3]) of some episodes one after the other, and how many to show in a second.

    Raises:
      ConfigError: the environment has no picture.
    """
    model = getattr(getattr(env, "engine", None), "model", None)
    if model is None and not hasattr(env, "render_frame"):
        raise ConfigError(f"environment {env.name!r} has no picture, expected one with a MuJoCo model or render_frame")
    dt = float(getattr(env, "dt", 1 / FPS))
    stride = max(1, round(1 / (FPS * dt)))
    play, kept = _player(env, learner), []
    for key in jax.random.split(_key(seed), episodes):
        shot, over = jax.device_get(play(state, key))
        length = int(over.argmax()) + 1 if over.any() else len(over)
        kept += [jax.tree.map(lambda x: x[t], shot) for t in range(0, length, stride)]  # noqa: B023
    kept = kept[:MAX_FRAMES]
    if model is None:
        return [env.render_frame(moment) for moment in kept], 1 / (stride * dt)
    from mjxlab.physics import render

    poses = jax.tree.map(lambda *xs: np.stack(xs), *kept)
    return list(render.frames(model, poses)), 1 / (stride * dt)


def _player(env: Any, learner: Learner) -> Callable[[Any, jax.Array], tuple[Any, Any]]:
    """``play(state, key)``: what can be seen of one episode, time first, and where the task ended it."""
    from mjxlab import physics

    show = env.pose if getattr(env, "engine", None) is not None else lambda world: world

    def play(state: Any, key: jax.Array) -> tuple[Any, Any]:
        def step(loop: tuple[Any, Any], key: jax.Array) -> tuple[Any, Any]:
            world, carry = loop
            action, carry = learner.act(state, carry, world.obs, key, True)
            after = env.step(world, action)
            return (after, carry), (show(world), after.terminated | after.truncated)

        reset_key, carry_key, step_key = jax.random.split(key, 3)
        start = env.reset(reset_key), learner.carry(state, carry_key)
        return jax.lax.scan(step, start, jax.random.split(step_key, env.episode_length))[1]

    return physics.jit(play)


def save_gif(path: pathlib.Path, frames: list[np.ndarray], fps: float) -> None:
    """Write the frames as a GIF that repeats.

    Raises:
      WorkLostError: the file cannot be written.
    """
    from mjxlab.errors import WorkLostError
    from mjxlab.physics import render

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        render.save_gif(path, frames, fps=fps)
    except OSError as error:
        raise WorkLostError(f"{path}: could not be written ({error.strerror or error})") from error
