"""Whole nets taken out of Caffe: against Caffe's own records, with names, batches, folding and files as promised."""

from __future__ import annotations

import re

import h5py
import numpy as np
import onnx
import pytest
import torch
from safetensors.numpy import load_file

from poseidon.convert.comparison import compare, run_net
from poseidon.convert.deploy import Deployment, deployed
from poseidon.convert.export import ExportOptions, export_net, net_to_export
from poseidon.convert.extents import Extents
from poseidon.convert.fold import fold
from poseidon.convert.inputs import random_inputs, read_input
from poseidon.convert.steps import outputs_of
from poseidon.convert.to_onnx.model import model_of as onnx_model
from poseidon.convert.to_torch.model import model_of as torch_model
from poseidon.errors import NetError, UsageError
from poseidon.net import Net
from poseidon.spec import parse_net
from tests.convert.harness import close, perturb, run_as_onnx, run_as_torch
from tests.net.harness import FORWARD, GOLDEN, keys_under

NETS = sorted(path.name for path in (GOLDEN / "nets").iterdir())


def golden(name: str) -> Net:
    folder = GOLDEN / "nets" / name
    return net_to_export(folder / "net.prototxt", folder / "init.caffemodel", Deployment())[0]


def record_of(name: str):
    """Caffe's inputs and what its TEST net gave for them."""
    record = np.load(GOLDEN / "nets" / name / "record.npz")
    inputs = {key[6:]: torch.from_numpy(record[key]) for key in keys_under(record, "input/")}
    return inputs, {key[10:]: record[key] for key in keys_under(record, "test/blob/")}


@pytest.mark.parametrize("run", [run_as_onnx, run_as_torch])
@pytest.mark.parametrize("name", NETS)
def test_golden_nets_give_the_figures_of_caffe(name, run):
    net = golden(name)
    inputs, wanted = record_of(name)
    inputs = {blob: inputs[blob] for blob in net.inputs}
    (made,) = run(net, Extents(net.graph), [inputs])
    assert set(made) & set(wanted)
    for blob in set(made) & set(wanted):
        np.testing.assert_allclose(made[blob], wanted[blob], **FORWARD, err_msg=blob)


@pytest.mark.parametrize("name", NETS)
def test_golden_nets_take_other_batches(name):
    net = golden(name)
    extents = Extents(net.graph)
    assert extents.is_dynamic
    trials = [random_inputs(net, extents.resized(batch=size, steps=size)) for size in (1, 2, 5)]
    for run in (run_as_onnx, run_as_torch):
        for got, inputs in zip(run(net, extents, trials), trials, strict=True):
            close(got, run_net(net, inputs, list(outputs_of(net))))


# -- files ----------------------------------------------------------------------------------------------------------
def test_torch_files_run_without_poseidon(tmp_path):
    report = export_net(golden("residual_shared"), tmp_path / "out", ExportOptions("torch"))
    assert [path.name for path in report.files] == ["model.py", "model.safetensors"]
    assert report.largest < 1e-5
    assert [trial.what for trial in report.trials] == ["random inputs, batch 2", "random inputs, batch 3"]
    text = report.files[0].read_text()
    assert not re.search(r"^\s*(import|from) (poseidon|caffe)", text, re.M)
    assert "nn.BatchNorm2d(6" in text
    assert "nn.Conv2d(" in text


def test_torchscript_is_traced_and_said_to_be_deprecated(tmp_path):
    report = export_net(golden("lenet_like"), tmp_path / "model.pt", ExportOptions("torchscript"))
    assert report.largest < 1e-5
    assert "deprecated" in " ".join(report.notes)


def test_onnx_file_is_checked_with_given_inputs_too(tmp_path):
    net = golden("cifar_quick_lrn")
    inputs, _ = record_of("cifar_quick_lrn")
    report = export_net(net, tmp_path / "net.onnx", ExportOptions("onnx", inputs={"data": inputs["data"]}))
    assert [trial.what for trial in report.trials][-1] == "given inputs"
    assert report.largest < 1e-5
    with pytest.raises(UsageError, match="--input dta: the net takes data"):
        export_net(net, tmp_path / "net.onnx", ExportOptions("onnx", inputs={"dta": inputs["data"]}))


def test_hdf5_has_the_layout_of_caffe(tmp_path):
    net = golden("lenet_like")
    export_net(net, tmp_path / "net.caffemodel.h5", ExportOptions("hdf5"))
    reference = h5py.File(GOLDEN / "nets" / "lenet_like" / "init.caffemodel.h5")  # written by Caffe
    made = h5py.File(tmp_path / "net.caffemodel.h5")
    for layer in ("conv1", "conv2", "ip1", "ip2"):
        for index in reference["data"][layer]:
            np.testing.assert_array_equal(made["data"][layer][index][()], reference["data"][layer][index][()])


def test_safetensors_names_blobs_by_layer_and_index(tmp_path):
    net = golden("siamese_contrastive")
    export_net(net, tmp_path / "net.safetensors", ExportOptions("safetensors"))
    stored = load_file(tmp_path / "net.safetensors")
    assert set(stored) == {f"{entry.layer}.{entry.index}" for entry in net.learnable}  # shared blobs once
    np.testing.assert_array_equal(
        stored["conv.0" if "conv.0" in stored else "conv1.0"], net.learnable[0].value.detach()
    )


# -- names and shapes -----------------------------------------------------------------------------------------------
IN_PLACE = """
name: "small"
layer { name: "data" type: "Input" top: "data" input_param { shape { dim: 1 dim: 2 dim: 4 dim: 4 } } }
layer { name: "conv1" type: "Convolution" bottom: "data" top: "conv1"
        convolution_param { num_output: 3 kernel_size: 3 weight_filler { type: "xavier" } } }
layer { name: "relu1" type: "ReLU" bottom: "conv1" top: "conv1" }
layer { name: "ip/final" type: "InnerProduct" bottom: "conv1" top: "ip/final"
        inner_product_param { num_output: 2 weight_filler { type: "xavier" } } }
"""


def test_onnx_keeps_names_of_blobs_and_layers():
    net = Net(parse_net(IN_PLACE), phase="TEST", seed=1)
    graph = onnx_model(net, Extents(net.graph)).graph
    assert [node.name for node in graph.node if node.op_type != "Flatten"] == ["conv1", "relu1", "ip/final"]
    by_name = {node.name: node for node in graph.node}
    assert list(by_name["conv1"].output) == ["conv1/conv1"]
    assert list(by_name["relu1"].output) == ["conv1"]
    assert [info.name for info in graph.input] == ["data"]
    assert [info.name for info in graph.output] == ["ip/final"]
    dims = graph.input[0].type.tensor_type.shape.dim
    assert [dim.dim_param or dim.dim_value for dim in dims] == ["batch", 2, 4, 4]
    assert {"conv1.0", "conv1.1", "ip/final.0", "ip/final.1"} <= {tensor.name for tensor in graph.initializer}


def test_torch_reads_like_written_by_hand():
    net = Net(parse_net(IN_PLACE), phase="TEST", seed=1)
    text = torch_model(net, Extents(net.graph)).text
    lines = [line.strip() for line in text.splitlines()]
    assert "self.conv1 = nn.Conv2d(2, 3, kernel_size=3)" in lines
    assert "conv1 = F.relu(conv1)" in lines
    assert "ip_final = self.ip_final(conv1.flatten(1))" in lines
    assert "return ip_final" in lines


def test_names_that_are_no_python(monkeypatch):
    text = IN_PLACE.replace('"conv1"', '"class"').replace('"ip/final"', '"train"').replace('"data"', '"7 × self"')
    net = Net(parse_net(text), phase="TEST", seed=1)
    x = torch.randn(2, 2, 4, 4, generator=torch.Generator().manual_seed(0))
    (made,) = run_as_torch(net, Extents(net.graph), [{"7 × self": x}])
    close(made, run_net(net, {"7 × self": x}, ["train"]))


def test_a_hostile_name_stays_text():
    bad = 'x\\"\\"\\"\\nimport os; os.abort()\\n\\"\\"\\"'
    net = Net(
        parse_net(IN_PLACE.replace('name: "small"', f'name: "{bad}"').replace('"relu1"', f'"{bad}"')), phase="TEST"
    )
    made = run_as_torch(net, Extents(net.graph), [{"data": torch.zeros(1, 2, 4, 4)}])
    assert len(made) == 1


def test_a_batch_written_into_the_net_stays_fixed_and_is_said(tmp_path):
    text = (
        IN_PLACE
        + """
layer { name: "fold" type: "Reshape" bottom: "ip/final" top: "fold" reshape_param { shape { dim: 1 dim: 2 } } }
"""
    )
    (tmp_path / "net.prototxt").write_text(text)
    net, _ = net_to_export(tmp_path / "net.prototxt", None, Deployment())
    report = export_net(net, tmp_path / "net.onnx", ExportOptions("onnx"))
    assert "the batch size is fixed" in " ".join(report.notes)
    dims = onnx.load(tmp_path / "net.onnx").graph.input[0].type.tensor_type.shape.dim
    assert [dim.dim_value for dim in dims] == [1, 2, 4, 4]


def test_opsets_out_of_range_are_refused():
    net = Net(parse_net(IN_PLACE), phase="TEST")
    for opset in (12, 999):
        with pytest.raises(UsageError, match=f"--opset {opset}: expected 13 to"):
            onnx_model(net, Extents(net.graph), opset)


# -- what a train_val becomes ---------------------------------------------------------------------------------------
TRAIN_VAL = """
name: "tv"
layer { name: "d" type: "Data" top: "data" top: "label" data_param { source: "gone" backend: LMDB batch_size: 50 } }
layer { name: "ip" type: "InnerProduct" bottom: "data" top: "ip" inner_product_param { num_output: 3 } }
layer { name: "drop" type: "Dropout" bottom: "ip" top: "ip" }
layer { name: "two" type: "Slice" bottom: "label" top: "l1" top: "l2" slice_param { axis: 1 } include { stage: "x" } }
layer { name: "acc" type: "Accuracy" bottom: "ip" bottom: "label" top: "acc" include { phase: TEST } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "ip" bottom: "label" top: "loss" }
"""


def test_train_val_loses_data_losses_and_accuracy():
    source = parse_net(TRAIN_VAL, "tv.prototxt")
    shapes = {"data": (1, 2, 3, 3)}
    net = deployed(source, Deployment(shapes=shapes))
    assert [(layer.name, layer.type) for layer in net.net.layer] == [
        ("d", "Input"),
        ("ip", "InnerProduct"),
        ("drop", "Dropout"),
    ]
    assert list(net.net.layer[0].top) == ["data"]
    kept = deployed(source, Deployment(shapes=shapes, keep_losses=True))
    assert [layer.type for layer in kept.net.layer] == [
        "Input", "InnerProduct", "Dropout", "Accuracy", "SoftmaxWithLoss",
    ]  # fmt: skip
    with pytest.raises(UsageError, match=r"tv.prototxt:3: layer 'd' \(Data\) becomes an input.*--shape data=1"):
        deployed(source, Deployment())
    with pytest.raises(UsageError, match="--until ipp: the net has no such blob"):
        deployed(source, Deployment(outputs=("ipp",)))


def test_a_loss_that_names_its_probabilities_leaves_a_softmax():
    text = TRAIN_VAL.replace('top: "loss"', 'top: "loss" top: "prob"')
    net = deployed(parse_net(text), Deployment(shapes={"data": (1, 2)}))
    assert [layer.type for layer in net.net.layer] == ["Input", "InnerProduct", "Dropout", "Softmax"]
    assert list(net.net.layer[-1].top) == ["prob"]


def test_nothing_left_is_said():
    with pytest.raises(NetError, match="nothing is left to convert"):
        deployed(
            parse_net('layer { name: "d" type: "DummyData" top: "x" dummy_data_param { shape { dim: 1 } } }'),
            Deployment(),
        )


# -- folding --------------------------------------------------------------------------------------------------------
FOLDING = """
layer {{ name: "x" type: "Input" top: "x" input_param {{ shape {{ dim: 2 dim: 4 dim: 5 dim: 5 }} }} }}
layer {{ name: "w" bottom: "x" top: "w" {weights} }}
layer {{ name: "bn" type: "BatchNorm" bottom: "w" top: "bn" batch_norm_param {{ eps: 0.01 }} }}
layer {{ name: "sc" type: "Scale" bottom: "bn" top: "sc" scale_param {{ bias_term: {bias} }} }}
layer {{ name: "relu" type: "ReLU" bottom: "sc" top: "sc" }}
"""
CONV = "convolution_param { num_output: 6 kernel_size: 3 group: 2 weight_filler { type: 'xavier' }"
WEIGHTS = [
    f"type: 'Convolution' {CONV} bias_term: false }}",
    f"type: 'Convolution' {CONV} }}",
    f"type: 'Deconvolution' {CONV} }}",
    "type: 'InnerProduct' inner_product_param { num_output: 6 weight_filler { type: 'xavier' } }",
    "type: 'InnerProduct' inner_product_param { num_output: 6 transpose: true weight_filler { type: 'xavier' } }",
]


@pytest.mark.parametrize("bias", ["true", "false"])
@pytest.mark.parametrize("weights", WEIGHTS)
def test_folding_keeps_the_numbers(weights, bias):
    net = Net(parse_net(FOLDING.format(weights=weights, bias=bias)), phase="TEST", seed=2)
    perturb(net)
    folded = fold(net)
    assert folded.layers == ("bn", "sc")
    assert [layer.type_name for layer in folded.net.layers.values()][-1] == "ReLU"
    x = torch.randn(2, 4, 5, 5, generator=torch.Generator().manual_seed(1))
    close(run_net(folded.net, {"x": x}, ["sc"]), run_net(net, {"x": x}, ["sc"]))


def test_folding_leaves_what_others_read():
    text = FOLDING.format(weights=WEIGHTS[1], bias="true")
    also_read = text + 'layer { name: "other" type: "TanH" bottom: "w" top: "other" }'
    batch_stats = text.replace("eps: 0.01", "use_global_stats: false")
    for changed in (also_read, batch_stats):
        net = Net(parse_net(changed), phase="TEST", seed=2)
        assert fold(net).layers == ()


# -- the comparison itself ------------------------------------------------------------------------------------------
def test_differences_are_relative_to_the_largest_value():
    (difference,) = compare({"y": np.array([1.0, -4.0])}, {"y": np.array([1.0, -4.2])})
    assert difference.absolute == pytest.approx(0.2)
    assert difference.relative == pytest.approx(0.05)
    same = np.array([np.nan, np.inf, 1.0])
    assert compare({"y": same}, {"y": same})[0].relative == 0
    assert compare({"y": same}, {"y": np.array([0.0, np.inf, 1.0])})[0].relative == float("inf")


def test_inputs_from_files(tmp_path):
    np.save(tmp_path / "x.npy", np.arange(6, dtype=np.uint8).reshape(2, 3))
    assert read_input("x", str(tmp_path / "x.npy")).tolist() == [[0, 1, 2], [3, 4, 5]]
    np.save(tmp_path / "bad.npy", np.array([{"a": 1}], dtype=object), allow_pickle=True)
    for name in ("bad.npy", "none.npy"):
        with pytest.raises(UsageError, match=f"--input x=.*{name}: not a .npy file of numbers"):
            read_input("x", str(tmp_path / name))
