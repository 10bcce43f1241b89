"""What is installed, what works here, and what to do about the rest: ``mjxlab doctor``."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import importlib.util
import os
import pathlib
import platform
import shutil
import sys
import time
from collections.abc import Iterator

PACKAGES = ("mjxlab", "jax", "jaxlib", "flax", "optax", "mujoco", "mujoco-mjx", "brax", "gymnax", "gymnasium", "numpy")

_PENDULUM = """
<mujoco><option timestep="0.01"/><asset><material name="m"/></asset>
  <worldbody><body><joint name="hinge" type="hinge" axis="0 1 0"/>
    <geom type="capsule" fromto="0 0 0 0 0 -1" size="0.05" material="m"/></body></worldbody>
  <actuator><motor joint="hinge" ctrlrange="-1 1"/></actuator></mujoco>
"""


@dataclasses.dataclass(frozen=True)
class Finding:
    """One line of the report.

    Attributes:
      name: what was looked at.
      value: what was found.
      ok: whether it works; None where it is only missing (an engine for other hardware, say).
      advice: what to do about it, or "".
    """

    name: str
    value: str
    ok: bool | None = True
    advice: str = ""


def examine() -> Iterator[Finding]:
    """All findings, as they are made. Nothing raises: what fails becomes a finding with ``ok=False``."""
    for check in CHECKS:
        try:
            yield from check()
        except Exception as error:  # a doctor reports whatever happens
            yield Finding(check.__name__, f"{type(error).__name__}: {error}".splitlines()[0], False)


def versions() -> Iterator[Finding]:
    """Python and the packages that matter; missing ones are failures."""
    yield Finding("python", f"{platform.python_version()} at {sys.executable}")
    found, missing = [], []
    for name in PACKAGES:
        try:
            found.append(f"{name} {importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            missing.append(name)
    yield Finding("packages", ", ".join(found))
    if missing:
        yield Finding("packages", "missing: " + ", ".join(missing), False, "pip install mjxlab")


def machine() -> Iterator[Finding]:
    """System and cores."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    yield Finding("machine", f"{platform.system()} {platform.machine()}, {cores} cores")


def devices() -> Iterator[Finding]:
    """What JAX sees, and the accelerators that it does not see."""
    import jax

    found = jax.devices()
    yield Finding("devices", f"{len(found)} x {found[0].device_kind} ({jax.default_backend()})")
    if jax.default_backend() == "cpu" and shutil.which("nvidia-smi"):
        yield Finding("gpu", "an NVIDIA driver is here, but JAX runs on the CPU", None, "pip install 'mjxlab[cuda]'")


def precision() -> Iterator[Finding]:
    """Settings that change numbers."""
    import jax

    x64 = "on" if jax.config.jax_enable_x64 else "off"
    matmul = jax.config.jax_default_matmul_precision or "default"
    yield Finding("precision", f"x64 {x64}, matmul precision {matmul}")
    flags = os.environ.get("XLA_FLAGS", "")
    if "xla_cpu_use_fusion_emitters" in flags:
        advice = "unset it: mjxlab gives this option to the programs that need it, and newer JAX dies of it"
        yield Finding("XLA_FLAGS", flags, None, advice)


def cache() -> Iterator[Finding]:
    """Where compiled programs are kept between runs."""
    import jax

    path = jax.config.jax_compilation_cache_dir
    yield Finding("compilation cache", str(path or "off until a run starts"))


def engines() -> Iterator[Finding]:
    """Which physics engines can be made here."""
    from mjxlab.errors import MjxlabError
    from mjxlab.physics import make_engine

    for kind in ("mujoco", "mjx", "warp"):
        try:
            make_engine(_PENDULUM, kind)
        except (MjxlabError, ImportError) as error:
            required = kind == "mujoco"
            advice = "" if required else {"mjx": "pip install mujoco-mjx", "warp": "pip install 'mjxlab[warp]'"}[kind]
            yield Finding(f"engine {kind}", str(error).splitlines()[0], False if required else None, advice)
        else:
            yield Finding(f"engine {kind}", "ready")


def smoke(seconds: float = 1.0) -> Iterator[Finding]:
    """Step 64 pendulums inside a compiled program for a second."""
    import jax
    import jax.numpy as jnp

    from mjxlab import physics

    engine = physics.make_engine(_PENDULUM, outputs=("qpos",))
    n, steps = 64, 50
    start = time.perf_counter()
    data = jax.vmap(lambda q: engine.init({}, qpos=q))(jnp.linspace(-1.0, 1.0, n)[:, None])
    control = jnp.zeros((n, 1))

    def advance(data: physics.Data) -> physics.Data:
        step = jax.vmap(lambda d, u: engine.step(d, {}, u, 1))
        return jax.lax.fori_loop(0, steps, lambda _, d: step(d, control), data)

    program = physics.jit(advance)
    data = jax.block_until_ready(program(data))
    first = time.perf_counter() - start
    done, start = 0, time.perf_counter()
    while time.perf_counter() - start < seconds:
        data = jax.block_until_ready(program(data))
        done += 1
    rate = done * steps * n / (time.perf_counter() - start)
    finite = bool(jnp.isfinite(data.qpos).all())
    yield Finding("smoke", f"{engine.kind}: {rate:,.0f} steps/s of {n} pendulums, first call {first:.1f} s", finite)


def opengl() -> Iterator[Finding]:
    """Whether MuJoCo's own renderer works, and the live viewer could."""
    from mjxlab.physics.render import gl

    reason = gl.unavailable()
    if reason is None:
        yield Finding("OpenGL", f"works ({gl.backend()})")
    else:
        advice = "not needed, the JAX ray caster draws too; for MuJoCo's renderer: apt install libosmesa6 or libegl1"
        yield Finding("OpenGL", " ".join(reason.split()), None, advice)
    shown = os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY") or platform.system() == "Darwin"
    yield Finding("display", "yes" if shown else "none: the live viewer needs one", True if shown else None)


def tracking() -> Iterator[Finding]:
    """Weights & Biases: used only when asked for."""
    if importlib.util.find_spec("wandb") is None:
        yield Finding("wandb", "not installed", None, "pip install wandb")
        return
    netrc = pathlib.Path(os.environ.get("NETRC", pathlib.Path.home() / ".netrc"))
    logged_in = bool(os.environ.get("WANDB_API_KEY")) or (netrc.is_file() and "wandb" in netrc.read_text())
    mode = os.environ.get("WANDB_MODE", "online" if logged_in else "offline")
    yield Finding("wandb", f"installed, {'logged in' if logged_in else 'not logged in'}; a run with it would be {mode}")


CHECKS = (versions, machine, devices, precision, cache, engines, smoke, opengl, tracking)
