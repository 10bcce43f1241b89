"""Speed of the physics engines, side by side.

    python benchmarks/physics.py [--worlds 512] [--pairs 10] [--calls 20] [--only bare,brax,…] [--json FILE]

Ratios are medians over interleaved pairs in one process, with quartiles: single runs swing by a factor of two on shared
machines. Outputs are qpos, qvel, xpos and sensordata, five physics steps a call, on the ant.

  bare        ``mujoco.batch.Batch.step(nstep=5)`` with the outputs bound, nothing of JAX
  bare+fresh  the same, with outputs of the new state (``stage=VEL``), which our engine always gives
  brax        Brax's MJX pipeline (``brax.mjx.pipeline.step``), five times in a scan
  playground  MuJoCo Playground's way to MJX: ``mjx.step`` on a whole ``mjx.Data``, five times in a scan
  mjx         our ``mjx`` engine
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import pathlib
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import mujoco
import numpy as np

from mjxlab import physics
from mjxlab._compat import lenient

OUTPUTS = ("qpos", "qvel", "xpos", "sensordata")
SUBSTEPS = 5
ANT = pathlib.Path(__file__).resolve().parent.parent / "envs" / "assets" / "ant.xml"

Runner = Callable[[], None]  # makes `calls` control steps of all worlds, and waits for them


def model() -> mujoco.MjModel:
    """The ant, with the sensors of an environment that reads them."""
    spec = mujoco.MjSpec.from_file(str(ANT))
    spec.add_sensor(
        name="bench_torso", type=mujoco.mjtSensor.mjSENS_FRAMEPOS, objtype=mujoco.mjtObj.mjOBJ_BODY, objname="torso"
    )
    spec.add_sensor(
        name="bench_spin", type=mujoco.mjtSensor.mjSENS_FRAMEANGVEL, objtype=mujoco.mjtObj.mjOBJ_BODY, objname="torso"
    )
    return spec.compile()


def controls(worlds: int, calls: int, nu: int) -> np.ndarray:
    """The same random controls for everybody. ``float32[calls, worlds, nu]``."""
    return np.random.default_rng(0).uniform(-1, 1, (calls, worlds, nu)).astype(np.float32)


def bare(m: mujoco.MjModel, worlds: int, calls: int, fresh: bool) -> Runner:
    """MuJoCo's own batch. Float32 controls are written and float32 outputs are read, as a learner would."""
    from mujoco import batch

    b = batch.Batch(m, worlds)
    bound = [b.bind(name) for name in OUTPUTS]
    stage = (mujoco.mjtStage.mjSTAGE_VEL if fresh else mujoco.mjtStage.mjSTAGE_NONE).value
    u = controls(worlds, calls, m.nu)
    b.reset()
    start = b.state.copy()

    def run() -> None:
        b.state[:] = start
        for t in range(calls):
            b.ctrl = u[t]
            b.step(nstep=SUBSTEPS, stage=stage)
        assert np.isfinite(bound[0]).all()

    return run


def scanned(step: Callable[..., Any], data: Any, u: np.ndarray, jit: Callable[..., Any]) -> tuple[Runner, float]:
    """A compiled rollout of ``step(data, ctrl)``, and the seconds that the compilation took."""
    rollout = jit(lambda d, u: jax.lax.scan(lambda d, x: (step(d, x), None), d, u)[0])
    inputs = jnp.asarray(u)
    began = time.perf_counter()
    jax.block_until_ready(rollout(data, inputs))
    compile_seconds = time.perf_counter() - began
    return lambda: jax.block_until_ready(rollout(data, inputs)), compile_seconds  # type: ignore[return-value]


def ours(m: mujoco.MjModel, kind: str, worlds: int, calls: int) -> tuple[Runner, float]:
    """An engine of ours, as an environment calls it."""
    engine = physics.make_engine(m, kind, OUTPUTS)
    data = jax.jit(jax.vmap(lambda _: engine.init()))(jnp.zeros(worlds))
    step = jax.vmap(lambda d, u: engine.step(d, {}, u, SUBSTEPS))
    return scanned(step, data, controls(worlds, calls, m.nu), physics.jit)


def playground(m: mujoco.MjModel, worlds: int, calls: int) -> tuple[Runner, float]:
    """Playground's route: ``mjx.step`` on the whole of ``mjx.Data``."""
    with contextlib.redirect_stdout(io.StringIO()):
        from mujoco import mjx
    mx = mjx.put_model(m)
    data = jax.jit(jax.vmap(lambda _: mjx.forward(mx, mjx.make_data(mx))))(jnp.zeros(worlds))

    def step(d: Any, u: jax.Array) -> Any:
        def single(d: Any, _: None) -> tuple[Any, None]:
            return mjx.step(mx, d.replace(ctrl=u)), None

        return jax.lax.scan(single, d, None, length=SUBSTEPS)[0]

    return scanned(jax.vmap(step), data, controls(worlds, calls, m.nu), jax.jit)


def brax(m: mujoco.MjModel, worlds: int, calls: int) -> tuple[Runner, float]:
    """Brax's route: its MJX pipeline."""
    with contextlib.redirect_stdout(io.StringIO()):
        from brax.io import mjcf
        from brax.mjx import pipeline
    system = mjcf.load_model(m)
    q, qd = jnp.asarray(m.qpos0, jnp.float32), jnp.zeros(m.nv)
    state = jax.jit(jax.vmap(lambda _: pipeline.init(system, q, qd)))(jnp.zeros(worlds))

    def step(s: Any, u: jax.Array) -> Any:
        return jax.lax.scan(lambda s, _: (pipeline.step(system, s, u), None), s, None, length=SUBSTEPS)[0]

    return scanned(jax.vmap(step), state, controls(worlds, calls, m.nu), jax.jit)


def pairs(a: Runner, b: Runner, n: int) -> dict[str, float]:
    """Quartiles of time(b) / time(a) over ``n`` pairs whose order alternates: how many times faster ``a`` is."""
    ratios, fast = [], []
    for i in range(n):
        times = {}
        for name, run in [("a", a), ("b", b)][:: 1 if i % 2 else -1]:
            began = time.perf_counter()
            run()
            times[name] = time.perf_counter() - began
        ratios.append(times["b"] / times["a"])
        fast.append(times["a"])
    low, middle, high = np.percentile(ratios, [25, 50, 75])
    return {
        "ratio": float(middle),
        "q25": float(low),
        "q75": float(high),
        "seconds": float(np.median(fast)),
        "pairs": n,
    }


FIRST = """
import sys, time
import jax, jax.numpy as jnp, mjxlab
from mjxlab import physics
began = time.perf_counter()
engine = physics.make_engine(sys.argv[1], "mujoco")
data = jax.jit(jax.vmap(lambda v: engine.init(qvel=v)))(jnp.zeros((512, engine.model.nv)))
step = jax.jit(jax.vmap(lambda d, u: engine.step(d, {}, u, 5)))
jax.block_until_ready(step(data, jnp.zeros((512, engine.model.nu))))
print(time.perf_counter() - began)
"""


def first_step() -> float:
    """Seconds from the import to the end of the first compiled step of 512 worlds, nothing cached."""
    env = os.environ | {"JAX_ENABLE_COMPILATION_CACHE": "0"}
    done = subprocess.run([sys.executable, "-c", FIRST, str(ANT)], env=env, capture_output=True, text=True, check=True)
    return float(done.stdout)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--worlds", type=int, default=512)
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument("--calls", type=int, default=20, help="control steps in one timed run")
    parser.add_argument("--only", default="bare,bare+fresh,mjx,playground,brax,first", help="comparisons, by comma")
    parser.add_argument("--json", type=pathlib.Path)
    args = parser.parse_args()
    only = args.only.split(",")
    jax.config.update("jax_enable_compilation_cache", False)  # compile times are part of the result
    m, size = model(), (args.worlds, args.calls)
    steps = args.worlds * args.calls * SUBSTEPS
    with lenient():
        engine, compiled = ours(m, "mujoco", *size)
        result: dict[str, Any] = {
            "worlds": args.worlds,
            "substeps": SUBSTEPS,
            "outputs": OUTPUTS,
            "cpus": os.cpu_count(),
            "versions": {"jax": jax.__version__, "mujoco": mujoco.__version__},
            "compile_seconds": {"mujoco": compiled},
            "ratios": {},
            "steps_per_second": {},
        }
        print(f"{args.worlds} worlds, ant, {SUBSTEPS} substeps, outputs {', '.join(OUTPUTS)}; jax {jax.__version__}")
        print(f"mujoco engine: compiled in {compiled:.2f} s")
        rivals: dict[str, Callable[[], tuple[Runner, float]]] = {
            "bare": lambda: (bare(m, *size, fresh=False), 0.0),
            "bare+fresh": lambda: (bare(m, *size, fresh=True), 0.0),
            "mjx": lambda: ours(m, "mjx", *size),
            "playground": lambda: playground(m, *size),
            "brax": lambda: brax(m, *size),
        }
        for name in rivals:
            if name not in only:
                continue
            try:
                run, seconds = rivals[name]()
            except ImportError as error:
                print(f"{name}: not installed ({error})")
                continue
            run(), engine()
            found = pairs(engine, run, args.pairs)
            result["ratios"][name] = found
            result["compile_seconds"][name] = seconds
            result["steps_per_second"][name] = steps / (found["seconds"] * found["ratio"])
            result["steps_per_second"]["mujoco"] = steps / found["seconds"]
            print(
                f"mujoco engine / {name}: {found['ratio']:.3f} [{found['q25']:.3f}, {found['q75']:.3f}] over "
                f"{found['pairs']} pairs; {steps / found['seconds']:,.0f} against "
                f"{steps / (found['seconds'] * found['ratio']):,.0f} physics steps/s; compiled in {seconds:.2f} s",
                flush=True,
            )
        if "first" in only:
            result["first_step_seconds"] = first_step()
            print(f"first compiled step after the import: {result['first_step_seconds']:.2f} s")
    if args.json:
        args.json.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
