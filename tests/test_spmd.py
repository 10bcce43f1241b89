"""One program on many devices, and on two processes that talk over the network."""

from __future__ import annotations

import os
import pathlib
import socket
import subprocess
import sys

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import tiny

from mjxlab import spmd
from mjxlab.errors import ConfigError
from mjxlab.loop import fit

HERE = str(pathlib.Path(tiny.__file__).parent)


def test_collectives_are_identities_where_no_axis_is_bound():
    x = {"a": jnp.arange(3.0), "b": jnp.int32(2)}
    for reduce in (spmd.pmean, spmd.psum):
        assert reduce(x) is x
    assert spmd.axis_size() == 1 and int(spmd.axis_index()) == 0
    key = jax.random.key(0)
    assert spmd.fold_in(key) is key
    assert spmd.global_index(3).tolist() == [0, 1, 2]
    assert jax.vmap(lambda v: spmd.pmean(v))(jnp.arange(3.0)).tolist() == [0, 1, 2]


def test_collectives_reduce_over_devices_in_the_loop():
    mesh = spmd.make_mesh()

    def program(x):
        facts = {"size": jnp.int32(spmd.axis_size()), "sum": spmd.psum(x.sum()), "mean": spmd.pmean(x.mean())}
        return facts, spmd.global_index(3), jax.random.key_data(spmd.fold_in(jax.random.key(0)))[None]

    specs = (spmd.REPLICATED, spmd.SPLIT, spmd.SPLIT)
    run = jax.jit(jax.shard_map(program, mesh=mesh, in_specs=spmd.SPLIT, out_specs=specs, check_vma=False))
    facts, index, keys = run(jnp.arange(6.0))
    assert jax.tree.map(float, facts) == {"size": 2.0, "sum": 15.0, "mean": 2.5}
    assert index.tolist() == [0, 1, 2, 3, 4, 5]
    assert not np.array_equal(keys[0], keys[1])


@flax.struct.dataclass
class Inner:
    kept: jax.Array
    split: object = flax.struct.field(metadata={"axis": "device"})


@flax.struct.dataclass
class Outer:
    params: dict
    opt: object
    inner: Inner
    worlds: object = flax.struct.field(metadata={"axis": "device"})
    static: int = flax.struct.field(pytree_node=False, default=3)


def test_marked_fields_are_split_at_any_depth():
    params = {"w": jnp.zeros((2, 3))}
    inner = Inner(jnp.zeros(4), [jnp.zeros((4, 2)), (jax.random.split(jax.random.key(0), 4), None)])
    state = Outer(params, optax.adam(1e-3).init(params), inner, Inner(jnp.zeros(4), jnp.zeros(4)))
    specs = spmd.partition_specs(state)
    assert jax.tree.structure(specs) == jax.tree.structure(state)
    found = {
        jax.tree_util.keystr(path, simple=True, separator="."): spec == spmd.SPLIT
        for path, spec in jax.tree.leaves_with_path(specs)
    }
    split = {"inner.split.0", "inner.split.1.0", "worlds.kept", "worlds.split"}
    assert {name for name, is_split in found.items() if is_split} == split
    placed = spmd.place(state, spmd.make_mesh(), specs, fresh=True)
    assert [s.data.shape for s in placed.inner.split[0].addressable_shards] == [(2, 2), (2, 2)]
    assert [s.data.shape for s in placed.inner.split[1][0].addressable_shards] == [(2,), (2,)]
    assert placed.params["w"].sharding.is_fully_replicated
    jax.tree.map(np.testing.assert_array_equal, spmd.to_host(placed), spmd.to_host(state))


def test_fresh_buffers_are_the_callers_no_more():
    x = jnp.arange(64.0)
    for devices in (1, 2):
        mesh = spmd.make_mesh(devices)
        mine = spmd.place(
            {"x": x, "k": jax.random.key(0)}, mesh, {"x": spmd.REPLICATED, "k": spmd.REPLICATED}, fresh=True
        )
        pointers = [s.data.unsafe_buffer_pointer() for s in mine["x"].addressable_shards]
        assert x.unsafe_buffer_pointer() not in pointers


@pytest.mark.parametrize(
    ("env", "message"),
    [
        ({"MJXLAB_COORDINATOR": "a:1"}, "MJXLAB_PROCESSES: not set, expected all of"),
        ({"MJXLAB_COORDINATOR": "a:1", "MJXLAB_PROCESSES": "x", "MJXLAB_PROCESS": "0"}, "MJXLAB_PROCESSES: got 'x'"),
        (
            {"MJXLAB_COORDINATOR": "a:1", "MJXLAB_PROCESSES": "2", "MJXLAB_PROCESS": "2"},
            "MJXLAB_PROCESS: got 2, expected",
        ),
    ],
)
def test_a_half_told_start_is_refused(env, message, monkeypatch):
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match=message):
        spmd.initialize()


def test_a_single_process_has_nobody_to_join(monkeypatch):
    monkeypatch.setenv("SLURM_JOB_ID", "1")  # an allocation with one task
    monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "1")
    assert spmd.initialize() is False
    assert spmd.is_main() and spmd.agree([3, 4]).tolist() == [[3, 4]]


# --- two processes -----------------------------------------------------------------------------------------------------

SCRIPT = f"""
import sys; sys.path.insert(0, {HERE!r})
from mjxlab import spmd
assert spmd.initialize() is True
import jax, os, signal, tiny
from mjxlab.errors import ConfigError
from mjxlab.loop import fit
from mjxlab.sinks import Sink

class Poke(Sink):  # only process 0 has sinks, so only it is told to stop
    def write(self, step, metrics):
        if step == 12:
            os.kill(os.getpid(), signal.SIGTERM)

folder, refused = sys.argv[1], False
settings = dict(key=3, run_dir=folder, config=tiny.Config(), evaluate=tiny.evaluate, evaluate_every=15)
_, history = fit(tiny.make(), steps=24, sinks=("jsonl", Poke()), updates_per_call=4, **settings)
assert history.interrupted == "SIGTERM", history.interrupted
state, history = fit(tiny.make(), steps=24, sinks=("jsonl",), **settings)
try:
    fit(tiny.make(), steps=24, sinks=(), **(settings | dict(key=4)))
except (ConfigError, Exception) as error:
    refused = str(error)
host = spmd.to_host(state)
print(jax.process_index(), jax.device_count(), host.w.tolist(), host.worlds.x.sum(), refused, sep="|")
"""


def test_two_processes_give_what_one_gives(tmp_path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    common = {"JAX_NUM_CPU_DEVICES": "1", "MJXLAB_COORDINATOR": f"127.0.0.1:{port}", "MJXLAB_PROCESSES": "2"}
    folder = tmp_path / "run"
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", SCRIPT, str(folder)],
            env=os.environ | common | {"MJXLAB_PROCESS": str(i)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for i in range(2)
    ]
    results = [p.communicate(timeout=240) for p in processes]
    assert [p.returncode for p in processes] == [0, 0], "\n".join(err[-3000:] for _, err in results)
    said = [out.strip().splitlines()[-1].split("|") for out, _ in results]
    assert [s[0] for s in said] == ["0", "1"] and said[0][1:4] == said[1][1:4] and said[0][1] == "2"
    assert "holds another run: key.data" in said[0][4] and "process 0 could not go on" in said[1][4]

    state, _ = fit(tiny.make(), steps=24, key=3, sinks=(), evaluate=tiny.evaluate, evaluate_every=15)
    host = spmd.to_host(state)
    np.testing.assert_allclose(eval(said[0][2]), host.w, rtol=1e-5, atol=1e-6)

    # and one process goes on with what two have left
    settings = {"key": 3, "evaluate": tiny.evaluate, "evaluate_every": 15, "config": tiny.Config(), "sinks": ("jsonl",)}
    resumed, history = fit(tiny.make(), steps=30, run_dir=folder, **settings)
    whole, expected = fit(tiny.make(), steps=30, run_dir=tmp_path / "whole", **settings)
    np.testing.assert_allclose(spmd.to_host(resumed).w, spmd.to_host(whole).w, rtol=1e-5, atol=1e-6)
    assert history["step"].tolist() == list(range(1, 31))
    np.testing.assert_allclose(history["loss"], expected["loss"], rtol=1e-4)
