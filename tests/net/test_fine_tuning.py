"""Freezing layers and leaving some out when weights are loaded: by pattern, in Python and in a training run."""

from __future__ import annotations

import h5py
import numpy as np
import pytest
import torch

from poseidon.cli import main
from poseidon.errors import NetError
from poseidon.net import Net
from poseidon.solver import NetOptions, Solver
from poseidon.spec import caffe_pb2, parse_net, parse_solver

NET = """
name: "chain"
layer {{ name: "data" type: "HDF5Data" top: "data" top: "label" hdf5_data_param {{ source: "{list}" batch_size: 4 }} }}
layer {{ name: "conv1" type: "Convolution" bottom: "data" top: "conv1" {rates}
  convolution_param {{ num_output: 3 kernel_size: 2 weight_filler {{ type: "gaussian" std: 0.5 }} }} }}
layer {{ name: "bn1" type: "BatchNorm" bottom: "conv1" top: "bn1" }}
layer {{ name: "conv2" type: "Convolution" bottom: "bn1" top: "conv2" {rates}
  convolution_param {{ num_output: 4 kernel_size: 2 weight_filler {{ type: "gaussian" std: 0.5 }} }} }}
layer {{ name: "fc" type: "InnerProduct" bottom: "conv2" top: "fc"
  inner_product_param {{ num_output: {classes} weight_filler {{ type: "gaussian" std: 0.5 }} }} }}
layer {{ name: "loss" type: "SoftmaxWithLoss" bottom: "fc" bottom: "label" top: "loss" }}
"""
SOLVER = """
train_net: "net.prototxt" test_net: "net.prototxt" test_iter: 1 test_interval: 100 base_lr: 0.1 lr_policy: "fixed"
momentum: 0.9 weight_decay: 0.01 max_iter: 3 snapshot_prefix: "out" random_seed: 5 solver_mode: CPU
"""


def net_text(*, classes: int = 3, frozen: bool = False) -> str:
    rates = "param { lr_mult: 0 } param { lr_mult: 0 }" if frozen else ""
    return NET.format(list="list.txt", classes=classes, rates=rates)


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    random = np.random.default_rng(2)
    with h5py.File("rows.h5", "w") as file:
        file["data"] = random.standard_normal((8, 2, 4, 4)).astype("f4")
        file["label"] = random.integers(0, 3, 8).astype("f4")
    (tmp_path / "list.txt").write_text("rows.h5\n")
    (tmp_path / "net.prototxt").write_text(net_text())
    (tmp_path / "solver.prototxt").write_text(SOLVER)
    return tmp_path


def values(net: Net) -> dict[str, list[torch.Tensor]]:
    return {name: [blob.detach().clone() for blob in blobs] for name, blobs in net.params.items()}


def trained(options: NetOptions) -> tuple[dict, dict, Solver]:
    solver = Solver(parse_solver(SOLVER), options=options)
    before = values(solver.net)
    solver.step(3)
    return before, values(solver.net), solver


def equal(a: list[torch.Tensor], b: list[torch.Tensor]) -> bool:
    return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


def test_frozen_layers_keep_their_values_and_the_rest_learns():
    before, after, _ = trained(NetOptions(freeze=("conv*",)))
    assert equal(before["conv1"], after["conv1"])
    assert equal(before["conv2"], after["conv2"])
    assert not equal(before["fc"], after["fc"])
    assert not equal(before["bn1"], after["bn1"])  # its statistics go on, as with lr_mult: 0 in Caffe


def test_freezing_is_what_lr_mult_0_does(folder):
    _, by_pattern, _ = trained(NetOptions(freeze=("conv?",)))
    (folder / "net.prototxt").write_text(net_text(frozen=True))
    _, by_hand, _ = trained(NetOptions())
    for name in by_hand:
        assert equal(by_pattern[name], by_hand[name]), name


def test_a_frozen_batch_norm_keeps_and_uses_its_statistics():
    before, after, solver = trained(NetOptions(freeze=("conv1", "bn*")))
    assert equal(before["bn1"], after["bn1"])
    assert solver.net.layers["bn1"].use_global_stats
    assert not equal(before["conv2"], after["conv2"])


def test_backward_ends_where_nothing_below_learns():
    net = Net(parse_net(net_text()), phase="TRAIN", freeze=["conv1", "conv2", "bn1"])
    needed = {node.layer.name: node.needs_backward for node in net.graph.nodes}
    assert needed == {"data": False, "conv1": False, "bn1": False, "conv2": False, "fc": True, "loss": True}
    assert not any(blob.requires_grad for blob in net.params["conv2"])
    assert {entry.layer for entry in net.learnable if entry.rate} == {"fc"}


def test_what_a_frozen_layer_shares_is_frozen_at_its_owner():
    text = """
    layer { name: "x" type: "Input" top: "x" input_param { shape { dim: 2 dim: 3 } } }
    layer { name: "a" type: "InnerProduct" bottom: "x" top: "a" param { name: "w" lr_mult: 2 } param { }
      inner_product_param { num_output: 3 } }
    layer { name: "b" type: "InnerProduct" bottom: "a" top: "b" param { name: "w" lr_mult: 2 } param { }
      inner_product_param { num_output: 3 } }
    """
    net = Net(parse_net(text), phase="TRAIN", freeze=["b"])
    assert {(entry.layer, entry.index): entry.rate for entry in net.learnable} == {
        ("a", 0): 0,
        ("a", 1): 1,
        ("b", 1): 0,
    }


def test_a_pattern_that_names_no_layer_is_an_error():
    with pytest.raises(
        NetError, match=r"freeze: no layer matches 'cnv\*' \(did you mean 'conv\d'\?\); layers: data, conv1"
    ):
        Net(parse_net(net_text()), phase="TRAIN", freeze=["cnv*"])
    net = Net(parse_net(net_text()), phase="TRAIN")
    net.save("w.caffemodel")
    with pytest.raises(NetError, match="skip: no layer matches 'fc9'"):
        net.load("w.caffemodel", skip=["fc9"])


@pytest.mark.parametrize("name", ["w.caffemodel", "w.caffemodel.h5"])
def test_weights_load_by_name_except_for_what_is_skipped(name):
    old = Net(parse_net(net_text(classes=5)), phase="TRAIN", seed=1)
    old.save(name)
    net = Net(parse_net(net_text()), phase="TRAIN", seed=2)
    own = values(net)
    report = net.load(name, skip=["f*"])
    assert equal(values(net)["conv1"], values(old)["conv1"])
    assert equal(values(net)["fc"], own["fc"])
    assert set(report.matched) == {"conv1", "bn1", "conv2"}
    assert report.untouched == ("fc",)


def test_the_recipe_as_a_command(folder, capfd):
    old = Net(parse_net(net_text(classes=5)), phase="TRAIN", seed=1)
    old.save("old.caffemodel")
    words = ["train", "--solver=solver.prototxt", "--weights=old.caffemodel", "--freeze=conv*, bn1", "--renew=fc"]
    assert main(words) == 0
    new = Net(parse_net(net_text()), "out_iter_3.caffemodel", phase="TRAIN")
    for name in ("conv1", "conv2", "bn1"):
        assert equal(values(new)[name], values(old)[name]), name
    assert values(new)["fc"][0].shape == (3, 16)
    stored = caffe_pb2.NetParameter.FromString((folder / "out_iter_3.caffemodel").read_bytes())
    rates = {layer.name: [param.lr_mult for param in layer.param] for layer in stored.layer}
    assert rates["conv1"] == [0, 0]
    capfd.readouterr()
    assert main([*words[:3], "--freeze=cnov*"]) == 1
    assert "freeze: no layer matches 'cnov*'" in capfd.readouterr().err
