"""Good texts and files to start from: Caffe's golden records, the layer cases, a few solvers."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np

TESTS = Path(__file__).parents[1]
SOLVER_FOLDERS = sorted((TESTS / "golden" / "solvers").iterdir())


@cache
def net_texts() -> list[str]:
    """Small nets, at least one for every layer type. None with Python layers: those run whatever code they name."""
    records = sorted((TESTS / "golden" / "layers").glob("*.npz"))
    cases = sorted((TESTS / "net" / "cases").glob("*.prototxt"))
    upgrades = sorted((TESTS / "golden" / "formats" / "upgrade").glob("*/in.prototxt"))
    texts = [str(np.load(path)["prototxt"]) for path in records]
    texts += [path.read_text() for path in cases]
    texts += [path.read_text() for path in upgrades if (path.parent / "kind.txt").read_text().strip() == "net"]
    return [text for text in texts if '"Python"' not in text]


@cache
def golden_files() -> dict[str, bytes]:
    """The files that the golden nets name, by name."""
    files = {}
    for path in sorted((TESTS / "golden" / "layers").glob("*.npz")):
        record = np.load(path)
        files.update({key[5:]: record[key].tobytes() for key in record.files if key.startswith("file/")})
    return files


@cache
def solver_texts() -> list[str]:
    """The first one can be run anywhere; the others are the golden records' own."""
    runs = """
        base_lr: 0.01 lr_policy: "inv" gamma: 0.1 power: 0.75 momentum: 0.9 momentum2: 0.99 type: "Adam" random_seed: 1
        max_iter: 10 average_loss: 3 snapshot_after_train: false
        net_param { name: "tiny"
            layer { name: "x" type: "DummyData" top: "x" top: "cont" top: "t" dummy_data_param {
                shape { dim: 2 dim: 3 dim: 2 } shape { dim: 2 dim: 3 } shape { dim: 2 dim: 3 dim: 2 }
                data_filler { type: "gaussian" } data_filler { value: 1 } data_filler { } } }
            layer { name: "rnn" type: "RNN" bottom: "x" bottom: "cont" top: "h"
                recurrent_param { num_output: 2 weight_filler { type: "uniform" min: -0.1 max: 0.1 } } }
            layer { name: "drop" type: "Dropout" bottom: "h" top: "h" }
            layer { name: "loss" type: "EuclideanLoss" bottom: "h" bottom: "t" top: "loss" } }
    """
    return [runs, *((folder / "solver.prototxt").read_text() for folder in SOLVER_FOLDERS)]


@cache
def images() -> list[bytes]:
    """Small images in the formats that data sets come in."""
    import poseidon.data  # noqa: F401  (sets OpenCV's limits, which it reads when it is imported)

    import cv2  # isort: skip

    pixels = np.arange(4 * 5 * 3, dtype=np.uint8).reshape(4, 5, 3)
    return [cv2.imencode(ending, pixels)[1].tobytes() for ending in (".png", ".jpg", ".bmp", ".webp", ".tiff", ".ppm")]
