"""The command line: what it leaves, what it says, and its exit codes."""

from __future__ import annotations

import json
import pathlib
import signal
import subprocess
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import mjxlab
from mjxlab import cli
from mjxlab.agents import ppo
from mjxlab.commands import parse, train
from mjxlab.errors import CheckpointError, ConfigError, WorkLostError

SMALL = ["--config.num-envs", "8", "--config.rollout-length", "8", "--config.num-minibatches", "2"]
TRAIN = ["train", "ppo", "fast", "--eval-episodes", "6", "--devices", "1", *SMALL]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A small finished run: 4 updates on ``fast``."""
    folder = tmp_path_factory.mktemp("runs") / "fast"
    assert cli.main([*TRAIN, "--steps", "4", "--run-dir", str(folder), "--gif"]) == 0
    return folder


def refused(capsys: pytest.CaptureFixture[str], *words: str, code: int = 2) -> str:
    """The one line on stderr with which a command is refused."""
    capsys.readouterr()
    assert cli.main(list(words)) == code
    error = capsys.readouterr().err
    assert error.count("\n") == 1, error
    assert error.startswith("mjxlab: error: ")
    return error


def test_train_leaves_the_run_folder(run: pathlib.Path) -> None:
    assert {p.name for p in run.iterdir()} >= {
        "run.json",
        "metrics.jsonl",
        "curve.png",
        "checkpoints",
        "evaluation.json",
    }
    record = json.loads((run / "run.json").read_text())
    assert (record["agent"], record["env"], record["steps"]) == ("ppo", "fast", 4)
    assert record["config"]["num_envs"] == 8
    assert [p.name for p in (run / "checkpoints").iterdir()] == ["4"]
    figures = json.loads((run / "evaluation.json").read_text())
    assert figures["trained"]["episodes"] == figures["random"]["episodes"] == 6
    assert (run / "policy.gif").read_bytes()[:4] == b"GIF8"


def test_train_goes_on_without_its_flags(run: pathlib.Path, capsys: pytest.CaptureFixture[str], tmp_path) -> None:
    """The settings of the run in the folder are the defaults; a finished run only reports."""
    assert cli.main(["train", "ppo", "fast", "--run-dir", str(run), "--eval-episodes", "6", "--devices", "1"]) == 0
    assert "after 4 updates" in capsys.readouterr().out
    line = refused(capsys, *TRAIN, "--run-dir", str(run), "--config.lr", "0.5")
    assert "config.lr (saved 0.0003, given 0.5)" in line
    line = refused(capsys, *TRAIN, "--run-dir", str(run), "--seed", "5")
    assert "key" in line


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["trian"], "unknown command 'trian'"),
        (["train", "ppo"], "expected mjxlab train AGENT ENV"),
        (["train", "pppo", "fast"], "unknown agent 'pppo'; did you mean 'ppo'"),
        (["train", "ppo", "antt"], "unknown environment 'antt'; did you mean 'ant'"),
        (["train", "ppo", "fast", "--stepz", "3"], "--stepz, 3; did you mean --steps?"),
        (["train", "ppo", "fast", "--steps", "many"], "'many'"),
        (["train", "ppo", "fast", "--steps", "3", "--env-steps", "9"], "both --steps and --env-steps"),
        (["train", "ppo", "fast", "--steps", "0"], "steps: got 0"),
        (["train", "ppo", "fast", "--eval-episodes", "0"], "episodes: got 0"),
        (["train", "ppo", "fast", "--engine", "mjx"], "'fast' has no physics engine: engine is 'mjx'"),
        (["train", "ppo", "fast", "--config.lr", "nan"], "lr: got nan"),
        (["train", "ppo", "fast", "--config.lr", "-1"], "lr: got -1.0"),
        (["train", "ppo", "fast", "--config.learn", "1"], "--config.learn"),
        (["train", "ppo", "fast", "--config.reset", "never"], "'never'"),
        (["train", "ppo", "fast", "--config.num-envs", "0"], "num_envs: got 0"),
        (["train", "ppo", "fast", "--seed", "-1"], "seed: got -1"),
        (["train", "ppo", "fast", "--seed", "4294967296"], "seed: got 4294967296"),
        (["train", "ppo", "fast", "--seed", "9" * 30], "and below 2^32"),
        (["sweep", "ppo", "fast", "--seeds", "0", "-1"], "seeds: got -1"),
        (["reproduce", "selfcheck", "--seeds", "4294967296"], "seeds: got 4294967296"),
        (["render", "fast", "--out", "x.gif", "--seed", "-1"], "seed: got -1"),
        (["evaluate", ".", "--seed", "9" * 30], "and below 2^32"),
        (["evaluate", "/nowhere/at/all"], "/nowhere/at/all"),
        (["evaluate"], "Run folder"),
        (["evaluate", ".", "--episodes", "-1"], "episodes: got -1"),
        (["render", "fast"], "--out"),
        (["render", "fast", "--out", "x.mp4"], "expected a name that ends in .gif"),
        (["render", "toy_constant", "--out", "x.gif"], "'toy_constant' has no picture"),
        (["list", "--tag", "nothing"], "unknown tag 'nothing'; known: "),
        (["doctor", "--now"], "--now"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_bad_input_is_one_line_and_code_2(words: list[str], said: str, capsys, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert said in refused(capsys, *words)


def test_unknown_sink(capsys, tmp_path) -> None:
    assert "nosuch" in refused(capsys, *TRAIN, "--steps", "1", "--sinks", "nosuch", "--run-dir", str(tmp_path / "x"))


def test_run_dir_that_is_a_file(capsys, tmp_path) -> None:
    (tmp_path / "file").write_text("")
    line = refused(capsys, *TRAIN, "--steps", "1", "--run-dir", str(tmp_path / "file"))
    assert "is a file, expected a folder" in line


@pytest.mark.parametrize("name", ["agent", "env", "env_options", "config", "key", "steps", "key.data", "format"])
@pytest.mark.parametrize("bad", ["missing", 7.5])
def test_run_json_that_lacks_something(run: pathlib.Path, name: str, bad, capsys, tmp_path) -> None:
    """Whatever is wrong with the record of a run, it is one line."""
    record = json.loads((run / "run.json").read_text())
    holder = record["key"] if name == "key.data" else record
    holder[name.split(".")[-1]] = bad
    if bad == "missing":
        del holder[name.split(".")[-1]]
    (tmp_path / "run.json").write_text(json.dumps(record))
    for command in (["evaluate", str(tmp_path)], [*TRAIN, "--run-dir", str(tmp_path)]):
        assert name in refused(capsys, *command)


def test_checkpoints_that_are_a_file(run: pathlib.Path, capsys, tmp_path) -> None:
    """Said before training, not when the first checkpoint is due."""
    (tmp_path / "run.json").write_text((run / "run.json").read_text())
    (tmp_path / "checkpoints").write_text("")
    assert "checkpoints is a file, expected a folder" in refused(capsys, *TRAIN, "--run-dir", str(tmp_path))


def test_output_that_nobody_reads_or_that_is_full() -> None:
    """What Python buffers is written when it ends, after all error handling, unless the command does it before."""
    import os

    command = [sys.executable, "-m", "mjxlab.cli", "--help"]
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    read, written = os.pipe()
    os.close(read)
    with os.fdopen(written, "w") as pipe:
        done = subprocess.run(command, stdout=pipe, stderr=subprocess.PIPE, text=True, env=environ, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    if os.path.exists("/dev/full"):
        with open("/dev/full", "w") as full:
            done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, env=environ, check=False)
        assert done.returncode == 1
        assert done.stderr == "mjxlab: error: standard output: No space left on device\n"


def test_checkpoint_cut_short(run: pathlib.Path, capsys, tmp_path) -> None:
    """A damaged checkpoint is named, by ``evaluate`` and by ``load_policy``."""
    import shutil

    copy = tmp_path / "copy"
    shutil.copytree(run, copy)
    largest = max((copy / "checkpoints").rglob("*"), key=lambda p: p.stat().st_size if p.is_file() else -1)
    largest.write_bytes(largest.read_bytes()[:-20])
    assert "it was cut short" in refused(capsys, "evaluate", str(copy))
    with pytest.raises(CheckpointError, match="cut short"):
        mjxlab.load_policy(copy)


def test_exit_codes_of_other_errors(capsys, monkeypatch) -> None:
    def main(words: list[str]) -> int:
        raise errors[words[0]]

    errors = {
        "lost": WorkLostError("checkpoint 7: could not be written\n(disk full)"),
        "os": OSError(28, "No space left on device", "runs/x"),
        "interrupt": KeyboardInterrupt(),
    }
    monkeypatch.setattr("mjxlab.commands.list.main", main)
    assert "checkpoint 7: could not be written (disk full)" in refused(capsys, "list", "lost", code=1)
    assert "runs/x: No space left on device" in refused(capsys, "list", "os", code=1)
    assert cli.main(["list", "interrupt"]) == 130
    with pytest.raises(WorkLostError):
        cli.main(["list", "lost", "--debug"])


def test_help_and_version(capsys) -> None:
    assert cli.main(["--help"]) == 0
    assert "mjxlab train ppo arm_reach" in capsys.readouterr().out
    assert cli.main([]) == 2
    assert cli.main(["--version"]) == 0
    assert mjxlab.__version__ in capsys.readouterr().out
    assert cli.main(["train", "--help"]) == 0
    for command in (["train", "ppo", "ant"], ["evaluate"], ["render"], ["list"], ["doctor"]):
        with pytest.raises(SystemExit) as stop:
            cli.main([*command, "--help"])
        assert stop.value.code == 0
        assert "example" in capsys.readouterr().out


def test_list(capsys) -> None:
    assert cli.main(["list"]) == 0
    words = capsys.readouterr().out.split()
    assert {"ppo", "ant", "arm_reach", "humanoid"} <= set(words)
    assert cli.main(["list", "envs", "--tag", "goal"]) == 0
    out = capsys.readouterr().out
    assert "ant_goal" in out
    assert "humanoid" not in out


def test_doctor(capsys, monkeypatch) -> None:
    """Every finding is a line; what is broken makes the exit code 1."""
    from mjxlab import doctor

    assert cli.main(["doctor"]) == 0
    out = capsys.readouterr().out
    for name in ("python", "packages", "devices", "engine mujoco", "engine mjx", "engine warp", "smoke", "OpenGL"):
        assert f" {name} " in out
    assert "FAILS" not in out

    def broken():
        raise RuntimeError("no such thing")

    monkeypatch.setattr(doctor, "CHECKS", (broken,))
    assert cli.main(["doctor"]) == 1
    assert "FAILS  broken             RuntimeError: no such thing" in capsys.readouterr().out


def test_evaluate_reports_trained_and_random(run: pathlib.Path, capsys) -> None:
    assert cli.main(["evaluate", str(run), "--episodes", "5", "--json"]) == 0
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert found["step"] == 4
    assert found["trained"]["episodes"] == found["random"]["episodes"] == 5
    assert cli.main(["evaluate", str(run), "--episodes", "5"]) == 0
    out = capsys.readouterr().out
    assert f"return {found['trained']['return_mean']:.4g}" in out  # the same starts for the same seed


def test_render_an_environment_and_a_run(run: pathlib.Path, capsys, tmp_path) -> None:
    from PIL import Image

    for what in ("fast", str(run)):
        out = tmp_path / "deep" / "x.gif"
        assert cli.main(["render", what, "--out", str(out), "--episodes", "2"]) == 0
        with Image.open(out) as picture:
            assert picture.n_frames > 2
        assert str(out) in capsys.readouterr().out


def test_policy_is_a_pure_function(run: pathlib.Path) -> None:
    policy = mjxlab.load_policy(run)
    env = policy.env
    states = jax.vmap(env.reset)(jax.random.split(jax.random.key(0), 7))
    one, carry = policy(np.asarray(states.obs[0], np.float64))  # NumPy, any precision
    assert carry == ()
    assert one.shape == env.action_space.shape
    many, _ = jax.jit(jax.vmap(lambda obs: policy(obs)))(states.obs)
    np.testing.assert_allclose(many[0], one, atol=1e-6)
    # it is the learner's own deterministic action
    expected, _ = policy.learner.act(policy.state, (), states.obs[0], jax.random.key(9), True)
    np.testing.assert_allclose(one, expected, atol=1e-6)
    # with keys, actions vary
    sampled, _ = jax.vmap(policy, in_axes=(None, 0))(states.obs[0], jax.random.split(jax.random.key(1), 50))
    assert float(jnp.std(sampled)) > 0.01
    with pytest.raises(ConfigError, match=r"obs: got shape \(7, 4\), expected \(4,\) \(vmap the policy"):
        policy(states.obs)


def test_policy_exports(run: pathlib.Path) -> None:
    policy = mjxlab.load_policy(run)
    obs = jnp.asarray([0.1, -0.2, 0.5, 0.5])
    exported = jax.export.export(jax.jit(lambda x: policy(x)[0]))(obs)
    again = jax.export.deserialize(exported.serialize())
    np.testing.assert_allclose(again.call(obs), policy(obs)[0], atol=1e-6)


def test_load_policy_refuses(run: pathlib.Path, tmp_path) -> None:
    with pytest.raises(CheckpointError, match=r"no checkpoint of step 3, there are 4"):
        mjxlab.load_policy(run, step=3)
    anonymous = tmp_path / "anonymous"
    anonymous.mkdir()
    record = json.loads((run / "run.json").read_text())
    (anonymous / "run.json").write_text(json.dumps({**record, "agent": None}))
    with pytest.raises(ConfigError, match="does not say which agent"):
        mjxlab.load_policy(anonymous)


def test_lengths() -> None:
    """Steps come from --steps, --env-steps (rounded up), the config's plan, in this order; schedules follow."""

    def of(steps=None, env_steps=None, **config):
        options = train.Options(steps=steps, env_steps=env_steps)
        return train.length(options, ppo.Config(num_envs=8, rollout_length=4, **config))

    assert of(steps=7)[0] == 7
    assert of(env_steps=33)[0] == 2
    assert of(total_updates=5)[0] == 5
    assert of()[0] == train.ENV_STEPS // 32
    assert of(steps=7, total_updates=5)[1].total_updates == 5  # nothing is scheduled: the run may be extended
    assert of(steps=7, total_updates=5, lr_schedule="linear")[1].total_updates == 7
    assert of(env_steps=64, lr_schedule="cosine")[1].total_updates == 2


def test_flags_cover_the_config() -> None:
    config = ppo.Config()
    kind = parse.flags_of(config)
    flags = kind()
    assert parse.changed(config, flags) == {}
    assert {"lr", "max_grad_norm", "policy_widths", "reset", "normalise_obs"} <= set(kind.__dataclass_fields__)
    assert "global norm" in parse.descriptions(ppo.Config)["max_grad_norm"]


@pytest.mark.slow
def test_sigterm_saves_and_leaves_with_143(tmp_path) -> None:
    """And the run goes on from there to the very state of a run that was never stopped."""
    command = [sys.executable, "-m", "mjxlab.cli", *TRAIN, "--evaluate-every", "0", "--steps", "1500"]
    stopped = tmp_path / "stopped"
    process = subprocess.Popen([*command, "--run-dir", str(stopped)], stdout=subprocess.DEVNULL)
    metrics = stopped / "metrics.jsonl"
    deadline = time.monotonic() + 240
    while time.monotonic() < deadline and process.poll() is None and not (metrics.exists() and metrics.stat().st_size):
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    assert process.wait(120) == 143
    (saved,) = (int(p.name) for p in (stopped / "checkpoints").iterdir())
    assert 0 < saved < 1500
    assert subprocess.run([*command, "--run-dir", str(stopped)], stdout=subprocess.DEVNULL, check=False).returncode == 0
    whole = tmp_path / "whole"
    assert subprocess.run([*command, "--run-dir", str(whole)], stdout=subprocess.DEVNULL, check=False).returncode == 0
    a, b = (mjxlab.load_policy(folder, 1500).state for folder in (stopped, whole))
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        if not jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key):
            np.testing.assert_array_equal(x, y)
