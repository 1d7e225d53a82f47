"""The zoo's files are what the generator writes, have the published sizes, and mean what the PyTorch nets compute."""

from __future__ import annotations

import math

import pytest
import torch
from caffe_reading import Reading, one, parse
from torch import nn

from bench.torch_nets import NETS, build
from models.generate import HERE, MODELS, all_files, bench_text
from poseidon.net.net import Net
from poseidon.spec import format_message, parse_net, read_net, read_solver

# Learnable parameters as published; GoogLeNet and Inception-V3 with their auxiliary heads.
NUM_PARAMETERS = {
    "lenet": 431_080,
    "cifar10_quick": 145_578,
    "cifar10_full": 89_578,
    "alexnet": 60_965_224,
    "caffenet": 60_965_224,
    "googlenet": 13_378_280,
    "vgg16": 138_357_544,
    "vgg19": 143_667_240,
    "vgg19_22k": 229_052_817,
    "resnet50": 25_557_032,
    "resnet152": 60_192_808,
    "inception_v3": 27_161_264,
}
NUM_STATISTICS = {"resnet50": 53_120, "resnet152": 151_424, "inception_v3": 36_224}
NUM_CLASSES = {"lenet": 10, "cifar10_quick": 10, "cifar10_full": 10, "vgg19_22k": 21_841}
NUM_AUXILIARY_PARAMETERS = {
    "googlenet": 2 * (128 + (4 * 4 * 128 + 1) * 1024 + (1024 + 1) * 1000) + (512 + 528) * 128,
    "inception_v3": 768 * 128 + 2 * 128 + 128 * 768 * 25 + 2 * 768 + (768 + 1) * 1000,
}
NUM_ACCURACIES = {"googlenet": 6, "inception_v3": 4}
TWO_ACCURACIES = ("vgg16", "vgg19", "vgg19_22k", "resnet50", "resnet152")
READ_ONLY = sorted(set(MODELS) - set(NETS))  # those that nobody has written in PyTorch


def example(name: str, batch: int = 2) -> dict[str, torch.Tensor]:
    random = torch.Generator().manual_seed(5)
    images = torch.randn(batch, *MODELS[name].image_shape, generator=random, dtype=torch.float64)
    labels = torch.randint(NUM_CLASSES.get(name, 1000), (batch,), generator=random)
    return {"data": images, "label": labels}


def shapes_of(name: str) -> dict[str, torch.Tensor]:
    return {blob: value.to("meta") for blob, value in example(name).items()}


def test_every_model_is_known_everywhere() -> None:
    assert set(MODELS) == set(NUM_PARAMETERS)
    assert set(NETS) < set(MODELS)
    assert {path.parent.name for path in HERE.glob("*/*.prototxt")} == set(MODELS)


@pytest.mark.parametrize("path", sorted(all_files()))
def test_committed_file_is_the_generators_output(path: str) -> None:
    assert (HERE / path).read_text(encoding="utf-8") == all_files()[path]


@pytest.mark.parametrize("name", sorted(MODELS))
def test_training_net_has_the_published_number_of_parameters(name: str) -> None:
    reading = Reading(parse((HERE / name / "train_val.prototxt").read_text()), "TRAIN")
    reading.run(shapes_of(name))
    assert sum(param.numel() for param in reading.params) == NUM_PARAMETERS[name]
    assert reading.num_statistics == NUM_STATISTICS.get(name, 0)


@pytest.mark.parametrize("name", sorted(MODELS))
def test_test_net_measures_accuracy(name: str) -> None:
    reading = Reading(parse((HERE / name / "train_val.prototxt").read_text()), "TEST")
    reading.run(shapes_of(name))
    measured = [one(entry, "top") for entry in reading.layers if one(entry, "type") == "Accuracy"]
    assert len(measured) == NUM_ACCURACIES.get(name, 2 if name in TWO_ACCURACIES else 1)
    assert all(reading.blobs[top].shape == () for top in measured)


@pytest.mark.parametrize("name", sorted(MODELS))
def test_deploy_net_gives_probabilities_from_the_training_nets_layers(name: str) -> None:
    deploy = Reading(parse((HERE / name / "deploy.prototxt").read_text()), "TEST")
    train = Reading(parse((HERE / name / "train_val.prototxt").read_text()), "TRAIN")
    dims = one(one(deploy.layers[0], "input_param"), "shape")["dim"]
    assert tuple(dims[1:]) == MODELS[name].image_shape

    deploy.run({"data": shapes_of(name)["data"]})
    assert one(deploy.layers[-1], "type") == "Softmax"
    assert deploy.blobs["prob"].shape == (2, NUM_CLASSES.get(name, 1000))

    without_heads = NUM_PARAMETERS[name] - NUM_AUXILIARY_PARAMETERS.get(name, 0)
    assert sum(param.numel() for param in deploy.params) == without_heads
    trained_names = {one(entry, "name") for entry in train.layers}
    assert {one(entry, "name") for entry in deploy.layers} - trained_names == {"prob"}


@pytest.mark.parametrize("name", sorted(NETS))
def test_torch_net_computes_the_bench_net(name: str) -> None:
    """Same parameters in the same order, the same loss and the same gradients, dropout off on both sides."""
    inputs = example(name)
    reading = Reading(parse(bench_text(name, batch=2)), "TRAIN")
    for entry in reading.layers[:2]:
        assert tuple(one(one(entry, "input_param"), "shape")["dim"]) == inputs[one(entry, "top")].shape
    reading.run(inputs)
    assert reading.loss is not None

    net = build(name).double()
    for module in net.modules():
        if isinstance(module, nn.Dropout):
            module.eval()
    params = list(net.parameters())
    assert [param.shape for param in params] == [param.shape for param in reading.params]
    with torch.no_grad():
        for param, value in zip(params, reading.params, strict=True):
            param.copy_(value)

    loss = net(inputs["data"], inputs["label"])
    assert math.isclose(loss.item(), reading.loss.item(), rel_tol=1e-9)
    wanted = torch.autograd.grad(reading.loss, reading.params)
    for got, want in zip(torch.autograd.grad(loss, params), wanted, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-6, atol=1e-9 * want.abs().max().item())


@pytest.mark.parametrize("name", sorted(NETS))
def test_poseidon_computes_the_torch_net(name: str) -> None:
    """Loss and gradients of the real net. Dropout, where there is any, is off in TEST phase; BatchNorm needs TRAIN."""
    inputs = example(name)
    torch_net = build(name).double()
    drops = any(isinstance(module, nn.Dropout) for module in torch_net.modules())
    torch_net.train(not drops)
    net = Net.from_text(bench_text(name, batch=2), phase="TEST" if drops else "TRAIN", seed=1, dtype=torch.float64)
    params = [param for param in net.parameters() if param.requires_grad]
    wanted_params = list(torch_net.parameters())
    assert [param.shape for param in params] == [param.shape for param in wanted_params]
    with torch.no_grad():
        for param, value in zip(params, wanted_params, strict=True):
            param.copy_(value)

    loss = net(**inputs).loss
    wanted_loss = torch_net(inputs["data"], inputs["label"])
    assert loss is not None
    # A prototxt's 0.3 is a 32-bit one, off by 4e-8 of itself.
    assert math.isclose(loss.item(), wanted_loss.item(), rel_tol=1e-7)
    wanted = torch.autograd.grad(wanted_loss, wanted_params)
    for got, want in zip(torch.autograd.grad(loss, params), wanted, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-6, atol=1e-7 * want.abs().max().item())


@pytest.mark.parametrize("name", READ_ONLY)
def test_poseidon_computes_what_the_file_says(name: str) -> None:
    """Loss and gradients of the larger nets, without their dropout, beside the second reading with the same weights."""
    batch = 1 if name.startswith(("vgg", "resnet")) else 2  # an auxiliary head's BatchNorm needs two images
    source = parse_net(bench_text(name, batch)).net
    kept = [layer for layer in source.layer if layer.type != "Dropout"]
    del source.layer[:]
    source.layer.extend(kept)
    net = Net(source, phase="TRAIN", seed=1, dtype=torch.float64)  # in single precision ReLUs fall to other sides
    params = [param for param in net.parameters() if param.requires_grad]
    inputs = example(name, batch)

    loss = net(**inputs).loss
    assert loss is not None
    grads = torch.autograd.grad(loss, params)
    reading = Reading(parse(format_message(source)), "TRAIN", params)
    reading.run(inputs)
    assert reading.loss is not None
    assert len(reading.params) == len(params)
    assert math.isclose(loss.item(), reading.loss.item(), rel_tol=1e-7)
    for got, want in zip(grads, torch.autograd.grad(reading.loss, params), strict=True):
        assert (got - want).norm() <= 1e-6 * want.norm()


@pytest.mark.parametrize("name", sorted(MODELS))
def test_poseidon_reads_every_file(name: str) -> None:
    for file in ("train_val", "deploy"):
        assert read_net(HERE / name / f"{file}.prototxt").net.name == MODELS[name].title
    assert read_solver(HERE / name / "solver.prototxt").net == f"models/{name}/train_val.prototxt"


def test_dropout_ratios_are_the_same_on_both_sides() -> None:
    for name in NETS:
        layers = parse(bench_text(name, 1))["layer"]
        ratios = [one(one(entry, "dropout_param"), "dropout_ratio") for entry in layers if "dropout_param" in entry]
        assert ratios == [module.p for module in build(name).modules() if isinstance(module, nn.Dropout)]


def test_lenet_solver_carries_the_published_schedule() -> None:
    solver = {key: values[0] for key, values in parse((HERE / "lenet" / "solver.prototxt").read_text()).items()}
    published = {
        "base_lr": 0.01,
        "lr_policy": "inv",
        "gamma": 0.0001,
        "power": 0.75,
        "momentum": 0.9,
        "weight_decay": 0.0005,
        "max_iter": 10000,
        "test_iter": 100,
        "test_interval": 500,
    }
    assert published.items() <= solver.items()


@pytest.mark.parametrize("name", sorted(MODELS))
def test_solver_names_its_own_net_and_tests_a_whole_set(name: str) -> None:
    solver = parse((HERE / name / "solver.prototxt").read_text())
    assert one(solver, "net") == f"models/{name}/train_val.prototxt"
    num_test_images = 10_000 if NUM_CLASSES.get(name) == 10 else 50_000
    assert one(solver, "test_iter") * MODELS[name].batches["TEST"] == num_test_images
