"""docs/from-caffe.md: what it shows of the tools runs, from top to bottom, where a user's files are."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from poseidon.cli import caffe_tools, extract_features, main
from poseidon.net import Net
from tests.tools.kit import read_lmdb, write_images
from tests.tools.test_training_log import LOG

PAGE = Path(__file__).parents[2] / "docs" / "from-caffe.md"
NET = """
layer { name: "data" type: "Data" top: "data" top: "label" data_param { source: "train_lmdb" batch_size: 2
  backend: LMDB } }
layer { name: "ip" type: "InnerProduct" bottom: "data" top: "ip" inner_product_param { num_output: 3
  weight_filler { type: "xavier" } } }
"""
DEPLOY = """
layer { name: "data" type: "Input" top: "data" input_param { shape { dim: 1 dim: 3 dim: 8 dim: 8 } } }
layer { name: "score" type: "InnerProduct" bottom: "data" top: "score" inner_product_param { num_output: 3
  weight_filler { type: "xavier" } } }
"""


def tool_lines() -> list[str]:
    """The page's commands, but for those of `caffe` itself, which train."""
    blocks = re.findall(r"^```sh\n(.*?)^```", PAGE.read_text(), re.M | re.S)
    return [line for block in blocks for line in block.splitlines() if not line.startswith("caffe ")]


@pytest.fixture
def here(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write_images(tmp_path / "images", {f"{n}.png": (9, 10) for n in range(8)})
    (tmp_path / "train.txt").write_text("".join(f"{n}.png {n % 3}\n" for n in range(8)))
    (tmp_path / "net.prototxt").write_text(NET)
    (tmp_path / "deploy.prototxt").write_text(DEPLOY)
    (tmp_path / "solver.prototxt").write_text("solver_type: ADAM")
    (tmp_path / "labels.txt").write_text("cat\ndog\nhorse\n")
    (tmp_path / "train.log").write_text(LOG)
    return tmp_path


def run_line(line: str, monkeypatch) -> int:
    words = shlex.split(line)
    with monkeypatch.context() as patched:
        while "=" in words[0]:
            patched.setenv(*words.pop(0).split("="))
        if words[0] == "poseidon":
            return main(words[1:])
        return getattr(caffe_tools, words[0])(words[1:])


def test_the_page_runs(here, monkeypatch, capsys):
    lines = tool_lines()
    assert len(lines) > 15
    started = []
    monkeypatch.setattr(extract_features, "launch", lambda job, tell: started.append(job) or 0)
    for line in lines:
        if "model.caffemodel" in line and not (here / "model.caffemodel").exists():
            Net("net.prototxt", phase="TEST", seed=1).save("model.caffemodel")
        if "classify" in line:
            Net("deploy.prototxt", phase="TEST", seed=1).save("model.caffemodel")
        assert run_line(line, monkeypatch) == 0, f"{line}\n{capsys.readouterr().err}"
    assert len(started) == 1
    assert len(read_lmdb(here / "train_lmdb")) == 8
    assert len(read_lmdb(here / "part_1")) == 4
    for name in (
        "mean.binaryproto",
        "features",
        "train_lmdb_1",
        "net.dot",
        "train.log.test.csv",
        "loss.png",
        "scores.npy",
    ):
        assert (here / name).exists()
