"""The loop: the same numbers as a plain Python loop, however calls, devices and phases cut it up."""

from __future__ import annotations

import io
import logging

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny

from mjxlab import cache, spmd
from mjxlab.console import Console
from mjxlab.errors import ConfigError
from mjxlab.learner import Learner
from mjxlab.loop import evaluation_key, fit, fit_phases, init_key, update_key
from mjxlab.program import Updates
from mjxlab.sinks import Sink


def quiet(learner, steps, **kwargs):
    """fit without sinks; the state on the host, and the history."""
    state, history = fit(learner, steps=steps, **{"key": 3, "sinks": (), **kwargs})
    return spmd.to_host(state), history


def clockless(history):
    return {name: values for name, values in history.items() if not name.startswith("time/")}


def assert_same(a, b):
    """Bit for bit."""
    jax.tree.map(lambda x, y: np.testing.assert_array_equal(x, y, strict=True), a, b)


def plain(learner, steps, seed=3, batches=None):
    """What fit does, in four lines."""
    key = jax.random.key(seed)
    state, losses = jax.jit(learner.init)(init_key(key)), []
    update = jax.jit(learner.update)
    for u in range(steps):
        state, metrics = update(state, update_key(key, u), None if batches is None else batches(u))
        losses.append(float(metrics["loss"]))
    return spmd.to_host(state), np.asarray(losses)


@pytest.fixture(scope="module")
def reference():
    """40 updates with evaluations on two devices."""
    return quiet(tiny.make(), 40, evaluate=tiny.evaluate, evaluate_every=15, updates_per_call=40)


def test_fit_is_a_plain_loop_of_updates(reference):
    expected, losses = plain(tiny.make(), 40)
    state, history = reference
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-5, atol=1e-6), expected, state)
    np.testing.assert_allclose(history["loss"], losses, rtol=2e-5)
    assert history["step"].tolist() == list(range(1, 41))
    assert history["env_steps"].tolist() == [8 * u for u in range(1, 41)]


@pytest.mark.parametrize("calls", [1, 7, None])
def test_results_do_not_depend_on_the_updates_per_call(reference, calls):
    state, history = quiet(tiny.make(), 40, evaluate=tiny.evaluate, evaluate_every=15, updates_per_call=calls)
    assert_same(reference[0], state)
    assert_same(clockless(reference[1]), clockless(history))


def test_one_device_and_two_agree(reference):
    state, history = quiet(tiny.make(), 40, evaluate=tiny.evaluate, evaluate_every=15, devices=1)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), reference[0], state)
    for name, values in clockless(reference[1]).items():
        np.testing.assert_allclose(history[name], values, rtol=1e-5, atol=1e-6)


def test_update_is_traced_once_and_state_is_donated():
    learner, traces = tiny.make(), 0

    def update(state, key, batch):
        nonlocal traces
        traces += 1
        return learner.update(state, key, batch)

    _, history = quiet(learner._replace(update=update), 25, updates_per_call=4)
    assert traces == history.traces == 1

    mesh, key = spmd.make_mesh(), jax.random.key(0)
    state = learner.init(key)
    updates = Updates(learner, mesh, state, key=key)
    first = spmd.place(state, mesh, updates.specs, fresh=True)
    assert not any(x.is_deleted() for x in jax.tree.leaves(state))
    second, metrics, finite = updates(first, key, 0, 3)
    assert all(x.is_deleted() for x in jax.tree.leaves(first))
    third, *_ = updates(second, key, 3, 1)
    assert all(x.is_deleted() for x in jax.tree.leaves(second))
    assert metrics["loss"].shape == (3,) and finite.all()
    assert third.worlds.x.sharding.spec == spmd.SPLIT and third.w.sharding.is_fully_replicated


def test_a_weak_type_in_the_state_does_not_matter():
    def update(state, key, batch):
        return {"a": jnp.where(state["a"] > 0, 2.0, 1.0)}, {"a": 1.0}

    learner = Learner(lambda key: {"a": jnp.asarray(0.0)}, update, lambda s, k: (), lambda *a: a)
    state, history = quiet(learner, 3)
    assert state["a"] == 2.0 and history.traces == 1


def test_evaluations_come_at_their_steps_with_another_key_each(reference):
    state, history = reference
    assert history["eval/step"].tolist() == [0, 15, 30, 40]
    assert history["eval/env_steps"].tolist() == [0, 120, 240, 320]
    key = jax.random.key(3)
    draws = [float(jax.random.uniform(evaluation_key(key, step))) for step in (0, 15, 30, 40)]
    np.testing.assert_allclose(history["eval/draw"], draws, rtol=1e-6)
    assert len(set(draws)) == 4
    np.testing.assert_allclose(history["eval/return_mean"][-1], -np.sum(state.w**2), rtol=1e-5)
    np.testing.assert_allclose(history["eval/total"][-1], state.worlds.x.sum(), rtol=1e-4)


def test_counters_are_exact_beyond_32_bits():
    _, history = quiet(tiny.make(start=2**33 - 12), 3)
    assert history["env_steps"].tolist() == [2**33 - 4, 2**33 + 4, 2**33 + 12]


@pytest.mark.x64
def test_double_precision():
    state, history = quiet(tiny.make(), 10, evaluate=tiny.evaluate)
    expected, losses = plain(tiny.make(), 10)
    assert state.w.dtype == np.float64
    np.testing.assert_allclose(state.w, expected.w, rtol=1e-13)
    np.testing.assert_allclose(history["loss"], losses, rtol=1e-13)


# --- batches -----------------------------------------------------------------------------------------------------------


def batch(step):
    return {"x": np.random.default_rng(step).normal(size=(6, 3))}


class Stateful:
    """An iterator that knows its place."""

    def __init__(self):
        self.at = 0

    def __iter__(self):
        return self

    def __next__(self):
        self.at += 1
        return batch(self.at - 1)

    def state_dict(self):
        return {"at": np.int64(self.at), "raw": b"\x00\xff"}

    def load_state_dict(self, state):
        assert state["raw"] == b"\x00\xff"
        self.at = int(state["at"])


@pytest.mark.parametrize(
    "make",
    [lambda: batch, lambda: [batch(u) for u in range(12)], lambda: (batch(u) for u in range(12)), Stateful],
    ids=["function", "sequence", "generator", "stateful"],
)
def test_every_kind_of_batches_trains_and_resumes(make, tmp_path):
    expected, losses = plain(tiny.make(), 12, batches=lambda u: jax.tree.map(lambda x: x.astype(np.float32), batch(u)))
    quiet(tiny.make(), 5, batches=make(), run_dir=tmp_path / "run", updates_per_call=2)
    state, history = quiet(tiny.make(), 12, batches=make(), run_dir=tmp_path / "run", updates_per_call=5)
    np.testing.assert_allclose(state.w, expected.w, rtol=2e-5, atol=1e-6)
    np.testing.assert_allclose(history["loss"], losses[5:], rtol=2e-5)


def test_bad_batches_give_one_line():
    with pytest.raises(ConfigError, match="batches: came to an end before"):
        quiet(tiny.make(), 5, batches=iter([batch(0)]))
    with pytest.raises(ConfigError, match="batches: batch 1 has shapes"):
        quiet(tiny.make(), 5, batches=[batch(0), {"x": np.zeros((4, 3))}])
    with pytest.raises(ConfigError, match="batches: got dict"):
        quiet(tiny.make(), 5, batches=batch(0))
    with pytest.raises(ConfigError, match="its axis has 7 elements, expected a multiple of the 2 devices"):
        quiet(tiny.make(), 5, batches=lambda u: {"x": np.zeros((7, 3))})


# --- phases ------------------------------------------------------------------------------------------------------------


def test_phases_share_a_run_and_resume_at_their_phase(tmp_path):
    slow, fast = tiny.make(tiny.Config(lr=0.01)), tiny.make(tiny.Config(lr=0.1))

    def phases(run_dir=None, second=9):
        state, history = fit_phases(
            [("slow", slow), ("fast", fast)],
            steps={"slow": 6, "fast": second},
            enter={"fast": lambda state, key: state.replace(momentum=jnp.zeros_like(state.momentum))},
            key=3,
            sinks=("jsonl",) if run_dir else (),
            run_dir=run_dir,
        )
        return spmd.to_host(state), history

    state, history = phases()
    expected, _ = quiet(slow, 6)
    by_hand = jax.tree.map(jnp.asarray, expected.replace(momentum=np.zeros(3, np.float32), key=jax.random.key(0)))
    by_hand = by_hand.replace(worlds=by_hand.worlds.replace(keys=jax.random.wrap_key_data(by_hand.worlds.keys)))
    for u in range(6, 15):
        by_hand, _ = jax.jit(fast.update)(by_hand, update_key(jax.random.key(3), u), None)
    np.testing.assert_allclose(state.w, by_hand.w, rtol=2e-5, atol=1e-6)

    folder = tmp_path / "run"
    fit_phases([("slow", slow)], steps=[6], key=3, sinks=("jsonl",), run_dir=folder)  # ends at the border
    phases(folder, second=4)  # within the second phase
    resumed, all_rows = phases(folder)
    assert_same(state, resumed)
    assert_same(clockless(history), clockless(all_rows))


def test_phases_are_checked():
    with pytest.raises(ConfigError, match="phases: got the names"):
        fit_phases([("a", tiny.make()), ("a", tiny.make())], steps=[1, 1], key=0)
    with pytest.raises(ConfigError, match="steps: got .* expected a number for each of a, b"):
        fit_phases([("a", tiny.make()), ("b", tiny.make())], steps={"a": 1}, key=0)


# --- what is told, and what is refused ---------------------------------------------------------------------------------


class Collect(Sink):
    """Keeps what it is told."""

    def __init__(self):
        self.rows, self.lines = [], []

    def write(self, step, metrics):
        self.rows.append((step, metrics))

    def message(self, text):
        self.lines.append(text)


def test_log_every_thins_the_rows():
    sink = Collect()
    _, history = quiet(tiny.make(), 20, sinks=(sink,), log_every=8, updates_per_call=3)
    assert history["step"].tolist() == [8, 16] == [step for step, _ in sink.rows]


def test_until_ends_the_training(tmp_path):
    kwargs = {"evaluate": tiny.evaluate, "evaluate_every": 4, "until": lambda row: row["step"] >= 8}
    for _ in range(2):  # started again it has nothing to do
        _, history = quiet(tiny.make(), 40, run_dir=tmp_path / "run", sinks=("jsonl",), **kwargs)
        assert history["eval/step"].tolist() == [0, 4, 8] and history.interrupted is None


def test_header_says_what_runs_on_what(tmp_path):
    text = io.StringIO()

    @flax.struct.dataclass
    class PoolConfig(tiny.Config):
        reset: str = flax.struct.field(pytree_node=False, default="pool")

    quiet(
        tiny.make(),
        4,
        sinks=(Console(text), "jsonl"),
        run_dir=tmp_path / "run",
        config=PoolConfig(),
        agent="sgd",
        env="quadratic",
        evaluate=tiny.evaluate,
    )
    out = text.getvalue()
    for part in (
        "mjxlab · sgd on quadratic",
        "engine none · reset pool · 2 cpu devices · 1 process · matmul float32",
        f"compilation cache {cache.enable()}",
        "compiled in ",
        "step 4 · evaluation · return_mean -",
        "step 4/4 · 100%",
    ):
        assert part in out, out
    assert (tmp_path / "run" / "curve.png").stat().st_size > 10_000


def test_what_is_not_finite_is_said_once_and_counted(caplog):
    def update(state, key, batch):
        state = {"w": state["w"] + jnp.where(state["w"] > 2, jnp.nan, 1.0), "always": state["always"]}
        return state, {"loss": state["w"], "episode_return": jnp.nan}

    init = lambda key: {"w": jnp.zeros(()), "always": jnp.asarray(jnp.inf)}  # noqa: E731
    with caplog.at_level(logging.WARNING, logger="mjxlab"):
        _, history = quiet(Learner(init, update, lambda s, k: (), lambda *a: a), 8, updates_per_call=1)
    assert history.nonfinite == {"loss": 5, "state.w": 5}
    said = [r.getMessage() for r in caplog.records if "finite" in r.getMessage()]
    assert len(said) == 2 and "loss is not finite at step 4" in said[0] and "state's w" in said[1]


def test_a_learner_that_breaks_the_contract_is_told_how():
    def learner(update):
        init = lambda key: {"w": jnp.zeros(3), "n": jnp.zeros((), jnp.int32)}  # noqa: E731
        return Learner(init, update, lambda s, k: (), lambda *a: a)

    with pytest.raises(ConfigError, match=r"makes the state's w float32\[4\], expected float32\[3\]"):
        quiet(learner(lambda s, k, b: ({**s, "w": jnp.zeros(4)}, {})), 2)
    with pytest.raises(ConfigError, match=r"makes the state's extra float32\[\], expected nothing"):
        quiet(learner(lambda s, k, b: ({**s, "extra": jnp.zeros(())}, {})), 2)
    own = lambda: spmd.axis_index().astype(jnp.float32)  # noqa: E731
    with pytest.raises(ConfigError, match="gives each device another w, loss.*pmean"):
        quiet(learner(lambda s, k, b: ({**s, "w": s["w"] + own()}, {"loss": own()})), 2)
    with pytest.raises(ConfigError, match="expected a dict"):
        quiet(learner(lambda s, k, b: (s, jnp.zeros(()))), 2)

    @flax.struct.dataclass
    class Odd:
        replay: jax.Array = flax.struct.field(metadata={"axis": "device"})

    odd = Learner(lambda key: Odd(jnp.zeros((3, 2))), lambda s, k, b: (s, {}), lambda s, k: (), lambda *a: a)
    with pytest.raises(ConfigError, match="replay: its axis has 3 elements, expected a multiple of the 2 devices"):
        quiet(odd, 2)


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ({"steps": 0}, "steps: got 0"),
        ({"key": jnp.zeros(2, jnp.uint32)}, r"key: got uint32\[2\], expected one typed key"),
        ({"evaluate_every": -1}, "evaluate_every: got -1"),
        ({"keep": 0}, "keep: got 0"),
        ({"resume": "yes"}, "resume: got 'yes'"),
        ({"devices": 9}, "devices: got 9, expected 1 to 2"),
        ({"matmul_precision": "best"}, "matmul_precision: got 'best'"),
        ({"checkpoint_every": 3}, "checkpoint_every: got 3, but no run_dir"),
        ({"sinks": ("jsonl",)}, "sinks: jsonl writes files, expected a run_dir"),
        ({"sinks": "console"}, "sinks: got 'console', expected a tuple"),
    ],
)
def test_bad_arguments_give_one_line(argument, message):
    with pytest.raises(ConfigError, match=message) as caught:
        fit(tiny.make(), **{"steps": 2, "key": 0, "sinks": (), **argument})
    assert "\n" not in str(caught.value)


def test_the_config_is_validated():
    class Bad(tiny.Config):
        def validate(self):
            raise ConfigError("lr: got nan, expected a finite number")

    with pytest.raises(ConfigError, match="lr: got nan"):
        quiet(tiny.make(), 2, config=Bad())


def test_a_second_device_alone_can_be_used():
    state, _ = fit(tiny.make(), steps=2, key=0, sinks=(), devices=[jax.devices()[1]])
    assert {d.id for d in state.w.devices()} == {jax.devices()[1].id}


def test_a_state_can_be_handed_in_and_stays_the_callers():
    first, _ = fit(tiny.make(), steps=5, key=3, sinks=())
    second, _ = quiet(tiny.make(), 5, state=first)
    assert not any(x.is_deleted() for x in jax.tree.leaves(first))
    assert int(second.seen) == 80


def test_memory_is_refused_with_numbers():
    huge = lambda key: {"x": jnp.zeros((1 << 20, 1 << 22), jnp.float32)}  # noqa: E731
    learner = Learner(huge, lambda s, k, b: (s, {}), lambda s, k: (), lambda *a: a)
    with pytest.raises(ConfigError, match="memory: the training state needs 32.0 TiB"):
        quiet(learner, 2)


def test_eight_devices_agree_and_a_second_start_compiles_nothing(run_python, tmp_path, reference):
    code = f"""
import sys; sys.path.insert(0, {str(tiny.__file__.rsplit("/", 1)[0])!r})
import jax, tiny
from mjxlab import cache, spmd
from mjxlab.loop import fit
state, history = fit(tiny.make(), steps=40, key=3, sinks=(), evaluate=tiny.evaluate, evaluate_every=15)
print(jax.device_count(), spmd.to_host(state).w.tolist(), history["eval/total"].tolist(), sep="|")
print(cache.programs())
"""
    env = {"MJXLAB_CACHE_DIR": str(tmp_path / "cache"), "JAX_COMPILATION_CACHE_DIR": ""}
    env["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
    outs = [run_python(code, devices=8, env=env).stdout.splitlines() for _ in range(2)]
    count, w, total = outs[0][0].split("|")
    assert count == "8"
    np.testing.assert_allclose(eval(w), reference[0].w, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(eval(total), reference[1]["eval/total"], rtol=1e-5, atol=1e-5)
    assert outs[0][0] == outs[1][0]
    assert not outs[0][1].startswith("compiled 0 ") and outs[1][1].startswith("compiled 0 programs"), outs
