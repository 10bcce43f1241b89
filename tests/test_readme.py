"""What the README says works as it stands there."""

from __future__ import annotations

import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text()


@pytest.mark.slow
def test_python_blocks_run_in_order(run_python, tmp_path: pathlib.Path) -> None:
    """All of them in one process, in an empty folder, with the settings of a user."""
    blocks = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    assert len(blocks) >= 4
    code = f"import os; os.chdir({str(tmp_path)!r})\n" + "\n".join(blocks)
    run_python(code, timeout=580)
    assert (tmp_path / "runs" / "mine" / "run.json").exists()


def test_links_lead_somewhere() -> None:
    targets = re.findall(r"\]\(([^)#]+)\)", README)
    missing = [t for t in targets if "://" not in t and not (ROOT / t).exists()]
    assert missing == []


def test_commands_exist() -> None:
    from mjxlab.cli import COMMANDS

    named = set(re.findall(r"^mjxlab (\w+)", README, re.MULTILINE)) | set(re.findall(r"`mjxlab (\w+)", README))
    assert named
    assert named <= set(COMMANDS)
    makefile = (ROOT / "Makefile").read_text()
    for target in re.findall(r"^make ([\w-]+)", README, re.MULTILINE):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target


def test_systems_table_is_honest() -> None:
    """Every row is planned, or names a module that can be imported; every agent of the catalogue has a row."""
    from mjxlab import catalogue

    rows = [line.split("|")[1:-1] for line in README.partition("## Systems")[2].partition("\n## ")[0].splitlines()]
    states = {row[2].strip().strip("`"): row[3].strip() for row in rows if len(row) == 4}
    available = {where for where, state in states.items() if state == "available"}
    assert {system.module for system in catalogue.systems().values()} == available
    assert set(states.values()) <= {"state", "---", "available", "planned"}
