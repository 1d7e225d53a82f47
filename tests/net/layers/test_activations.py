"""Activations in the corners: kinks, extremes, options Caffe treats specially, masks, and what they refuse."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest
import torch

from poseidon.errors import LayerError
from poseidon.net.draws import Draws
from poseidon.net.net import Net
from poseidon.spec import caffe_pb2
from tests.net.layers.build import build, one

WHERE = "test.prototxt:7: layer 'L' "


def gradient(layer, x: torch.Tensor) -> torch.Tensor:
    x = x.detach().clone().requires_grad_()
    y = layer(x)
    (grad,) = torch.autograd.grad(y, x, torch.ones_like(y))
    return grad


def numbers(*values: float) -> torch.Tensor:
    return torch.tensor([values], dtype=torch.float64)


# -- derivatives at the kinks, where finite differences cannot tell -------------------------------------------------
@pytest.mark.parametrize(
    ("text", "points", "expected"),
    [
        (one("AbsVal"), (-2, 0, 3), (-1, 0, 1)),
        (one("ReLU"), (-1, 0, 1), (0, 0, 1)),
        (one("ReLU", "relu_param { negative_slope: 0.25 }"), (-1, 0, 1), (0.25, 0.25, 1)),
        (one("ELU", "elu_param { alpha: 2 }"), (0, 1), (2, 1)),
        (one("PReLU", "prelu_param { channel_shared: true }"), (-1, 0, 1), (0.25, 0.25, 1)),
        (one("Clip", "clip_param { min: -1 max: 2 }"), (-1.5, -1, 0, 2, 2.5), (0, 1, 1, 1, 0)),
        (one("Power", "power_param { power: 3 }"), (0, 1), (0, 3)),
        (one("Power", "power_param { power: 0 scale: 2 shift: 1 }"), (-3, 0, 2), (0, 0, 0)),
    ],
)
def test_derivative_at_kinks(text, points, expected):
    x = numbers(*points)
    torch.testing.assert_close(gradient(build(text, x.shape), x), numbers(*expected))


def test_bnll_is_linear_far_out_and_exact_before():
    x = numbers(-800, -40, -1, 0, 1, 49, 51, 800)
    expected = [math.log1p(math.exp(v)) if v < 700 else v for v in x[0].tolist()]
    layer = build(one("BNLL"), x.shape)
    np.testing.assert_allclose(layer(x)[0].numpy(), expected, rtol=1e-14)
    slopes = [1 / (1 + math.exp(-min(v, 50))) if v > -700 else 0 for v in x[0].tolist()]
    np.testing.assert_allclose(gradient(layer, x)[0].numpy(), slopes, rtol=1e-12)


@pytest.mark.parametrize(
    ("options", "expected"),
    [("power: 0 shift: 0", 1.0), ("power: 2 scale: 0 shift: -3", 9.0), ("power: -1 scale: 0", math.inf)],
)
def test_power_that_ignores_its_input(options, expected):
    x = numbers(-1, 0, math.inf)
    layer = build(one("Power", f"power_param {{ {options} }}"), x.shape)
    assert layer(x)[0].tolist() == [expected] * 3
    assert gradient(layer, x)[0].tolist() == [0] * 3


@pytest.mark.parametrize("beta", [0, 1, -1.5, 1e-30])
def test_swish(beta):
    x = numbers(-700, -2, 0, 3)
    expected = [v / (1 + math.exp(-beta * v)) for v in x[0].tolist() if -beta * v < 700]
    layer = build(one("Swish", f"swish_param {{ beta: {beta} }}"), x.shape)
    got = layer(x)[0].tolist()
    np.testing.assert_allclose(got[len(got) - len(expected) :], expected, rtol=1e-6)


def test_threshold_compares_strictly_and_has_no_backward():
    x = numbers(-1, 0.5, 0.75).requires_grad_()
    y = build(one("Threshold", "threshold_param { threshold: 0.5 }"), x.shape)(x)
    assert y[0].tolist() == [0, 0, 1]
    with pytest.raises(LayerError, match=re.escape(WHERE + "(Threshold): cannot back-propagate through a step")):
        y.sum().backward()


@pytest.mark.parametrize("kind", ["ReLU", "Sigmoid", "TanH", "ELU", "Exp", "Dropout"])
def test_in_place_overwrites_fresh_memory_and_only_that(kind):
    text = """
        layer { name: "in" type: "Input" top: "x" input_param { shape { dim: 2 dim: 3 } } }
        layer { name: "ip" type: "InnerProduct" bottom: "x" top: "h"
                inner_product_param { num_output: 4 weight_filler { type: "xavier" } } }
        layer { name: "first" type: "KIND" bottom: "h" top: "h" }
        layer { name: "second" type: "KIND" bottom: "h" top: "h" }
    """.replace("KIND", kind)
    net = Net.from_text(text, phase="TRAIN", seed=1)
    assert net.layers["first"].in_place
    assert not net.layers["second"].in_place


def test_prelu_slope_gradient_by_loops():
    x = torch.randn(2, 3, 2, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    x[0, 1, 0, 0] = 0
    layer = build(one("PReLU"), x.shape)
    seed = torch.randn(x.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    layer(x).backward(seed)
    expected = np.zeros(3)
    for (n, c, h, w), value in np.ndenumerate(x.numpy()):
        expected[c] += seed[n, c, h, w].item() * min(value, 0)
    np.testing.assert_allclose(layer.param_owner(0).grad.numpy(), expected)


def test_prelu_slopes_start_at_a_quarter_and_are_a_scalar_when_shared():
    assert build(one("PReLU"), (2, 3)).param_owner(0).tolist() == [0.25] * 3
    shared = build(one("PReLU", "prelu_param { channel_shared: true }"), (2, 3)).param_owner(0)
    assert shared.shape == ()
    assert shared.item() == 0.25


# -- Dropout --------------------------------------------------------------------------------------------------------
def dropout(ratio: float = 0.5, **options):
    return build(one("Dropout", f"dropout_param {{ dropout_ratio: {ratio} }}"), (4, 5), **options)


@pytest.mark.parametrize("ratio", [0.1, 0.5, 0.9])
def test_dropout_keeps_the_right_share_and_scales_it(ratio):
    x = torch.ones(40, 5000, dtype=torch.float64)
    y = dropout(ratio)(x)
    kept = y != 0
    assert torch.all(y[kept] == 1 / (1 - torch.tensor(ratio).item()))
    deviation = math.sqrt(ratio * (1 - ratio) / x.numel())
    assert abs(kept.double().mean().item() - (1 - ratio)) < 5 * deviation
    per_column = kept.double().mean(0)
    assert per_column.std().item() == pytest.approx(math.sqrt(ratio * (1 - ratio) / 40), rel=0.1)


def test_dropout_uses_the_same_mask_backward_and_may_be_called_twice():
    x = torch.rand(4, 5, dtype=torch.float64).add_(1).requires_grad_()
    y = dropout()(x)
    for _ in range(2):
        (grad,) = torch.autograd.grad(y, x, torch.ones_like(y), retain_graph=True)
        torch.testing.assert_close(grad, (y / x).detach())


def test_dropout_draws_anew_each_clock_and_per_layer():
    x = torch.ones(4, 500)
    draws = Draws(3)
    layer, other = dropout(draws=draws), dropout(draws=draws, name="other")
    first, again = layer(x), layer(x)
    draws.clock += 1
    later = layer(x)
    assert torch.equal(first, again)
    assert not torch.equal(first, later)
    assert not torch.equal(later, other(x))


def test_dropout_of_two_workers_is_that_of_one():
    x = torch.ones(6, 50)
    whole = dropout(draws=Draws(3))(x)
    for rank in range(2):
        draws = Draws(3)
        draws.first, draws.stride = rank, 2
        assert torch.equal(dropout(draws=draws)(x[rank::2]), whole[rank::2])


def test_dropout_does_not_depend_on_memory_order():
    x = torch.ones(3, 4, 5, 6)
    plain = dropout(draws=Draws(3))(x)
    other = dropout(draws=Draws(3))(x.contiguous(memory_format=torch.channels_last))
    assert other.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(plain, other)


def test_dropout_in_place_equals_out_of_place():
    x = torch.rand(4, 5, dtype=torch.float64, requires_grad=True)
    expected = dropout(draws=Draws(3))(x)
    layer = dropout(draws=Draws(3))
    layer.in_place = True
    hidden = x * 1
    got = layer(hidden)
    assert got.data_ptr() == hidden.data_ptr()
    torch.testing.assert_close(got, expected)
    for result in (got, expected):
        result.sum().backward()
    torch.testing.assert_close(x.grad, 2 * (expected / x).detach())


@pytest.mark.parametrize("shape", [(), (0, 3), (7,)])
def test_dropout_of_odd_shapes(shape):
    assert build(one("Dropout"), shape)(torch.ones(shape)).shape == shape


def test_dropout_is_nothing_in_the_test_phase():
    x = torch.ones(4, 5)
    assert dropout(phase=caffe_pb2.TEST)(x) is x


# -- precision ------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "text",
    [
        one("AbsVal"),
        one("BNLL"),
        one("Clip", "clip_param { min: -1 max: 1 }"),
        one("Dropout"),
        one("ELU"),
        one("Exp", "exp_param { base: 2 shift: 1 scale: 0.5 }"),
        one("Log", "log_param { base: 2 shift: 9 scale: 0.5 }"),
        one("Power", "power_param { power: 2 shift: 1 scale: 0.5 }"),
        one("Power", "power_param { power: 0 }"),
        one("PReLU"),
        one("ReLU"),
        one("Sigmoid"),
        one("Swish", "swish_param { beta: 2 }"),
        one("TanH"),
        one("Threshold"),
    ],
)
def test_low_precision_stays_low_precision(text):
    x = torch.randn(2, 3, dtype=torch.bfloat16, generator=torch.Generator().manual_seed(1)).requires_grad_()
    y = build(text, x.shape)(x)
    assert y.dtype == torch.bfloat16
    if "Threshold" not in text:
        y.sum().backward()
        assert x.grad is not None
        assert x.grad.dtype == torch.bfloat16


# -- refusals -------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("text", "shape", "message"),
    [
        ('type: "AbsVal" bottom: "x" top: "x"', (2,), "(AbsVal): cannot run in place, got 'x' as bottom and top"),
        (one("Clip"), (2,), "(Clip): needs clip_param with both min and max"),
        (one("Clip", "clip_param { min: 2 max: 1 }"), (2,), "(Clip): clip_param needs min <= max, got min 2 and max 1"),
        (one("Dropout", "dropout_param { dropout_ratio: 1 }"), (2,), "(Dropout): dropout_ratio must be at least 0"),
        (one("Dropout", "dropout_param { dropout_ratio: -0.5 }"), (2,), "and below 1, got -0.5"),
        (one("Exp", "exp_param { base: 0 }"), (2,), "(Exp): exp_param.base must be positive, or -1 for e, got 0"),
        (one("Exp", "exp_param { base: -2 }"), (2,), "(Exp): exp_param.base must be positive, or -1 for e, got -2"),
        (one("Log", "log_param { base: 1 }"), (2,), "(Log): log_param.base must be positive and not 1, or -1 for e"),
        (one("Log", "log_param { base: -3 }"), (2,), "(Log): log_param.base must be positive and not 1"),
        (one("PReLU"), (3,), "(PReLU): needs a bottom of at least 2 axes, channels on axis 1, got shape 3"),
    ],
)
def test_refused_options(text, shape, message):
    with pytest.raises(LayerError, match=re.escape(message)):
        build(text, shape)


def test_prelu_cannot_change_its_channels():
    layer = build(one("PReLU"), (2, 3, 4))
    assert layer.reshape([(5, 3, 9)]) == [(5, 3, 9)]
    with pytest.raises(LayerError, match="was built for 3 channels, got a bottom of shape 2 x 4 x 4"):
        layer.reshape([(2, 4, 4)])
