"""Pointwise convolution: a 1 × 1 kernel over channels-last memory is one matrix product, with every pixel as a row.

    Y = X Wᵀ + b        X   (N · H · W) × C        W   num_output × C        Y   (N · H · W) × num_output

oneDNN's convolution at best equals it, and torch's own choice for small batches on one thread is far behind. Written
as an autograd function, so that the top is memory of its own, not a view, and the next layer may overwrite it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from poseidon.net.layers.layout import channels_last


def convolve_pointwise(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """x is channels-last, N × C × H × W; weight num_output × C × 1 × 1."""
    return _Pointwise.apply(x, weight, bias)


class _Pointwise(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        num, _, height, width = x.shape
        shape = (num, weight.shape[0], height, width)
        y = torch.empty(shape, dtype=x.dtype, device=x.device, memory_format=torch.channels_last)
        if bias is None:
            torch.mm(_pixels(x), weight.flatten(1).t(), out=_pixels(y))
        else:
            torch.addmm(bias, _pixels(x), weight.flatten(1).t(), out=_pixels(y))
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        x, weight = ctx.saved_tensors
        wants_x, wants_weight, wants_bias = ctx.needs_input_grad
        grads = _pixels(channels_last(grad))
        dx: Tensor | None = None
        if wants_x:
            dx = torch.empty_like(x)
            torch.mm(grads, weight.flatten(1), out=_pixels(dx))
        dw = grads.t().mm(_pixels(x)).view_as(weight) if wants_weight else None
        return dx, dw, grads.sum(0) if wants_bias else None


def _pixels(x: Tensor) -> Tensor:
    """A channels-last N × C × H × W as (N · H · W) × C, the same memory."""
    return x.permute(0, 2, 3, 1).view(-1, x.shape[1])
