"""Caffe's log from the commands: numbers against PyTorch's own, severities, pipes that close."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch

from poseidon.cli import caffe_main
from poseidon.net import Net
from tests.cli.nets import ROOT, Running, write_case

LINE = re.compile(r"[IWEF]\d{4} \d\d:\d\d:\d\d\.\d{6} \d+ (\S+)\] (.*)")

SCORED_NET = """
layer { name: "rows" type: "HDF5Data" top: "x" top: "t" hdf5_data_param { source: "rows.txt" batch_size: 4 } }
layer { name: "fc" type: "InnerProduct" bottom: "x" top: "y"
    inner_product_param { num_output: 3 weight_filler { type: "xavier" } bias_filler { type: "constant" value: 0.1 } } }
layer { name: "top1" type: "Accuracy" bottom: "y" bottom: "t" top: "top1" }
layer { name: "top2" type: "Accuracy" bottom: "y" bottom: "t" top: "top2" accuracy_param { top_k: 2 } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "y" bottom: "t" top: "loss" loss_weight: 0.5 }
layer { name: "sum" type: "Reduction" bottom: "y" top: "sum" loss_weight: 0.25 }
layer { name: "mean" type: "Reduction" bottom: "x" top: "mean" reduction_param { operation: MEAN axis: 1 } }
"""


@pytest.fixture
def here(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def said(capfd, place: str) -> list[str]:
    """What the log says at a place of Caffe's sources."""
    return [match[2] for match in LINE.finditer(capfd.readouterr().err) if match[1] == place]


# -- test -----------------------------------------------------------------------------------------------------------
def test_scores_are_pytorchs(here, capfd):
    random = np.random.default_rng(5)
    rows, targets = random.standard_normal((12, 5)).astype("f4"), random.integers(0, 3, 12)
    with h5py.File(here / "rows.h5", "w") as file:
        file["x"], file["t"] = rows, targets.astype("f4")
    (here / "rows.txt").write_text("rows.h5\n")
    (here / "net.prototxt").write_text(SCORED_NET)
    Net("net.prototxt", seed=4).save("net.caffemodel")
    assert caffe_main(["test", "-model", "net.prototxt", "-weights", "net.caffemodel", "-iterations", "3"]) == 0
    log = capfd.readouterr().err

    net = Net("net.prototxt", "net.caffemodel")
    linear = torch.nn.Linear(5, 3)
    linear.load_state_dict(dict(zip(("weight", "bias"), net.params["fc"], strict=True)))
    expected: dict[str, list] = {"top1": [], "top2": [], "loss": [], "sum": [], "mean": []}
    for batch in range(3):
        x, t = torch.tensor(rows[batch * 4 :][:4]), torch.tensor(targets[batch * 4 :][:4])
        y = linear(x).detach()
        expected["top1"].append([(y.argmax(1) == t).float().mean().item()])
        expected["top2"].append([(y.topk(2).indices == t[:, None]).any(1).float().mean().item()])
        expected["loss"].append([torch.nn.functional.cross_entropy(y, t).item()])
        expected["sum"].append([y.sum().item()])
        expected["mean"].append(x.mean(1).tolist())

    for blob, batches in expected.items():
        printed = [float(value) for value in re.findall(rf"caffe.cpp:304\] Batch \d, {blob} = (\S+)", log)]
        assert printed == pytest.approx(np.ravel(batches).tolist(), rel=2e-5, abs=1e-6)
        means = [float(value) for value in re.findall(rf"caffe.cpp:321\] {blob} = (\S+)", log)]
        assert means == pytest.approx(np.mean(batches, axis=0).tolist(), rel=2e-5, abs=1e-6)
    total = 0.5 * np.mean(expected["loss"]) + 0.25 * np.mean(expected["sum"])
    assert float(re.search(r"caffe.cpp:309\] Loss: (\S+)", log)[1]) == pytest.approx(total, rel=2e-5)
    weighted = re.search(r"caffe.cpp:321\] loss = (\S+) \(\* 0.5 = (\S+) loss\)", log)
    assert float(weighted[2]) == pytest.approx(0.5 * float(weighted[1]), rel=1e-5)


def test_a_net_without_data_cannot_be_scored(here, capfd):
    text = 'layer { name: "in" type: "Input" top: "x" input_param { shape { dim: 2 dim: 3 } } }'
    (here / "net.prototxt").write_text(
        f'{text} layer {{ name: "fc" type: "InnerProduct" bottom: "x" top: "y" '
        "inner_product_param { num_output: 2 } }"
    )
    Net("net.prototxt").save("net.caffemodel")
    assert caffe_main(["test", "--model=net.prototxt", "--weights=net.caffemodel"]) == 1
    *_, last = capfd.readouterr().err.splitlines()
    assert last == (
        "caffe: error: net.prototxt takes x from its caller; to be scored a net needs a data layer for its TEST phase"
    )


# -- time -----------------------------------------------------------------------------------------------------------
def test_times_add_up(here, capfd):
    write_case(here)
    assert caffe_main(["time", "-model", "net.prototxt", "-iterations", "4"]) == 0
    log = capfd.readouterr().err

    def number(pattern: str) -> list[float]:
        return [float(value) for value in re.findall(pattern + r" (\S+) ms\.", log)]

    assert re.findall(r"caffe.cpp:400\] +(\S+)\tforward", log) == ["x", "fc", "loss"]
    assert re.findall(r"caffe.cpp:403\] +(\S+)\tbackward", log) == ["x", "fc", "loss"]
    (forward,), (backward,) = number("Average Forward pass:"), number("Average Backward pass:")
    assert forward == pytest.approx(sum(number(r"\tforward:")), rel=1e-4)
    assert backward == pytest.approx(sum(number(r"\tbackward:")), rel=1e-4)
    passes = number("forward-backward time:")
    assert len(passes) == 4
    assert number("Total Time:")[0] == pytest.approx(sum(passes), rel=1e-4)
    assert number("Average Forward-Backward:")[0] == pytest.approx(sum(passes) / 4, rel=1e-4)
    assert forward + backward <= sum(passes) / 4


def test_timing_takes_a_net_without_data_and_weights(here, capfd):
    text = (ROOT / "models" / "lenet" / "deploy.prototxt").read_text()
    (here / "net.prototxt").write_text(text)
    Net("net.prototxt").save("net.caffemodel")
    words = ["time", "--model=net.prototxt", "--weights=net.caffemodel", "--iterations=1", "--phase=TEST"]
    assert caffe_main(words) == 0
    assert said(capfd, "caffe.cpp:415") == ["*** Benchmark ends ***"]


# -- the log itself -------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("level", "severities"), [("0", "IE"), ("1", "E"), ("2", "E"), ("3", "")])
def test_glog_minloglevel(level, severities, here, capfd, monkeypatch):
    monkeypatch.setenv("GLOG_minloglevel", level)
    write_case(
        here, "max_iter: 1 display: 1 debug_info: true snapshot_after_train: false"
    )  # norms are logged as errors
    assert caffe_main(["train", "--solver=solver.prototxt"]) == 0
    stamped = re.findall(r"^([IWEF])\d{4} ", capfd.readouterr().err, re.M)
    assert "".join(sorted(set(stamped), key="IWEF".index)) == severities


def test_errors_are_told_whatever_the_level(here, capfd, monkeypatch):
    monkeypatch.setenv("GLOG_minloglevel", "3")
    write_case(here, "iter_size: 0")
    assert caffe_main(["train", "--solver=solver.prototxt"]) == 1
    assert capfd.readouterr().err == "caffe: error: iter_size must be at least 1, got 0\n"


def test_what_an_upgrade_drops_is_a_warning_in_the_log(here, capfd):
    (here / "net.prototxt").write_text(
        'input: "x" input_dim: 1 input_dim: 2 input_dim: 4 input_dim: 4 '
        'layers { layer { name: "relu" type: "relu" stride: 2 } bottom: "x" top: "y" }'
    )
    assert caffe_main(["time", "--model=net.prototxt", "--iterations=1"]) == 0
    warnings = [line for line in capfd.readouterr().err.splitlines() if "dropped" in line]
    assert len(warnings) == 1
    assert warnings[0].startswith("W")
    assert LINE.match(warnings[0])[2].endswith("'stride' means nothing to layer 'relu' of type 'relu': dropped")


def test_a_reader_that_leaves_ends_the_command_quietly(tmp_path):
    """As with `caffe train … 2>&1 | head -1`."""
    write_case(tmp_path, "max_iter: 1000000000 display: 1")
    with Running(tmp_path, "train", "--solver=solver.prototxt", stderr=subprocess.PIPE) as run:
        run.process.stderr.readline()
        run.process.stderr.close()
        assert run.process.wait() == 141


@pytest.mark.parametrize("words", [["--help"], ["train", "--help"]])
def test_help_into_a_pipe_that_is_closed(words, tmp_path):
    script = f"import sys; from poseidon.cli import caffe_main; sys.exit(caffe_main({words!r}))"
    read, write = os.pipe()
    os.close(read)
    ran = subprocess.run([sys.executable, "-c", script], stdout=write, stderr=subprocess.PIPE, text=True, check=False)
    os.close(write)
    assert ran.stderr == ""
    assert ran.returncode in (0, 141)  # argparse keeps to itself that nobody reads its help
