"""How programs reach the C engine: cached on disk, exported, by callback, and what is said when they cannot."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scenes import BALL, PENDULUM

from mjxlab import physics
from mjxlab.errors import EngineError
from mjxlab.physics import callback, ffi, host

ROLLOUT = f"""
import jax, jax.numpy as jnp, numpy as np, sys
from mjxlab.physics import make_engine
BALL = {BALL!r}
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
events = []
jax.monitoring.register_event_listener(lambda name, **_: events.append(name))
def rollout(route, n, devices=1):
    engine = make_engine(BALL, "mujoco", route=route)
    def run(velocity):
        data = jax.vmap(lambda v: engine.init(qvel=v))(velocity)
        mass = jnp.broadcast_to(jnp.asarray([0, 1, 2.5], jnp.float32), (velocity.shape[0], 3))
        step = jax.vmap(lambda d, m: engine.step(d, {{"body_mass": m}}, jnp.zeros(0), 2))
        data = jax.lax.fori_loop(0, 20, lambda _, d: step(d, mass), data)
        return jax.vmap(lambda d: engine.set(d, time=0.0))(data).qpos
    if devices > 1:
        mesh = jax.make_mesh((devices,), ("device",), axis_types=(jax.sharding.AxisType.Auto,))
        spec = jax.sharding.PartitionSpec("device")
        run = jax.shard_map(run, mesh=mesh, in_specs=spec, out_specs=spec)
    velocity = (jnp.arange(12.0 * n).reshape(n, 12) % 7 - 3) / 5
    return np.asarray(jax.jit(run)(velocity)).view(np.uint32).sum()
"""


def test_a_second_process_compiles_nothing(run_python, tmp_path):
    code = ROLLOUT + (
        "print(rollout('ffi', 4))\n"
        "print(sum(e.endswith('cache_misses') for e in events), sum(e.endswith('cache_hits') for e in events))\n"
    )
    env = {"JAX_COMPILATION_CACHE_DIR": str(tmp_path)}
    first, second = (run_python(code, env=env, timeout=120).stdout.split() for _ in range(2))
    assert first[0] == second[0]
    assert int(first[1]) > 0
    assert int(second[1]) == 0
    assert int(second[2]) == int(first[1]) + int(first[2])


def test_the_callback_route_gives_the_same_bits_on_two_devices(run_python):
    code = ROLLOUT + (
        "print(rollout('callback', 4096, 2), rollout('ffi', 4096, 2))\nimport os; print(os.environ['PJRT_NPROC'])\n"
    )
    by_callback, by_ffi, threads = run_python(code, devices=2, timeout=120).stdout.split()
    assert by_callback == by_ffi
    assert threads == "8"


def test_callbacks_are_refused_where_they_would_deadlock(monkeypatch):
    assert len(jax.devices()) == 2  # JAX has started
    monkeypatch.delenv("PJRT_NPROC", raising=False)
    with pytest.raises(EngineError, match="by callback on 2 CPU devices needs PJRT_NPROC of at least 8") as caught:
        physics.make_engine(BALL, "mujoco", route="callback")
    assert "\n" not in str(caught.value)
    monkeypatch.setenv("PJRT_NPROC", "3")  # the user's own is not overwritten
    with pytest.raises(EngineError, match="it is 3"):
        physics.make_engine(BALL, "mujoco", route="callback")
    monkeypatch.setenv("PJRT_NPROC", "8")
    assert physics.make_engine(BALL, "mujoco", route="callback").route == "callback"


def test_the_watchdog_names_the_cause_of_a_hang(run_python):
    code = (
        "import time\n"
        "from mjxlab.physics import callback\n"
        "callback.PATIENCE = 0.4\n"
        "with callback._watchdog: pass\n"
        "time.sleep(1)\n"
        "print('alive', flush=True)\n"
        "with callback._watchdog: time.sleep(30)\n"
    )
    done = run_python(code, check=False, timeout=60)
    assert done.stdout.split() == ["alive"]
    assert done.returncode == 1
    assert "PJRT_NPROC" in done.stderr


def test_export_and_reload(run_python, tmp_path):
    engine = physics.make_engine(BALL, "mujoco")
    run = jax.jit(lambda v: engine.step(engine.init(qvel=v), {}, jnp.zeros(0), 30).qpos)
    velocity = jnp.arange(12.0) / 10
    exported = jax.export.export(run, disabled_checks=physics.export_checks())(velocity)
    file = tmp_path / "program"
    file.write_bytes(exported.serialize())
    code = (
        f"import jax, jax.export, jax.numpy as jnp, numpy as np\n"
        f"from mjxlab.physics import make_engine\n"
        f"program = jax.export.deserialize(bytearray(open({str(file)!r}, 'rb').read()))\n"
        f"{{}}make_engine({BALL!r}, 'mujoco')\n"
        f"print(np.asarray(program.call(jnp.arange(12.0) / 10)).view(np.uint32).sum())\n"
    )
    expected = int(np.asarray(run(velocity)).view(np.uint32).sum())
    assert int(run_python(code.format("")).stdout) == expected
    other = run_python(code.format(f"make_engine({PENDULUM!r}, 'mujoco') #"), check=False)
    assert "call make_engine with the same model and outputs first" in other.stderr


def test_the_plan_survives_its_text():
    plan = host.Plan("abc", "step", 5, ("ctrl",), ("body_mass", "opt.gravity"), 4)
    assert host.Plan.parse(plan.text().encode()) == plan
    empty = host.Plan("abc", "set", 0, (), (), 8)
    assert host.Plan.parse(empty.text().encode()) == empty


def test_any_exception_in_the_handler_is_an_error_of_jax():
    def fail(plan, operands, results):
        raise ValueError(f"first line\nsecond line of {plan.decode()}")

    ffi.register(fail, "mjxlab_test_fail")
    call = jax.ffi.ffi_call("mjxlab_test_fail", jax.ShapeDtypeStruct((), jnp.float32))
    with pytest.raises(jax.errors.JaxRuntimeError, match="ValueError: first line; second line of abc"):
        jax.block_until_ready(jax.jit(lambda: call(plan="abc"))())


def test_the_number_of_configured_devices(monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", "--xla_force_host_platform_device_count=6")
    assert callback._configured_devices() == 6
    monkeypatch.delenv("XLA_FLAGS")
    assert callback._configured_devices() == 2
    assert callback._started()
