"""Sinks: what is written comes back, survives a crash, and a view that fails does not end the training."""

from __future__ import annotations

import csv
import io
import json
import math
import os
import pathlib

import numpy as np
import pytest
import tiny

from mjxlab import sinks
from mjxlab.console import Console, clock
from mjxlab.errors import UnknownNameError, WorkLostError
from mjxlab.history import History, read_rows, rows_of, to_line
from mjxlab.loop import fit
from mjxlab.plots import curve
from mjxlab.rl.counter import Counter
from mjxlab.sinks import CSV, JSONL, RunInfo, Sink, Sinks, TensorBoard, shown

ROWS = [
    (1, {"loss": 0.1, "env_steps": 2**40 + 1, "vec": [1.0, math.nan]}),
    (2, {"loss": math.nan, "env_steps": 2**40 + 2, "late": math.inf}),
    (3, {"loss": -math.inf, "env_steps": 2**40 + 3, "late": 1e-45}),
]


def info(folder: pathlib.Path | None, start: int | None = None, steps: int = 10) -> RunInfo:
    return RunInfo("test", folder, start, steps)


class Full(io.StringIO):
    """A log on a full disk, from its third line on."""

    lines = 0

    def write(self, text):
        self.lines += text.count("\n")
        if self.lines > 3:
            raise OSError(28, "No space left on device")
        return super().write(text)


def test_a_console_that_cannot_be_written_to_does_not_end_the_training(tmp_path):
    _, history = fit(
        tiny.make(), steps=6, key=0, sinks=(Console(Full(), interval=0.0), "jsonl"), run_dir=tmp_path / "run"
    )
    assert history["step"][-1] == 6 and read_rows(tmp_path / "run" / "metrics.jsonl")[0][-1]["step"] == 6


def write(sink: Sink, folder: pathlib.Path, rows, start: int | None = None) -> None:
    sink.open(info(folder, start))
    for step, row in rows:
        sink.write(step, row)
    sink.close()


def test_jsonl_is_valid_json_and_comes_back(tmp_path):
    write(JSONL(), tmp_path, ROWS)
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()

    def refuse(name):
        raise AssertionError(f"{name} is not JSON")

    parsed = [json.loads(line, parse_constant=refuse) for line in lines]
    assert parsed[1]["loss"] is None and parsed[1]["late"] == "inf" and parsed[2]["loss"] == "-inf"
    rows, size = read_rows(tmp_path / "metrics.jsonl")
    assert size == os.path.getsize(tmp_path / "metrics.jsonl")
    np.testing.assert_equal(rows, [{"step": step, **row} for step, row in ROWS])


def test_csv_gains_columns_and_comes_back(tmp_path):
    write(CSV(), tmp_path, ROWS)
    with (tmp_path / "metrics.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == ["step", "loss", "env_steps", "vec", "late"]
    assert [r["late"] for r in rows] == ["", "inf", "1e-45"]
    assert math.isnan(float(rows[1]["loss"])) and float(rows[2]["loss"]) == -math.inf
    assert int(rows[2]["env_steps"]) == 2**40 + 3


@pytest.mark.parametrize(("kind", "name"), [(JSONL, "metrics.jsonl"), (CSV, "metrics.csv")])
@pytest.mark.parametrize("torn", [b"", b'{"step": 4, "lo', b"3,0.1\n4", b"\xff\xfe"])
def test_a_file_is_cut_back_to_the_step_resumed_from(tmp_path, kind, name, torn):
    for folder in (tmp_path / "a", tmp_path / "b"):
        folder.mkdir()
        write(kind(), folder, ROWS)
    with (tmp_path / "b" / name).open("ab") as file:
        file.write(torn)
    write(kind(), tmp_path / "b", ROWS[2:], start=2)
    assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


@pytest.mark.parametrize("kind", [JSONL, CSV])
def test_a_file_that_cannot_be_written_is_lost_work(tmp_path, kind, monkeypatch):
    sink = kind()
    sink.open(info(tmp_path))
    sink.write(1, {"loss": 1.0})
    sink.flush(sync=True)

    def full(handle):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(WorkLostError, match=r"metrics\.\w+: could not be written \(No space left on device\)"):
        sink.flush(sync=True)
    sink.close()


def test_tensorboard_holds_the_scalars(tmp_path):
    write(TensorBoard(), tmp_path, ROWS)
    files = list((tmp_path / "tensorboard").iterdir())
    assert len(files) == 1
    raw = files[0].read_bytes()
    assert b"loss" in raw and b"env_steps" in raw and b"vec" not in raw


def test_counters_become_exact_integers():
    stacked = Counter(high=np.asarray([0, 2], np.uint32), low=np.asarray([7, 2**32 - 1], np.uint32))
    rows = rows_of({"n": stacked, "half": np.asarray([0.1, 0.2], np.float32)}, 2)
    assert [row["n"] for row in rows] == [7, 2 * 2**32 + 2**32 - 1]
    assert rows[0]["half"] == float(np.float32(0.1))
    assert json.loads(to_line(rows[1]))["n"] == 3 * 2**32 - 1


def test_history_fills_gaps_and_keeps_integers():
    history = History()
    for step, row in ROWS:
        history.add({"step": step, **row})
    history.add({"step": 3, "eval/return_mean": 2.0, "time/evaluation_seconds": 1.0, "env_steps": 9})
    history.finish()
    assert history["step"].tolist() == [1, 2, 3] and history["env_steps"].dtype == np.int64
    np.testing.assert_array_equal(history["late"], [np.nan, np.inf, 1e-45])
    assert history["eval/step"].tolist() == [3] and history["eval/env_steps"].tolist() == [9]
    assert history["eval/return_mean"].tolist() == [2.0]


# --- console -----------------------------------------------------------------------------------------------------------


def test_console_without_a_terminal_writes_plain_lines():
    text = io.StringIO()
    console = Console(text, interval=0.0)
    console.open(RunInfo("ppo on ant", None, 0, 200, ["engine mujoco · reset pool"]))
    console.write(
        50,
        {
            "loss": 0.5,
            "env_steps": 1_228_800,
            "episode_return": 123.456,
            "time/updates_per_second": 2.0,
            "time/env_steps_per_second": 31234.0,
        },
    )
    console.flush()
    console.write(50, {"eval/success": 0.9})
    console.close()
    lines = text.getvalue().splitlines()
    assert lines[:2] == ["mjxlab · ppo on ant", "  engine mujoco · reset pool"]
    assert lines[2] == (
        "step 50/200 · 25% · 1,228,800 env steps · 31,234 env steps/s · ETA 1:15 · episode_return 123.5 · loss 0.5"
    )
    assert lines[3] == "step 50 · evaluation · success 0.9"
    assert "\x1b" not in text.getvalue()


class Terminal(io.StringIO):
    """Says that it is one."""

    def isatty(self):
        return True


def test_console_on_a_terminal_draws_a_bar(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    text = Terminal()
    console = Console(text)
    console.open(info(None, steps=100))
    console.write(40, {"loss": 0.25, "time/updates_per_second": 10.0})
    console.flush()
    console.message("[a line] beside the bar")
    console.close()
    out = text.getvalue()
    assert "step 40/100" in out and " 40 %" in out and "ETA 0:06" in out and "[a line] beside the bar" in out


def test_numbers_for_people():
    assert [shown(x) for x in (0.01234, 12.351, 123.42, 1234567.0, 1234567, math.nan, True)] == [
        "0.0123",
        "12.35",
        "123.4",
        "1,234,567",
        "1,234,567",
        "nan",
        "True",
    ]
    assert [clock(s) for s in (-1.0, 5.4, 65.0, 3725.0)] == ["0:00", "0:05", "1:05", "1:02:05"]


# --- views that fail ---------------------------------------------------------------------------------------------------


def test_unknown_sink():
    with pytest.raises(UnknownNameError, match="sinks: got 'tensorbord', expected some of console, jsonl"):
        Sinks(("tensorbord",))


class Lines(Sink):
    """Keeps the messages."""

    def __init__(self):
        self.lines = []

    def message(self, text):
        self.lines.append(text)


def test_wandb_offline_leaves_its_files_and_resumes_under_its_id(tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "offline")
    lines = Lines()
    for steps in (2, 4):
        _, history = fit(
            tiny.make(),
            steps=steps,
            key=0,
            sinks=("jsonl", "wandb", lines),
            run_dir=tmp_path / "run",
            config=tiny.Config(),
        )
    assert history["step"].tolist() == [1, 2, 3, 4]
    assert not [line for line in lines.lines if "warning" in line]
    assert len(list((tmp_path / "run" / "wandb").glob("offline-run-*"))) == 2
    assert len((tmp_path / "run" / "wandb_id.txt").read_text().split()) == 1


def test_wandb_unreachable_is_one_line_and_training_goes_on(tmp_path, monkeypatch):
    # nobody listens on port 9 of this machine
    monkeypatch.setenv("WANDB_MODE", "online")
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
    lines = Lines()
    _, history = fit(
        tiny.make(), steps=3, key=0, sinks=("jsonl", sinks.WandB(timeout=2.0), lines), run_dir=tmp_path / "run"
    )
    warnings = [line for line in lines.lines if line.startswith("warning: ")]
    assert len(warnings) == 1 and "W&B cannot be reached" in warnings[0] and "\n" not in warnings[0]
    assert len(list((tmp_path / "run" / "wandb").glob("offline-run-*"))) == 1
    assert history["step"].tolist() == [1, 2, 3]


def test_a_view_that_breaks_is_switched_off_with_one_line(tmp_path, monkeypatch):
    def broken(self, step, metrics):
        raise RuntimeError("event file\nis gone")

    monkeypatch.setattr(TensorBoard, "write", broken)
    lines = Lines()
    _, history = fit(tiny.make(), steps=3, key=0, sinks=("tensorboard", lines), run_dir=tmp_path / "run")
    warnings = [line for line in lines.lines if line.startswith("warning: ")]
    assert warnings == ["warning: TensorBoard failed and was switched off (event file is gone); training goes on"]
    assert len(history["step"]) == 3


# --- the picture -------------------------------------------------------------------------------------------------------


def test_curve_shows_what_there_is(tmp_path):
    x = np.arange(1, 101)
    history = {"step": x, "env_steps": 64 * x, "episode_return": np.where(x < 5, np.nan, x.astype(float))}
    history |= {"eval/step": x[::20], "eval/env_steps": 64 * x[::20], "eval/return_mean": x[::20] * 1.1}
    assert curve(history, tmp_path / "a.png") and (tmp_path / "a.png").stat().st_size > 5000
    assert curve({"step": x, "loss": 1.0 / x, "lr": 0.0 * x}, tmp_path / "b.png")
    assert not curve({"step": x, "loss": np.full(100, np.nan)}, tmp_path / "c.png")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.png", "b.png"]
    with pytest.raises(WorkLostError, match="could not be written"):
        curve(history, tmp_path / "none" / "a.png")
