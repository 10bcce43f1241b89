"""``mjxlab render``."""

from __future__ import annotations

import dataclasses
import pathlib
from typing import Annotated, Literal

import tyro

from mjxlab.commands.parse import parse
from mjxlab.configs import check_seed
from mjxlab.errors import ConfigError


@dataclasses.dataclass
class Options:
    """A GIF of a trained policy, or of an environment under a random one.

    examples: mjxlab render runs/ant --out ant.gif | mjxlab render walker --policy random --out walker.gif
    """

    what: Annotated[str, tyro.conf.Positional]
    """A run folder, or an environment's name."""
    out: pathlib.Path
    """The GIF."""
    policy: Literal["trained", "random"] = "trained"
    """Of a run: its own policy, or a random one. Of an environment: random."""
    episodes: int = 4
    """How many, one after the other."""
    step: int | None = None
    """Which checkpoint; the newest by default."""
    seed: int = 2
    """Of the starts."""


def main(words: list[str]) -> int:
    """Write the GIF."""
    options = parse(Options, words, "render")
    from mjxlab import cache, envs
    from mjxlab.commands.play import film, save_gif
    from mjxlab.policy import load_policy, open_run, random_learner

    if options.episodes < 1:
        raise ConfigError(f"episodes: got {options.episodes}, expected at least 1")
    check_seed(options.seed)
    if options.out.suffix.lower() != ".gif":
        raise ConfigError(f"out: got {str(options.out)!r}, expected a name that ends in .gif")
    cache.enable()
    if pathlib.Path(options.what).exists():
        if options.policy == "trained":
            loaded = load_policy(options.what, options.step)
            env, learner, state = loaded.env, loaded.learner, loaded.state
        else:
            env = open_run(options.what)[2]
            learner, state = random_learner(env), ()
    else:
        env = envs.make(options.what)
        learner, state = random_learner(env), ()
    frames, fps = film(env, learner, state, options.seed, options.episodes)
    save_gif(options.out, frames, fps)
    print(f"{options.out}: {len(frames)} frames at {fps:.3g} a second")
    return 0
