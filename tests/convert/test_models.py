"""The models of models/, at small batches: as ONNX, as PyTorch, and back again."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from poseidon.convert.comparison import run_net
from poseidon.convert.deploy import Deployment
from poseidon.convert.export import ExportOptions, export_net, net_to_export
from poseidon.convert.extents import Extents
from poseidon.convert.fold import fold
from poseidon.convert.inputs import random_inputs
from poseidon.convert.steps import outputs_of
from poseidon.convert.to_caffe.convert import import_model
from poseidon.spec import read_net
from tests.convert.harness import close, run_as_onnx, run_as_torch

MODELS = Path(__file__).parents[2] / "models"
# One of each family, and not VGG, whose layers LeNet and AlexNet have as well.
NAMES = ["alexnet", "cifar10_full", "cifar10_quick", "googlenet", "inception_v3", "lenet", "resnet50"]
INPUTS = {"lenet": (1, 28, 28), "alexnet": (3, 227, 227), "inception_v3": (3, 299, 299)}
INPUTS |= dict.fromkeys(("cifar10_quick", "cifar10_full"), (3, 32, 32))


def seasoned(name: str):
    """A net up to its scores, since probabilities saturate, with BatchNorm statistics as after training: fresh ones are
    zeros."""
    source = read_net(MODELS / name / "deploy.prototxt")
    (scores,) = (layer.bottom[0] for layer in source.net.layer if layer.type == "Softmax")
    net, _ = net_to_export(MODELS / name / "deploy.prototxt", None, Deployment(outputs=(scores,)))
    with torch.no_grad():
        for layer in net.layers.values():
            if layer.type_name == "BatchNorm":
                for index, value in enumerate((0.1, 1.3, 1.0)):
                    layer.param_owner(index).fill_(value)
    return net


@pytest.fixture(scope="module", params=NAMES)
def exported(request):
    """A net, inputs, and what it makes of them."""
    net = seasoned(request.param)
    extents = Extents(net.graph)
    inputs = random_inputs(net, extents.resized(batch=2))
    return request.param, net, extents, inputs, run_net(net, inputs, list(outputs_of(net)))


def test_as_onnx(exported):
    _, net, extents, inputs, wanted = exported
    close(run_as_onnx(net, extents, [inputs])[0], wanted)


def test_as_torch(exported):
    _, net, extents, inputs, wanted = exported
    close(run_as_torch(net, extents, [inputs])[0], wanted)


def test_folded(exported):
    _, net, _, inputs, wanted = exported
    folded = fold(net)
    has_norms = any(layer.type_name == "BatchNorm" for layer in net.layers.values())
    assert bool(folded.layers) == has_norms
    assert not any(layer.type_name == "BatchNorm" for layer in folded.net.layers.values())
    close(run_net(folded.net, inputs, list(wanted)), wanted)


ROUND_TRIPS = [*((name, target) for name in ("lenet", "cifar10_quick", "googlenet") for target in ("torch", "onnx"))]
ROUND_TRIPS.append(("resnet50", "torch"))


@pytest.mark.parametrize(("name", "target"), ROUND_TRIPS)
def test_there_and_back_again(name, target, tmp_path):
    """prototxt → PyTorch or ONNX → prototxt keeps the numbers."""
    net = seasoned(name)
    report = export_net(
        net, tmp_path / "model.py" if target == "torch" else tmp_path / "model.onnx", ExportOptions(target, check=False)
    )
    model = f"{report.files[0]}:load" if target == "torch" else str(report.files[0])
    shapes = {"data": (1, *INPUTS.get(name, (3, 224, 224)))}
    back = import_model(model, None, tmp_path / "back.prototxt", shapes)
    assert back.largest < 1e-5
    again, _ = net_to_export(*back.files, Deployment())
    inputs = random_inputs(net, {"data": (2, *shapes["data"][1:])})
    (wanted,) = run_net(net, inputs, list(outputs_of(net))).values()
    (got,) = run_net(again, inputs, list(outputs_of(again))).values()
    close({"y": got}, {"y": wanted})


@pytest.mark.parametrize("name", NAMES)
def test_train_val_without_its_data(name):
    shape = (1, *INPUTS.get(name, (3, 224, 224)))
    wanted = Deployment(shapes={"data": shape})
    net, _ = net_to_export(MODELS / name / "train_val.prototxt", None, wanted)
    assert net.inputs == ["data"]
    assert not any(layer.is_loss or layer.type_name == "Accuracy" for layer in net.layers.values())
