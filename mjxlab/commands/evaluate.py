"""``mjxlab evaluate``."""

from __future__ import annotations

import dataclasses
import json
import pathlib
from typing import Annotated, Literal

import tyro

from mjxlab.commands.parse import parse
from mjxlab.configs import check_seed
from mjxlab.errors import ConfigError


@dataclasses.dataclass
class Options:
    """Play a trained policy over fresh episodes, beside a random one; also on another physics engine.

    examples: mjxlab evaluate runs/ant | mjxlab evaluate runs/ant --engine mjx --episodes 200
    """

    run: Annotated[pathlib.Path, tyro.conf.Positional]
    """Run folder."""
    episodes: int = 100
    """How many, each from a fresh start."""
    engine: Literal["auto", "mujoco", "mjx", "warp"] = "auto"
    """Also play on this engine, from the same starts, and report the gap."""
    step: int | None = None
    """Which checkpoint; the newest by default."""
    seed: int = 1
    """Of the starts."""
    stochastic: bool = False
    """Sample actions instead of taking the most likely ones."""
    json: bool = False
    """Print one JSON object instead of lines."""


def main(words: list[str]) -> int:
    """Print the figures."""
    options = parse(Options, words, "evaluate")
    from mjxlab import cache
    from mjxlab.commands.play import score, sentence
    from mjxlab.policy import load_policy, open_run, random_learner

    if options.episodes < 1:
        raise ConfigError(f"episodes: got {options.episodes}, expected at least 1")
    check_seed(options.seed)
    cache.enable()
    policy = load_policy(options.run, options.step)
    own = getattr(getattr(policy.env, "engine", None), "kind", None)
    rows = {}
    setting = (policy.state, options.episodes, options.seed, not options.stochastic)
    rows["trained"] = score(policy.env, policy.learner, *setting)
    rows["random"] = score(policy.env, random_learner(policy.env), (), options.episodes, options.seed)
    if options.engine not in ("auto", own):
        other = open_run(options.run, options.engine)[2]
        rows[f"trained, on {options.engine}"] = score(other, policy.learner, *setting)
    if options.json:
        print(json.dumps({"run": str(options.run), "step": policy.step, "engine": own, **rows}))
        return 0
    on = f" on {own}" if own else ""
    record = policy.run.record
    print(f"{record['agent']} at {record['env']}{on}, step {policy.step:,}, {options.episodes} episodes")
    width = max(map(len, rows))
    for name, figures in rows.items():
        print(f"  {name:{width}}   {sentence(figures)}")
    if options.engine not in ("auto", own):
        here, there = rows["trained"], rows[f"trained, on {options.engine}"]
        gaps = [f"{name} {there[name] - here[name]:+.4g}" for name in ("success", "return_mean") if name in here]
        print(f"  {'gap':{width}}   {'   '.join(gaps)}")
    return 0
