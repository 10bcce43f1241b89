"""Settings of the whole suite, after equinox: strict promotion, several devices, and types checked while tests run.

Everything here happens before the first ``import mjxlab`` and before JAX starts a backend.

* ``jax_numpy_dtype_promotion=strict`` and ``jax_numpy_rank_promotion=raise``: no silent promotion in our code. Third
  parties that promote are called inside ``mjxlab._compat.lenient()``.
* Two CPU devices. A test that wants another number starts a subprocess (fixture ``run_python``).
* One compilation cache for the suite and its subprocesses, kept between runs.
* jaxtyping and beartype check every annotation of every ``mjxlab`` module at run time: an annotation must be true.
* A test marked ``x64`` runs inside ``jax.enable_x64(True)``; one marked ``gl`` is skipped where OpenGL is missing.
"""

from __future__ import annotations

import functools
import gc
import os
import pathlib
import subprocess
import sys
from collections.abc import Callable, Iterator

ROOT = pathlib.Path(__file__).resolve().parent.parent

# For this process and every subprocess that a test starts.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(ROOT / ".pytest_cache" / "jax"))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.3")
os.environ.setdefault("WANDB_MODE", "offline")
os.environ.setdefault("MPLBACKEND", "agg")

import jax
import pytest
from jaxtyping import install_import_hook

jax.config.update("jax_num_cpu_devices", 2)
jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")


def _check_types_of(package: str) -> None:
    """Install jaxtyping's import hook so that it sees every module of ``package``, however it was installed.

    jaxtyping wraps the first finder on ``sys.meta_path`` that is a class called ``PathFinder``. In an editable
    install, packages that lie elsewhere (``envs/`` as ``mjxlab.envs``) are found by a finder that setuptools
    appends, which the hook would never ask. So we show it a finder of that name which asks them all.
    """
    finders = list(sys.meta_path)

    class PathFinder:
        @staticmethod
        def find_spec(fullname: str, path=None, target=None):
            for finder in finders:
                spec = finder.find_spec(fullname, path, target)
                if spec is not None:
                    return spec
            return None

    sys.meta_path.insert(0, PathFinder)
    install_import_hook(package, "beartype.beartype")
    sys.meta_path.remove(PathFinder)


assert "mjxlab" not in sys.modules, "mjxlab was imported before the type-checking hook was installed"
_check_types_of("mjxlab")


@pytest.fixture
def getkey() -> Callable[[], jax.Array]:
    """A function that gives a new typed key at every call, the same sequence in every run."""
    calls = 0

    def key() -> jax.Array:
        nonlocal calls
        calls += 1
        return jax.random.key(calls)

    return key


@pytest.fixture
def run_python() -> Callable[..., subprocess.CompletedProcess[str]]:
    """``run_python(code, devices=8, x64=False, env={}, timeout=300, check=True)``: run code in a fresh interpreter.

    It starts with the package's default settings (no strict promotion, no type checking): what a user has.
    """

    def run(
        code: str,
        *,
        devices: int = 1,
        x64: bool = False,
        env: dict[str, str] | None = None,
        timeout: float = 300.0,
        check: bool = True,
    ) -> subprocess.CompletedProcess[str]:
        full = os.environ | {"JAX_NUM_CPU_DEVICES": str(devices), "JAX_ENABLE_X64": "1" if x64 else "0"} | (env or {})
        done = subprocess.run(
            [sys.executable, "-c", code], env=full, timeout=timeout, capture_output=True, text=True, check=False
        )
        if check and done.returncode:
            raise AssertionError(f"exit {done.returncode}\n{done.stdout}\n{done.stderr}")
        return done

    return run


@pytest.fixture(autouse=True)
def _x64(request: pytest.FixtureRequest) -> Iterator[None]:
    """Double precision for tests marked ``x64``."""
    if request.node.get_closest_marker("x64") is None:
        yield
    else:
        with jax.enable_x64(True):
            yield


@functools.lru_cache(maxsize=1)
def _has_gl() -> bool:
    code = (
        "import mjxlab.physics, mujoco\n"
        "m = mujoco.MjModel.from_xml_string('<mujoco><worldbody/></mujoco>')\n"
        "r = mujoco.Renderer(m, 8, 8); r.update_scene(mujoco.MjData(m)); r.render(); r.close()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=120, check=False)
    return done.returncode == 0


@pytest.fixture(autouse=True)
def _gl(request: pytest.FixtureRequest) -> None:
    """Skip tests marked ``gl`` where no OpenGL context can be made (asked once, in a process of its own)."""
    if request.node.get_closest_marker("gl") is not None and not _has_gl():
        pytest.skip("no OpenGL: install libegl1 or libosmesa6")


@pytest.fixture(autouse=True, scope="module")
def _forget_programs() -> Iterator[None]:
    """Free a module's compiled programs at its end: they would add up to gigabytes over the suite."""
    yield
    jax.clear_caches()
    gc.collect()
