"""Sweeps: one program for seeds and floats gives what single runs give; static fields; resuming; the command."""

from __future__ import annotations

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import mjxlab
from mjxlab import cli, fit
from mjxlab.agents import ppo
from mjxlab.commands import sweep as command
from mjxlab.errors import ConfigError, UnknownNameError
from mjxlab.loop import init_key
from mjxlab.seeds import train_many
from mjxlab.sweep import sweep

SMALL = {
    "num_envs": 8,
    "rollout_length": 8,
    "num_minibatches": 2,
    "epochs": 2,
    "policy_widths": (16,),
    "value_widths": (16,),
}
SEEDS, RATES, UPDATES = tuple(range(8)), (1e-4, 3e-4, 1e-3, 3e-3), 4


def test_eight_seeds_and_four_rates_in_one_program_are_the_32_single_runs() -> None:
    """Within 1e-5 relative: one program multiplies matrices in batches, whose sums are in another order than those of a
    single matrix product, and four updates of two epochs let such roundings grow. Everything else is the same arithmetic.
    """
    env = mjxlab.make("fast", episode_length=4)
    configs = [ppo.Config(lr=lr, **SMALL) for lr in RATES for _ in SEEDS]
    found = train_many(ppo.make, env, configs, SEEDS * len(RATES), UPDATES)

    @jax.jit
    def single(lr, key):
        """One run alone, without any vmap over runs."""
        learner = ppo.make(env, ppo.Config(**SMALL).replace(lr=lr))
        state = learner.init(init_key(key))
        rows = []
        for u in range(UPDATES):
            state, metrics = learner.update(state, jax.random.fold_in(key, jnp.uint32(u)), None)
            rows.append({"return": metrics["episode_return"], "loss": metrics["loss"], "kl": metrics["kl"]})
        return jax.tree.map(lambda *x: jnp.stack(x), *rows), state.params

    worst = 0.0
    for i, (config, seed) in enumerate(zip(configs, SEEDS * len(RATES), strict=True)):
        alone, params = single(jnp.float32(config.lr), jax.random.key(seed))
        np.testing.assert_allclose(found.metrics["episode_return"][i], alone["return"], rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(found.metrics["loss"][i], alone["loss"], rtol=1e-4, atol=1e-5)
        mine = jax.tree.map(lambda x, i=i: x[i], found.state.params)
        for a, b in zip(jax.tree.leaves(mine), jax.tree.leaves(params), strict=True):
            scale = float(jnp.abs(b).max()) + 1e-8
            worst = max(worst, float(jnp.abs(a - b).max()) / scale)
    assert worst <= 1e-5, worst
    # and fit's own run, with the config's numbers as constants of the program
    _, history = fit(ppo.make(env, configs[9]), steps=UPDATES, key=1, devices=1, sinks=())
    np.testing.assert_allclose(found.metrics["episode_return"][9], history["episode_return"], rtol=1e-5, atol=1e-6)
    assert len({float(x) for x in found.metrics["episode_return"][:, -1]}) >= 8  # the runs differ at all


def test_floats_share_a_program_and_static_fields_do_not(tmp_path) -> None:
    grid = {"lr": [1e-4, 1e-2], "target_kl": [None, 0.02]}  # a field that is None is no number to vary
    told: list[str] = []
    fixed = SMALL | {"episode_length": 4, "epochs": 1}
    how = {"seeds": (0, 1), "grid": grid, "updates": 2, "fixed": fixed, "out": tmp_path, "episodes": 4}
    found = sweep("ppo", "fast", **how, tell=told.append)
    assert found.programs == 2 and len(found.settings) == 4 and found.metric == "reached"
    assert [s.values["lr"] for s in found.settings] == [1e-4] * 2 + [1e-2] * 2
    assert all(s.curve.shape == (2, 2) and len(s.evaluation["return_mean"]) == 2 for s in found.settings)
    assert len(told) == 2
    again = sweep("ppo", "fast", **how, tell=told.append)  # nothing is computed twice
    assert len(told) == 2
    assert json.dumps(again.record()) == json.dumps(found.record())
    assert found.best() in found.settings


def test_refusals(tmp_path) -> None:
    how = {"seeds": (0,), "updates": 1}
    with pytest.raises(UnknownNameError, match="unknown agent 'pppo'"):
        sweep("pppo", "fast", grid={}, **how)
    with pytest.raises(ConfigError, match="lrr: Config has no such field"):
        sweep("ppo", "fast", grid={"lrr": [1.0]}, **how)
    with pytest.raises(ConfigError, match="lr: got 'fast', expected float"):
        sweep("ppo", "fast", grid={"lr": ["fast"]}, **how)
    with pytest.raises(ConfigError, match="lr: got -1.0"):
        sweep("ppo", "fast", grid={"lr": [1e-3, -1.0]}, **how)
    (tmp_path / "thing").write_text("")
    with pytest.raises(ConfigError, match="holds other files"):
        sweep("ppo", "fast", grid={}, out=tmp_path, **how)


def test_command(tmp_path, capsys) -> None:
    options, fields = command.read_flags(
        ["--seeds", "4", "5", "--lr", "1e-4", "3e-4", "--config.policy-widths", "16,16", "--steps=3", "--squash=clip"]
    )
    assert options.seeds == (4, 5) and options.steps == 3
    assert fields == {"lr": [1e-4, 3e-4], "policy_widths": [[16, 16]], "squash": ["clip"]}
    small = ["--num-envs", "8", "--rollout-length", "8", "--num-minibatches", "2", "--episode-length", "4"]
    words = ["sweep", "ppo", "fast", "--seeds", "0", "1", "--lr", "1e-4", "1e-2", "--workers", "1", *small]
    assert cli.main([*words, "--env-steps", "128", "--out", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert "4 runs in 1 program(s)" in out
    record = json.loads((tmp_path / "results.json").read_text())
    assert record["updates"] == 2 and [r["setting"]["lr"] for r in record["settings"]] == [1e-4, 1e-2]
    for bad, message in {
        ("--lr",): "--lr: got no value",
        ("--lr", "1", "--lr", "2"): "--lr: given twice",
        ("--num-envs", "8", "16"): "--num_envs: got several values",
        ("--steps", "x"): "steps",
    }.items():
        assert cli.main(["sweep", "ppo", "fast", *bad, "--out", str(tmp_path / "bad")]) == 2
        error = capsys.readouterr().err
        assert message in error and error.count("\n") == 1, error
    assert cli.main(["sweep", "--help"]) == 0 and cli.main(["sweep", "ppo"]) == 2
