"""Speed side by side: ours and rivals, in control steps per second, as interleaved pairs.

Three columns for each task, the form that Isaac Lab's documentation uses: the environment alone under random actions
(``env``), with a policy that acts (``inference``), and with learning (``training``, whole updates). Compile time stands
apart. A rival runs in a virtual environment of its own, as a subprocess that answers one JSON line per request
(``rivals/_serve.py``); it is started once, warmed up, and takes turns with ours.

``tasks`` says which settings are compared, ``pairs`` has the statistics, ``ours`` and ``worker`` the two sides, ``venvs``
builds the rivals' environments, ``run`` puts it together, ``report`` prints.
"""

from __future__ import annotations
