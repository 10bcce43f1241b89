"""A run that is killed, stopped, or out of disk goes on as if nothing had happened, bit for bit."""

from __future__ import annotations

import json
import os
import pathlib
import random
import signal
import subprocess
import sys
import time

import jax
import numpy as np
import pytest
import tiny

from mjxlab import checkpoint, spmd
from mjxlab.history import read_rows
from mjxlab.loop import fit
from mjxlab.sinks import Sink

HERE = str(pathlib.Path(tiny.__file__).parent)
STEPS = 120

# A run in a process of its own, slowed down so that it can be caught at any moment.
SCRIPT = f"""
import sys, time; sys.path.insert(0, {HERE!r})
import jax, tiny
from mjxlab.loop import fit
from mjxlab.sinks import Sink

class Slow(Sink):
    def flush(self, sync=False):
        time.sleep(0.03)

state, history = fit(tiny.make(), steps={STEPS}, key=3, sinks=("jsonl", "csv", Slow()), run_dir=sys.argv[1],
                     config=tiny.Config(), evaluate=tiny.evaluate, evaluate_every=25, updates_per_call=2,
                     checkpoint_every=10)
print("interrupted", history.interrupted, history["step"][-1])
"""


def start(folder: pathlib.Path) -> subprocess.Popen[str]:
    env = os.environ | {"JAX_NUM_CPU_DEVICES": "2"}
    return subprocess.Popen(
        [sys.executable, "-c", SCRIPT, str(folder)], env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def wait_for(process: subprocess.Popen[str], happened) -> None:
    deadline = time.monotonic() + 120
    while not happened():
        if process.poll() is not None or time.monotonic() > deadline:
            out, err = process.communicate()
            raise AssertionError(f"ended before it could be caught\n{out}\n{err}")
        time.sleep(0.002)


def rows(folder: pathlib.Path):
    """The rows of the metrics file without the clocks."""
    found = read_rows(folder / "metrics.jsonl")[0]
    return [{name: value for name, value in row.items() if not name.startswith("time/")} for row in found]


def last_step(folder: pathlib.Path) -> int:
    found = read_rows(folder / "metrics.jsonl")[0]
    return found[-1]["step"] if found else 0


def modified(path: pathlib.Path) -> float:
    try:
        return path.stat().st_mtime
    except FileNotFoundError:
        return 0.0


def leaves(folder: pathlib.Path):
    """The newest checkpoint, bit for bit."""
    restored = checkpoint.restore(folder / "checkpoints", jax.eval_shape(tiny.make().init, jax.random.key(0)))
    assert restored.step == STEPS
    return [x.tobytes() for x in jax.tree.leaves(spmd.to_host(restored.state))]


def finish(folder: pathlib.Path):
    """The same run in this process, which is not slowed down, to its end."""
    return fit(
        tiny.make(),
        steps=STEPS,
        key=3,
        sinks=("jsonl", "csv"),
        run_dir=folder,
        config=tiny.Config(),
        evaluate=tiny.evaluate,
        evaluate_every=25,
    )


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    """The same run in one go."""
    folder = tmp_path_factory.mktemp("runs") / "whole"
    finish(folder)
    return folder


def test_killed_three_times_it_ends_with_the_same_bits(tmp_path, uninterrupted):
    folder = tmp_path / "run"
    moment = random.Random()
    for kill in range(3):
        process = start(folder)
        begin, now = last_step(folder), time.time()
        if kill == 1:  # while a checkpoint is being written; the first kill may have left a hidden folder
            hidden = (folder / "checkpoints").glob
            wait_for(process, lambda now=now, hidden=hidden: any(modified(p) > now for p in hidden(".writing-*")))
        else:
            target = begin + moment.randint(1, 40) if kill else moment.randint(11, 35)
            wait_for(process, lambda target=target: last_step(folder) >= min(target, STEPS - 8))
        process.kill()
        process.communicate()
        for step in checkpoint.steps(folder / "checkpoints"):
            checkpoint.verify(folder / "checkpoints" / str(step))
    finish(folder)
    assert leaves(folder) == leaves(uninterrupted)
    assert rows(folder) == rows(uninterrupted)
    parts, whole = ((f / "metrics.csv").read_text().splitlines() for f in (folder, uninterrupted))
    assert parts[0] == whole[0] and len(parts) == len(whole)
    assert len(json.loads((folder / "run.json").read_text())["starts"]) == 4


def test_sigterm_saves_and_leaves_cleanly(tmp_path, uninterrupted):
    folder = tmp_path / "run"
    process = start(folder)
    wait_for(process, lambda: last_step(folder) >= 13)
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    stopped = int(out.split()[-1])
    assert "interrupted SIGTERM" in out and 13 <= stopped < STEPS
    assert checkpoint.newest_intact(folder / "checkpoints").step == stopped == last_step(folder)
    assert (folder / "curve.png").exists()
    finish(folder)
    assert leaves(folder) == leaves(uninterrupted)
    assert rows(folder) == rows(uninterrupted)


class Poke(Sink):
    """Sends this process a signal once."""

    def __init__(self, number: int, step: int):
        self.number, self.step, self.lines = number, step, []

    def write(self, step, metrics):
        if step == self.step:
            os.kill(os.getpid(), self.number)

    def message(self, text):
        self.lines.append(text)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_is_told_in_one_line_and_handlers_are_put_back(tmp_path, number):
    before = signal.getsignal(number)
    sink = Poke(number, 6)
    _, history = fit(
        tiny.make(), steps=1000, key=3, sinks=("jsonl", sink), run_dir=tmp_path / "run", updates_per_call=2
    )
    assert history.interrupted == signal.Signals(number).name and history["step"][-1] == 6
    assert sink.lines[-1] == f"{history.interrupted}: stopped at step 6, saved in {tmp_path}/run/checkpoints/6"
    assert signal.getsignal(number) is before


def test_no_room_on_disk_is_one_line_and_earlier_checkpoints_stay(run_python, tmp_path):
    folder = tmp_path / "run"
    code = f"""
import sys; sys.path.insert(0, {HERE!r})
import pathlib, resource, time, tiny
from mjxlab.errors import WorkLostError
from mjxlab.loop import fit
from mjxlab.sinks import Sink

class Full(Sink):
    def write(self, step, metrics):
        if step == 7:  # once the checkpoint of step 5 is there, no file may grow beyond 256 bytes
            while not pathlib.Path({str(folder / "checkpoints" / "5")!r}).is_dir():
                time.sleep(0.01)
            resource.setrlimit(resource.RLIMIT_FSIZE, (256, resource.RLIM_INFINITY))

try:
    fit(tiny.make(), steps=20, key=3, sinks=(Full(),), run_dir={str(folder)!r}, checkpoint_every=5, updates_per_call=1)
except WorkLostError as error:
    print("LOST", error)
"""
    out = run_python(code).stdout.splitlines()
    assert len(out) == 1 and out[0].startswith("LOST checkpoint 10: could not be written"), out
    assert "the newest one that is there is 5" in out[0]
    assert [p.name for p in (folder / "checkpoints").iterdir()] == ["5"]
    checkpoint.verify(folder / "checkpoints" / "5")


def test_metrics_that_cannot_be_written_are_lost_work(run_python, tmp_path):
    code = f"""
import sys; sys.path.insert(0, {HERE!r})
import resource, tiny
from mjxlab.errors import WorkLostError
from mjxlab.loop import fit
resource.setrlimit(resource.RLIMIT_FSIZE, (6000, resource.RLIM_INFINITY))
try:
    fit(tiny.make(), steps=200, key=3, sinks=("jsonl",), run_dir={str(tmp_path / "run")!r})
except WorkLostError as error:
    print("LOST", error)
"""
    out = run_python(code).stdout.splitlines()
    assert len(out) == 1 and "metrics.jsonl: could not be written (File too large)" in out[0], out


def test_ppo_resumes_with_the_same_bits(tmp_path):
    import mjxlab
    from mjxlab.agents import ppo

    env = mjxlab.make("fast")
    config = ppo.config_for("fast", num_envs=8, rollout_length=8, num_minibatches=2, epochs=1)
    learner = ppo.make(env, config)

    def run(folder, steps):
        settings = {"run_dir": folder, "config": config, "env": env, "sinks": ("jsonl",), "devices": 1}
        state, history = fit(learner, steps=steps, key=1, **settings)
        assert np.isfinite(history["loss"]).all()
        return [x.tobytes() for x in jax.tree.leaves(spmd.to_host(state))]

    whole = run(tmp_path / "whole", 12)
    run(tmp_path / "parts", 5)
    assert run(tmp_path / "parts", 12) == whole
    np.testing.assert_equal(rows(tmp_path / "parts"), rows(tmp_path / "whole"))  # NaN equals NaN here
