"""What is shipped: the wheel is whole, constraints pin what is needed, and the source keeps its promises."""

from __future__ import annotations

import ast
import pathlib
import re
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import venv
import zipfile

import pytest
from packaging.requirements import Requirement

ROOT = pathlib.Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
ROOMS = ("mjxlab", "envs", "agents", "theory")


def shipped_as(path: pathlib.Path) -> str:
    """Where a file of the repository lies in the wheel."""
    name = path.relative_to(ROOT).as_posix()
    return name if name.startswith("mjxlab/") else f"mjxlab/{name}"


def tracked() -> list[pathlib.Path]:
    """Files of the four rooms that git tracks; all of them, where this is no git checkout."""
    done = subprocess.run(["git", "ls-files", *ROOMS], cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode == 0 and done.stdout:
        return [path for path in map(ROOT.joinpath, done.stdout.splitlines()) if path.exists()]
    return [path for room in ROOMS for path in (ROOT / room).rglob("*") if path.is_file() and path.suffix != ".pyc"]


SOURCES = [path for path in tracked() if path.suffix == ".py"]


def test_every_package_is_listed() -> None:
    found = {
        shipped_as(path).removesuffix("/__init__.py").replace("/", ".")
        for path in SOURCES
        if path.name == "__init__.py"
    }
    assert found == set(PROJECT["tool"]["setuptools"]["packages"])


def test_every_module_lies_in_a_package() -> None:
    folders = {path.parent for path in SOURCES}
    assert [folder for folder in folders if not (folder / "__init__.py").exists()] == []


def pins(version: str) -> dict[str, str]:
    """``{distribution: version}`` that constraints.txt gives for one Python."""
    lines = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if line and line[0] != "#"]
    requirements = [Requirement(line) for line in lines]
    return {
        canonical(r.name): str(r.specifier).removeprefix("==")
        for r in requirements
        if r.marker is None or r.marker.evaluate({"python_version": version})
    }


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


@pytest.mark.parametrize("python", ["3.11", "3.12", "3.13"])
def test_constraints_pin_every_dependency_within_its_range(python: str) -> None:
    pinned = pins(python)
    wanted = PROJECT["project"]["dependencies"] + PROJECT["project"]["optional-dependencies"]["dev"]
    for requirement in map(Requirement, wanted):
        assert requirement.specifier.contains(pinned[canonical(requirement.name)]), requirement
    assert "tfp-nightly" in pinned  # a nightly, through distrax: another one every day unless pinned


def test_constraints_hold_no_addresses() -> None:
    text = (ROOT / "constraints.txt").read_text()
    assert not re.search(r"://|--(extra-)?index|--hash|@ ", text)


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_source_keeps_its_promises(path: pathlib.Path) -> None:
    """No private JAX, no pmap, no pickle, no unsafe loading; the environment of the process is read, not guessed."""
    for node in ast.walk(ast.parse(path.read_text())):
        where = f"{path.name}:{getattr(node, 'lineno', '?')}"
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = [alias.name for alias in node.names]
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert not any(name.startswith("jax._src") for name in names), where
            assert not {"pickle", "cloudpickle", "dill", "shelve", "joblib"} & set(names), where
        if isinstance(node, ast.Attribute):
            assert node.attr not in ("_src", "pmap"), where
        if isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            assert called not in ("yaml.load", "yaml.unsafe_load", "eval", "exec"), where
            unsafe = [k for k in node.keywords if k.arg == "allow_pickle" and ast.unparse(k.value) != "False"]
            assert not unsafe, where


def test_modules_are_short() -> None:
    long = {path.name: lines for path in SOURCES if (lines := path.read_text().count("\n")) > 500}
    assert long == {}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """Built from a copy, so that neither old files in build/ nor another worker can interfere."""
    folder, copy = tmp_path_factory.mktemp("wheel"), tmp_path_factory.mktemp("source")
    for path in [*tracked(), *(ROOT / name for name in ("pyproject.toml", "README.md", "LICENSE"))]:
        target = copy / path.relative_to(ROOT)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "wheel", "-qq", "--no-deps"]
    subprocess.run([*pip, "--no-build-isolation", "-w", str(folder), str(copy)], check=True)
    (built,) = folder.glob("*.whl")
    return built


@pytest.mark.slow
def test_wheel_holds_every_tracked_file(wheel: pathlib.Path) -> None:
    inside = set(zipfile.ZipFile(wheel).namelist())
    assert [name for name in map(shipped_as, tracked()) if name not in inside] == []
    assert "mjxlab/py.typed" in inside
    assert [name for name in inside if name.startswith(("tests/", "envs/", "agents/", "theory/"))] == []


@pytest.mark.slow
def test_wheel_works_in_a_clean_environment(wheel: pathlib.Path, tmp_path: pathlib.Path) -> None:
    """The wheel alone, beside the third parties of this environment but without its (editable) mjxlab."""
    venv.create(tmp_path / "venv", with_pip=False)
    python = tmp_path / "venv" / "bin" / "python"
    command = [str(python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
    site = pathlib.Path(subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip())
    zipfile.ZipFile(wheel).extractall(site)
    # a path in a .pth file is searched, but .pth files in it (the editable install's) are not read
    (site / "third_parties.pth").write_text(sysconfig.get_path("purelib") + "\n")
    code = (
        "import jax, mjxlab, mjxlab.cli, mjxlab.agents.ppo, mjxlab.theory\n"
        f"assert mjxlab.__file__.startswith({str(site)!r}), mjxlab.__file__\n"
        f"assert mjxlab.envs.__file__.startswith({str(site)!r}), mjxlab.envs.__file__\n"
        "env = mjxlab.make('pendulum')\n"
        "print(jax.jit(env.reset)(jax.random.key(0)).obs.shape, mjxlab.__version__)\n"
        "raise SystemExit(mjxlab.cli.main(['list']))\n"
    )
    done = subprocess.run([str(python), "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert PROJECT["project"]["version"] in done.stdout
    assert "pendulum" in done.stdout
