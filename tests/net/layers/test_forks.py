"""Layers of Caffe's forks that move or weigh values, against loops written from their definitions."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from poseidon.errors import LayerError
from tests.net.layers.build import build, one


def random(*shape: int, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape)


def run(layer, *arrays: np.ndarray) -> np.ndarray:
    return layer(*[torch.from_numpy(array) for array in arrays]).detach().numpy()


def test_relu6_and_its_derivative_at_the_corners():
    layer = build(one("ReLU6", "relu6_param { negative_slope: 0.25 }"), (5,))
    x = torch.tensor([-2.0, 0.0, 3.0, 6.0, 9.0], dtype=torch.float64, requires_grad=True)
    y = layer(x)
    y.sum().backward()
    assert y.tolist() == [-0.5, 0.0, 3.0, 6.0, 6.0]
    assert x.grad.tolist() == [0.25, 0.25, 1.0, 0.0, 0.0]
    plain = build(one("ReLU6"), (5,))
    again = x.detach().clone().requires_grad_()
    plain(again).sum().backward()
    assert again.grad.tolist() == [0.0, 0.0, 1.0, 0.0, 0.0]


def test_permute():
    x = random(2, 3, 4, 5)
    layer = build(one("Permute", "permute_param { order: 0 order: 2 order: 3 order: 1 }"), x.shape)
    y = run(layer, x)
    for n, c, h, w in np.ndindex(*x.shape):
        assert y[n, h, w, c] == x[n, c, h, w]
    rest = build(one("Permute", "permute_param { order: 3 order: 1 }"), x.shape)
    assert rest.reshape([x.shape]) == [(5, 3, 2, 4)]


@pytest.mark.parametrize("across", [True, False])
@pytest.mark.parametrize("shared", [True, False])
def test_normalize(across, shared):
    x = random(2, 3, 2, 2)
    options = f"across_spatial: {str(across).lower()} channel_shared: {str(shared).lower()} eps: 0.01"
    layer = build(one("Normalize", f"norm_param {{ {options} }}"), x.shape)
    scales = np.array(7.0) if shared else np.array([2.0, 3.0, 5.0])
    with torch.no_grad():
        layer.param(0).copy_(torch.from_numpy(scales))
    assert layer.param_shapes == [() if shared else (3,)]
    y = run(layer, x)
    for n, c, h, w in np.ndindex(*x.shape):
        square = sum(x[n, k, i, j] ** 2 for k, i, j in np.ndindex(3, 2, 2) if across or (i, j) == (h, w))
        scale = 7.0 if shared else scales[c]
        assert y[n, c, h, w] == pytest.approx(scale * x[n, c, h, w] / math.sqrt(square + 0.01), rel=1e-7)


def interpolated(plane: np.ndarray, height: int, width: int) -> np.ndarray:
    h, w = plane.shape
    y = np.empty((height, width))
    for i, j in np.ndindex(height, width):
        r = i * (h - 1) / (height - 1) if height > 1 else 0.0
        c = j * (w - 1) / (width - 1) if width > 1 else 0.0
        r0, c0 = int(r), int(c)
        r1, c1 = min(r0 + 1, h - 1), min(c0 + 1, w - 1)
        u, v = r - r0, c - c0
        y[i, j] = (1 - u) * ((1 - v) * plane[r0, c0] + v * plane[r0, c1]) + u * (
            (1 - v) * plane[r1, c0] + v * plane[r1, c1]
        )
    return y


@pytest.mark.parametrize(
    ("options", "size"),
    [
        ("zoom_factor: 2", (13, 11)),
        ("shrink_factor: 3", (3, 2)),
        ("shrink_factor: 2 zoom_factor: 4", (13, 9)),
        ("height: 1 width: 1", (1, 1)),
        ("height: 4 width: 9", (4, 9)),
        ("shrink_factor: 2 zoom_factor: 4 height: 5 width: 5", (5, 5)),
        ("zoom_factor: 2 height: 5 width: 5", (13, 11)),
        ("height: 5 width: 9 pad_beg: -1 pad_end: -2", (5, 9)),
    ],
)
def test_interp(options, size):
    x = random(2, 3, 7, 6)
    layer = build(one("Interp", f"interp_param {{ {options} }}"), x.shape)
    assert layer.reshape([x.shape]) == [(2, 3, *size)]
    y = run(layer, x)
    inner = x[:, :, 1:-2, 1:-2] if "pad" in options else x
    for n, c in np.ndindex(2, 3):
        np.testing.assert_allclose(y[n, c], interpolated(inner[n, c], *size), rtol=1e-9, atol=1e-12)


def test_interp_nearest():
    x = random(1, 1, 4, 4)
    layer = build(one("Interp", 'interp_param { height: 7 width: 2 interp_type: "nearest_neighbor" }'), x.shape)
    y = run(layer, x)
    for i, j in np.ndindex(7, 2):
        assert y[0, 0, i, j] == x[0, 0, math.floor(i * 3 / 6 + 0.5), math.floor(j * 3 / 1 + 0.5)]


def test_shuffle_channel():
    x = random(2, 6, 2)
    y = run(build(one("ShuffleChannel", "shuffle_channel_param { group: 2 }"), x.shape), x)
    np.testing.assert_array_equal(y, x[:, [0, 3, 1, 4, 2, 5]])


def test_depthwise_convolution():
    x = random(2, 3, 5, 4)
    text = one("DepthwiseConvolution", "convolution_param { num_output: 6 kernel_size: 3 pad: 1 stride: 2 }")
    layer = build(text, x.shape)
    assert layer.param_shapes == [(6, 1, 3, 3), (6,)]
    weight, bias = random(6, 1, 3, 3, seed=2), random(6, seed=3)
    with torch.no_grad():
        layer.param(0).copy_(torch.from_numpy(weight))
        layer.param(1).copy_(torch.from_numpy(bias))
    y = run(layer, x)
    padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
    assert y.shape == (2, 6, 3, 2)
    for n, o, i, j in np.ndindex(*y.shape):
        window = padded[n, o // 2, 2 * i : 2 * i + 3, 2 * j : 2 * j + 3]
        assert y[n, o, i, j] == pytest.approx((window * weight[o, 0]).sum() + bias[o])


def test_axpy():
    a, x, b = random(2, 3, 1, 1), random(2, 3, 2, 2, seed=2), random(2, 3, 2, 2, seed=3)
    layer = build('type: "Axpy" bottom: "a" bottom: "x" bottom: "b" top: "y"', a.shape, x.shape, b.shape)
    y = run(layer, a, x, b)
    for n, c, h, w in np.ndindex(*x.shape):
        assert y[n, c, h, w] == pytest.approx(a[n, c, 0, 0] * x[n, c, h, w] + b[n, c, h, w])


def test_upsample_repeats():
    x = random(1, 2, 2, 3)
    y = run(build(one("Upsample", "upsample_param { scale_h: 2 scale_w: 3 }"), x.shape), x)
    for c, i, j in np.ndindex(2, 4, 9):
        assert y[0, c, i, j] == x[0, c, i // 2, j // 3]


def masked_upsample(options: str, *shape: int):
    return build(f'type: "Upsample" bottom: "x" bottom: "m" top: "y" upsample_param {{ {options} }}', shape, shape)


def test_upsample_puts_values_where_the_mask_says_and_the_last_wins():
    x = torch.tensor([[[[1.0, 2.0], [3.0, 4.0]]]], dtype=torch.float64, requires_grad=True)
    mask = torch.tensor([[[[5.0, 1.0], [5.0, 15.0]]]], dtype=torch.float64)
    y = masked_upsample("scale: 2", 1, 1, 2, 2)(x, mask)
    want = np.zeros(16)
    want[[5, 1, 15]] = [3, 2, 4]
    np.testing.assert_array_equal(y.detach().numpy().ravel(), want)
    (y * torch.arange(16.0).view(1, 1, 4, 4)).sum().backward()
    assert x.grad.flatten().tolist() == [5, 1, 5, 15]


def test_upsample_refuses_places_outside():
    with pytest.raises(LayerError, match="names places 0 to 99, expected 0 to 15 in planes of 4 x 4"):
        masked_upsample("scale: 2", 1, 1, 2, 2)(torch.zeros(1, 1, 2, 2), torch.tensor([[[[0.0, 1], [2, 99]]]]))


def test_reorg_moves_as_darknet_does():
    x = random(2, 8, 4, 6)
    y = run(build(one("Reorg", "reorg_param { stride: 2 }"), x.shape), x)
    assert y.shape == (2, 32, 2, 3)
    flat_x, flat_y = x.reshape(2, -1), y.reshape(2, -1)
    for k, j, i in np.ndindex(8, 4, 6):
        deep, rest = k % 2, k // 2
        source = (deep * 8 + j * 2 + rest // 2) * 12 + i * 2 + rest % 2
        np.testing.assert_array_equal(flat_y[:, (k * 4 + j) * 6 + i], flat_x[:, source])


def test_reorg_reversed():
    x = random(1, 8, 2, 3)
    y = run(build(one("Reorg", "reorg_param { stride: 2 reverse: true }"), x.shape), x)
    for k, j, i in np.ndindex(8, 2, 3):
        assert y[0, k % 2, j * 2 + k // 2 // 2, i * 2 + k // 2 % 2] == x[0, k, j, i]


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def test_region_of_grids():
    x = random(2, 16, 2, 3)
    text = one("Region", "region_param { classes: 3 boxes_of_each_grid: 2 softmax: true }")
    y = run(build(text, x.shape), x).reshape(2, 2, 3, 2, 8)
    for n, h, w, b in np.ndindex(2, 2, 3, 2):
        raw = x[n, b * 8 : b * 8 + 8, h, w]
        classes = np.exp(raw[5:]) / np.exp(raw[5:]).sum()
        np.testing.assert_allclose(y[n, h, w, b], [*raw[:4], sigmoid(raw[4]), *classes])


def test_region_by_num():
    x = random(2, 16, 2, 3)
    y = run(build(one("Region", "region_param { classes: 3 num: 2 }"), x.shape), x)
    for n, h, w, b in np.ndindex(2, 2, 3, 2):
        raw = x[n, b * 8 : b * 8 + 8, h, w]
        classes = np.exp(raw[5:]) / np.exp(raw[5:]).sum()
        want = [*sigmoid(raw[:2]), *raw[2:4], sigmoid(raw[4]), *classes]
        np.testing.assert_allclose(y[n, b * 8 : b * 8 + 8, h, w], want)


@pytest.mark.parametrize(
    ("text", "shapes", "message"),
    [
        (one("Permute", "permute_param { order: 4 }"), [(2, 3)], "order names axis 4, expected axes 0 to 1"),
        (one("Permute", "permute_param { order: 1 order: 1 }"), [(2, 3)], r"names an axis twice.*got \[1, 1\]"),
        (one("Normalize"), [(3,)], "at least 2 axes, N x C x ..., got 3"),
        (one("Interp"), [(1, 1, 2, 2)], "needs a second bottom, height and width, zoom_factor or shrink_factor"),
        (one("Interp", "interp_param { height: 3 }"), [(1, 1, 2, 2)], "needs a second bottom, height and width"),
        (one("Interp", "interp_param { zoom_factor: 0 }"), [(1, 1, 2, 2)], "zoom_factor must be at least 1, got 0"),
        (one("Interp", "interp_param { zoom_factor: 2 pad_beg: 1 }"), [(1, 1, 2, 2)], "expected at most 0, got 1 and"),
        (one("Interp", "interp_param { zoom_factor: 2 pad_beg: -2 }"), [(1, 1, 2, 2)], "leave nothing of a bottom"),
        (one("Interp", 'interp_param { zoom_factor: 2 interp_type: "cubic" }'), [(1, 1, 2, 2)], "got 'cubic'"),
        (one("Interp", "interp_param { height: -1 width: 2 }"), [(1, 1, 2, 2)], "a top of -1 x 2 has no pixels"),
        (one("Interp", "interp_param { zoom_factor: 2 }"), [(2, 2)], "takes bottoms N x C x H x W, got 2 x 2"),
        (
            'type: "Interp" bottom: "x" bottom: "z" top: "y" interp_param { zoom_factor: 2 }',
            [(1, 1, 2, 2)] * 2,
            "takes its size from the second bottom; leave zoom_factor out",
        ),
        (one("ShuffleChannel", "shuffle_channel_param { group: 4 }"), [(1, 6)], "got group 4 for a bottom of 1 x 6"),
        (one("ShuffleChannel"), [(6,)], "at least 2 axes"),
        (
            one("ConvolutionDepthwise", "convolution_param { num_output: 4 kernel_size: 1 }"),
            [(1, 2, 3, 3)],
            "num_output must be the bottom's 2 channels, got 4",
        ),
        (
            one("DepthwiseConvolution", "convolution_param { num_output: 4 group: 3 kernel_size: 1 }"),
            [(1, 2, 3, 3)],
            "group must be 1 or left out, or the 2 channels .* got 3",
        ),
        (
            'type: "Axpy" bottom: "a" bottom: "x" bottom: "b" top: "y"',
            [(2, 3), (2, 3, 4), (2, 3, 5)],
            "second and third bottom of one shape, N x C x ..., got 2 x 3 x 4 and 2 x 3 x 5",
        ),
        (
            'type: "Axpy" bottom: "a" bottom: "x" bottom: "b" top: "y"',
            [(2, 4), (2, 3, 4), (2, 3, 4)],
            "one factor per sample and channel, 2 x 3 x 1 x 1 for 2 x 3 x 4, got 2 x 4",
        ),
        (one("Upsample", "upsample_param { scale: 0 }"), [(1, 1, 2, 2)], "a scale must be at least 1, got 0 x 0"),
        (one("Upsample", "upsample_param { scale_h: 2 }"), [(1, 1, 2, 2)], "scale_h and scale_w go together"),
        (one("Upsample", "upsample_param { upsample_h: 2 }"), [(1, 1, 2, 2)], "upsample_h and upsample_w go together"),
        (
            one("Upsample", "upsample_param { scale: 2 scale_h: 2 scale_w: 2 }"),
            [(1, 1, 2, 2)],
            "either scale or scale_h and scale_w",
        ),
        (one("Upsample", "upsample_param { pad_out_h: true }"), [(1, 1, 2, 2)], "need a mask as second bottom"),
        (one("Upsample"), [(2, 2)], "takes a bottom N x C x H x W, got 2 x 2"),
        (one("Reorg"), [(1, 4, 2, 2)], "reorg_param.stride must be at least 1, got 0"),
        (one("Reorg", "reorg_param { stride: 2 }"), [(1, 6, 2, 2)], "C a multiple of stride² = 4, got 1 x 6 x 2 x 2"),
        (one("Reorg", "reorg_param { stride: 2 }"), [(1, 4, 3, 2)], "multiples of stride 2, got 1 x 4 x 3 x 2"),
        (
            one("Region", "region_param { classes: 2 num: 3 }"),
            [(1, 20, 2, 2)],
            "takes a bottom N x 21 x H x W, 3 boxes",
        ),
        (one("Region", "region_param { coords: 1 }"), [(1, 20, 2, 2)], "at least 2 coords, 1 class and 1 box"),
    ],
)
def test_what_is_refused(text, shapes, message):
    with pytest.raises(LayerError, match=message):
        build(text, *shapes)


@pytest.mark.parametrize(
    ("options", "mask", "message"),
    [
        ("scale: 3 pad_out_w: true", (1, 1, 2, 2), "pad_out_h and pad_out_w are for scale 2, got 3 x 3"),
        ("scale: 2", (1, 1, 2, 1), "mask of the bottom's shape 1 x 1 x 2 x 2, got 1 x 1 x 2 x 1"),
    ],
)
def test_masks_that_do_not_fit(options, mask, message):
    text = f'type: "Upsample" bottom: "x" bottom: "m" top: "y" upsample_param {{ {options} }}'
    with pytest.raises(LayerError, match=message):
        build(text, (1, 1, 2, 2), mask)
