"""The run folder: ``run.json``, ``metrics.jsonl``, ``curve.png``, ``checkpoints/STEP/``."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import importlib.metadata
import json
import os
import pathlib
import platform
import subprocess
import sys
import types
from collections.abc import Iterator
from typing import Any, TypeVar

import jax

from mjxlab.configs import differences, from_json
from mjxlab.errors import CheckpointError, ConfigError, WorkLostError

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

RECORD = "run.json"
FORMAT = 1
PACKAGES = (
    "mjxlab jax jaxlib flax optax chex distrax orbax-checkpoint mujoco mujoco-mjx brax gymnax gymnasium numpy scipy"
).split()
IDENTITY = ("agent", "env", "env_options", "config", "key", "matmul_precision", "x64")
C = TypeVar("C")
_NAME, _TABLE = ((str, types.NoneType), "a name or null"), ((dict, types.NoneType), "an object or null")
_KINDS: dict[str, tuple[Any, str]] = {
    "agent": _NAME,
    "env": _NAME,
    "env_options": _TABLE,
    "config": (object, "a config"),
    "key": (dict, "an object"),
    "steps": (int, "an integer"),
}


@dataclasses.dataclass(frozen=True)
class Run:
    """A run folder and what its ``run.json`` says.

    Attributes:
      folder: the folder.
      record: the contents of ``run.json``.
    """

    folder: pathlib.Path
    record: dict[str, Any]

    @property
    def checkpoints(self) -> pathlib.Path:
        """Folder of the checkpoints."""
        return self.folder / "checkpoints"

    @property
    def metrics(self) -> pathlib.Path:
        """File of the metrics, a JSON object a line."""
        return self.folder / "metrics.jsonl"

    @property
    def curve(self) -> pathlib.Path:
        """The picture of the run."""
        return self.folder / "curve.png"

    def config(self, cls: type[C], **replace: Any) -> C:
        """The run's config as ``cls``; see ``configs.from_json``."""
        saved = self.record["config"]
        if not isinstance(saved, dict):
            raise ConfigError(f"run_dir: {self.folder / RECORD}: config is {saved!r}, expected a {cls.__name__}")
        return from_json(cls, saved, **replace)

    @classmethod
    def create(cls, folder: str | os.PathLike[str], record: dict[str, Any]) -> Run:
        """Make the folder and write ``run.json``.

        Raises:
          ConfigError: the path is a file, or a folder that holds other things.
          WorkLostError: it cannot be written.
        """
        run = cls(pathlib.Path(folder), record)
        _check_folder(run.folder)
        if (run.folder / RECORD).exists():
            raise ConfigError(f"run_dir: {run.folder} holds a run already, expected a new or empty folder")
        run.write()
        return run

    @classmethod
    def open(cls, folder: str | os.PathLike[str]) -> Run:
        """Read ``run.json``.

        Raises:
          ConfigError: there is no run at the path, or its ``run.json`` is damaged.
        """
        path = pathlib.Path(folder)
        _check_folder(path)
        try:
            record = json.loads((path / RECORD).read_text())
        except FileNotFoundError:
            raise ConfigError(f"run_dir: {path} holds no {RECORD}, expected the folder of a run") from None
        except (OSError, ValueError):
            raise ConfigError(f"run_dir: {path / RECORD} cannot be read, expected JSON") from None
        if not isinstance(record, dict) or record.get("format") != FORMAT:
            raise ConfigError(f"run_dir: {path / RECORD} is not of this version, expected format {FORMAT}")
        for name, (kinds, expected) in _KINDS.items():
            if name not in record or not isinstance(record[name], kinds):
                found = repr(record[name]) if name in record else "nothing"
                raise ConfigError(f"run_dir: {path / RECORD}: {name} is {found}, expected {expected}")
        words = record["key"].get("data")
        if not isinstance(words, list) or not words or not all(type(word) is int for word in words):
            raise ConfigError(f"run_dir: {path / RECORD}: key.data is {words!r}, expected a list of integers")
        return cls(path, record)

    @classmethod
    def start(cls, folder: str | os.PathLike[str], record: dict[str, Any]) -> Run:
        """Create the run, or open the one that is there if it is the same one: agent, environment, config, key.

        Raises:
          ConfigError: as ``create`` and ``open``, and where the run that is there differs; names the fields.
        """
        path = pathlib.Path(folder)
        if not path.is_dir() or not (path / RECORD).exists():
            return cls.create(path, record)
        run = cls.open(path)
        saved, given = ({name: r.get(name) for name in IDENTITY} for r in (run.record, record))
        found = differences(saved, json.loads(json.dumps(given)))
        if found:
            more = f", and {len(found) - 5} more" if len(found) > 5 else ""
            raise ConfigError(
                f"run_dir: {path} holds another run: {', '.join(found[:5])}{more}; "
                "choose another folder, or the settings it was started with"
            )
        return cls(path, {**run.record, "steps": record.get("steps"), "starts": run.record.get("starts", [])})

    def check(self, step: int, meta: dict[str, Any]) -> None:
        """Refuse a checkpoint that another run has made, with the fields in which the two differ.

        Its arrays may have the very same shapes, so that nothing else would tell.

        Args:
          step: the checkpoint's.
          meta: what was saved with it.

        Raises:
          CheckpointError: the config or the key differs from this run's.
        """
        saved, own = ({name: x.get(name) for name in ("config", "key")} for x in (meta, self.record))
        found = differences(saved, json.loads(json.dumps(own)))
        if found:
            more = f", and {len(found) - 5} more" if len(found) > 5 else ""
            told = ", ".join(found[:5]).replace(", given ", ", this run's ")
            raise CheckpointError(f"checkpoint {step}: is of another run than {self.folder}: {told}{more}")

    def started(self, step: int, machine: dict[str, Any]) -> None:
        """Note in ``run.json`` that the run goes on from ``step``, and on what."""
        now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        self.record["starts"] = [*self.record.get("starts", []), {"time": now, "step": step, **machine}]
        self.write()

    @contextlib.contextmanager
    def hold(self) -> Iterator[None]:
        """Keep other trainings out of the folder; the system lets go of it when the process ends, however it does.

        Nothing happens on file systems and systems that have no such locks.

        Raises:
          ConfigError: another training holds it, in this process or another.
        """
        if fcntl is None:
            yield
            return
        handle = os.open(self.folder, os.O_RDONLY)
        try:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise ConfigError(
                    f"run_dir: {self.folder} is being trained in by another process, expected a folder of its own"
                ) from None
            except OSError:
                pass
            yield
        finally:
            os.close(handle)

    def write(self) -> None:
        """Write ``run.json``, whole or not at all.

        Raises:
          WorkLostError: it cannot be written.
        """
        hidden = self.folder / f".{RECORD}"
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with hidden.open("w") as file:
                file.write(json.dumps(self.record, indent=1, allow_nan=False) + "\n")
                file.flush()
                os.fsync(file.fileno())
            os.replace(hidden, self.folder / RECORD)
        except OSError as error:
            hidden.unlink(missing_ok=True)
            raise WorkLostError(f"run_dir: {self.folder / RECORD} could not be written ({error.strerror})") from error


def _check_folder(path: pathlib.Path) -> None:
    try:
        if path.exists() and not path.is_dir():
            raise ConfigError(f"run_dir: {path} is a file, expected a folder")
        above = next((p for p in path.parents if p.exists()), None)
        if above is not None and not above.is_dir():
            raise ConfigError(f"run_dir: {above} is a file, expected a folder")
        if (path / "checkpoints").exists() and not (path / "checkpoints").is_dir():
            raise ConfigError(f"run_dir: {path / 'checkpoints'} is a file, expected a folder")
        if path.is_dir() and not (path / RECORD).exists():
            if any(p.name != f".{RECORD}" for p in path.iterdir()):
                raise ConfigError(f"run_dir: {path} holds other files and no {RECORD}, expected a new or empty folder")
    except OSError as error:
        raise ConfigError(f"run_dir: {path} cannot be read ({error.strerror}), expected a folder") from None


def machine() -> dict[str, Any]:
    """What a run's figures depend on besides its settings: versions, devices, flags, command."""
    device = jax.devices()[0]
    return {
        "versions": {name: version for name in PACKAGES if (version := _version(name))},
        "python": platform.python_version(),
        "platform": platform.platform(),
        "device": {"platform": device.platform, "kind": device.device_kind, "count": jax.device_count()},
        "processes": jax.process_count(),
        "flags": {k: v for k, v in sorted(os.environ.items()) if k.startswith(("XLA_", "JAX_", "MJXLAB_", "MUJOCO_"))},
        "command": [pathlib.Path(sys.argv[0]).name, *sys.argv[1:]],
        "git": _commit(),
    }


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _commit() -> str | None:
    """The commit of the working directory's repository, marked where files were changed; None outside of one."""

    def git(*arguments: str) -> str:
        done = subprocess.run(["git", *arguments], capture_output=True, text=True, timeout=5, check=True)
        return done.stdout.strip()

    try:
        return git("rev-parse", "HEAD") + (" (changed)" if git("status", "--porcelain", "-uno") else "")
    except (OSError, subprocess.SubprocessError):
        return None
