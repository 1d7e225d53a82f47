"""BN of PSPNet and of SegNet against NumPy, and `hole`, which is dilation."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from poseidon.errors import LayerError
from poseidon.net import Net
from poseidon.run.statistics import gathered_blobs, holds_statistics, synchronise_statistics
from poseidon.spec import caffe_pb2, parse_net
from tests.net.layers.build import build, one


def fill(layer, *values) -> None:
    with torch.no_grad():
        for index, value in enumerate(values):
            layer.param(index).copy_(torch.tensor(value, dtype=torch.float64).view(1, -1, 1, 1))


X = np.random.default_rng(1).standard_normal((4, 2, 3, 3)) * 2 + 1
MEAN, VARIANCE = X.mean((0, 2, 3)), X.var((0, 2, 3))
UNBIASED = X.var((0, 2, 3), ddof=0) * 36 / 35


def column(values) -> np.ndarray:
    return np.asarray(values, "f8").reshape(1, -1, 1, 1)


def normal(mean, variance, eps) -> np.ndarray:
    return column([2.0, 3.0]) * (X - column(mean)) / np.sqrt(column(variance) + eps) + column([0.5, -1.0])


@pytest.mark.parametrize(
    ("options", "share", "eps"),
    [
        ("momentum: 0.8 eps: 0.01", 0.2, 0.01),
        ("slope_filler { value: 1 }", 0.1, 1e-5),
        ("moving_average: true decay: 0.3 var_eps: 0.1", 0.3, 0.1),
    ],
)
def test_pspnets_in_both_phases(options, share, eps):
    layer = build(one("BN", f"bn_param {{ {options} }}"), X.shape)
    assert layer.param_shapes == [(1, 2, 1, 1)] * 4
    fill(layer, [2, 3], [0.5, -1], [0.2, 0.4], [1.5, 2.5])
    np.testing.assert_allclose(layer(torch.from_numpy(X)).detach().numpy(), normal(MEAN, VARIANCE, np.float32(eps)))
    moved = [(1 - share) * np.array([0.2, 0.4]) + share * MEAN, (1 - share) * np.array([1.5, 2.5]) + share * UNBIASED]
    np.testing.assert_allclose([layer.param(i).flatten().tolist() for i in (2, 3)], moved, rtol=1e-6)
    testing = build(one("BN", f"bn_param {{ {options} }}"), X.shape, phase=caffe_pb2.TEST)
    fill(testing, [2, 3], [0.5, -1], [0.2, 0.4], [1.5, 2.5])
    want = normal([0.2, 0.4], [1.5, 2.5], np.float32(eps))
    np.testing.assert_allclose(testing(torch.from_numpy(X)).detach().numpy(), want, rtol=1e-6)
    assert testing.param(2).flatten().tolist() == [0.2, 0.4]


def test_frozen_uses_what_is_stored():
    layer = build(one("BN", "bn_param { frozen: true }"), X.shape)
    fill(layer, [2, 3], [0.5, -1], [0.2, 0.4], [1.5, 2.5])
    want = normal([0.2, 0.4], [1.5, 2.5], np.float32(1e-5))
    np.testing.assert_allclose(layer(torch.from_numpy(X)).detach().numpy(), want, rtol=1e-6)
    assert layer.param(3).flatten().tolist() == [1.5, 2.5]


@pytest.mark.parametrize("phase", [caffe_pb2.TRAIN, caffe_pb2.TEST])
def test_segnets(phase):
    learning = build(one("BN", "bn_param { bn_mode: LEARN }"), X.shape, phase=phase)
    assert learning.param_shapes == [(1, 2, 1, 1)] * 2
    fill(learning, [2, 3], [0.5, -1])
    np.testing.assert_allclose(learning(torch.from_numpy(X)).detach().numpy(), normal(MEAN, VARIANCE, 1e-9))
    folded = build(one("BN", "bn_param { bn_mode: INFERENCE }"), X.shape, phase=phase)
    fill(folded, [2, 3], [0.5, -1])
    want = column([2, 3]) * X + column([0.5, -1])
    np.testing.assert_allclose(folded(torch.from_numpy(X)).detach().numpy(), want)


def test_fillers_of_either_name():
    layer = build(one("BN", "bn_param { scale_filler { value: 4 } shift_filler { value: 5 } }"), X.shape)
    assert [layer.param(i).flatten().tolist() for i in (0, 1)] == [[4, 4], [5, 5]]
    plain = build(one("BN", "bn_param { momentum: 0.9 }"), X.shape)
    assert [plain.param(i).flatten().tolist() for i in range(4)] == [[1, 1], [0, 0], [0, 0], [1, 1]]


@pytest.mark.parametrize(("kind", "options"), [("HoleConvolution", "hole: 2"), ("Convolution", "hole_h: 2 hole_w: 2")])
def test_hole_is_dilation(kind, options):
    x = torch.from_numpy(np.random.default_rng(2).standard_normal((1, 2, 7, 7)))
    common = "num_output: 3 kernel_size: 3 bias_term: false"
    holed = build(one(kind, f"convolution_param {{ {common} {options} }}"), x.shape)
    weight = np.random.default_rng(3).standard_normal((3, 2, 3, 3))
    with torch.no_grad():
        holed.param(0).copy_(torch.from_numpy(weight))
    y = holed(x).detach().numpy()
    assert y.shape == (1, 3, 3, 3)
    for o, i, j in np.ndindex(3, 3, 3):
        want = sum(x[0, c, i + 2 * a, j + 2 * b] * weight[o, c, a, b] for c, a, b in np.ndindex(2, 3, 3))
        assert y[0, o, i, j] == pytest.approx(float(want))


@pytest.mark.parametrize(
    ("text", "shape", "message"),
    [
        (one("BN"), (3,), "at least 2 axes, N x C x ..., got 3"),
        (
            one("Convolution", "convolution_param { num_output: 1 kernel_size: 1 hole: 2 dilation: 2 }"),
            (1, 1, 3, 3),
            "give either dilation or hole, not both",
        ),
        (
            one("Convolution", "convolution_param { num_output: 1 kernel_size: 1 hole: 2 hole_h: 2 hole_w: 2 }"),
            (1, 1, 3, 3),
            "give either hole or hole_h and hole_w, not both",
        ),
        (
            one("Convolution", "convolution_param { num_output: 1 kernel_size: 1 hole: 0 }"),
            (1, 1, 3, 3),
            "dilation must be at least 1",
        ),
    ],
)
def test_what_is_refused(text, shape, message):
    with pytest.raises(LayerError, match=message):
        build(text, shape)


def test_another_number_of_channels():
    layer = build(one("BN"), (1, 2, 3, 3))
    with pytest.raises(LayerError, match="was built for 2 channels, got a bottom of shape 1 x 4 x 3 x 3"):
        layer.reshape([(1, 4, 3, 3)])


def test_workers_average_what_it_gathers_and_cannot_synchronise_it():
    text = """
    layer { name: "x" type: "Input" top: "x" input_param { shape { dim: 2 dim: 3 } } }
    layer { name: "bn" type: "BN" bottom: "x" top: "bn" bn_param { momentum: 0.9 } }
    layer { name: "still" type: "BN" bottom: "bn" top: "still" bn_param { frozen: true } }
    """
    net = Net(parse_net(text), phase="TRAIN")
    gathered = gathered_blobs(net)
    assert [blob.data_ptr() for blob in gathered] == [net.params["bn"][index].data_ptr() for index in (2, 3)]
    assert holds_statistics(net, net.params["bn"][3])
    assert not holds_statistics(net, net.params["still"][3])
    synchronise_statistics(net, None)
    with pytest.raises(LayerError, match=r"'bn' \(BN\): has statistics that cannot be synchronised"):
        synchronise_statistics(net, object())
