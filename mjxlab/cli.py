"""The command line: ``mjxlab list | train | evaluate | reproduce | sweep | render | bench | assets | doctor``.

Exit codes: 0 all is well; 1 work was lost, or a check or a study's criterion failed; 2 the command cannot be carried out
as given (unknown name, bad flag, bad config, bad file); 130 interrupted by Ctrl-C; 143 ended by SIGTERM after saving.
Errors that a user can cause are one line on stderr; ``--debug`` shows where they were raised.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence

from mjxlab.errors import MjxlabError, WorkLostError

COMMANDS = {
    "list": "environments, agents and studies by name",
    "train": "train an agent on an environment, or go on with a run",
    "evaluate": "play a trained policy, also on another physics engine",
    "reproduce": "run a study: its tables, and whether its criteria hold",
    "sweep": "many seeds and settings of an agent in one program",
    "render": "a GIF of a trained policy, or of an environment",
    "bench": "speed side by side with rivals: env, + inference, + training",
    "assets": "real data and weights: what there is, and fetch it",
    "doctor": "what is installed, what works here, what to do about the rest",
}

HELP = """\
usage: mjxlab COMMAND [arguments] [--debug]

{commands}

examples:
  mjxlab train ppo arm_reach --gif
  mjxlab train ppo ant --env-steps 1000000 --run-dir runs/ant --config.lr 3e-4
  mjxlab evaluate runs/ant --episodes 100 --engine mjx
  mjxlab render runs/ant --out ant.gif
  mjxlab reproduce selfcheck
  mjxlab sweep ppo pendulum --seeds 0 1 2 --lr 1e-4 3e-4 1e-3
  mjxlab list envs --tag goal

`mjxlab COMMAND --help` tells more. Exit codes: 0 fine, 1 work lost, or a check or a criterion failed, 2 usage error,
130 Ctrl-C, 143 SIGTERM (the run was saved and goes on when called again)."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code.

    Args:
      argv: arguments without the program's name; those of the process by default.
    """
    code = _main(list(sys.argv[1:] if argv is None else argv))
    try:
        sys.stdout.flush()  # here, where what goes wrong can be told, rather than when Python ends
    except BrokenPipeError:
        _to_nowhere()
    except OSError as error:
        _to_nowhere()
        code = fail(f"standard output: {error.strerror or error}", 1)
    return code


def _main(words: list[str]) -> int:
    debug = "--debug" in words
    words = [word for word in words if word != "--debug"]
    try:
        return run(words)
    except MjxlabError as error:
        if debug:
            raise
        return fail(str(error), 1 if isinstance(error, WorkLostError) else 2)
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # `mjxlab list | head`
        _to_nowhere()
        return 0
    except OSError as error:
        if debug:
            raise
        return fail(f"{error.filename or 'input/output'}: {error.strerror or error}", 1)


def _to_nowhere() -> None:
    """Standard output to the null device: nobody reads it, and Python would complain at its end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def run(words: list[str]) -> int:
    """Dispatch to ``mjxlab.commands``."""
    if not words or words[0] in ("-h", "--help", "help"):
        width = max(map(len, COMMANDS))
        print(HELP.format(commands="\n".join(f"  {name:{width}}  {text}" for name, text in COMMANDS.items())))
        return 0 if words else 2
    if words[0] in ("--version", "version"):
        import mjxlab

        print(f"mjxlab {mjxlab.__version__}")
        return 0
    if words[0] not in COMMANDS:
        return fail(f"unknown command {words[0]!r}; expected one of {', '.join(COMMANDS)}", 2)
    command = importlib.import_module(f"mjxlab.commands.{words[0]}")
    return int(command.main(words[1:]))


def fail(message: str, code: int) -> int:
    """Print one line to stderr and give the exit code back."""
    print("mjxlab: error: " + " ".join(message.split()), file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
