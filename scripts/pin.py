"""Write constraints.txt: the exact versions that `make` and CI install, for several Pythons at once.

    python scripts/pin.py python3.11 python3.12 python3.13 > constraints.txt

For each interpreter (the oldest first) pip resolves the package with its dev tools in a dry run; nothing is installed.
Where the interpreters disagree, the lines carry a marker on the Python version. No file names, hashes or addresses.
"""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
HEADER = """\
# Exact versions that `make` and CI install. Written by scripts/pin.py; the ranges are in pyproject.toml.
"""


def resolve(python: str) -> tuple[tuple[int, int], dict[str, str]]:
    """The interpreter's (major, minor) and ``{distribution: version}`` of everything that pip would install."""
    version = subprocess.run(
        [python, "-c", "import sys; print(*sys.version_info[:2])"], check=True, capture_output=True, text=True
    ).stdout.split()
    with tempfile.TemporaryDirectory() as folder:
        venv = Path(folder, "venv")
        subprocess.run([python, "-m", "venv", str(venv)], check=True)
        report = Path(folder, "report.json")
        pip = [str(venv / "bin" / "python"), "-m", "pip", "install", "-qq", "--disable-pip-version-check"]
        subprocess.run(
            [*pip, "--dry-run", "--ignore-installed", "--report", str(report), f"{ROOT}[dev]"],
            check=True,
            stdout=sys.stderr,
        )
        found = [item["metadata"] for item in json.loads(report.read_text())["install"]]
    pins = {item["name"]: item["version"] for item in found if item["name"] != "mjxlab"}
    return (int(version[0]), int(version[1])), pins


def merge(resolved: list[tuple[tuple[int, int], dict[str, str]]]) -> list[str]:
    """One line per distribution and run of Pythons that agree on it, sorted by name."""
    resolved = sorted(resolved, key=lambda pair: pair[0])
    names = sorted({name for _, pins in resolved for name in pins}, key=str.lower)
    lines = []
    for name in names:
        runs = [
            (version, [python for python, _ in group])
            for version, group in itertools.groupby(
                ((python, pins.get(name)) for python, pins in resolved), key=lambda pair: pair[1]
            )
        ]
        for i, (version, pythons) in enumerate(runs):
            if version is None:
                continue
            bounds = []
            if i > 0:
                bounds.append("python_version >= '{}.{}'".format(*pythons[0]))
            if i + 1 < len(runs):
                bounds.append("python_version < '{}.{}'".format(*runs[i + 1][1][0]))
            lines.append(f"{name}=={version}" + (" ; " + " and ".join(bounds) if bounds else ""))
    return lines


if __name__ == "__main__":
    print(HEADER + "\n".join(merge([resolve(python) for python in sys.argv[1:] or [sys.executable]])))
