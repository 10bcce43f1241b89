"""A virtual environment for each rival, with pinned versions: their requirements clash with ours and with each other."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys
from collections.abc import Callable, Iterable

from mjxlab.errors import ConfigError

#: What each rival's environment holds. Why the odd ones: rejax 0.1.3 unpacks gymnax 0.0.9's five values of a step;
#: gymnax 1.0.1 imports six without asking for it;
#: Brax and Playground want the MuJoCo for which their MJX was made.
REQUIREMENTS: dict[str, tuple[str, ...]] = {
    "brax": ("brax==0.14.2", "mujoco==3.17.0", "mujoco-mjx==3.17.0", "jax==0.10.2", "flax==0.12.8"),
    "playground": (
        "playground==0.2.0",
        "brax==0.14.2",
        "mujoco==3.17.0",
        "mujoco-mjx==3.17.0",
        "jax==0.10.2",
        "flax==0.12.8",
    ),
    "gymnax": ("gymnax==1.0.1", "jax==0.10.2", "six"),
    "rejax": ("rejax==0.1.3", "gymnax==0.0.9", "distrax==0.1.9", "jax==0.10.2", "flax==0.12.8"),
    "sb3": ("torch==2.13.0", "stable-baselines3==2.9.2", "gymnasium==1.3.0"),
    "gymnasium": ("gymnasium[mujoco]==1.3.0", "mujoco==3.17.0"),
    "envpool": ("envpool==1.2.5", "gymnasium==1.3.0"),
}
#: Other names under which an environment may already lie in the folder.
ALIASES = {"playground": ("pg",)}


def python_of(folder: pathlib.Path | None, rival: str) -> pathlib.Path | None:
    """The rival's interpreter within ``folder``, or None."""
    if folder is None:
        return None
    for name in (rival, *ALIASES.get(rival, ())):
        path = folder / name / "bin" / "python"
        if path.exists():
            return path
    return None


def build(
    folder: pathlib.Path, rivals: Iterable[str] = (), *, python: str | None = None, tell: Callable[[str], None] = print
) -> dict[str, str]:
    """Build the environments of ``rivals`` (default: all) in ``folder``; those that are complete stay as they are.

    Args:
      folder: gets one folder per rival.
      rivals: names.
      python: the interpreter to build them with; the running one by default.
      tell: gets a line for each.

    Returns:
      What failed: name and reason, one line each. Nothing else is raised for a package that does not install.

    Raises:
      ConfigError: a name is unknown, or the folder cannot be made.
    """
    wanted = list(rivals) or list(REQUIREMENTS)
    for name in wanted:
        if name not in REQUIREMENTS:
            raise ConfigError(f"rivals: got {name!r}, expected some of {', '.join(REQUIREMENTS)}")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"build-venvs: the folder {folder} cannot be made: {error.strerror}") from error
    failed: dict[str, str] = {}
    for name in wanted:
        place = folder / name
        marker = place / ".complete"
        pins = "\n".join(REQUIREMENTS[name]) + "\n"
        if marker.exists() and marker.read_text() == pins:
            tell(f"{name}: there")
            continue
        steps = [
            [python or sys.executable, "-m", "venv", os.fspath(place)],
            [
                os.fspath(place / "bin" / "python"),
                *("-m pip --disable-pip-version-check --no-input install -qq --no-compile".split()),
                *REQUIREMENTS[name],
            ],
        ]
        reason = ""
        for command in steps:
            reason = _run(command)
            if reason:
                break
        if reason:
            failed[name] = reason
            tell(f"{name}: FAILED: {reason}")
        else:
            marker.write_text(pins)
            tell(f"{name}: built: {' '.join(REQUIREMENTS[name])}")
    return failed


def _run(command: list[str]) -> str:
    """Run it; the reason if it fails, as one line."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=3600)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{command[0]}: {error}"
    if done.returncode == 0:
        return ""
    lines = [line.strip() for line in (done.stderr + done.stdout).splitlines() if line.strip()]
    errors = [line for line in lines if "error" in line.lower()]
    return (errors or lines or [f"exit code {done.returncode}"])[-1][:300]
