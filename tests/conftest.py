"""Settings of the whole suite, after equinox: strict promotion, several devices, and types checked while tests run.

Everything here happens before the first ``import mjxlab`` and before JAX starts a backend.

* ``jax_numpy_dtype_promotion=strict`` and ``jax_numpy_rank_promotion=raise``: no silent promotion in our code. Third
  parties that promote are called inside ``mjxlab._compat.lenient()``.
* Two CPU devices. A test that wants another number starts a subprocess (fixture ``run_python``).
* One compilation cache for the suite and its subprocesses, kept between runs.
* jaxtyping and beartype check the annotations of every function in every ``mjxlab`` module as it is called: an
  annotation must be true, also under ``vmap`` (where a function sees one world).
* A test marked ``x64`` runs inside ``jax.enable_x64(True)``; one marked ``gl`` is skipped where OpenGL is missing.
"""

from __future__ import annotations

import ast
import copy
import gc
import importlib.machinery
import os
import pathlib
import subprocess
import sys
import types
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
from beartype import BeartypeConf, beartype
from jaxtyping import jaxtyped

jax.config.update("jax_num_cpu_devices", 2)
jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")


# An int may stand for a float, as PEP 484 and every static checker have it.
_checked = types.ModuleType("_mjxlab_checked")
_checked.check = jaxtyped(typechecker=beartype(conf=BeartypeConf(is_pep484_tower=True)))
sys.modules[_checked.__name__] = _checked


class _Decorate(ast.NodeTransformer):
    """Put ``@jaxtyped(typechecker=beartype)`` innermost on every function and method.

    Not on classes: a flax dataclass is rebuilt through its ``__init__`` by every ``jax.tree.map``, with batched arrays,
    shapes, shardings or plain markers for fields.
    """

    decorator = ast.parse("__import__('_mjxlab_checked').check", mode="eval").body

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.FunctionDef:
        self.generic_visit(node)
        node.decorator_list.append(ast.copy_location(copy.deepcopy(self.decorator), node))
        return node


class _CheckedLoader(importlib.machinery.SourceFileLoader):
    """Loads a module with its annotations enforced. Nothing is read from or written to ``__pycache__``."""

    def get_code(self, fullname: str) -> types.CodeType:
        path = self.get_filename(fullname)
        return self.source_to_code(self.get_data(path), path)

    def source_to_code(self, data, path, *args, **kwargs) -> types.CodeType:
        tree = ast.fix_missing_locations(_Decorate().visit(ast.parse(data, path)))
        return compile(tree, path, "exec", dont_inherit=True)


class _CheckedFinder:
    """First on ``sys.meta_path``; asks all the others, then swaps the loader.

    jaxtyping's own hook asks ``PathFinder`` alone, which in an editable install knows nothing of ``envs/`` being
    ``mjxlab.envs``: setuptools appends a finder of its own for that.
    """

    @classmethod
    def find_spec(cls, fullname: str, path=None, target=None) -> importlib.machinery.ModuleSpec | None:
        if fullname.split(".")[0] != "mjxlab":
            return None
        for finder in sys.meta_path:
            spec = None if finder is cls else finder.find_spec(fullname, path, target)
            if spec is not None:
                if type(spec.loader) is importlib.machinery.SourceFileLoader:
                    spec.loader = _CheckedLoader(spec.loader.name, spec.loader.path)
                return spec
        return None


assert "mjxlab" not in sys.modules, "mjxlab was imported before its annotations could be checked"
sys.meta_path.insert(0, _CheckedFinder)


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


@pytest.fixture(autouse=True)
def _gl(request: pytest.FixtureRequest) -> None:
    """Skip tests marked ``gl`` where no OpenGL context can be made."""
    if request.node.get_closest_marker("gl") is not None:
        from mjxlab.physics.render import gl

        if reason := gl.unavailable():
            pytest.skip(reason)


@pytest.fixture(autouse=True, scope="module")
def _forget_programs() -> Iterator[None]:
    """Free a module's compiled programs at its end: they would add up to gigabytes over the suite."""
    yield
    jax.clear_caches()
    gc.collect()
