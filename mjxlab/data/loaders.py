"""What is in the files of the asset registry, as NumPy arrays. Each loader takes the folder that holds the members."""

from __future__ import annotations

import csv
import gzip
import lzma
import math
import pathlib
import struct
from typing import Any

import numpy as np

from mjxlab.data import inert
from mjxlab.errors import AssetError

Arrays = dict[str, np.ndarray]


def movielens(folder: pathlib.Path) -> Arrays:
    """MovieLens ratings. Entries ``user``, ``movie`` (int64 ids), ``rating`` (0.5 … 5), ``timestamp`` (s), ``year``
    (NaN where unknown), ``title``, ``genres``: 100,004 each."""
    table = inert.columns(inert.read(lzma.decompress(_one(folder, "movielens.*").read_bytes())))
    names = {"user": "userId", "movie": "movieId"}
    return {k: table[names.get(k, k)] for k in ("user", "movie", "rating", "timestamp", "year", "title", "genres")}


def open_bandit(folder: pathlib.Path, policy: str = "random", campaign: str = "all") -> Arrays:
    """Logged rounds of one campaign under one policy.

    Entries ``item``, ``position`` (0, 1, 2), ``click`` (0 or 1), ``propensity`` (of the item at the position), ``user``
    (codes of four hashed features), ``affinity`` (rounds × items), ``item_context`` (items × 4; the last three are
    codes).

    Args:
      folder: where the members lie.
      policy: ``"random"`` or ``"bts"`` (Bernoulli Thompson sampling).
      campaign: ``"all"``, ``"men"`` or ``"women"``.
    """
    if policy not in ("random", "bts") or campaign not in ("all", "men", "women"):
        raise AssetError(f"open_bandit has no {policy!r}/{campaign!r}; expected random or bts, and all, men or women")
    header, rows = _csv(_one(folder, f"{policy}/{campaign}/{campaign}.csv"))
    at = {name: i for i, name in enumerate(header)}
    columns = list(zip(*rows, strict=True))

    def numbers(name: str, dtype: Any) -> np.ndarray:
        return np.asarray([float(x) for x in columns[at[name]]]).astype(dtype)

    users = [n for n in header if n.startswith("user_feature_")]
    affinity = [n for n in header if n.startswith("user-item_affinity_")]
    items_header, items = _csv(_one(folder, f"{policy}/{campaign}/item_context.csv"))
    items.sort(key=lambda row: int(row[items_header.index("item_id")]))
    features = [[row[items_header.index(f"item_feature_{i}")] for row in items] for i in range(4)]
    context = [np.asarray(features[0], np.float64)] + [_codes(x).astype(np.float64) for x in features[1:]]
    position = numbers("position", np.int64)
    return {
        "item": numbers("item_id", np.int64),
        "position": position - position.min(),
        "click": numbers("click", np.int64),
        "propensity": numbers("propensity_score", np.float64),
        "user": np.stack([_codes(columns[at[n]]) for n in users], 1),
        "affinity": np.stack([numbers(n, np.float64) for n in affinity], 1),
        "item_context": np.stack(context, 1),
    }


def mnist_5k(folder: pathlib.Path) -> Arrays:
    """500 handwritten digits of each class. ``images``: uint8 [5000, 28, 28]; ``labels``: int64 [5000]."""
    text = gzip.decompress(_one(folder, "mnist_5k.csv.gz").read_bytes()).decode()
    table = np.array([line.split(",") for line in text.split()], np.float64)
    return {"images": table[:, :-1].astype(np.uint8).reshape(-1, 28, 28), "labels": table[:, -1].astype(np.int64)}


def tf_binding(folder: pathlib.Path, landscape: str = "SIX6_REF_R1") -> Arrays:
    """Binding of one transcription factor to every DNA sequence of 8 bases (a sequence and its reverse complement bind
    alike). ``sequences``: uint8 [65536, 8], letters ACGT as 0 … 3, in lexical order; ``e_score``, ``median``,
    ``z_score``: float64 [65536]."""
    _, *lines = _one(folder, f"{landscape}_8mers.txt").read_text().splitlines()
    values = np.full((3, 4**8), math.nan)
    for line in lines:
        one, other, *numbers = line.split("\t")
        for word in (one, other):
            values[:, _number(word)] = [float(x) for x in numbers]
    if np.isnan(values[0]).any():
        raise AssetError(f"landscape {landscape!r} lacks {int(np.isnan(values[0]).sum())} of 65536 sequences")
    index = np.arange(4**8)
    sequences = np.stack([(index >> (2 * i)) & 3 for i in range(7, -1, -1)], 1).astype(np.uint8)
    return {"sequences": sequences, "e_score": values[0], "median": values[1], "z_score": values[2]}


def safetensors(folder: pathlib.Path) -> Arrays:
    """The tensors of the one ``.safetensors`` file."""
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    path = _one(folder, "*.safetensors")
    try:
        return dict(load_file(path))
    except SafetensorError as error:
        raise AssetError(f"{path} cannot be read: {error}") from error


def torch_legacy(folder: pathlib.Path) -> Arrays:
    """Tensors (float32, int64) of a PyTorch file of before 1.6: three headers, the tensors' shapes, then raw storages."""
    path = _one(folder, "*.pth")
    with path.open("rb") as file:
        if inert.read(file) != 0x1950A86A20F9469CFC6C:
            raise AssetError(f"{path} is no PyTorch file of the old format")
        inert.read(file)  # version
        if not inert.read(file)["little_endian"]:
            raise AssetError(f"{path} has big-endian numbers, which are not supported")
        tensors = inert.read(file).items
        # of each tensor: its storage's (kind, key), then offset, shape and strides in numbers
        views = {name: (node.args[0].args[0][1:3], *node.args[1:4]) for name, node in tensors.items()}
        kinds = {key: kind.function for (kind, key), *_ in views.values()}
        storages = {}
        for key in inert.read(file):
            (size,) = struct.unpack("<q", file.read(8))
            dtype = {"torch.FloatStorage": "<f4", "torch.LongStorage": "<i8"}.get(kinds[key])
            if dtype is None:
                raise AssetError(f"{path} holds a {kinds[key]}; expected torch.FloatStorage or torch.LongStorage")
            data = file.read(size * np.dtype(dtype).itemsize)
            storages[key] = np.frombuffer(data, dtype)
            if storages[key].size != size:
                raise AssetError(f"{path} is cut short")
    found = {}
    for name, ((_, key), offset, shape, strides) in views.items():
        flat = storages[key][offset:]
        if 1 + sum((n - 1) * s for n, s in zip(shape, strides, strict=True)) > flat.size and 0 not in shape:
            raise AssetError(f"{path}: the tensor {name} reaches beyond its storage")
        steps = [flat.itemsize * s for s in strides]
        found[name] = np.lib.stride_tricks.as_strided(flat, shape, steps, writeable=False).copy()
    return found


def ctranslate2(folder: pathlib.Path) -> Arrays:
    """Variables of a CTranslate2 ``model.bin`` by name; those that are the same array under two names appear twice."""
    dtypes = {0: "<f4", 1: "<i1", 2: "<i2", 3: "<i4", 4: "<f2"}
    path = _one(folder, "model.bin")
    data = path.read_bytes()
    at = 0

    def take(form: str) -> Any:
        nonlocal at
        (value,) = struct.unpack_from("<" + form, data, at)
        at += struct.calcsize("<" + form)
        return value

    def text() -> str:
        nonlocal at
        size = take("H")
        at += size
        return data[at - size : at].rstrip(b"\0").decode()

    try:
        version, _spec, _ = take("I"), text(), take("I")
        if version != 6:
            raise AssetError(f"{path} has version {version}; expected 6")
        found: Arrays = {}
        for _ in range(take("I")):
            name = text()
            shape = tuple(take("I") for _ in range(take("B")))
            kind, size = take("B"), take("I")
            if kind not in dtypes:
                raise AssetError(f"{path}: {name} has type {kind}; expected one of {sorted(dtypes)}")
            found[name] = np.frombuffer(data[at : at + size], dtypes[kind]).reshape(shape)
            at += size
        for _ in range(take("I")):
            alias = text()
            found[alias] = found[text()]
    except (struct.error, ValueError, KeyError, UnicodeDecodeError) as error:
        raise AssetError(f"{path} is no CTranslate2 model, or is cut short: {error}") from error
    return found


def _one(folder: pathlib.Path, pattern: str) -> pathlib.Path:
    """The one file below ``folder`` that matches."""
    found = sorted(folder.rglob(pattern)) if "/" not in pattern else sorted(folder.glob("**/" + pattern))
    if len(found) != 1:
        raise AssetError(f"{folder} has {len(found)} files {pattern!r}; expected one")
    return found[0]


def _csv(path: pathlib.Path) -> tuple[list[str], list[list[str]]]:
    with path.open(newline="") as file:
        header, *rows = csv.reader(file)
    return header, rows


def _codes(words: Any) -> np.ndarray:
    return np.unique(np.asarray(words), return_inverse=True)[1].astype(np.int64)


def _number(word: str) -> int:
    value = 0
    for letter in word:
        value = 4 * value + "ACGT".index(letter)
    return value
