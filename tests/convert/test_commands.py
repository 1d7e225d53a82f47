"""`poseidon export` and `poseidon import` as they are typed."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from poseidon.cli import main
from tests.net.harness import GOLDEN

LENET = GOLDEN / "nets" / "lenet_like"
NET, WEIGHTS = str(LENET / "net.prototxt"), str(LENET / "init.caffemodel")


def test_out_and_in_again(tmp_path, capsys):
    record = np.load(LENET / "record.npz")
    np.save(tmp_path / "data.npy", record["input/data"])
    model, data = str(tmp_path / "lenet.onnx"), f"data={tmp_path / 'data.npy'}"
    assert main(["export", NET, WEIGHTS, "--to", "onnx", "-o", model, "--until", "ip2", "--input", data]) == 0
    printed = capsys.readouterr().out
    assert f"wrote {model}" in printed
    assert "given inputs:\n  ip2 (" in printed
    assert "ok: both sides agree within 0.0001" in printed
    assert main(["import", model, "--to", "prototxt", "-o", str(tmp_path / "back.prototxt")]) == 0
    printed = capsys.readouterr().out
    assert "back.caffemodel" in printed
    assert "ok: both sides agree" in printed


def test_a_difference_beyond_the_tolerance_fails(tmp_path, capsys):
    out = str(tmp_path / "lenet.onnx")
    assert main(["export", NET, WEIGHTS, "--to", "onnx", "-o", out, "--until", "ip2", "--tolerance", "-1"]) == 1
    assert "FAILED: the two sides differ by" in capsys.readouterr().out


def test_without_weights_the_user_is_told(tmp_path, capsys):
    assert main(["export", NET, "--to", "safetensors", "-o", str(tmp_path / "w.safetensors")]) == 0
    assert "no weights given: the net has random ones" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["export"], "which net?"),
        (["export", NET], "say --to what and -o where"),
        (["export", NET, "--to", "onxx", "-o", "x"], "did you mean"),
        (["export", "gone.prototxt", "--to", "onnx", "-o", "x"], "there is no file 'gone.prototxt'"),
        (
            ["export", NET, "--to", "onnx", "-o", "x", "--shape", "data=1,-3"],
            "--shape data=1,-3: expected whole numbers",
        ),
        (["export", NET, "--to", "onnx", "-o", "x", "--input", "data"], "--input data: expected a name and a value"),
        (["export", NET, "--to", "onnx", "-o", "x", "--opset", "5"], "--opset 5: expected 13 to"),
        (["import", "x.onnx"], "say which model and where to"),
        (["import", "gone.onnx", "-o", "x"], "gone.onnx: no such file"),
    ],
)
def test_mistakes(words, message, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(words) == 1
    assert message in capsys.readouterr().err


def test_without_onnx_the_message_says_what_to_install(tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    assert main(["export", NET, WEIGHTS, "--to", "onnx", "-o", str(tmp_path / "x.onnx")]) == 1
    assert "pip install 'poseidon-dl[onnx]'" in capsys.readouterr().err
