"""Runs a rival's script with its stdout kept free: ``python _start.py run_NAME.py SETTINGS``.

Packages print to stdout already while they are imported. So, before anything is, the stream that the requests' answers
go to is put aside, and whatever is printed goes to stderr.
"""

from __future__ import annotations

import os
import runpy
import sys

if __name__ == "__main__":
    os.environ["MJXLAB_BENCH_ANSWERS"] = str(os.dup(1))
    os.dup2(2, 1)
    del sys.argv[0]
    runpy.run_path(sys.argv[0], run_name="__main__")
