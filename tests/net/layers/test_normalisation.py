"""BatchNorm and MVN against loops over channels and maps: statistics, odd shapes, and what they refuse."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch

from poseidon.errors import LayerError
from poseidon.net.net import Net
from poseidon.spec import caffe_pb2, parse_net
from tests.net.layers.build import build, one


def values(*shape: int, seed: int = 1) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).standard_normal(shape) * 2 + 1)


def channel_statistics(x: np.ndarray) -> tuple[np.ndarray, np.ndarray, int]:
    """Mean and biased variance of every channel, one by one, and how many values each has."""
    if x.ndim == 1:
        x = x[:, None]
    channels = [x[:, c].ravel() for c in range(x.shape[1])]
    means = [sum(channel) / len(channel) for channel in channels]
    variances = [sum((v - m) ** 2 for v in channel) / len(channel) for channel, m in zip(channels, means, strict=True)]
    return np.array(means), np.array(variances), len(channels[0])


@pytest.mark.parametrize("shape", [(4, 3, 2, 5), (6, 3), (7,), (2, 3, 2, 2, 2), (1, 3, 1, 1), (1,)])
def test_running_sums_over_several_passes(shape):
    layer = build(one("BatchNorm", "batch_norm_param { moving_average_fraction: 0.75 eps: 0.01 }"), shape)
    mean_sum, variance_sum, factor = 0.0, 0.0, 0.0
    for step in range(3):
        x = values(*shape, seed=step)
        mean, variance, count = channel_statistics(x.numpy())
        unbiased = variance * count / (count - 1) if count > 1 else variance
        mean_sum = 0.75 * mean_sum + mean
        variance_sum = 0.75 * variance_sum + unbiased
        factor = 0.75 * factor + 1
        axes = (1, -1) + (1,) * (len(shape) - 2) if len(shape) > 1 else (1,)
        expected = (x.numpy() - mean.reshape(axes)) / np.sqrt(variance.reshape(axes) + 0.01)
        np.testing.assert_allclose(layer(x).numpy(), expected, rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(layer.param(0).numpy(), mean_sum)
    np.testing.assert_allclose(layer.param(1).numpy(), variance_sum, atol=1e-12)
    np.testing.assert_allclose(layer.param(2).numpy(), [factor])


def test_global_statistics_are_the_sums_over_the_factor_and_stay():
    layer = build(one("BatchNorm"), (2, 2, 3), phase=caffe_pb2.TEST)
    for index, value in enumerate(([1.0, -2.0], [8.0, 2.0], [4.0])):
        layer.param(index).copy_(torch.tensor(value))
    x = values(2, 2, 3)
    expected = np.stack([(x[:, 0] - 0.25) / np.sqrt(2 + 1e-5), (x[:, 1] + 0.5) / np.sqrt(0.5 + 1e-5)], axis=1)
    np.testing.assert_allclose(layer(x).numpy(), expected, rtol=1e-9)
    assert [layer.param(i).tolist() for i in range(3)] == [[1.0, -2.0], [8.0, 2.0], [4.0]]


def test_statistics_that_were_never_gathered_count_as_zero():
    layer = build(one("BatchNorm", "batch_norm_param { eps: 0.25 }"), (2, 3), phase=caffe_pb2.TEST)
    x = values(2, 3)
    np.testing.assert_allclose(layer(x).numpy(), x.numpy() / 0.5)


def test_normalize_with_a_scale_equals_the_two_layers():
    shape = (4, 3, 2, 2)
    alone, paired = build(one("BatchNorm"), shape), build(one("BatchNorm"), shape)
    scale = build(one("Scale", "scale_param { bias_term: true }"), shape)
    with torch.no_grad():
        scale.param(0).copy_(torch.tensor([2.0, -1.0, 0.5]))
        scale.param(1).copy_(torch.tensor([0.1, 0.2, 0.3]))
    x = values(*shape).requires_grad_()
    seed = values(*shape, seed=9)
    wanted = [x, scale.param(0), scale.param(1)]
    apart = torch.autograd.grad(scale(alone(x)), wanted, seed)
    together = torch.autograd.grad(paired.normalize(x, scale.param(0), scale.param(1)), wanted, seed)
    for one_grad, other_grad in zip(apart, together, strict=True):
        torch.testing.assert_close(one_grad, other_grad)
    for index in range(3):
        torch.testing.assert_close(alone.param(index), paired.param(index))


def test_a_net_fuses_the_pair_only_where_nobody_else_reads_between():
    text = """
        layer { name: "in" type: "Input" top: "x" input_param { shape { dim: 4 dim: 3 dim: 2 } } }
        layer { name: "bn" type: "BatchNorm" bottom: "x" top: "n" }
        layer { name: "sc" type: "Scale" bottom: "n" top: "y" scale_param { bias_term: true %s } }
    """
    x = values(4, 3, 2).float()
    for options, fuses in (("", True), ("axis: 2", False), ("num_axes: 2", False)):
        net = Net(parse_net(text % options), phase="TRAIN", seed=1)
        assert net.program.absorbed == ({"n"} if fuses else set())
        torch.testing.assert_close(net(x=x)["y"], net(x=x, keep=["n"])["n"])  # the scale is 1, the shift 0


def test_statistics_take_no_gradient_and_shared_ones_are_gathered_once_each():
    text = """
        layer { name: "in" type: "Input" top: "a" top: "b" input_param { shape { dim: 4 dim: 2 } } }
        layer { name: "one" type: "BatchNorm" bottom: "a" top: "c" %s }
        layer { name: "two" type: "BatchNorm" bottom: "b" top: "d" %s }
    """
    shares = " ".join(f'param {{ name: "{name}" lr_mult: 0 }}' for name in ("mean", "variance"))
    net = Net(parse_net(text % (shares, shares)), phase="TRAIN", seed=1)
    a, b = values(4, 2, seed=1), values(4, 2, seed=2)
    net(a=a.float(), b=b.float())
    expected = 0.999 * a.mean(0) + b.mean(0)
    torch.testing.assert_close(net.params["one"][0].detach().double(), expected, rtol=1e-4, atol=1e-5)
    assert not any(p.requires_grad for p in net.parameters())


@pytest.mark.parametrize(
    ("options", "shapes", "message"),
    [
        ("param { lr_mult: 1 }", [(2, 3)], "`param` entry 0 needs lr_mult 0, got 1; leave the entries out"),
        ("param { lr_mult: 0 } param { decay_mult: 0 }", [(2, 3)], "`param` entry 1 needs lr_mult 0, got 1"),
        ("", [()], "needs a bottom with at least one axis, got a scalar"),
    ],
)
def test_batch_norm_refuses(options, shapes, message):
    with pytest.raises(LayerError, match=re.escape(message)):
        build(one("BatchNorm", options), *shapes)


def test_batch_norm_keeps_its_channels():
    layer = build(one("BatchNorm"), (2, 3, 4))
    assert layer.reshape([(5, 3, 7)]) == [(5, 3, 7)]
    with pytest.raises(
        LayerError, match=re.escape("was built for 3 channels, got a bottom of shape 2 x 4 (4 channels)")
    ):
        layer.reshape([(2, 4)])


# -- MVN ------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("eps", [1e-9, 0.5])
@pytest.mark.parametrize("across", [False, True])
def test_mvn_against_a_loop_over_maps(across, eps):
    x = values(2, 3, 2, 4)
    options = f"mvn_param {{ across_channels: {str(across).lower()} eps: {eps} }}"
    layer = build(one("MVN", options), x.shape)
    seed = values(2, 3, 2, 4, seed=4)
    x.requires_grad_()
    y = layer(x)
    (dx,) = torch.autograd.grad(y, x, seed)
    maps = (-1, 3 * 2 * 4) if across else (-1, 2 * 4)
    for row, got, slope, back in zip(
        x.detach().reshape(maps), y.detach().reshape(maps), seed.reshape(maps), dx.reshape(maps), strict=True
    ):
        centred = row - row.sum() / len(row)
        deviation = (centred**2).sum().div(len(row)).sqrt() + eps
        expected = centred / deviation
        torch.testing.assert_close(got, expected)
        mean_slope, along = slope.sum() / len(row), (slope * expected).sum() / len(row)
        torch.testing.assert_close(back, (slope - mean_slope - expected * along) / deviation)


def test_mvn_of_a_constant_map_is_zero_with_a_finite_gradient():
    x = torch.full((1, 2, 2, 2), 3.0, dtype=torch.float64, requires_grad=True)
    y = build(one("MVN"), x.shape)(x)
    assert y.detach().abs().max() == 0
    (dx,) = torch.autograd.grad(y, x, values(1, 2, 2, 2))
    assert torch.isfinite(dx).all()


def test_mvn_in_single_precision_near_constant_maps_follows_the_deviation_plus_eps():
    x = torch.tensor([1.0, 1.0, 1.0, 1.0 + 2**-20]).reshape(1, 1, 2, 2)
    layer = build(one("MVN", "mvn_param { eps: 1e-6 }"), x.shape)
    row = x.double().numpy().ravel()
    centred = row - row.mean()
    np.testing.assert_allclose(layer(x).numpy().ravel(), centred / (np.sqrt((centred**2).mean()) + 1e-6), rtol=1e-4)


@pytest.mark.parametrize("shape", [(3,), (3, 4), (2, 3, 4)])
def test_mvn_gives_four_axes(shape):
    layer = build(one("MVN", "mvn_param { across_channels: true }"), shape)
    four = (*shape, *[1] * (4 - len(shape)))
    assert layer.reshape([shape]) == [four]
    assert layer(values(*shape)).shape == four


def test_mvn_refuses_five_axes():
    with pytest.raises(LayerError, match="needs a bottom of at most 4 axes, got shape 1 x 1 x 1 x 1 x 2"):
        build(one("MVN"), (1, 1, 1, 1, 2))
