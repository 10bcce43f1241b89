"""The benchmark: pairs and their statistics, rivals that work and that do not, our three columns."""

from __future__ import annotations

import json
import pathlib
import sys
import time

import numpy as np
import pytest

from mjxlab import cli
from mjxlab.bench import pairs, tasks, venvs
from mjxlab.bench.pairs import Speed
from mjxlab.bench.run import bench, failures
from mjxlab.bench.worker import Worker, WorkerError, script
from mjxlab.errors import ConfigError, UnknownNameError

SERVE = script("gymnax").parent
GOOD = f"""
import sys; sys.path.insert(0, {str(SERVE)!r})
from _serve import serve
def make():
    print("noise")  # must not get between the lines
    return lambda: (1000, 0.01)  # keeps its own time: 100,000 steps/s exactly
def broken():
    raise ValueError("no such thing")
serve({{"env": make, "training": broken}}, {{"fake": "1"}})
"""


def fake(folder: pathlib.Path, text: str) -> list[str]:
    """The command that runs a script of that text."""
    path = folder / "fake.py"
    path.write_text(text)
    return [sys.executable, str(path)]


def test_quartiles_are_numpys_and_ratios_are_within_pairs() -> None:
    values = [3.0, 1.0, 2.0, 10.0, 4.0]
    q = pairs.quartiles(values)
    assert (q.low, q.median, q.high) == tuple(np.percentile(values, (25, 50, 75)))
    # both sides slow down together by a factor of 10: the ratio does not move
    weather = [1, 10, 1, 10, 1]
    done = pairs.Comparison([Speed(600, w) for w in weather], [Speed(200, w) for w in weather])
    assert (done.ratio.low, done.ratio.median, done.ratio.high) == (3.0, 3.0, 3.0)
    assert [p["ours"]["seconds"] for p in done.to_json()["pairs"]] == weather
    with pytest.raises(ConfigError, match="no values"):
        pairs.quartiles([])


def test_sides_take_turns_and_the_first_place_alternates() -> None:
    order = ""

    def side(name: str, steps: int) -> Speed:
        nonlocal order
        order += name
        return Speed(steps, 1.0)

    done = pairs.interleave(lambda: side("a", 4), lambda: side("b", 2), 4)
    assert order == "ab" + "abbaabba"
    assert len(done.ours) == len(done.theirs) == 4
    assert done.ratio.median == 2.0
    with pytest.raises(ConfigError, match="pairs: got 0"):
        pairs.interleave(lambda: side("a", 1), lambda: side("b", 1), 0)


def test_a_rival_of_known_speed(tmp_path: pathlib.Path) -> None:
    with Worker("fake", fake(tmp_path, GOOD), timeout=20) as worker:
        assert worker.measures == ["env", "training"]
        assert worker.versions == {"fake": "1"}
        speed = worker.measure("env", 0.045)
        assert speed.steps == 5000
        assert speed.per_second == pytest.approx(1e5)
        assert "env" in worker.compiled
        done = pairs.interleave(lambda: Speed(2000, 0.01), lambda: worker.measure("env", 0.02), 10)
        assert done.ratio.median == pytest.approx(2.0)
        assert worker.measure("env", 0.01).compile == 0
        with pytest.raises(WorkerError, match="fake: training: ValueError: no such thing"):
            worker.measure("training", 0.1)
        assert worker.measure("env", 0.01).steps == 1000  # an error does not end it


def test_what_is_printed_while_importing_is_no_answer(tmp_path: pathlib.Path) -> None:
    python, path = fake(tmp_path, "print('Failed to import warp', flush=True)\n" + GOOD)
    with Worker("fake", [python, str(SERVE / "_start.py"), path, "{}"], timeout=20) as worker:
        assert worker.measure("env", 0.01).steps == 1000


def test_a_rival_that_keeps_no_time_is_timed() -> None:
    from mjxlab.bench.rivals._serve import timed

    def burst() -> int:
        time.sleep(0.01)
        return 7

    steps, seconds = timed(burst, 0.05)
    assert steps % 7 == 0
    assert seconds >= 0.05
    assert seconds >= 0.01 * steps / 7


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("raise RuntimeError('cannot do it')", "fake: ended with exit code 1: RuntimeError: cannot do it"),
        ("print('hello there')", "answered 'hello there', which is no line of the protocol"),
        ("print('[1]')", "no line of the protocol"),
        ("print('{\"ready\": 0}')", "expected that it is ready"),
        ("import time; time.sleep(60)", "fake: no answer within 1 s"),
    ],
)
def test_a_rival_that_does_not_start(tmp_path: pathlib.Path, text: str, message: str) -> None:
    began = time.monotonic()
    with pytest.raises(WorkerError) as caught:
        Worker("fake", fake(tmp_path, text), timeout=1.0 if "sleep" in text else 20.0)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert time.monotonic() - began < 15


@pytest.mark.parametrize(
    ("then", "message"),
    [
        ("sys.exit(3)", "ended with exit code 3"),
        ('print(\'{"steps": 0, "seconds": 1, "compile": 0}\', flush=True)', "no line of the protocol"),
        ("print('{\"steps\": 1}', flush=True)", "no line of the protocol"),
        ("import time; time.sleep(60)", "no answer within"),
    ],
)
def test_a_rival_that_fails_later(tmp_path: pathlib.Path, then: str, message: str) -> None:
    begin = "import sys; print('{\"ready\": true}', flush=True); sys.stdin.readline()\n"
    with Worker("fake", fake(tmp_path, begin + then), timeout=20.0) as worker:
        worker.timeout = 1.0 if "sleep" in then else 20.0
        with pytest.raises(WorkerError, match=message):
            worker.measure("env", 0.1)


def test_a_rival_that_is_missing() -> None:
    with pytest.raises(WorkerError, match="fake: /no/python cannot be started: No such file or directory"):
        Worker("fake", ["/no/python", "x"])


def test_three_columns_of_ours_and_the_record(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "deep" / "bench.json"
    assert cli.main(["bench", "fast", "--pairs", "2", "--seconds", "0.01", "--out", str(out)]) == 0
    printed = capsys.readouterr().out
    assert all(title in printed for title in ("env only", "+ inference", "+ training", "compile"))
    record = json.loads(out.read_text())
    assert record["schema"] == 1
    assert {"machine", "cores", "pairs", "seconds", "tasks"} <= set(record)
    (row,) = record["tasks"]
    assert set(row["ours"]) == set(tasks.COLUMNS)
    for column in row["ours"].values():
        low, middle, high = column["quartiles"]
        assert 0 < low <= middle <= high
        assert column["compile"] > 0
    # each column contains the one before
    assert row["ours"]["env"]["steps_per_second"] > row["ours"]["training"]["steps_per_second"]
    assert row["rivals"] == []


def test_a_rival_that_crashes_is_not_compared(tmp_path: pathlib.Path) -> None:
    python = tmp_path / "gymnax" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text("#!/bin/sh\necho 'no gymnax here' >&2\nexit 1\n")
    python.chmod(0o755)
    small = tasks.Task(
        "fast",
        "fast",
        tasks.task("fast").sizes,
        {},
        (tasks.Rival("gymnax", "x", ("env",), "-"), tasks.Rival("rejax", "x", ("env",), "-")),
    )
    result = bench([small], columns=["env"], folder=tmp_path, pairs=1, seconds=0.01, tell=lambda _: None)
    first, second = result["tasks"][0]["rivals"]
    assert first["installed"]
    assert first["reason"] == "gymnax: ended with exit code 1: no gymnax here"
    assert not second["installed"]
    assert "its virtual environment is missing" in second["reason"]
    assert failures(result) == [first["reason"]]


def test_every_rival_of_a_task_has_a_script_and_an_environment() -> None:
    for task in tasks.TASKS.values():
        for rival in task.rivals:
            assert script(rival.script or rival.name).exists()
            assert rival.name in venvs.REQUIREMENTS
            assert set(rival.columns) <= set(tasks.COLUMNS)
            assert rival.alike


def test_an_environment_that_does_not_build_says_why(tmp_path: pathlib.Path) -> None:
    lines: list[str] = []
    failed = venvs.build(tmp_path / "v", ["gymnax"], python="/no/python", tell=lines.append)
    assert list(failed) == ["gymnax"]
    assert len(lines) == 1
    assert lines[0].startswith("gymnax: FAILED: ")
    with pytest.raises(ConfigError, match="rivals: got 'gym'"):
        venvs.build(tmp_path, ["gym"])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["cartpole", "--pairs", "0"], "pairs: got 0, expected at least 1"),
        (["cartpole", "--seconds", "-1"], "seconds: got -1.0, expected a positive number"),
        (["cartpole", "--columns", "speed"], "columns: got 'speed'"),
        (["cartpole", "--rivals", "tensorflow"], "rivals: got 'tensorflow'"),
        (["cartpole", "--venvs", "/no/such"], "venvs: /no/such is no folder"),
    ],
)
def test_bad_input_is_one_line(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["bench", *words]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_unknown_task() -> None:
    with pytest.raises(UnknownNameError):
        tasks.task("cartpol")
