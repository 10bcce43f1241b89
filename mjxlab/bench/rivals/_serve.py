"""The worker's side of the line protocol. Standard library only.

A script calls ``serve(measures, versions)``. The first line on stdout says that it is ready and what it can measure:

    {"ready": true, "measures": ["env", …], "versions": {…}}

Then each line on stdin is a request and gets one line back:

    {"measure": "env", "seconds": 1.0}                        -> {"steps": n, "seconds": s, "compile": c}
    {"measure": "return", "env_steps": 100000, "seed": 0}     -> {"return": r, "env_steps": n}

``steps`` are control steps of all worlds together, ``seconds`` what they took, ``compile`` what the first use took to
be ready (0 later). What cannot be done is answered by {"error": "…"}. The end of stdin ends the worker.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

# makes some steps, waits until they are done, and gives their number; or their number and seconds, where the rival
# keeps the time itself
Burst = Callable[[], Any]


def timed(burst: Burst, seconds: float) -> tuple[int, float]:
    """Call ``burst`` until at least ``seconds`` have passed. Returns steps made and seconds taken."""
    steps, spent = 0, 0.0
    while spent < seconds or steps == 0:
        begun = time.perf_counter()
        made = burst()
        took = time.perf_counter() - begun
        if isinstance(made, tuple):
            made, took = made
        steps, spent = steps + int(made), spent + float(took)
    return steps, spent


class Measures:
    """Bursts by name, each made (and so compiled) when first asked for, and then called once more as a warm-up."""

    def __init__(self, makers: dict[str, Callable[[], Burst]]) -> None:
        self.makers = makers
        self._made: dict[str, Burst] = {}

    def run(self, measure: str, seconds: float) -> dict[str, float]:
        """Steps, seconds and compile seconds of one measurement."""
        compiled = 0.0
        if measure not in self._made:
            begun = time.perf_counter()
            burst = self.makers[measure]()
            burst()
            compiled = time.perf_counter() - begun
            burst()
            self._made[measure] = burst
        steps, spent = timed(self._made[measure], seconds)
        return {"steps": steps, "seconds": spent, "compile": compiled}


def serve(
    makers: dict[str, Callable[[], Burst]],
    versions: dict[str, str],
    learned: Callable[[int, int], dict[str, float]] | None = None,
) -> None:
    """Answer requests until stdin ends.

    Args:
      makers: ``makers[measure]()`` gives the burst; it may take its time to compile.
      versions: of the packages that matter.
      learned: ``learned(env_steps, seed)`` trains and gives ``{"return": …, "env_steps": …}``.
    """
    # what the rival prints must not get between the lines; `_start.py` has seen to it already
    kept = os.environ.get("MJXLAB_BENCH_ANSWERS")
    answers = os.fdopen(os.dup(1) if kept is None else int(kept), "w")
    os.dup2(2, 1)

    def say(answer: dict[str, Any]) -> None:
        answers.write(json.dumps(answer) + "\n")
        answers.flush()

    measures = Measures(makers)
    say({"ready": True, "measures": sorted(makers), "versions": versions})
    for line in sys.stdin:
        request = json.loads(line)
        try:
            if request["measure"] == "return":
                if learned is None:
                    raise ValueError("returns are not measured")
                say(learned(int(request["env_steps"]), int(request["seed"])))
            else:
                say(measures.run(request["measure"], float(request["seconds"])))
        except Exception as error:
            say({"error": f"{type(error).__name__}: {error}"[:500]})
    answers.close()
    os._exit(0)  # a rival may have left threads that would never end


def settings() -> dict[str, Any]:
    """The task's settings, from the command line."""
    found: dict[str, Any] = json.loads(sys.argv[1])
    return found


def versions_of(*names: str) -> dict[str, str]:
    """Of installed distributions."""
    from importlib.metadata import PackageNotFoundError, version

    found = {"python": ".".join(map(str, sys.version_info[:3]))}
    for name in names:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found
