"""LRN against its formula in loops, in every memory order and block length; what it keeps and what it refuses."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch

from poseidon.errors import LayerError
from poseidon.net.layers import lrn
from tests.net.layers.build import build, one


def lrn_text(options: str) -> str:
    return one("LRN", f"lrn_param {{ {options} }}")


def normal(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)), dtype=torch.float64)


def across(x: np.ndarray, size: int, alpha: float, beta: float, k: float) -> np.ndarray:
    scale = np.full_like(x, k)
    for c in range(x.shape[1]):
        near = x[:, max(c - size // 2, 0) : c + size // 2 + 1]
        scale[:, c] += alpha / size * (near**2).sum(1)
    return x * scale**-beta


def within(x: np.ndarray, size: int, alpha: float, beta: float) -> np.ndarray:
    scale = np.ones_like(x)
    half = size // 2
    for h in range(x.shape[2]):
        for w in range(x.shape[3]):
            near = x[:, :, max(h - half, 0) : h + half + 1, max(w - half, 0) : w + half + 1]
            scale[:, :, h, w] += alpha / size**2 * (near**2).sum((2, 3))
    return x * scale**-beta


@pytest.mark.parametrize("size", [1, 3, 5, 7, 9, 11, 15])
@pytest.mark.parametrize("channels", [1, 2, 4, 12])
@pytest.mark.parametrize("order", [torch.contiguous_format, torch.channels_last])
def test_across_channels(size, channels, order):
    x = normal(3, channels, 2, 5).contiguous(memory_format=order)
    y = build(lrn_text(f"local_size: {size} alpha: 2.5 beta: 0.75 k: 1.5"), x.shape)(x)
    np.testing.assert_allclose(y.numpy(), across(x.numpy(), size, 2.5, 0.75, 1.5), rtol=1e-12)
    assert y.stride() == x.stride()


@pytest.mark.parametrize(("beta", "k"), [(0.5, 1.0), (1.0, 2.0), (2.0, 1.0), (0.0, 1.0), (0.625, 0.5)])
def test_powers_and_offsets(beta, k):
    x = normal(2, 6, 3, 3)
    y = build(lrn_text(f"local_size: 3 alpha: 0.75 beta: {beta} k: {k}"), x.shape)(x)
    np.testing.assert_allclose(y.numpy(), across(x.numpy(), 3, 0.75, beta, k), rtol=1e-12)


@pytest.mark.parametrize("size", [1, 3, 5, 9])
@pytest.mark.parametrize("order", [torch.contiguous_format, torch.channels_last])
def test_within_a_channel_k_has_no_part(size, order):
    x = normal(2, 3, 4, 5).contiguous(memory_format=order)
    y = build(lrn_text(f"local_size: {size} alpha: 1.5 beta: 0.75 k: 7 norm_region: WITHIN_CHANNEL"), x.shape)(x)
    np.testing.assert_allclose(y.numpy(), within(x.numpy(), size, 1.5, 0.75), rtol=1e-12)


@pytest.mark.parametrize("block", [1, 7, 40, 1 << 20])
@pytest.mark.parametrize("order", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("region", ["ACROSS_CHANNELS", "WITHIN_CHANNEL"])
def test_blocks_of_any_length_agree(monkeypatch, block, order, region):
    """The last block is shorter than the others for most of these; the gradient comes in the other memory order."""
    monkeypatch.setattr(lrn, "BLOCK_ELEMS", block)
    x = normal(5, 6, 3, 3).contiguous(memory_format=order)
    layer = build(lrn_text(f"local_size: 5 alpha: 1.5 norm_region: {region}"), x.shape)
    expected = across(x.numpy(), 5, 1.5, 0.75, 1.0) if region[0] == "A" else within(x.numpy(), 5, 1.5, 0.75)
    np.testing.assert_allclose(layer(x).numpy(), expected, rtol=1e-12)
    bottom = x.clone(memory_format=torch.preserve_format).requires_grad_()
    seed = normal(*x.shape).transpose(2, 3).contiguous().transpose(2, 3)
    y = layer(bottom)
    (grad,) = torch.autograd.grad(y, bottom, seed, retain_graph=True)
    step = 1e-6
    for index in [(0, 0, 0, 0), (2, 5, 1, 2), (4, 3, 2, 1)]:
        moved = x.clone()
        moved[index] += step
        low = x.clone()
        low[index] -= step
        slope = ((layer(moved) - layer(low)) * seed).sum().item() / (2 * step)
        np.testing.assert_allclose(grad[index].item(), slope, rtol=1e-6, atol=1e-8)
    assert torch.equal(torch.autograd.grad(y, bottom, seed)[0], grad)  # the first backward pass left nothing changed


def test_a_bottom_of_any_strides():
    x = normal(2, 4, 3, 5)
    layer = build(lrn_text("local_size: 3"), x.shape)
    assert torch.equal(layer(x.permute(1, 3, 0, 2).contiguous().permute(2, 0, 3, 1)), layer(x))


@pytest.mark.parametrize("region", ["ACROSS_CHANNELS", "WITHIN_CHANNEL"])
def test_only_the_bottom_is_kept(region):
    x = torch.randn(2, 8, 4, 4, requires_grad=True)
    layer = build(lrn_text(f"norm_region: {region}"), x.shape)
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        layer(x)
    assert [t.data_ptr() for t in kept] == [x.data_ptr()]


@pytest.mark.parametrize("region", ["ACROSS_CHANNELS", "WITHIN_CHANNEL"])
def test_half_precision_and_empty_batches(region):
    layer = build(lrn_text(f"alpha: 2 norm_region: {region}"), (2, 8, 4, 4))
    x = torch.randn(2, 8, 4, 4, dtype=torch.bfloat16, requires_grad=True)
    y = layer(x)
    assert y.dtype == torch.bfloat16
    torch.testing.assert_close(y.float(), layer(x.float()), atol=0.02, rtol=0.02)
    y.sum().backward()
    assert x.grad.dtype == torch.bfloat16
    empty = torch.zeros(0, 8, 4, 4, requires_grad=True)
    layer(empty).sum().backward()
    assert empty.grad.shape == empty.shape


@pytest.mark.parametrize(
    ("options", "shape", "message"),
    [
        ("local_size: 4", (2, 3, 4, 4), "lrn_param.local_size must be odd, got 4"),
        ("local_size: 0", (2, 3, 4, 4), "lrn_param.local_size must be odd, got 0"),
        ("", (2, 3, 4), "needs a bottom with 4 axes (samples x channels x height x width), got 2 x 3 x 4"),
    ],
)
def test_refusals(options, shape, message):
    with pytest.raises(LayerError, match=re.escape(message)):
        build(lrn_text(options), shape)
