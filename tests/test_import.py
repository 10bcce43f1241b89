"""The package as an import: quick, lazy, and type-checked in this suite."""

from __future__ import annotations

import importlib
import pathlib

import jax.numpy as jnp
import pytest

PACKAGES = ["mjxlab", "mjxlab.envs", "mjxlab.agents", "mjxlab.theory", "mjxlab.rl", "mjxlab.nn", "mjxlab.physics"]


@pytest.mark.parametrize("package", PACKAGES)
def test_annotations_are_checked_in(package: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A module dropped into the package has its annotations enforced, which proves that the hook is active there."""
    found = importlib.import_module(package)
    name = "hook_probe"
    (tmp_path / f"{name}.py").write_text(
        "from __future__ import annotations\n"
        "from jaxtyping import Array, Float\n"
        "def same(x: Float[Array, 'n'], y: Float[Array, 'n']) -> int:\n"
        "    return 1\n"
    )
    monkeypatch.setattr(found, "__path__", [*found.__path__, str(tmp_path)])
    probe = importlib.import_module(f"{package}.{name}")

    assert probe.same(jnp.ones(3), jnp.ones(3)) == 1
    with pytest.raises(Exception, match="same"):
        probe.same(jnp.ones(3), jnp.ones(4))
    with pytest.raises(Exception, match="same"):
        probe.same(3, jnp.ones(4))


@pytest.mark.parametrize("module", ["mjxlab.learner", "mjxlab.spmd", "mjxlab.envs.base"])
def test_our_own_modules_went_through_the_hook(module: str) -> None:
    loader = importlib.import_module(module).__spec__.loader
    assert type(loader).__name__ == "_CheckedLoader"


HEAVY = ("brax", "gymnax", "distrax", "mujoco.mjx", "wandb", "orbax", "matplotlib", "tensorboardX", "sklearn")


def test_import_is_light(run_python) -> None:
    """Rooms load on first use, and heavy third parties only when something of theirs is called."""
    code = (
        "import sys, time\n"
        "start = time.process_time()\n"
        "import mjxlab\n"
        "print(time.process_time() - start)\n"
        "mjxlab.make, mjxlab.vectorize, mjxlab.Learner, mjxlab.register, mjxlab.check_env\n"
        f"print([name for name in {HEAVY!r} if name in sys.modules])\n"
    )
    seconds, heavy = run_python(code).stdout.splitlines()
    assert heavy == "[]"
    assert float(seconds) < 3


def test_public_names_exist() -> None:
    import mjxlab

    for name in mjxlab.__all__:
        assert getattr(mjxlab, name) is not None
    assert set(mjxlab.__all__) <= set(dir(mjxlab))
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = mjxlab.nothing
