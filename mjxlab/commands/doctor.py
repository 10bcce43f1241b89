"""``mjxlab doctor``."""

from __future__ import annotations

import dataclasses

from mjxlab.commands.parse import parse


@dataclasses.dataclass
class Options:
    """What is installed, what works here, and what to do about the rest.

    Exits with 1 if something that mjxlab needs does not work. example: mjxlab doctor
    """


def main(words: list[str]) -> int:
    """Print the findings as they are made."""
    parse(Options, words, "doctor")
    from mjxlab.doctor import examine

    marks = {True: "ok", False: "FAILS", None: "-"}
    worst = 0
    for finding in examine():
        print(f"{marks[finding.ok]:5}  {finding.name:18} {finding.value}", flush=True)
        if finding.advice:
            print(f"{'':26}-> {finding.advice}", flush=True)
        worst = max(worst, finding.ok is False)
    return int(worst)
