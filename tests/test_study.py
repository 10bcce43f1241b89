"""The study harness: verdicts and exit codes, cells that are computed once, studies that are killed, seeds by vmap."""

from __future__ import annotations

import json
import math
import os
import pathlib
import signal
import subprocess
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny_study

from mjxlab import catalogue, cli, study, study_report
from mjxlab.cells import Cell, Cells
from mjxlab.errors import ConfigError, UnknownNameError, WorkLostError
from mjxlab.learner import Learner
from mjxlab.rl.counter import Counter
from mjxlab.seeds import tail, train_many, train_seeds
from mjxlab.studies import selfcheck

TESTS = pathlib.Path(__file__).resolve().parent


def results(folder: pathlib.Path) -> dict:
    return json.loads((folder / "results.json").read_text())


# --- verdicts and exit codes -----------------------------------------------------------------------------------------


def test_a_known_winner_wins_and_a_false_claim_fails(tmp_path, capsys) -> None:
    words = ["reproduce", "selfcheck", "--workers", "1", "--set", "pulls=400"]
    assert cli.main([*words, "--out", str(tmp_path / "true")]) == 0
    out = capsys.readouterr().out
    assert "holds      required  ucb_wins" in out
    assert cli.main([*words, "gap=0", "--out", str(tmp_path / "false")]) == 1
    out = capsys.readouterr().out
    assert "FAILS      required  ucb_wins" in out and "required, and does not hold: ucb_wins" in out

    good, bad = results(tmp_path / "true"), results(tmp_path / "false")
    assert good["criteria"]["ucb_wins"]["holds"] is True and bad["criteria"]["ucb_wins"]["holds"] is False
    # known in closed form: even pulls lose 3/4 of the gap each; equal arms lose nothing
    even = next(row for row in good["rows"] if row["method"] == "even")
    np.testing.assert_allclose([even["mean"], *even["interval_95"], even["n"]], [90, 90, 90, 5], rtol=1e-9)
    assert all(row["mean"] == 0 for row in bad["rows"])
    for folder in ("true", "false"):
        assert (tmp_path / folder / "plot.png").read_bytes()[:4] == b"\x89PNG"


def test_ucb_regret_is_below_its_bound() -> None:
    gap, arms, pulls = 0.3, 4, 2_000
    regret = np.mean([selfcheck.pull("ucb", arms, gap, pulls, seed)[-1] for seed in range(10)])
    bound = (arms - 1) * (8 * math.log(pulls) / gap + (1 + math.pi**2 / 3) * gap)  # Auer et al. 2002, theorem 1
    assert regret < bound


def test_smoke_judges_nothing_but_wants_every_row(tmp_path) -> None:
    lines: list[str] = []
    done = study.reproduce(tiny_study.STUDY, budget="smoke", out=tmp_path / "a", tell=lines.append)
    assert done.code == 0 and done.result.criteria == {"wins": None, "odd": None}
    assert results(tmp_path / "a")["judged"] is False and "not judged required  wins" in lines[-2]
    missing = tiny_study.Config(methods=("good",))
    done = study.reproduce(tiny_study.STUDY, budget="smoke", config=missing, out=tmp_path / "b", tell=lines.append)
    assert done.code == 1 and done.problems == ("no row of only · bad · score",)
    broken = tiny_study.Config(break_row=True)
    done = study.reproduce(tiny_study.STUDY, budget="smoke", config=broken, out=tmp_path / "c", tell=lines.append)
    assert done.code == 1 and done.problems == ("not finite: only · good · score",)


def test_a_required_criterion_that_cannot_be_judged_does_not_hold(tmp_path) -> None:
    import dataclasses

    strict = dataclasses.replace(
        tiny_study.STUDY, criteria=tuple(dataclasses.replace(c, required=True) for c in tiny_study.STUDY.criteria)
    )
    done = study.reproduce(strict, out=tmp_path / "a", tell=lambda line: None)
    assert done.code == 1 and done.problems == ("required, and could not be judged: odd",)
    other = dataclasses.replace(tiny_study.STUDY, criteria=tiny_study.STUDY.criteria[:1])
    with pytest.raises(ConfigError, match="judged odd, wins, expected wins"):  # criteria are fixed before the run
        study.reproduce(other, out=tmp_path / "b", tell=lambda line: None)


def test_usage_errors_are_one_line(tmp_path, capsys) -> None:
    (tmp_path / "file").write_text("x")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thing").write_text("x")
    for words, expected in {
        ("selfchek",): "unknown study 'selfchek'; did you mean 'selfcheck'?",
        ("selfcheck", "--seeds", "1"): "expected at least 2",
        ("selfcheck", "--seeds", "1", "1"): "expected different ones",
        ("selfcheck", "--seeds", "-1", "2"): "seeds: got -1, expected an integer of at least 0",
        ("selfcheck", "--budget", "huge"): "huge",
        ("selfcheck", "--set", "gap"): "--set: got 'gap', expected NAME=VALUE",
        ("selfcheck", "--set", "gab=1"): "gab: Config has no such field, expected one of arms, gap, pulls",
        ("selfcheck", "--set", "gap=wide"): "gap: got 'wide', expected float",
        ("selfcheck", "--set", "gap=3"): "gap: got 3.0, expected a number from 0 to 0.6",
        ("selfcheck", "--workers", "0"): "workers: got 0",
        ("selfcheck", "--out", str(tmp_path / "file")): "is a file, expected a folder",
        ("selfcheck", "--out", str(tmp_path / "full")): "holds other files",
        ("tiny_study:Config",): "is a type, expected a mjxlab.study.Study",
        ("no_such_module:STUDY",): "no_such_module",
    }.items():
        assert cli.main(["reproduce", *words]) == 2, words
        error = capsys.readouterr().err
        assert expected in error and error.count("\n") == 1, error


def test_a_folder_of_another_study_is_refused(tmp_path) -> None:
    study.reproduce(tiny_study.STUDY, out=tmp_path, tell=lambda line: None)
    before = (tmp_path / "results.json").read_bytes()
    with pytest.raises(ConfigError, match="holds the study 'tiny' at budget 'cpu', expected 'selfcheck' at 'cpu'"):
        study.reproduce(selfcheck.STUDY, out=tmp_path, tell=lambda line: None)
    assert (tmp_path / "results.json").read_bytes() == before


def test_other_seeds_are_printed_beside(tmp_path) -> None:
    lines: list[str] = []
    study.reproduce(tiny_study.STUDY, out=tmp_path, tell=lines.append)
    first = results(tmp_path)
    study.reproduce(tiny_study.STUDY, seeds=(7, 8), out=tmp_path, tell=lines.append)
    report = lines[-2]
    assert "seeds 0 1 2" in report.splitlines()[4] and "seeds 0 1 2: holds" in report
    row = next(line for line in report.splitlines() if "good" in line and "score" in line)
    assert study_report.number(first["rows"][0]["mean"]) in row
    # another config is another thing
    study.reproduce(tiny_study.STUDY, config=tiny_study.Config(pause=1e-3), out=tmp_path, tell=lines.append)
    assert "seeds 7 8" not in lines[-2]
    again = study.reproduce(tiny_study.STUDY, out=tmp_path, tell=lines.append)
    assert results(tmp_path) == first and again.code == 0


def test_configure() -> None:
    found = study.configure(
        tiny_study.Config(), ["pause=1", "inner.scale=3e-4", "inner.sizes=4,5,6", 'methods=["a"]', "log=some words"]
    )
    assert found == tiny_study.Config(
        pause=1.0, inner=tiny_study.Inner(3e-4, (4, 5, 6)), methods=("a",), log="some words"
    )
    assert isinstance(found.pause, float)
    for setting, message in {
        "inner.size=1": "inner.size: Config has no such field, expected one of scale, sizes",
        "outer.x=1": "outer.x: Config has no 'outer'",
        "pause.x=1": "pause.x: Config has no such field",
        "break_row=1": "break_row: got 1, expected bool",
    }.items():
        with pytest.raises(ConfigError, match=message):
            study.configure(tiny_study.Config(), [setting])
    assert study.parse_value("none") is None and study.parse_value("True") is True
    assert study.parse_value("1,2.5,x") == [1, 2.5, "x"]


def test_catalogue_of_studies(capsys) -> None:
    for name, spec in catalogue.studies().items():
        found = catalogue.study(name)
        assert found.name == name and spec.description
        required = [c for c in found.criteria if c.required]
        assert required, f"{name}: a study that cannot fail is a bug"
        assert set(found.seeds) == {"smoke", "cpu", "full"}
    with pytest.raises(UnknownNameError):
        catalogue.study("nothing")
    assert cli.main(["list", "studies"]) == 0
    assert "selfcheck" in capsys.readouterr().out


# --- cells -----------------------------------------------------------------------------------------------------------


def test_a_cell_is_computed_once_for_each_thing_that_determines_it(tmp_path) -> None:
    log = tmp_path / "log"
    given = {"method": "good", "seed": 1, "log": str(log), "pause": 0.0}

    def count(identity=None, **change) -> int:
        found = Cells(tmp_path, identity or {"study": "a"})("x", tiny_study.cell, **given | change)
        assert math.isnan(found["nothing"]) and abs(found["score"] - 1) < 2
        return len(log.read_text().splitlines())

    assert [count(), count(), count(seed=2), count(), count(identity={"study": "b"}), count(pause=1e-3)] == [
        1,
        1,
        2,
        2,
        3,
        4,
    ]
    cells = Cells(tmp_path, {"study": "a"})
    assert len(list(cells.folder.iterdir())) == 4
    first, second = cells.all([Cell("x", tiny_study.cell, given)] * 2)  # twice in one call: once
    np.testing.assert_equal(first, second)


def test_a_damaged_cell_is_computed_anew(tmp_path) -> None:
    lines: list[str] = []
    cells = Cells(tmp_path, tell=lines.append)
    first = cells("e", tiny_study.echo, a=1.5)
    (file,) = cells.folder.iterdir()
    whole = file.read_text()
    file.write_text(whole[: len(whole) // 2])
    assert cells("e", tiny_study.echo, a=1.5) == first
    assert "not a finished cell" in lines[1] and file.read_text()[:40] == whole[:40]


def test_values_survive_json_exactly(tmp_path) -> None:
    x = {
        "third": 1 / 3,
        "tiny": 5e-324,
        "bad": [math.inf, -math.inf],
        "n": 2**60,
        "text": "ü",
        "flag": True,
        "none": None,
        "array": np.array([[1.5, np.nan], [3.0, np.inf]], np.float32),
    }
    for cells in (Cells(tmp_path), Cells(tmp_path), Cells(None)):  # computed, read, and never stored
        found = cells("e", tiny_study.echo, **x)
        np.testing.assert_equal(found, x)
        assert found["array"].dtype == np.float32 and isinstance(found["n"], int)


def test_cells_that_fail(tmp_path) -> None:
    cells = Cells(tmp_path)
    with pytest.raises(ConfigError, match="value: got 3"):
        cells("r", tiny_study.refuse, value=3)
    with pytest.raises(ConfigError, match="cell function .*: not found, expected one of a module's top level"):
        cells("l", lambda: 1)
    with pytest.raises(ConfigError, match="workers: got 0"):
        Cells(tmp_path, workers=0)
    (tmp_path / "file").write_text("")
    with pytest.raises(WorkLostError, match="could not be written"):
        Cells(tmp_path / "file")("e", tiny_study.echo, a=1)


def test_workers_give_what_one_process_gives(tmp_path) -> None:
    jobs = [
        Cell(f"{m} {s}", tiny_study.cell, {"method": m, "seed": s, "log": str(tmp_path / "log"), "pause": 0.0})
        for m in ("good", "bad")
        for s in range(3)
    ]
    many = Cells(tmp_path / "many", workers=2).all(jobs)
    np.testing.assert_equal(many, Cells(tmp_path / "one").all(jobs))
    assert sorted((tmp_path / "log").read_text().splitlines()) == sorted([job.name for job in jobs] * 2)
    # what a worker raises arrives here, what was finished before stays
    bad = [Cell("ok", tiny_study.echo, {"a": 1}), Cell("no", tiny_study.refuse, {"value": 4})]
    with pytest.raises(ConfigError, match="value: got 4, expected another"):
        Cells(tmp_path / "many", workers=2).all(bad)
    with pytest.raises(WorkLostError, match="cell d: its process died .exit code -9."):
        Cells(tmp_path / "many", workers=2).all(
            [Cell("d", tiny_study.die, {"value": 1}), Cell("c", tiny_study.echo, {})]
        )


def test_a_killed_study_goes_on_and_ends_with_the_same_results(tmp_path) -> None:
    words = ["reproduce", "tiny_study:STUDY", "--workers", "1", "--set", f"log={tmp_path / 'log'}", "pause=0.4"]
    command = [sys.executable, "-m", "mjxlab.cli", *words, "--out"]
    start = {"cwd": TESTS, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    killed = subprocess.Popen([*command, str(tmp_path / "killed")], **start)
    deadline = time.monotonic() + 120
    while not ((tmp_path / "log").exists() and len((tmp_path / "log").read_text().splitlines()) >= 3):
        assert time.monotonic() < deadline and killed.poll() is None
        time.sleep(0.02)
    killed.send_signal(signal.SIGKILL)
    assert killed.wait() == -signal.SIGKILL
    finished = {p.name for p in (tmp_path / "killed" / "cells").iterdir() if not p.name.startswith(".")}
    assert 2 <= len(finished) < 6 and not (tmp_path / "killed" / "results.json").exists()
    assert subprocess.run([*command, str(tmp_path / "killed")], check=False, **start).returncode == 0
    seen = (tmp_path / "log").read_text().splitlines()
    assert len(seen) <= 7 and len(set(seen)) == 6  # at most the one that was killed was begun twice
    assert subprocess.run([*command, str(tmp_path / "whole")], check=False, **start).returncode == 0
    assert (tmp_path / "killed" / "results.json").read_bytes() == (tmp_path / "whole" / "results.json").read_bytes()


def test_workers_end_with_the_process_that_started_them(tmp_path) -> None:
    code = (
        "import tiny_study; from mjxlab.cells import Cell, Cells; "
        f"arguments = dict(method='good', log={str(tmp_path / 'log')!r}, pause=600.0); "
        "jobs = [Cell(f's{s}', tiny_study.cell, arguments | dict(seed=s)) for s in (0, 1)]; "
        f"Cells({str(tmp_path)!r}, workers=2).all(jobs)"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], cwd=TESTS)
    deadline = time.monotonic() + 120
    while not ((tmp_path / "log").exists() and len((tmp_path / "log").read_text().splitlines()) == 2):
        assert time.monotonic() < deadline and parent.poll() is None
        time.sleep(0.05)
    children = [
        int(p.name)
        for p in pathlib.Path("/proc").iterdir()
        if p.name.isdigit() and f"PPid:\t{parent.pid}\n" in _read(p / "status")
    ]
    assert len(children) == 2
    os.kill(parent.pid, signal.SIGKILL)
    parent.wait()
    while any("mjxlab.cells" in _read(pathlib.Path(f"/proc/{pid}/cmdline")) for pid in children):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def _read(path: pathlib.Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


# --- seeds by vmap ---------------------------------------------------------------------------------------------------


def descent(env, config) -> Learner:
    """Noisy descent on a parabola; ``env`` is its curvature."""

    def init(key):
        return {"x": jax.random.normal(key, (4,)), "seen": Counter.of(2**32 - 2)}

    def update(state, key, batch):
        x = state["x"] - config["lr"] * (env * state["x"] + 0.1 * jax.random.normal(key, (4,)))
        seen = state["seen"] + 1
        return {"x": x, "seen": seen}, {"loss": jnp.square(x).sum(), "env_steps": seen, "vector": x[:2]}

    return Learner(init, update, lambda s, k: (), lambda s, c, o, k, d: (o, c))


def test_train_many_is_fit_with_each_seed_and_config() -> None:
    from mjxlab import fit

    configs = [{"lr": lr, "other": 1.0} for lr in (0.1, 0.1, 0.5)]
    told: list[str] = []
    found = train_many(descent, 2.0, configs, [3, 4, 3], 7, calls=3, tell=told.append)
    assert len(told) == 3 and found.compile_seconds > 0
    assert found.metrics["loss"].shape == (3, 7) and found.metrics["vector"].shape == (3, 7, 2)
    for i, (config, seed) in enumerate(zip(configs, (3, 4, 3), strict=True)):
        _, history = fit(descent(2.0, config), steps=7, key=seed, devices=1, sinks=())
        np.testing.assert_allclose(found.metrics["loss"][i], history["loss"], rtol=1e-6)
        np.testing.assert_array_equal(found.metrics["env_steps"][i], 2**32 - 1 + np.arange(7))
    one = train_seeds(descent, 2.0, configs[0], [4], 7, calls=7)
    np.testing.assert_allclose(one.metrics["loss"][0], found.metrics["loss"][1], rtol=1e-6)


def test_tail_is_the_mean_of_the_last_updates_that_saw_an_episode() -> None:
    curves = np.arange(40.0).reshape(2, 20)
    np.testing.assert_allclose(tail(curves), [18, 38])  # 15 % of 20 are 3
    curves[0, -1] = np.nan
    np.testing.assert_allclose(tail(curves), [17.5, 38])
    curves[0] = np.nan
    assert np.isnan(tail(curves)[0]) and tail(curves)[1] == 38


def test_train_many_refuses() -> None:
    from mjxlab.agents import ppo

    with pytest.raises(ConfigError, match="seeds: got 2, expected one for each of the 1 configs"):
        train_many(descent, 1.0, [{"lr": 0.1}], [0, 1], 3)
    with pytest.raises(ConfigError, match="updates: got 0"):
        train_seeds(descent, 1.0, {"lr": 0.1}, [0], 0)
    with pytest.raises(ConfigError, match="number 1 differs from the first in a static field"):
        train_many(descent, 1.0, [ppo.Config(), ppo.Config(num_envs=8)], [0, 0], 3)
    with pytest.raises(ConfigError, match="lr: got -1.0"):
        train_seeds(ppo.make, None, ppo.Config(lr=-1.0), [0], 3)
