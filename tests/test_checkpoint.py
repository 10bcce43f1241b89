"""Checkpoints: bit for bit what was saved, or one clear line."""

from __future__ import annotations

import errno
import json
import os
import pathlib
import shutil

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import tiny

from mjxlab import checkpoint, spmd
from mjxlab.errors import CheckpointError, ConfigError, WorkLostError
from mjxlab.loop import fit
from mjxlab.runs import Run


def odd_state():
    """Every kind of leaf that a training state may hold."""
    return {
        "opt": optax.adam(1e-3).init({"w": jnp.ones((3, 2))}),
        "nan": jax.lax.bitcast_convert_type(jnp.asarray([0x7FC00001, 0xFFC12345, 0x80000000], jnp.uint32), jnp.float32),
        "half": jnp.asarray([1.5, -0.0], jnp.bfloat16),
        "flags": jnp.asarray([True, False]),
        "count": jnp.uint32(2**32 - 1),
        "empty": jnp.zeros((0, 4), jnp.int32),
        "keys": jax.random.split(jax.random.key(7), 3),
        "other": jax.random.key(1, impl="rbg"),
        "nothing": None,
    }


def bits(tree):
    return [(x.dtype.name, x.shape, x.tobytes()) for x in jax.tree.leaves(spmd.to_host(tree))]


def test_every_kind_of_leaf_comes_back_bit_for_bit(tmp_path):
    state = odd_state()
    checkpoint.save(tmp_path, 5, state, meta={"a": [1, None, "x"]})
    restored = checkpoint.restore(tmp_path, jax.eval_shape(odd_state))
    assert restored.step == 5 and restored.meta == {"a": [1, None, "x"]}
    assert jax.tree.structure(restored.state) == jax.tree.structure(state)
    assert bits(restored.state) == bits(state)
    assert [jax.random.key_impl(restored.state[k]) for k in ("keys", "other")] == ["threefry2x32", "rbg"]
    assert not list(tmp_path.rglob("*.pkl")) and b"pickle" not in b"".join(
        p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()
    )


@pytest.mark.x64
def test_double_precision_comes_back(tmp_path):
    state = {"x": jnp.asarray([1 / 3, jnp.pi]), "n": jnp.asarray(2**40)}
    checkpoint.save(tmp_path, 1, state, meta={})
    assert bits(checkpoint.restore(tmp_path, state).state) == bits(state)


def test_the_newest_few_are_kept(tmp_path):
    for step in (1, 2, 30, 4):
        checkpoint.save(tmp_path, step, {"x": jnp.full(3, float(step))}, meta={}, keep=2)
    assert checkpoint.steps(tmp_path) == [4, 30]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["30", "4"]
    checkpoint.save(tmp_path, 30, {"x": jnp.zeros(3)}, meta={}, keep=2)  # again, over the old one
    assert checkpoint.restore(tmp_path, {"x": jnp.zeros(3)}).state["x"].tolist() == [0, 0, 0]


@pytest.mark.parametrize(
    ("like", "message"),
    [
        ({"a": jnp.zeros(3), "b": jnp.zeros(2)}, r"b \(saved nothing, expected float32\[2\]\)"),
        ({}, r"a \(saved float32\[3\], expected nothing\)"),
        ({"a": jnp.zeros(4)}, r"a \(saved float32\[3\], expected float32\[4\]\)"),
        ({"a": jnp.zeros(3, jnp.int32)}, r"a \(saved float32\[3\], expected int32\[3\]\)"),
        ({"a": jax.random.split(jax.random.key(0), 3)}, r"a \(saved float32\[3\], expected key<fry>\[3\]\)"),
        ({"a": jnp.zeros(3)} | {f"x{i}": jnp.zeros(1) for i in range(8)}, "and 3 more"),
    ],
)
def test_another_tree_is_refused_with_the_paths(tmp_path, like, message):
    checkpoint.save(tmp_path, 1, {"a": jnp.zeros(3)}, meta={})
    with pytest.raises(CheckpointError, match=message) as caught:
        checkpoint.restore(tmp_path, like)
    assert "\n" not in str(caught.value)


def damage(folder: pathlib.Path, how: str) -> None:
    files = [p for p in folder.rglob("*") if p.is_file() and p.name != "manifest.json"]
    files.sort(key=lambda p: -p.stat().st_size)
    manifest = folder / "manifest.json"
    if how == "cut":
        os.truncate(files[0], files[0].stat().st_size // 2)
    elif how == "flip":
        raw = bytearray(files[0].read_bytes())
        raw[len(raw) // 2] ^= 1
        files[0].write_bytes(bytes(raw))
    elif how == "missing":
        files[0].unlink()
    elif how == "manifest cut":
        os.truncate(manifest, manifest.stat().st_size // 2)
    elif how == "manifest changed":
        manifest.write_text(manifest.read_text().replace('"step": 2', '"step": 3'))
    elif how == "manifest missing":
        manifest.unlink()
    elif how == "outside":
        told = json.loads(manifest.read_text())
        told["files"]["../../secret"] = {"size": 0, "sha256": ""}
        told["seal"] = checkpoint._seal(told)
        manifest.write_text(json.dumps(told))
    elif how == "empty":
        shutil.rmtree(folder)
        folder.mkdir()


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("cut", "has .* bytes, expected .*; it was cut short"),
        ("flip", "is damaged, its SHA-256 does not fit"),
        ("missing", "is missing"),
        ("manifest cut", "cannot be read, expected JSON; it was cut short"),
        ("manifest changed", "is damaged, its seal does not fit"),
        ("manifest missing", "is not there"),
        ("outside", "names a file outside its folder"),
        ("empty", "is not there"),
    ],
)
def test_damage_is_found_and_the_one_before_is_used_only_when_asked_for(tmp_path, how, message):
    state = {"x": jnp.arange(4000, dtype=jnp.float32)}
    for step in (1, 2):
        checkpoint.save(tmp_path, step, state, meta={})
    damage(tmp_path / "2", how)
    with pytest.raises(CheckpointError, match=f"checkpoint 2: .*{message}") as caught:
        checkpoint.restore(tmp_path, state)
    assert "\n" not in str(caught.value)
    newest = checkpoint.newest_intact(tmp_path)
    assert newest.step == 1 and len(newest.complaints) == 1
    assert bits(checkpoint.restore(tmp_path, state, 1).state) == bits(state)


def test_a_checkpoint_that_is_not_there(tmp_path):
    with pytest.raises(CheckpointError, match="holds no checkpoint"):
        checkpoint.restore(tmp_path / "none", {})
    checkpoint.save(tmp_path, 1, {"a": jnp.zeros(3)}, meta={})
    with pytest.raises(CheckpointError, match="holds no checkpoint of step 2, there are 1"):
        checkpoint.restore(tmp_path, {"a": jnp.zeros(3)}, 2)


@pytest.mark.parametrize("call", ["fsync", "rename", "mkdir"])
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EACCES])
def test_a_write_error_is_one_line_and_earlier_checkpoints_stay(tmp_path, monkeypatch, call, number):
    state = {"x": jnp.arange(10, dtype=jnp.float32)}
    checkpoint.save(tmp_path, 1, state, meta={})

    def fail(*args, **kwargs):
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patch:
        patch.setattr(os, call, fail)
        with pytest.raises(WorkLostError, match="checkpoint 2: could not be written") as caught:
            checkpoint.save(tmp_path, 2, state, meta={})
    assert os.strerror(number) in str(caught.value) and "the newest one that is there is 1" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["1"]
    assert bits(checkpoint.restore(tmp_path, state).state) == bits(state)
    checkpoint.save(tmp_path, 2, state, meta={})  # and it can go on


def test_a_save_in_the_background_does_not_see_later_changes(tmp_path):
    mesh = spmd.make_mesh()
    grow = jax.jit(lambda x: x + 1, donate_argnums=0)
    x = spmd.place(np.zeros(1000, np.float32), mesh, spmd.SPLIT, fresh=True)
    saver = checkpoint.Saver(tmp_path, keep=9)
    for step in range(4):
        saver.save(step, {"x": x}, meta={})
        x = grow(x)
    saver.close()
    for step in range(4):
        assert (checkpoint.restore(tmp_path, {"x": x}, step).state["x"] == step).all()


# --- in a run ----------------------------------------------------------------------------------------------------------


def run(folder, steps, **kwargs):
    kwargs = {"key": 3, "sinks": ("jsonl",), "config": tiny.Config(), **kwargs}
    state, history = fit(tiny.make(kwargs["config"]), steps=steps, run_dir=folder, **kwargs)
    return spmd.to_host(state), history


def test_a_run_restores_on_another_number_of_devices(tmp_path):
    expected, _ = run(tmp_path / "a", 20)
    run(tmp_path / "b", 10, devices=2)
    found, _ = run(tmp_path / "b", 20, devices=1)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), expected, found)


def test_a_run_falls_back_to_the_newest_intact_checkpoint_and_says_so(tmp_path, caplog):
    expected, _ = run(tmp_path / "a", 20, checkpoint_every=5)
    run(tmp_path / "b", 15, checkpoint_every=5)
    damage(tmp_path / "b" / "checkpoints" / "15", "cut")
    with caplog.at_level("WARNING", logger="mjxlab"):
        found, history = run(tmp_path / "b", 20, checkpoint_every=5)
    assert [r.getMessage() for r in caplog.records if "going on from the newest intact one, 10" in r.getMessage()]
    assert bits(found) == bits(expected) and history["step"].tolist() == list(range(1, 21))

    for folder in (tmp_path / "b" / "checkpoints").iterdir():
        damage(folder, "flip")
    with pytest.raises(CheckpointError, match="there is no intact one"):
        run(tmp_path / "b", 30)


def test_resume_can_be_refused_demanded_and_pointed(tmp_path):
    with pytest.raises(CheckpointError, match="holds no checkpoint, expected one as resume is 'must'"):
        run(tmp_path / "a", 5, resume="must")
    expected, _ = run(tmp_path / "a", 10, checkpoint_every=5)
    with pytest.raises(ConfigError, match="resume: got 'never', but .* checkpoints up to step 10"):
        run(tmp_path / "a", 20, resume="never")
    found, _ = run(tmp_path / "a", 10, resume=5)
    assert bits(found) == bits(expected)
    with pytest.raises(CheckpointError, match="checkpoint 7: .* is not there"):
        run(tmp_path / "a", 20, resume=7)


def test_another_run_in_the_folder_is_refused_by_field(tmp_path):
    run(tmp_path / "a", 5)
    with pytest.raises(ConfigError, match=r"holds another run: config.lr \(saved 0.1, given 0.2\)"):
        run(tmp_path / "a", 10, config=tiny.Config(lr=0.2))
    with pytest.raises(ConfigError, match=r"key.data \(saved \[0, 3\], given \[0, 4\]\)"):
        run(tmp_path / "a", 10, key=4)
    with pytest.raises(ConfigError, match=r"config.width \(saved 3, given 4\)"):
        run(tmp_path / "a", 10, config=tiny.Config(width=4))
    with pytest.raises(ConfigError, match=r"matmul_precision \(saved 'float32', given 'highest'\)"):
        run(tmp_path / "a", 10, matmul_precision="highest")


def test_a_run_folder_that_cannot_be_one(tmp_path):
    (tmp_path / "file").write_text("x")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.tex").write_text("x")
    for name, message in (
        ("file", "is a file, expected a folder"),
        ("file/below", "is a file, expected a folder"),
        ("full", "holds other files and no run.json"),
    ):
        with pytest.raises(ConfigError, match=f"run_dir: .*{message}"):
            run(tmp_path / name, 2)
    assert (tmp_path / "full" / "thesis.tex").read_text() == "x"
    run(tmp_path / "good", 2)
    (tmp_path / "good" / "run.json").write_text('{"format"')
    with pytest.raises(ConfigError, match="run.json cannot be read, expected JSON"):
        run(tmp_path / "good", 4)


@pytest.mark.parametrize(
    ("other", "said"),
    [({"config": tiny.Config(lr=0.2)}, r"config.lr \(saved 0.2, this run's 0.1\)"), ({"key": 4}, "key.data")],
)
@pytest.mark.parametrize("resume", ["auto", 9])
def test_a_checkpoint_of_another_run_is_refused(tmp_path, other, said, resume):
    """Its arrays have the shapes of this run's: what was saved with them tells."""
    run(tmp_path / "a", 5)
    run(tmp_path / "b", 9, **other)
    shutil.copytree(tmp_path / "b" / "checkpoints" / "9", tmp_path / "a" / "checkpoints" / "9")
    with pytest.raises(CheckpointError, match=f"checkpoint 9: is of another run than .*: {said}"):
        run(tmp_path / "a", 12, resume=resume)
    assert checkpoint.verify(tmp_path / "a" / "checkpoints" / "5")["step"] == 5


def test_two_trainings_do_not_share_a_folder(tmp_path):
    folder = tmp_path / "a"
    run(folder, 2)
    before = (folder / "metrics.jsonl").read_bytes()
    with Run.open(folder).hold(), pytest.raises(ConfigError, match="is being trained in by another process"):
        run(folder, 4)
    assert (folder / "metrics.jsonl").read_bytes() == before
    run(folder, 4)  # whoever held it has let go


def test_run_json_says_what_is_needed_to_repeat_it(tmp_path):
    run(tmp_path / "a", 2, agent="sgd", env="quadratic", env_options={"noise": 0.5})
    run(tmp_path / "a", 4, agent="sgd", env="quadratic", env_options={"noise": 0.5})
    record = json.loads((tmp_path / "a" / "run.json").read_text())
    assert record["config"] == {"lr": 0.1, "width": 3} and record["agent"] == "sgd"
    assert record["env_options"] == {"noise": 0.5} and record["key"] == {"data": [0, 3], "impl": "threefry2x32"}
    assert record["matmul_precision"] == "float32" and record["steps"] == 4 and record["x64"] is False
    assert [s["step"] for s in record["starts"]] == [0, 2]
    start = record["starts"][0]
    assert start["versions"]["jax"] == jax.__version__ and start["devices_used"] == 2 and start["processes"] == 1
    assert start["device"]["platform"] == "cpu" and start["command"] and "flags" in start
    assert Run.open(tmp_path / "a").config(tiny.Config) == tiny.Config()


@flax.struct.dataclass
class Nested:
    """Every kind of field that a config may have."""

    inner: tiny.Config = tiny.Config(lr=0.5)
    scale: float | jax.Array = 1.0
    widths: tuple[int, ...] = (64, 64)
    pair: tuple[str, float] | None = None
    limit: float = float("inf")
    name: str = flax.struct.field(pytree_node=False, default="x")
    flag: bool = True
    thing: object = None


def test_configs_come_back_from_json():
    from mjxlab.configs import from_json, to_json

    config = Nested(scale=jnp.float32(0.25), pair=("a", 2.0), inner=tiny.Config(lr=1e-300), flag=False)
    written = json.dumps(to_json(config), allow_nan=False)
    assert from_json(Nested, json.loads(written)) == config.replace(scale=0.25)
    for change, message in (
        ({"flag": 1}, "flag: got 1, expected bool"),
        ({"widths": ["a"]}, r"widths\[0\]: got 'a', expected int"),
        ({"inner": {"lr": "x"}}, "lr: got 'x', expected float"),
        ({"lrr": 1}, "lrr: Nested has no such field"),
    ):
        with pytest.raises(ConfigError, match=message):
            from_json(Nested, json.loads(written) | change)
    thing = json.loads(json.dumps(to_json(Nested(thing=json.dumps))))
    with pytest.raises(ConfigError, match="thing: was kept by name only .json.dumps."):
        from_json(Nested, thing)
    assert from_json(Nested, thing, thing=json.dumps).thing is json.dumps
