"""The other losses against loops: MultinomialLogisticLoss, InfogainLoss, HingeLoss, SigmoidCrossEntropyLoss,
EuclideanLoss and ContrastiveLoss; where Caffe clips or guards, what an empty batch gives, and what they refuse."""

from __future__ import annotations

import itertools
import math
import re

import numpy as np
import pytest
import torch

from poseidon.errors import LayerError
from poseidon.spec import array_to_blob, caffe_pb2, write_binary
from tests.net.layers.build import build

MODES = ["FULL", "VALID", "BATCH_SIZE", "NONE"]


def text(type_name: str, options: str = "", bottoms: int = 2, tops: str = 'top: "loss"') -> str:
    names = " ".join(f'bottom: "b{i}"' for i in range(bottoms))
    return f'type: "{type_name}" {names} {tops} {options}'


def values(*shape: int, seed: int = 1) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).standard_normal(shape))


def label_values(*shape: int, classes: int, seed: int = 2) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).integers(0, classes, shape).astype("f8"))


def loss_and_gradient(layer, x: torch.Tensor, *others: torch.Tensor) -> tuple[float, np.ndarray]:
    x = x.clone().requires_grad_()
    loss = layer(x, *others)
    assert loss.shape == ()
    (gradient,) = torch.autograd.grad(loss, x, torch.tensor(0.5, dtype=loss.dtype))
    return loss.item(), gradient.numpy() * 2


def refused(message: str, type_name: str, shapes, options: str = "", **others) -> None:
    with pytest.raises(LayerError, match=re.escape(message)):
        build(text(type_name, options, len(shapes), **others), *shapes)


# -- MultinomialLogisticLoss ----------------------------------------------------------------------------------------
@pytest.mark.parametrize(("shape", "label_shape"), [((4, 3), (4,)), ((3, 2, 2, 1), (3, 1, 1, 1)), ((4,), (4, 1))])
def test_multinomial(shape, label_shape):
    p = values(*shape).abs() + 0.1
    classes = math.prod(shape[1:])
    labels = label_values(*label_shape, classes=classes)
    loss, gradient = loss_and_gradient(build(text("MultinomialLogisticLoss"), shape, label_shape), p, labels)
    rows, expected, total = p.reshape(shape[0], -1).numpy(), np.zeros((shape[0], classes)), 0.0
    for n, label in enumerate(labels.reshape(-1).int().tolist()):
        total -= math.log(rows[n, label])
        expected[n, label] = -1 / (rows[n, label] * shape[0])
    assert loss == pytest.approx(total / shape[0])
    np.testing.assert_allclose(gradient.reshape(expected.shape), expected)


@pytest.mark.parametrize("p", [0.0, 1e-30, -0.5])
def test_multinomial_clips_probability_and_slope_alike(p):
    layer = build(text("MultinomialLogisticLoss"), (1, 2), (1,))
    loss, gradient = loss_and_gradient(layer, torch.tensor([[0.5, p]]), torch.tensor([1.0]))
    assert loss == pytest.approx(-math.log(1e-20))
    np.testing.assert_allclose(gradient, [[0, -1e20]], rtol=1e-6)


def test_multinomial_label_out_of_range():
    layer = build(text("MultinomialLogisticLoss"), (2, 3, 2), (2,))
    with pytest.raises(LayerError, match=re.escape("label 6 (number 1 of 2) is outside 0 to 5")):
        layer(values(2, 3, 2), torch.tensor([5.0, 6.0]))


@pytest.mark.parametrize("type_name", ["MultinomialLogisticLoss", "HingeLoss"])
def test_one_label_per_sample(type_name):
    message = "needs one label per sample: 4 for a prediction of shape 4 x 3, got 8 (4 x 2)"
    refused(message, type_name, [(4, 3), (4, 2)])
    refused("same number of samples (first axis), got () and 4", type_name, [(), (4,)])


# -- InfogainLoss ---------------------------------------------------------------------------------------------------
def infogain_by_loops(x, labels, matrix, axis, mode, ignore):
    outer, inner, classes = x.shape[:axis], x.shape[axis + 1 :], x.shape[axis]
    flat, total, valid, gradient = labels.reshape(-1), 0.0, 0, np.zeros_like(x)
    for number, (before, behind) in enumerate(itertools.product(np.ndindex(*outer), np.ndindex(*inner))):
        label = int(flat[number])
        if label == ignore:
            continue
        valid += 1
        places = [(*before, k, *behind) for k in range(classes)]
        scores = [math.exp(x[place]) for place in places]
        for k, place in enumerate(places):
            prob = scores[k] / sum(scores)
            total -= matrix[label, k] * math.log(max(prob, 1e-20))
            gradient[place] = prob * sum(matrix[label]) - matrix[label, k]
    count = max({"FULL": flat.size, "VALID": valid, "BATCH_SIZE": math.prod(outer), "NONE": 1}[mode], 1)
    return total / count, gradient / count


@pytest.mark.parametrize("ignore", [None, 0, 99])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("shape", "axis", "label_shape", "layout"),
    [
        ((4, 3), 1, (4,), torch.contiguous_format),
        ((2, 3, 2, 2), -3, (2, 1, 2, 2), torch.contiguous_format),
        ((2, 3, 2, 2), 1, (2, 2, 2), torch.channels_last),
        ((2, 2, 3), -1, (2, 2), torch.contiguous_format),
    ],
)
@pytest.mark.parametrize("from_file", [True, False])
def test_infogain(shape, axis, label_shape, layout, mode, ignore, from_file, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    matrix = values(3, 3, seed=4).numpy()
    write_binary(array_to_blob(matrix), "h.binaryproto")
    options = f"infogain_loss_param {{ axis: {axis} " + ('source: "h.binaryproto" }' if from_file else "}")
    options += f" loss_param {{ normalization: {mode} " + (f"ignore_label: {ignore} }}" if ignore is not None else "}")
    labels = label_values(*label_shape, classes=3)
    if ignore == 99:
        labels.view(-1)[1] = 99
    x = values(*shape)
    x = x.to(memory_format=layout) if len(shape) == 4 else x
    if from_file:
        layer = build(text("InfogainLoss", options), shape, label_shape)
        got = loss_and_gradient(layer, x, labels)
    else:
        layer = build(text("InfogainLoss", options, 3), shape, label_shape, (1, 1, 3, 3))
        got = loss_and_gradient(layer, x, labels, torch.from_numpy(matrix).view(1, 1, 3, 3))
    want_loss, want_gradient = infogain_by_loops(x.numpy(), labels.numpy(), matrix, axis % len(shape), mode, ignore)
    assert got[0] == pytest.approx(want_loss)
    np.testing.assert_allclose(got[1], want_gradient, atol=1e-13)


def test_infogain_clips_the_value_and_not_the_gradient():
    layer = build(text("InfogainLoss", bottoms=3), (1, 2), (1,), (2, 2))
    matrix = torch.tensor([[1.0, 2.0], [0.0, 0.0]], dtype=torch.float64)
    x = torch.tensor([[0.0, 100.0]], dtype=torch.float64)
    loss, gradient = loss_and_gradient(layer, x, torch.tensor([0.0]), matrix)
    assert loss == pytest.approx(-math.log(1e-20))
    np.testing.assert_allclose(gradient, [[-1.0, 1.0]], atol=1e-12)


def test_infogain_gives_the_probabilities():
    layer = build(text("InfogainLoss", bottoms=3, tops='top: "l" top: "p"'), (2, 3, 2), (2, 2), (9,))
    x = values(2, 3, 2).requires_grad_()
    loss, prob = layer(x, label_values(2, 2, classes=3), torch.eye(3, dtype=torch.float64).view(9))
    exps = np.exp(x.detach().numpy())
    np.testing.assert_allclose(prob.numpy(), exps / exps.sum(1, keepdims=True))
    assert loss.requires_grad
    assert not prob.requires_grad


def test_infogain_never_back_propagates_to_its_matrix():
    layer = build(text("InfogainLoss", bottoms=3), (2, 3), (2,), (3, 3))
    assert not layer.allows_forced_backward(2)
    with pytest.raises(LayerError, match="cannot back-propagate to its infogain matrix; set propagate_down to false"):
        layer(values(2, 3), torch.tensor([0.0, 1.0]), torch.eye(3, requires_grad=True))


def test_infogain_refusals(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_binary(array_to_blob(np.eye(3, dtype="f4")), "three.binaryproto")
    (tmp_path / "damaged.binaryproto").write_bytes((tmp_path / "three.binaryproto").read_bytes()[:-3])
    shapes = [(2, 4), (2,)]
    refused("needs its matrix as a third bottom or from a file, infogain_loss_param.source", "InfogainLoss", shapes)
    source = 'infogain_loss_param {{ source: "{}.binaryproto" }}'.format
    refused("needs a matrix of 4 x 4 values for a prediction of shape 2 x 4, got 3 x 3", "InfogainLoss", shapes,
            source("three"))  # fmt: skip
    refused("cannot read its matrix: missing.binaryproto: no such file", "InfogainLoss", shapes, source("missing"))
    refused("cannot read its matrix: damaged.binaryproto: not a BlobProto", "InfogainLoss", shapes, source("damaged"))
    refused("does not take loss_param.normalize; say normalization: VALID or BATCH_SIZE", "InfogainLoss", shapes,
            "loss_param { normalize: true }")  # fmt: skip
    refused("got 2 x 2", "InfogainLoss", [(2, 4), (2,), (2, 2)])
    refused("infogain_loss_param.axis 2 is out of range", "InfogainLoss", [(2, 4), (2,), (4, 4)],
            "infogain_loss_param { axis: 2 }")  # fmt: skip


# -- HingeLoss ------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("norm", ["L1", "L2"])
@pytest.mark.parametrize(("shape", "label_shape"), [((4, 5), (4,)), ((3, 2, 2, 2), (3, 1, 1, 1)), ((3,), (3,))])
def test_hinge(norm, shape, label_shape):
    x, classes = values(*shape) * 2, math.prod(shape[1:])
    labels = label_values(*label_shape, classes=classes)
    layer = build(text("HingeLoss", f"hinge_loss_param {{ norm: {norm} }}"), shape, label_shape)
    loss, gradient = loss_and_gradient(layer, x, labels)
    rows, expected, total = x.reshape(shape[0], -1).numpy(), np.zeros((shape[0], classes)), 0.0
    for n, k in np.ndindex(shape[0], classes):
        sign = 1 if k == int(labels.reshape(-1)[n]) else -1
        slack = max(0.0, 1 - sign * rows[n, k])
        total += slack if norm == "L1" else slack**2
        if slack > 0:
            expected[n, k] = -sign if norm == "L1" else -sign * 2 * slack
    assert loss == pytest.approx(total / shape[0])
    np.testing.assert_allclose(gradient.reshape(expected.shape), expected / shape[0])


@pytest.mark.parametrize("norm", ["L1", "L2"])
def test_hinge_has_no_slope_at_its_kink(norm):
    layer = build(text("HingeLoss", f"hinge_loss_param {{ norm: {norm} }}"), (1, 2), (1,))
    loss, gradient = loss_and_gradient(layer, torch.tensor([[1.0, -1.0]]), torch.tensor([0.0]))
    assert loss == 0
    assert not gradient.any()


# -- SigmoidCrossEntropyLoss ----------------------------------------------------------------------------------------
@pytest.mark.parametrize("ignore", [None, 0, -1])
@pytest.mark.parametrize(
    ("options", "mode"),
    [
        ("", "BATCH_SIZE"),
        ("normalize: true", "VALID"),
        ("normalize: false", "BATCH_SIZE"),
        *[(f"normalization: {mode}", mode) for mode in MODES],
    ],
)
@pytest.mark.parametrize(("shape", "target_shape"), [((3, 4), (3, 4)), ((2, 3, 2), (2, 6)), ((5,), (5,))])
def test_sigmoid_cross_entropy(shape, target_shape, options, mode, ignore):
    options += f" ignore_label: {ignore}" if ignore is not None else ""
    layer = build(text("SigmoidCrossEntropyLoss", f"loss_param {{ {options} }}"), shape, target_shape)
    x = values(*shape) * 3
    # Ignored are targets by their whole part: with ignore_label 0 a soft 0.3 too.
    targets = torch.from_numpy(np.random.default_rng(3).choice([-1.0, 0.0, 0.3, 1.0], target_shape))
    loss, gradient = loss_and_gradient(layer, x, targets)
    total, valid, expected = 0.0, 0, np.zeros(x.numel())
    for i, (score, target) in enumerate(zip(x.reshape(-1).tolist(), targets.reshape(-1).tolist(), strict=True)):
        if ignore is not None and int(target) == ignore:
            continue
        valid += 1
        prob = 1 / (1 + math.exp(-score))
        total -= target * math.log(prob) + (1 - target) * math.log(1 - prob)
        expected[i] = prob - target
    count = max({"FULL": x.numel(), "VALID": valid, "BATCH_SIZE": shape[0], "NONE": 1}[mode], 1)
    assert loss == pytest.approx(total / count)
    np.testing.assert_allclose(gradient.reshape(-1), expected / count, atol=1e-14)


def test_sigmoid_cross_entropy_of_large_scores():
    layer = build(text("SigmoidCrossEntropyLoss", "loss_param { normalization: NONE }"), (1, 4), (1, 4))
    x = torch.tensor([[1000.0, -1000.0, 1000.0, -1000.0]])
    loss, gradient = loss_and_gradient(layer, x, torch.tensor([[1.0, 0.0, 0.0, 1.0]]))
    assert loss == 2000
    np.testing.assert_array_equal(gradient, [[0, 0, 1, -1]])


def test_sigmoid_cross_entropy_with_nothing_valid():
    layer = build(text("SigmoidCrossEntropyLoss", "loss_param { ignore_label: 1 normalize: true }"), (1, 2), (1, 2))
    x = torch.tensor([[math.nan, 3.0]])
    loss, gradient = loss_and_gradient(layer, x, torch.ones(1, 2))
    assert loss == 0
    assert not gradient.any()


def test_sigmoid_cross_entropy_refusals():
    message = "needs one target per score, got 3 x 4 scores and 3 x 3 targets"
    refused(message, "SigmoidCrossEntropyLoss", [(3, 4), (3, 3)])
    layer = build(text("SigmoidCrossEntropyLoss"), (3, 4), (3, 4))
    with pytest.raises(LayerError, match="cannot back-propagate to its target bottom; set propagate_down to false"):
        layer(values(3, 4), torch.zeros(3, 4, requires_grad=True))
    refused("gives 1 top blob(s), got 2", "SigmoidCrossEntropyLoss", [(3, 4), (3, 4)], tops='top: "a" top: "b"')


# -- EuclideanLoss --------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("shape", "other"), [((3, 4), (3, 4)), ((3, 4, 1, 1), (3, 2, 2)), ((2, 3, 2, 2), (2, 12)), ((4,), (4, 1))]
)
@pytest.mark.parametrize("wanted", [(True, True), (True, False), (False, True)])
def test_euclidean(shape, other, wanted):
    layer = build(text("EuclideanLoss"), shape, other)
    bottoms = [values(*shape), values(*other, seed=2)]
    for bottom, want in zip(bottoms, wanted, strict=True):
        bottom.requires_grad_(want)
    loss = layer(*bottoms)
    a, b = (bottom.detach().reshape(-1).tolist() for bottom in bottoms)
    assert loss.item() == pytest.approx(sum((u - v) ** 2 for u, v in zip(a, b, strict=True)) / (2 * shape[0]))
    loss.backward()
    for bottom, want, sign in zip(bottoms, wanted, (1, -1), strict=True):
        if not want:
            assert bottom.grad is None
            continue
        expected = [sign * (u - v) / shape[0] for u, v in zip(a, b, strict=True)]
        np.testing.assert_allclose(bottom.grad.reshape(-1).numpy(), expected)


def test_euclidean_takes_forced_gradients_on_both_sides_and_equal_samples_only():
    layer = build(text("EuclideanLoss"), (2, 3), (2, 3))
    assert layer.allows_forced_backward(0)
    assert layer.allows_forced_backward(1)
    refused("samples of the same size, got 2 x 3 and 2 x 4", "EuclideanLoss", [(2, 3), (2, 4)])
    refused("same number of samples (first axis), got 2 x 3 and 3 x 2", "EuclideanLoss", [(2, 3), (3, 2)])


# -- ContrastiveLoss ------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("legacy", [False, True])
@pytest.mark.parametrize("margin", [0.5, 1.0, 2.5, 40.0])
@pytest.mark.parametrize(
    ("shape", "other", "label_shape"),
    [((6, 3), (6, 3), (6,)), ((6, 3, 1, 1), (6, 3), (6, 1, 1, 1)), ((6,), (6, 1), (6, 1))],
)
def test_contrastive(shape, other, label_shape, margin, legacy):
    options = f"contrastive_loss_param {{ margin: {margin} legacy_version: {str(legacy).lower()} }}"
    layer = build(text("ContrastiveLoss", options, 3), shape, other, label_shape)
    a, b = values(*shape).requires_grad_(), values(*other, seed=2)
    with torch.no_grad():
        b[:2] = a[:2].reshape(b[:2].shape)  # identical pairs, one of them dissimilar
    b.requires_grad_()
    similar = torch.tensor([1.0, 0.0, 1.0, 0.0, 0.9, 2.0], dtype=torch.float64)  # 0.9 is cut to 0
    loss = layer(a, b, similar.view(label_shape))
    rows_a, rows_b = (bottom.detach().reshape(6, -1).numpy() for bottom in (a, b))
    expected, total = np.zeros_like(rows_a), 0.0
    for n in range(6):
        difference = rows_a[n] - rows_b[n]
        squared = float(difference @ difference)
        distance = math.sqrt(squared)
        if int(similar[n]):
            total += squared
            expected[n] = difference
        elif legacy:
            total += max(margin - squared, 0)
            expected[n] = -difference if margin > squared else 0
        else:
            total += max(margin - distance, 0) ** 2
            expected[n] = -max(margin - distance, 0) / (distance + 1e-4) * difference
    assert loss.item() == pytest.approx(total / 12)
    loss.backward()
    np.testing.assert_allclose(a.grad.reshape(6, -1).numpy(), expected / 6, atol=1e-14)
    np.testing.assert_allclose(b.grad.reshape(6, -1).numpy(), -expected / 6, atol=1e-14)


def test_contrastive_forces_gradients_to_features_only():
    layer = build(text("ContrastiveLoss", bottoms=3), (2, 3), (2, 3), (2,))
    assert [layer.allows_forced_backward(i) for i in range(3)] == [True, True, False]


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        ([(2, 3), (2, 4), (2,)], "features of the same shape N x C (x 1 x 1), got 2 x 3 and 2 x 4"),
        ([(2, 3, 2, 1), (2, 3, 2, 1), (2,)], "features of the same shape N x C (x 1 x 1), got 2 x 3 x 2 x 1"),
        ([(2, 3), (2, 3), (2, 2)], "needs one label per sample: 2 for a prediction of shape 2 x 3, got 4 (2 x 2)"),
        ([(2, 3), (3, 3), (2,)], "same number of samples (first axis), got 2 x 3 and 3 x 3"),
        ([(2, 3), (2, 3)], "takes 3 bottom blob(s), got 2"),
    ],
)
def test_contrastive_refusals(shapes, message):
    refused(message, "ContrastiveLoss", shapes)


# -- all of them ----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("type_name", "shapes"),
    [
        ("MultinomialLogisticLoss", [(0, 3), (0,)]),
        ("HingeLoss", [(0, 3), (0,)]),
        ("SigmoidCrossEntropyLoss", [(0, 3), (0, 3)]),
        ("EuclideanLoss", [(0, 3), (0, 3)]),
        ("ContrastiveLoss", [(0, 3), (0, 3), (0,)]),
        ("InfogainLoss", [(0, 3), (0,), (3, 3)]),
    ],
)
def test_an_empty_batch_has_no_loss(type_name, shapes):
    bottoms = [torch.zeros(shape) for shape in shapes]
    loss, gradient = loss_and_gradient(build(text(type_name, "", len(shapes)), *shapes), *bottoms)
    assert loss == 0
    assert gradient.shape == (0, 3)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    ("type_name", "shapes"),
    [
        ("MultinomialLogisticLoss", [(4, 3), (4,)]),
        ("HingeLoss", [(4, 3), (4,)]),
        ("SigmoidCrossEntropyLoss", [(4, 3), (4, 3)]),
        ("EuclideanLoss", [(4, 3), (4, 3)]),
        ("ContrastiveLoss", [(4, 3), (4, 3), (4,)]),
        ("InfogainLoss", [(4, 3), (4,), (3, 3)]),
    ],
)
def test_low_precision_is_close_to_double(type_name, shapes, dtype):
    layer = build(text(type_name, "", len(shapes)), *shapes)
    x = (values(*shapes[0]).abs() + 0.1).to(dtype)
    others = [label_values(*shape, classes=2).to(dtype) for shape in shapes[1:]]
    loss, gradient = loss_and_gradient(layer, x.double(), *[other.double() for other in others])
    low = x.clone().requires_grad_()
    low_loss = layer(low, *others)
    (low_gradient,) = torch.autograd.grad(low_loss, low)
    assert low_gradient.dtype == dtype
    assert low_loss.item() == pytest.approx(loss, rel=2e-2)
    np.testing.assert_allclose(low_gradient.double().numpy(), gradient, atol=3e-2, rtol=2e-2)


@pytest.mark.parametrize("type_name", ["MultinomialLogisticLoss", "HingeLoss", "EuclideanLoss"])
def test_without_gradients_the_loss_is_a_plain_number(type_name):
    layer = build(text(type_name), (2, 3), (2, 3) if type_name == "EuclideanLoss" else (2,), phase=caffe_pb2.TEST)
    other = torch.zeros(2, 3) if type_name == "EuclideanLoss" else torch.zeros(2)
    x = torch.rand(2, 3, generator=torch.Generator().manual_seed(1)).requires_grad_()
    with torch.no_grad():
        quiet = layer(x, other)
    assert not quiet.requires_grad
    torch.testing.assert_close(quiet, layer(x, other).detach())
