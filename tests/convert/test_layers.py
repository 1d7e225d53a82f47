"""Every case of every layer that can be converted, as ONNX and as PyTorch, against the net itself.

The nets are held to Caffe's figures elsewhere (tests/net); the golden records of single layers come in here as further
cases, with Caffe's own parameters and inputs.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

from poseidon.convert.comparison import run_net
from poseidon.convert.deploy import DATA_TYPES, Deployment, deployed
from poseidon.convert.extents import Extents
from poseidon.convert.inputs import random_inputs
from poseidon.convert.steps import outputs_of
from poseidon.convert.table import TABLE
from poseidon.errors import LayerError
from poseidon.net import Net
from poseidon.net.registry import layer_types
from poseidon.spec import parse_net
from tests.convert.harness import close, companions, perturb, run_as_onnx, run_as_torch
from tests.net.harness import CASES, GOLDEN, Case, filled, keys_under

SINKS = {"Silence", "HDF5Output", "Input"}
# Nothing outside computes these; each is refused by name.
REFUSED = sorted(set(layer_types()) - set(TABLE) - DATA_TYPES - SINKS)


def _types(text: str) -> set[str]:
    return {layer.type for layer in parse_net(text).net.layer}


def _converts(text: str) -> bool:
    """Has something to convert, and nothing that is refused."""
    types = _types(text)
    return bool(types & set(TABLE) - {"Accuracy"}) and not types & set(REFUSED)


CASE_FILES = [path for path in sorted(CASES.glob("*.prototxt")) if _converts(path.read_text())]
RECORDS = [
    path
    for path in sorted((GOLDEN / "layers").glob("*.npz"))
    if _converts(str(np.load(path)["prototxt"])) and path.stem.split("__")[0] not in {*DATA_TYPES, *SINKS, "Filler"}
]


def test_every_layer_of_bvlc_caffe_that_computes_can_be_converted():
    assert "Python" in REFUSED
    bvlc = {path.stem.split("__")[0] for path in (GOLDEN / "layers").glob("*.npz")} - {"Filler"}
    assert bvlc - set(TABLE) - DATA_TYPES - SINKS == {"Python"}


@pytest.fixture(params=CASE_FILES, ids=[path.stem for path in CASE_FILES])
def case(request, monkeypatch, tmp_path):
    companions(CASES, tmp_path)
    monkeypatch.chdir(tmp_path)
    found = Case.read(request.param)
    net = Net(deployed(parse_net(found.text), Deployment()), phase="TEST", seed=7)
    perturb(net)
    generator = torch.Generator().manual_seed(11)
    fills = {name: found.fills.get(name, ["normal"]) for name in net.inputs}
    return net, {name: filled(net.blob_shapes[name], how, generator).float() for name, how in fills.items()}


@pytest.fixture(params=RECORDS, ids=[path.stem for path in RECORDS])
def record(request, monkeypatch, tmp_path):
    found = np.load(request.param)
    monkeypatch.chdir(tmp_path)
    for key in keys_under(found, "file/"):
        (tmp_path / key[5:]).write_bytes(found[key].tobytes())
    net = Net(deployed(parse_net(str(found["prototxt"])), Deployment()), phase="TEST", seed=3)
    with torch.no_grad():
        for key in keys_under(found, "param/"):
            _, layer, index = key.split("/")
            net.params[layer][int(index)].copy_(torch.from_numpy(found[key]))
    given = {key[7:]: torch.from_numpy(found[key]) for key in keys_under(found, "bottom/")}
    usable = set(given) == set(net.inputs) and not keys_under(found, "reshape/")
    return net, {name: given[name] for name in net.inputs} if usable else None


def check(net: Net, inputs: dict | None, run) -> None:
    extents = Extents(net.graph)
    trials = [random_inputs(net, extents.resized(batch=3, steps=2)), *([inputs] if inputs else [])]
    wanted = [run_net(net, trial, list(outputs_of(net))) for trial in trials]
    for got, want in zip(run(net, extents, trials), wanted, strict=True):
        close(got, want)


def test_case_as_onnx(case):
    check(*case, run_as_onnx)


def test_case_as_torch(case):
    check(*case, run_as_torch)


def test_record_as_onnx(record):
    check(*record, run_as_onnx)


def test_record_as_torch(record):
    check(*record, run_as_torch)


@pytest.mark.parametrize("opset", [13, 18, 21])
@pytest.mark.parametrize("kind", ["Reduction", "MVN", "Slice", "BatchNorm", "Flatten", "ArgMax", "LSTM", "Accuracy"])
def test_other_opsets(kind, opset, monkeypatch, tmp_path):
    """What changed between opsets: axes as attribute or input, how many pieces a split has."""
    monkeypatch.chdir(tmp_path)
    for path in (path for path in CASE_FILES if path.stem.startswith(f"{kind}__")):
        net = Net(deployed(parse_net(path.read_text()), Deployment()), phase="TEST", seed=7)
        perturb(net)
        check(net, None, lambda net, extents, trials: run_as_onnx(net, extents, trials, opset))


@pytest.mark.parametrize("run", [run_as_onnx, run_as_torch])
def test_a_layer_that_nobody_else_has_is_refused_by_name_and_line(run, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "doubling.py").write_text(
        "import caffe\n"
        "class Doubling(caffe.Layer):\n"
        "    def reshape(self, bottom, top): top[0].reshape(*bottom[0].data.shape)\n"
        "    def forward(self, bottom, top): top[0].data[...] = 2 * bottom[0].data\n"
    )
    text = """
layer { name: "x" type: "Input" top: "x" input_param { shape { dim: 2 dim: 3 } } }
layer { name: "act" type: "ReLU" bottom: "x" top: "act" }
layer { name: "double" type: "Python" bottom: "act" top: "y" python_param { module: "doubling" layer: "Doubling" } }
"""
    net = Net(parse_net(text, "mine.prototxt"), phase="TEST")
    with pytest.raises(LayerError, match=r"mine.prototxt:4: layer 'double' \(Python\).*--until act"):
        run(net, Extents(net.graph), [])
    shorter = Net(deployed(parse_net(text), Deployment(outputs=("act",))), phase="TEST")
    x = torch.tensor([[-1.0, 0.0, 2.0]])
    (made,) = run(shorter, Extents(shorter.graph), [{"x": x}])
    assert made["act"].tolist() == [[0, 0, 2]]
