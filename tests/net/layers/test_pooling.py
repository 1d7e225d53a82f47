"""Pooling and SPP against loops over every window, in Caffe's way; draws, masks, memory, and what they refuse."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from poseidon.errors import LayerError
from poseidon.net.draws import Draws
from poseidon.spec import caffe_pb2
from tests.net.layers.build import build, one

FLT_MAX = float(np.finfo(np.float32).max)


def pool_text(options: str, tops: str = "") -> str:
    return one("Pooling", f"{tops} pooling_param {{ {options} }}")


def distinct(*shape: int, seed: int = 0) -> torch.Tensor:
    order = np.random.default_rng(seed).permutation(int(np.prod(shape)))
    return torch.from_numpy(order.reshape(shape) * 0.5 - len(order) / 4)


def output_size(size: int, kernel: int, stride: int, pad: int, floor: bool, any_pad: bool) -> int:
    room = (size + 2 * pad - kernel) / stride
    count = (math.floor(room) if floor else math.ceil(room)) + 1
    if any_pad and (count - 1) * stride >= size + pad:
        count -= 1
    return count


def pooled(x: np.ndarray, kernel, stride, pad, floor: bool = False):
    """Maxima with mask, averages, and for each the gradient of Σ seed · top, with seed counting up."""
    sizes = x.shape[2:]
    outputs = [
        output_size(size, k, s, p, floor, any(pad)) for size, k, s, p in zip(sizes, kernel, stride, pad, strict=True)
    ]
    shape = (*x.shape[:2], *outputs)
    best, mask, mean = np.full(shape, -FLT_MAX), np.full(shape, -1.0), np.zeros(shape)
    seed = 1.0 + np.arange(best.size).reshape(shape)
    best_grad, mean_grad = np.zeros_like(x), np.zeros_like(x)
    for n, c, i, j in np.ndindex(*shape):
        top, left = i * stride[0] - pad[0], j * stride[1] - pad[1]
        bottom, right = min(top + kernel[0], sizes[0] + pad[0]), min(left + kernel[1], sizes[1] + pad[1])
        area = (bottom - top) * (right - left)
        rows, columns = range(max(top, 0), min(bottom, sizes[0])), range(max(left, 0), min(right, sizes[1]))
        where = (n, c, i, j)
        for h in rows:
            for w in columns:
                mean[where] += x[n, c, h, w]
                mean_grad[n, c, h, w] += seed[where] / area
                if x[n, c, h, w] > best[where]:
                    best[where], mask[where] = x[n, c, h, w], h * sizes[1] + w
        with np.errstate(invalid="ignore"):
            mean[where] = np.float64(mean[where]) / np.float64(area)
        if mask[where] >= 0:
            best_grad[n, c].flat[int(mask[where])] += seed[where]
    return {"max": best, "mask": mask, "max_grad": best_grad, "ave": mean, "ave_grad": mean_grad, "seed": seed}


def check_against_loops(x: torch.Tensor, options: str, kernel, stride, pad, floor: bool = False) -> None:
    want = pooled(x.numpy(), kernel, stride, pad, floor)
    seed = torch.from_numpy(want["seed"])
    bottom = x.clone().requires_grad_()
    layer = build(pool_text(f"pool: MAX {options}", 'top: "mask"'), x.shape)
    assert layer.reshape([tuple(x.shape)]) == [want["max"].shape] * 2
    y, mask = layer(bottom)
    np.testing.assert_array_equal(y.detach().numpy(), want["max"])
    np.testing.assert_array_equal(mask.numpy(), want["mask"])
    assert not mask.requires_grad
    np.testing.assert_allclose(torch.autograd.grad(y, bottom, seed)[0].numpy(), want["max_grad"])
    y = build(pool_text(f"pool: AVE {options}"), x.shape)(bottom)
    np.testing.assert_allclose(y.detach().numpy(), want["ave"], atol=1e-12)
    np.testing.assert_allclose(torch.autograd.grad(y, bottom, seed)[0].numpy(), want["ave_grad"])


# -- max and average ------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("sizes", "kernel", "stride", "pad"),
    [
        ((7, 6), (3, 3), (2, 2), (0, 0)),
        ((7, 6), (3, 3), (2, 2), (1, 1)),
        ((5, 6), (3, 3), (2, 2), (2, 2)),  # more than half a kernel of padding
        ((5, 6), (5, 2), (1, 3), (4, 1)),
        ((5, 4), (2, 2), (2, 2), (1, 0)),  # padding of one axis clips both
        ((4, 6), (1, 1), (4, 4), (0, 0)),  # the last window starts beyond the bottom
        ((6, 9), (2, 2), (5, 4), (0, 0)),  # ... and along both axes
        ((7, 7), (2, 1), (5, 6), (1, 0)),  # with padding it is left out
        ((3, 4), (5, 4), (3, 1), (0, 0)),  # the kernel is larger than the bottom
        ((1, 1), (3, 3), (1, 1), (1, 1)),
    ],
)
@pytest.mark.parametrize("channels", [2, 9])
def test_windows(sizes, kernel, stride, pad, channels):
    options = " ".join(
        f"{name}_{side}: {value}"
        for name, values in (("kernel", kernel), ("stride", stride), ("pad", pad))
        for side, value in zip("hw", values, strict=True)
    )
    check_against_loops(distinct(2, channels, *sizes), options, kernel, stride, pad)


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_random_windows(data):
    kernel = data.draw(st.integers(1, 5))
    stride = data.draw(st.integers(1, 6))
    pad = data.draw(st.integers(0, kernel - 1))
    sizes = (data.draw(st.integers(1, 8)), data.draw(st.integers(1, 8)))
    floor = data.draw(st.booleans())
    mode = "FLOOR" if floor else "CEIL"
    options = f"kernel_size: {kernel} stride: {stride} pad: {pad} round_mode: {mode}"
    x = distinct(1, data.draw(st.sampled_from([1, 8])), *sizes, seed=kernel)
    if min(output_size(size, kernel, stride, pad, floor, pad > 0) for size in sizes) < 1:
        with pytest.raises(LayerError, match="does not fit into a bottom"):
            build(pool_text(options), x.shape)
    else:
        check_against_loops(x, options, (kernel,) * 2, (stride,) * 2, (pad,) * 2, floor)


def test_the_first_of_equal_maxima_gets_the_gradient():
    for channels in (1, 16):
        x = torch.ones(1, channels, 5, 5, dtype=torch.float64)
        check_against_loops(x, "kernel_size: 3 stride: 1 pad: 1", (3, 3), (1, 1), (1, 1))
        check_against_loops(x, "kernel_size: 3 stride: 2 pad: 2", (3, 3), (2, 2), (2, 2))


@pytest.mark.parametrize("method", ["MAX", "AVE"])
def test_global_pooling_follows_the_bottom(method):
    layer = build(pool_text(f"pool: {method} global_pooling: true"), (1, 3, 5, 5))
    x = distinct(2, 3, 4, 7)
    assert layer.reshape([tuple(x.shape)]) == [(2, 3, 1, 1)]
    want = x.numpy().max((2, 3)) if method == "MAX" else x.numpy().mean((2, 3))
    np.testing.assert_allclose(layer(x)[..., 0, 0].numpy(), want)


@pytest.mark.parametrize("method", ["MAX", "AVE", "STOCHASTIC"])
@pytest.mark.parametrize("channels", [3, 10])
def test_the_bottom_may_lie_in_memory_in_any_order(method, channels):
    x = distinct(2, channels, 6, 5).abs()
    layer = build(pool_text(f"pool: {method} kernel_size: 3 stride: 2"), x.shape)
    want = layer(x)
    seed = distinct(*want.shape, seed=1)
    want_grad = None
    for other in (x, x.contiguous(memory_format=torch.channels_last), x.transpose(2, 3).contiguous().transpose(2, 3)):
        bottom = other.detach().requires_grad_()
        y = layer(bottom)
        assert torch.equal(y, want)
        (grad,) = torch.autograd.grad(y, bottom, seed)
        want_grad = grad if want_grad is None else want_grad
        assert torch.equal(grad, want_grad)


@pytest.mark.parametrize("method", ["MAX", "AVE"])
def test_the_bottom_is_not_kept(method):
    x = torch.randn(2, 16, 8, 8, requires_grad=True)
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        y = build(pool_text(f"pool: {method} kernel_size: 3 stride: 2"), x.shape)(x)
    assert [(t.shape, t.dtype) for t in kept] == ([(y.shape, torch.int64)] if method == "MAX" else [])


@pytest.mark.parametrize("method", ["MAX", "AVE", "STOCHASTIC"])
def test_half_precision_and_empty_batches(method):
    layer = build(pool_text(f"pool: {method} kernel_size: 2"), (2, 8, 4, 4))
    x = torch.rand(2, 8, 4, 4, dtype=torch.bfloat16, requires_grad=True)
    y = layer(x)
    assert y.dtype == torch.bfloat16
    y.float().sum().backward()
    assert x.grad.abs().sum() > 0
    assert layer(torch.rand(0, 8, 4, 4)).shape == (0, 8, 3, 3)


# -- stochastic -----------------------------------------------------------------------------------------------------
def test_stochastic_pooling_draws_in_proportion():
    """One window of 1, 2, 3, 4 in each of many planes: shares of 0.1, 0.2, 0.3, 0.4."""
    planes = 20000
    x = torch.tensor([1.0, 2.0, 3.0, 4.0]).view(1, 1, 2, 2).expand(2, planes // 2, 2, 2).contiguous().requires_grad_()
    y = build(pool_text("pool: STOCHASTIC kernel_size: 2"), x.shape)(x)
    shares = [(y == value).double().mean().item() for value in (1, 2, 3, 4)]
    np.testing.assert_allclose(shares, [0.1, 0.2, 0.3, 0.4], atol=5 * math.sqrt(0.25 / planes))
    y.sum().backward()
    assert torch.equal(x.grad.sum((2, 3)), torch.ones(2, planes // 2))
    assert torch.equal((x * x.grad).sum((2, 3)), y[..., 0, 0])


def test_stochastic_pooling_clips_at_the_edge_and_never_draws_a_zero_beside_a_value():
    x = torch.zeros(3, 4, 5, 5)
    x[:, :, 2, 2] = 1.0
    x[:, :, 4, 4] = 2.0
    y = build(pool_text("pool: STOCHASTIC kernel_size: 3 stride: 2"), x.shape)(x)
    expected = torch.tensor([[1.0, 1.0], [1.0, 0.0]])  # the last window holds both
    assert torch.equal(torch.where(expected > 0, y, 0), expected.expand_as(y))
    assert set(y[:, :, 1, 1].unique().tolist()) <= {1.0, 2.0}


def test_stochastic_draws_belong_to_the_sample_not_to_the_worker():
    x = torch.rand(4, 3, 6, 6)
    whole, half = Draws(9), Draws(9)
    half.first, half.stride = 1, 2
    text = pool_text("pool: STOCHASTIC kernel_size: 2 stride: 2")
    want = build(text, x.shape, draws=whole)(x)
    assert torch.equal(build(text, x.shape, draws=half)(x[1::2]), want[1::2])
    whole.clock += 1
    assert not torch.equal(build(text, x.shape, draws=whole)(x), want)


def test_stochastic_pooling_in_test_phase_is_the_expectation():
    x = distinct(2, 3, 5, 6)
    y = build(pool_text("pool: STOCHASTIC kernel_size: 3 stride: 2"), x.shape, phase=caffe_pb2.TEST)(x)
    for n, c, i, j in np.ndindex(*y.shape):
        values = x[n, c, 2 * i : 2 * i + 3, 2 * j : 2 * j + 3].numpy()
        expected = (values**2).sum() / values.sum() if values.sum() > 0 else 0.0
        np.testing.assert_allclose(y[n, c, i, j].item(), expected, rtol=1e-12)


def test_windows_without_a_positive_sum_have_no_expectation_and_no_gradient():
    x = torch.zeros(1, 1, 2, 2, dtype=torch.float64, requires_grad=True)
    y = build(pool_text("pool: STOCHASTIC kernel_size: 2"), x.shape, phase=caffe_pb2.TEST)(x)
    y.sum().backward()
    assert y.item() == 0
    assert torch.equal(x.grad, torch.zeros_like(x))


# -- SPP ------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("method", ["MAX", "AVE"])
@pytest.mark.parametrize(("sizes", "height"), [((8, 8), 3), ((7, 6), 3), ((5, 4), 2), ((14, 16), 4), ((3, 9), 1)])
def test_pyramid(method, sizes, height):
    x = distinct(2, 3, *sizes)
    layer = build(one("SPP", f"spp_param {{ pyramid_height: {height} pool: {method} }}"), x.shape)
    levels = []
    for level in range(height):
        kernel = [math.ceil(size / 2**level) for size in sizes]
        pad = [(k * 2**level - size + 1) // 2 for k, size in zip(kernel, sizes, strict=True)]
        levels.append(pooled(x.numpy(), kernel, kernel, pad)[method.lower()])
    want = levels[0] if height == 1 else np.concatenate([level.reshape(2, -1) for level in levels], 1)
    assert layer.reshape([tuple(x.shape)]) == [want.shape]
    np.testing.assert_allclose(layer(x).numpy(), want, atol=1e-12)


def test_pyramid_levels_draw_for_themselves():
    x = torch.ones(1, 50, 2, 2, dtype=torch.float64) * torch.rand(1, 50, 2, 2, dtype=torch.float64)
    layer = build(one("SPP", "spp_param { pyramid_height: 2 pool: STOCHASTIC }"), x.shape)
    y = layer(x)
    assert torch.equal(y[:, 50:], x.flatten(1))  # the second level's windows hold one value each
    assert all(y[0, i] in x[0, i] for i in range(50))


# -- refusals -------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("", "kernel and stride must be at least 1, got 0 x 0 and 1 x 1"),
        ("kernel_size: 2 stride: 0", "kernel and stride must be at least 1, got 2 x 2 and 0 x 0"),
        ("kernel_h: 2", "give either kernel_size or both kernel_h and kernel_w"),
        ("kernel_size: 2 kernel_h: 2 kernel_w: 2", "give either kernel_size or both kernel_h and kernel_w"),
        ("kernel_size: 2 stride_w: 2", "give either stride or both stride_h and stride_w"),
        ("kernel_size: 2 pad: 1 pad_h: 1 pad_w: 1", "give either pad or both pad_h and pad_w"),
        ("kernel_size: 2 pad: 2", "pad must be smaller than the kernel, got pad 2 x 2 and kernel 2 x 2"),
        ("pool: STOCHASTIC kernel_size: 3 pad: 1", "STOCHASTIC pooling takes no padding, got pad 1 x 1"),
        ("global_pooling: true kernel_size: 2", "takes the bottom's size as kernel; leave kernel_size out"),
        ("global_pooling: true stride: 2", "works with pad 0 and stride 1, got pad 0 x 0 and stride 2 x 2"),
        ("global_pooling: true pad: 1", "works with pad 0 and stride 1, got pad 1 x 1 and stride 1 x 1"),
        ("kernel_size: 7", "a kernel of 7 x 7 with pad 0 x 0 does not fit into a bottom of shape 2 x 3 x 5 x 5"),
    ],
)
def test_refused_options(options, message):
    with pytest.raises(LayerError, match=re.escape(message)):
        build(pool_text(options), (2, 3, 5, 5))


def test_other_refusals():
    with pytest.raises(LayerError, match="only MAX pooling has a mask as second top"):
        build(pool_text("pool: AVE kernel_size: 2", 'top: "mask"'), (2, 3, 5, 5))
    with pytest.raises(LayerError, match=re.escape("needs a bottom with 4 axes (samples x channels x height x width)")):
        build(pool_text("kernel_size: 2"), (2, 3, 5))
    with pytest.raises(
        LayerError, match="needs at least one channel, row and column, got a bottom of shape 2 x 3 x 0 x 4"
    ):
        build(pool_text("global_pooling: true"), (2, 3, 5, 5)).reshape([(2, 3, 0, 4)])


@pytest.mark.parametrize(
    ("options", "shape", "message"),
    [
        ("", (2, 3, 5, 5), "spp_param.pyramid_height must be 1 to 16, got 0"),
        ("pyramid_height: 40", (2, 3, 5, 5), "spp_param.pyramid_height must be 1 to 16, got 40"),
        ("pyramid_height: 2", (2, 3, 5), "needs a bottom with 4 axes"),
        ("pyramid_height: 3", (2, 3, 5, 8), "level 2 would pad 2 x 0 around a kernel of 2 x 2"),
        ("pyramid_height: 2 pool: STOCHASTIC", (2, 3, 5, 8), "STOCHASTIC pooling takes no padding, got pad 1 x 0"),
    ],
)
def test_refused_pyramids(options, shape, message):
    with pytest.raises(LayerError, match=re.escape(message)):
        build(one("SPP", f"spp_param {{ {options} }}"), shape)
