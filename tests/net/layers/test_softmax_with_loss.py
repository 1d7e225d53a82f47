"""Softmax and SoftmaxWithLoss against loops over positions and classes: axes, labels, normalisation, clipping; and what
all losses share: label checks, counts over workers, precision, repeated backward passes."""

from __future__ import annotations

import itertools
import math
import re

import numpy as np
import pytest
import torch

from poseidon.errors import LayerError, UsageError
from poseidon.net.net import Net
from poseidon.spec import caffe_pb2, parse_net
from tests.net.layers.build import build, one

FLT_MIN = 1.17549435e-38
MODES = ["FULL", "VALID", "BATCH_SIZE", "NONE"]


def text(options: str = "", tops: str = 'top: "loss"') -> str:
    return f'type: "SoftmaxWithLoss" bottom: "x" bottom: "t" {tops} {options}'


def values(*shape: int, seed: int = 1) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).standard_normal(shape))


def label_values(*shape: int, classes: int, seed: int = 2) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).integers(0, classes, shape).astype("f8"))


def by_loops(x: np.ndarray, labels: np.ndarray, axis: int, mode: str, ignore: int | None) -> tuple[float, np.ndarray]:
    """Loss and gradient, one position at a time."""
    outer, classes = x.shape[:axis], x.shape[axis]
    inner = x.shape[axis + 1 :]
    flat = labels.reshape(-1)
    total, valid, gradient = 0.0, 0, np.zeros_like(x)
    for number, (before, behind) in enumerate(itertools.product(np.ndindex(*outer), np.ndindex(*inner))):
        label = int(flat[number])
        if label == ignore:
            continue
        valid += 1
        scores = [math.exp(x[(*before, k, *behind)]) for k in range(classes)]
        for k in range(classes):
            gradient[(*before, k, *behind)] = scores[k] / sum(scores) - (k == label)
        total -= math.log(max(scores[label] / sum(scores), FLT_MIN))
    count = {"FULL": flat.size, "VALID": valid, "BATCH_SIZE": math.prod(outer), "NONE": 1}[mode]
    return total / max(count, 1), gradient / max(count, 1)


def loss_and_gradient(layer, x: torch.Tensor, *others: torch.Tensor) -> tuple[float, np.ndarray]:
    x = x.clone().requires_grad_()
    loss = layer(x, *others)
    (gradient,) = torch.autograd.grad(loss, x, torch.tensor(0.5, dtype=loss.dtype))
    return loss.item(), gradient.numpy() * 2


@pytest.mark.parametrize("ignore", [None, 1, 255])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("shape", "axis", "label_shape"),
    [
        ((5, 3), 1, (5,)),
        ((5, 3), -1, (5, 1)),
        ((2, 17), 1, (2, 1, 1, 1)),
        ((2, 3, 2, 4), 1, (2, 1, 2, 4)),
        ((2, 3, 2, 4), -3, (2, 2, 4)),
        ((2, 3, 4), 2, (2, 3)),
        ((2, 3, 2, 2, 2), 1, (2, 8)),
        ((1, 3), 1, (1,)),
    ],
)
def test_every_axis_and_normalisation(shape, axis, label_shape, mode, ignore):
    options = f"softmax_param {{ axis: {axis} }} loss_param {{ normalization: {mode} "
    options += f"ignore_label: {ignore} }}" if ignore is not None else "}"
    labels = label_values(*label_shape, classes=shape[axis])
    if ignore == 255:
        labels.view(-1)[0] = 255
    layer = build(text(options), shape, label_shape)
    x = values(*shape)
    loss, gradient = loss_and_gradient(layer, x, labels)
    want_loss, want_gradient = by_loops(x.numpy(), labels.numpy(), axis % len(shape), mode, ignore)
    assert loss == pytest.approx(want_loss, rel=1e-12)
    np.testing.assert_allclose(gradient, want_gradient, atol=1e-14)


@pytest.mark.parametrize(
    ("options", "mode"),
    [
        ("", "VALID"),
        ("loss_param { normalize: true }", "VALID"),
        ("loss_param { normalize: false }", "BATCH_SIZE"),
        ("loss_param { normalize: false normalization: FULL }", "FULL"),
    ],
)
def test_the_old_switch_stands_for_a_mode(options, mode):
    x, labels = values(2, 3, 4), label_values(2, 4, classes=3)
    loss, _ = loss_and_gradient(build(text(options), (2, 3, 4), (2, 4)), x, labels)
    assert loss == pytest.approx(by_loops(x.numpy(), labels.numpy(), 1, mode, None)[0])


@pytest.mark.parametrize("classes", [3, 20])
def test_channels_last_gives_the_same_and_keeps_its_order(classes):
    x, labels = values(2, classes, 3, 4), label_values(2, 3, 4, classes=classes)
    labels[1, 2] = 9
    layer = build(text("loss_param { ignore_label: 9 }", 'top: "loss" top: "p"'), x.shape, labels.shape)
    last = x.to(memory_format=torch.channels_last).requires_grad_()
    loss, prob = layer(last, labels)
    (gradient,) = torch.autograd.grad(loss, last)
    want_loss, want_gradient = by_loops(x.numpy(), labels.numpy(), 1, "VALID", 9)
    assert loss.item() == pytest.approx(want_loss)
    np.testing.assert_allclose(gradient.numpy(), want_gradient, atol=1e-14)
    assert gradient.is_contiguous(memory_format=torch.channels_last)
    exps = np.exp(x.numpy())
    np.testing.assert_allclose(prob.numpy(), exps / exps.sum(1, keepdims=True))


def test_the_value_is_clipped_and_the_gradient_is_not():
    layer = build(text(), (3, 2), (3,))
    x = torch.tensor([[0.0, 200.0], [-math.inf, 0.0], [0.0, 0.0]], dtype=torch.float64)
    loss, gradient = loss_and_gradient(layer, x, torch.tensor([0.0, 0.0, 1.0]))
    assert loss == pytest.approx((-2 * math.log(FLT_MIN) + math.log(2)) / 3)
    np.testing.assert_allclose(gradient * 3, [[-1, 1], [-1, 1], [0.5, -0.5]], atol=1e-12)


def test_nothing_valid_is_no_loss():
    layer = build(text("loss_param { ignore_label: 7 }"), (2, 3), (2,))
    loss, gradient = loss_and_gradient(layer, values(2, 3), torch.tensor([7.0, 7.0]))
    assert loss == 0
    assert not gradient.any()


def test_an_ignored_position_takes_no_part_whatever_its_scores():
    layer = build(text("loss_param { ignore_label: 7 }"), (2, 3), (2,))
    x = values(2, 3)
    x[0] = math.nan
    loss, gradient = loss_and_gradient(layer, x, torch.tensor([7.0, 1.0]))
    want_loss, want_gradient = by_loops(x[1:].numpy(), np.array([1]), 1, "VALID", None)
    assert loss == pytest.approx(want_loss)
    np.testing.assert_allclose(gradient, [[0, 0, 0], *want_gradient])


def test_scores_that_are_no_numbers_show_in_the_loss():
    x = values(2, 3)
    x[0, 2] = math.nan
    loss, _ = loss_and_gradient(build(text(), (2, 3), (2,)), x, torch.tensor([0.0, 1.0]))
    assert math.isnan(loss)


def test_an_empty_batch_has_no_loss():
    loss, gradient = loss_and_gradient(build(text(), (0, 3), (0,)), torch.zeros(0, 3), torch.zeros(0))
    assert loss == 0
    assert gradient.shape == (0, 3)


def test_labels_are_cut_to_whole_numbers():
    layer = build(text(), (3, 3), (3,))
    x = values(3, 3)
    expected = loss_and_gradient(layer, x, torch.tensor([2, 0, 1]))[0]
    assert loss_and_gradient(layer, x, torch.tensor([2.9, -0.5, 1.0]))[0] == expected


@pytest.mark.parametrize("bad", [3.0, -1.0, 255.0, math.nan, math.inf])
def test_a_label_out_of_range_is_named(bad):
    layer = build(text("loss_param { ignore_label: 7 }"), (2, 3, 2), (2, 2))
    labels = torch.tensor([[0.0, 7.0], [bad, 2.0]])
    message = (
        f"test.prototxt:7: layer 'L' (SoftmaxWithLoss): label {bad:g} (number 2 of 4) is outside 0 to 2: "
        "the prediction has 3 classes"
    )
    with pytest.raises(LayerError, match=re.escape(message)):
        layer(values(2, 3, 2), labels)


@pytest.mark.parametrize(
    ("shape", "label_shape", "message"),
    [
        ((4, 3, 2), (4,), "needs one label per prediction: 8 for 4 x 3 x 2 with classes along axis 1, got 4 (4)"),
        ((4, 3), (4, 2), "needs one label per prediction: 4 for 4 x 3 with classes along axis 1, got 8 (4 x 2)"),
        ((4, 3), (2, 2), "same number of samples (first axis), got 4 x 3 and 2 x 2"),
        ((4,), (4,), "softmax_param.axis 1 is out of range for a bottom of shape 4"),
        ((), (), "softmax_param.axis 1 is out of range for a bottom of shape ()"),
    ],
)
def test_bottoms_that_do_not_fit(shape, label_shape, message):
    with pytest.raises(LayerError, match=re.escape(message)):
        build(text(), shape, label_shape)


def test_labels_that_want_a_gradient_are_refused_in_training_only():
    labels = torch.tensor([0.0, 1.0], requires_grad=True)
    with pytest.raises(LayerError, match="cannot back-propagate to its label bottom; set propagate_down to false"):
        build(text(), (2, 3), (2,))(values(2, 3), labels)
    build(text(), (2, 3), (2,), phase=caffe_pb2.TEST)(values(2, 3), labels)


def test_too_many_tops():
    with pytest.raises(LayerError, match=re.escape("gives 1 to 2 top blob(s), got 3")):
        build(text(tops='top: "a" top: "b" top: "c"'), (2, 3), (2,))


@pytest.mark.parametrize("shape", [(4, 3), (2, 3, 2)])
def test_the_probabilities_are_given_untouched_and_without_gradient(shape):
    layer = build(text(tops='top: "loss" top: "p"'), shape, (4,) if len(shape) == 2 else (2, 2))
    x = values(*shape).requires_grad_()
    loss, prob = layer(x, label_values(4, classes=3))
    exps = np.exp(x.detach().numpy())
    np.testing.assert_allclose(prob.numpy(), exps / exps.sum(1, keepdims=True))
    assert not prob.requires_grad
    before = torch.autograd.grad(loss, x, retain_graph=True)[0]
    prob.zero_()
    torch.testing.assert_close(torch.autograd.grad(loss, x)[0], before, rtol=0, atol=0)


def test_backward_can_be_repeated_and_leaves_its_gradients_alone():
    x = values(3, 4).requires_grad_()
    loss = build(text(), (3, 4), (3,))(x, torch.tensor([0.0, 1.0, 3.0]))
    first = torch.autograd.grad(loss, x, retain_graph=True)[0]
    kept = first.clone()
    first.zero_()
    torch.testing.assert_close(torch.autograd.grad(loss, x)[0], kept, rtol=0, atol=0)


def test_a_second_derivative_is_refused_not_wrong():
    x = values(3, 4).requires_grad_()
    loss = build(text(), (3, 4), (3,))(x, torch.tensor([0.0, 1.0, 3.0]))
    with pytest.raises(UsageError, match="a loss layer has no second derivative; call backward without create_graph"):
        torch.autograd.grad(loss, x, create_graph=True)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("shape", [(4, 3), (2, 20, 2)])
def test_low_precision_scores_give_a_full_precision_loss(dtype, shape):
    labels = label_values(shape[0] * math.prod(shape[2:]), classes=shape[1]).float().view(shape[0], *shape[2:])
    x = values(*shape).to(dtype).requires_grad_()
    loss = build(text(), shape, labels.shape)(x, labels)
    assert loss.dtype == torch.float32
    want_loss, want_gradient = by_loops(x.detach().double().numpy(), labels.numpy(), 1, "VALID", None)
    assert loss.item() == pytest.approx(want_loss, rel=1e-5)
    (gradient,) = torch.autograd.grad(loss, x)
    assert gradient.dtype == dtype
    np.testing.assert_allclose(gradient.double().numpy(), want_gradient, atol=1e-2 if dtype != torch.float32 else 1e-6)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("num_ignored", [0, 3, 5, 12])
def test_workers_average_to_the_whole_batch(mode, num_ignored):
    """Two workers with half the batch each, gradients averaged, against one with all of it."""
    options = f"loss_param {{ ignore_label: 9 normalization: {mode} }}"
    x, labels = values(4, 3, 3), label_values(4, 3, classes=3)
    labels.view(-1)[:num_ignored] = 9
    whole_loss, whole_gradient = loss_and_gradient(build(text(options), (4, 3, 3), (4, 3)), x, labels)
    counts = [(part != 9).sum() for part in labels.chunk(2)]
    losses, gradients = [], []
    for part, part_labels, count in zip(x.chunk(2), labels.chunk(2), counts, strict=True):
        layer = build(text(options), (2, 3, 3), (2, 3))

        def summed(local, expected=count):
            assert local == expected
            return sum(counts)

        layer.count_over_workers(2, summed)
        loss, gradient = loss_and_gradient(layer, part, part_labels)
        losses.append(loss)
        gradients.append(gradient / 2)
    assert np.mean(losses) == pytest.approx(whole_loss)
    np.testing.assert_allclose(np.concatenate(gradients), whole_gradient, atol=1e-14)


NET = """
layer { name: "x" type: "Input" top: "x" input_param { shape { dim: 4 dim: 6 } } }
layer { name: "t" type: "Input" top: "t" input_param { shape { dim: 4 } } }
layer {
  name: "ip" type: "InnerProduct" bottom: "x" top: "y"
  inner_product_param { num_output: 300 weight_filler { type: "xavier" } }
}
layer { name: "L" type: "SoftmaxWithLoss" bottom: "y" bottom: "t" top: "loss" }
"""


def trained(x: torch.Tensor, labels: torch.Tensor, **options) -> tuple[torch.Tensor, torch.Tensor]:
    net = Net(parse_net(NET), phase="TRAIN", seed=1, **options)
    loss = net(x=x, t=labels).loss
    loss.backward()
    return loss.detach(), net.params["ip"][0].grad


def test_a_net_trains_through_it_in_mixed_precision():
    x, labels = values(4, 6).float(), torch.tensor([0.0, 299.0, 257.0, 3.0])
    loss, gradient = trained(x, labels, autocast=torch.bfloat16)
    want_loss, want_gradient = trained(x, labels)
    assert loss.dtype == torch.float32
    torch.testing.assert_close(loss, want_loss, rtol=1e-2, atol=0)
    torch.testing.assert_close(gradient, want_gradient, rtol=5e-2, atol=5e-3)


def test_a_net_compiled_as_one_graph_checks_its_labels_too():
    """The check that does not look at the values on the host: the one a GPU uses."""
    x, labels = values(4, 6).float(), torch.tensor([0.0, 299.0, 257.0, 3.0])
    for got, want in zip(trained(x, labels, compile="aot_eager"), trained(x, labels), strict=True):
        torch.testing.assert_close(got, want)
    labels[1] = 300
    message = "layer 'L' (SoftmaxWithLoss): a label is outside 0 to 299"
    with pytest.raises(RuntimeError, match=re.escape(message)):
        trained(x, labels, compile="aot_eager")


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize(
    ("shape", "axis"), [((3, 5), 1), ((3, 5), 0), ((2, 40), -1), ((2, 3, 4, 5), 1), ((2, 3, 4, 5), 2), ((4,), 0)]
)
def test_softmax_over_any_axis(shape, axis, layout):
    layer = build(one("Softmax", f"softmax_param {{ axis: {axis} }}"), shape)
    x = values(*shape) * 3
    if len(shape) == 4:
        x = x.to(memory_format=layout)
    exps = np.exp(x.numpy())
    np.testing.assert_allclose(layer(x).numpy(), exps / exps.sum(axis, keepdims=True), rtol=1e-12)


def test_softmax_of_large_scores_does_not_overflow():
    prob = build(one("Softmax"), (1, 3))(torch.tensor([[1000.0, 1000.0, -1000.0]]))
    np.testing.assert_allclose(prob.numpy(), [[0.5, 0.5, 0.0]])


def test_softmax_axis_out_of_range():
    with pytest.raises(LayerError, match=re.escape("softmax_param.axis 2 is out of range for a bottom of shape 3 x 5")):
        build(one("Softmax", "softmax_param { axis: 2 }"), (3, 5))
