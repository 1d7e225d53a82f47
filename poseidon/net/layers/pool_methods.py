"""How a pooling window becomes one number.

    max          the largest value; where several are, the first in row order, which alone gets the gradient
    average      the sum over the clipped window / the window's length × width with padding counted
    stochastic   TRAIN: the value x_i drawn with probability x_i / Σ x      TEST: its expectation Σ x² / Σ x, or 0
                 where Σ x is not positive

Empty windows give −FLT_MAX (max, mask −1), 0 / 0 (average) or 0 (stochastic), and pass no gradient on. Unlike Caffe's
comparison, which a NaN never wins, max hands a NaN on instead of hiding it.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from poseidon.net.layers.layout import channels_last, memory_order
from poseidon.net.layers.pool_window import PoolWindow

LOWEST = torch.finfo(torch.float32).min

# Below this many channels torch's channels-last pooling has no full vectors to work with.
MIN_CHANNELS_LAST = 8


def max_pool(x: Tensor, window: PoolWindow) -> tuple[Tensor, Tensor]:
    """The maxima, and where they stand: indices into the padded plane that `max_mask` makes Caffe's mask of."""
    x = _arranged(x)
    if window.suits_torch(x.shape[2:]):
        return _MaxPool.apply(x, window)
    padded = F.pad(x, window.margins(x.shape[2:]), value=LOWEST)
    return _MaxPool.apply(padded, window.unpadded())


def max_mask(indices: Tensor, window: PoolWindow, sizes: torch.Size, dtype: torch.dtype) -> Tensor:
    """Caffe's mask: row · width + column of each maximum in its plane, −1 for an empty window."""
    if not window.suits_torch(sizes):
        left, right, top, _ = window.margins(sizes)
        row = torch.div(indices, left + sizes[1] + right, rounding_mode="floor") - top
        column = indices % (left + sizes[1] + right) - left
        inside = (row >= 0) & (row < sizes[0]) & (column >= 0) & (column < sizes[1])
        indices = torch.where(inside, row * sizes[1] + column, -1)
    return indices.to(dtype)


class _MaxPool(torch.autograd.Function):
    """torch's max pooling, which would keep its whole bottom for the backward pass, where only the shape is needed."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, window: PoolWindow) -> tuple[Tensor, Tensor]:
        ctx.options = (window.kernel, window.stride, window.pad, (1, 1), window.rounds_up)
        ctx.bottom = x.shape, memory_order(x)
        y, indices = torch.ops.aten.max_pool2d_with_indices(x, *ctx.options)
        ctx.save_for_backward(indices)
        ctx.mark_non_differentiable(indices)
        return y, indices

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor, None]:
        (indices,) = ctx.saved_tensors
        grad, bottom = _matched(grad, *ctx.bottom)
        backward = torch.ops.aten.max_pool2d_with_indices_backward.grad_input
        return backward(grad, bottom, *ctx.options, indices, grad_input=bottom), None


class _AveragePool(torch.autograd.Function):
    """The same for averages; `divisor` None: the window's area, with padding counted."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, window: PoolWindow, divisor: int | None) -> Tensor:
        ctx.options = (window.kernel, window.stride, window.pad, window.rounds_up, True, divisor)
        ctx.bottom = x.shape, memory_order(x)
        return torch.ops.aten.avg_pool2d(x, *ctx.options)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        grad, bottom = _matched(grad, *ctx.bottom)
        backward = torch.ops.aten.avg_pool2d_backward.grad_input
        return backward(grad, bottom, *ctx.options, grad_input=bottom), None, None


def _matched(grad: Tensor, shape: torch.Size, order: torch.memory_format) -> tuple[Tensor, Tensor]:
    """The top's gradient in the bottom's memory order, and memory for the bottom's own.

    torch wants the bottom as well, of which it reads the shape only: the same memory stands in for it.
    """
    bottom = torch.empty(shape, dtype=grad.dtype, device=grad.device, memory_format=order)
    if order is torch.channels_last:
        grad = grad.contiguous(memory_format=torch.channels_last)  # or torch turns the larger result around, twice
    return grad, bottom


def average_pool(x: Tensor, window: PoolWindow) -> Tensor:
    sizes = x.shape[2:]
    if window.outputs(sizes) == (1, 1) and window.pad == (0, 0) and _covers(window.kernel, sizes):
        return x.mean((2, 3), keepdim=True)
    x = _arranged(x)
    if window.suits_torch(sizes):
        return _AveragePool.apply(x, window, None)
    sums = _AveragePool.apply(F.pad(x, window.margins(sizes)), window.unpadded(), 1)
    heights, widths = (x.new_tensor(window.divisors(axis, size)) for axis, size in enumerate(sizes))
    return sums / (heights[:, None] * widths)


def stochastic_pool(x: Tensor, window: PoolWindow, uniform: Tensor) -> Tensor:
    """One value per window, drawn by `uniform` in (0, 1] of the top's shape.

    Negative values, for which these are no probabilities, are walked through all the same; where the running sum never
    reaches the drawn share of the total, the window's first value is taken.
    """
    values = _windows(x, window)
    running = values.detach().cumsum(-1)
    reached = running >= (uniform * running[..., -1])[..., None]
    # The first one reached: values beyond the bottom are zeros at the end of a row, so that they never come first.
    chosen = reached.to(torch.uint8).argmax(-1, keepdim=True)
    return values.gather(-1, chosen).squeeze(-1)


def expected_pool(x: Tensor, window: PoolWindow) -> Tensor:
    """What stochastic pooling gives on average."""
    values = _windows(x, window)
    total = values.sum(-1)
    positive = total > 0
    return torch.where(positive, (values * values).sum(-1) / torch.where(positive, total, 1), 0)


def _windows(x: Tensor, window: PoolWindow) -> Tensor:
    """N × C × outputs × (values of one window), with zeros beyond the bottom. Stochastic pooling has no padding."""
    x = F.pad(x, window.margins(x.shape[2:]))
    for axis in range(2):
        x = x.unfold(2 + axis, window.kernel[axis], window.stride[axis])
    return x.flatten(-2)


def _covers(kernel: tuple[int, ...], sizes: torch.Size) -> bool:
    return all(k >= size for k, size in zip(kernel, sizes, strict=True))


def _arranged(x: Tensor) -> Tensor:
    return channels_last(x) if x.shape[1] >= MIN_CHANNELS_LAST else x
