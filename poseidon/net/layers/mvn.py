"""MVN: mean-variance normalisation of each map (or, with across_channels, of each sample) by itself.

    y = x - μ                                  normalize_variance: false
    y = (x - μ) / (σ + eps)                    σ² = mean((x - μ)²); eps is added to σ, not to σ²

    x   up to four axes                        y   always four: N × C × H × W, missing axes are 1

Caffe's derivative treats σ + eps as if it were σ:  dx = (dy - mean(dy) - y · mean(y · dy)) / (σ + eps).
It stays finite where x is constant, and differs from the exact one by a factor (σ + eps) / σ in the last term.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from poseidon.net.layer import Layer, Shape, text_of
from poseidon.net.registry import register


@register("MVN")
class MVN(Layer):
    def reshape(self, bottom_shapes: Sequence[Shape]) -> list[Shape]:
        shape = bottom_shapes[0]
        if len(shape) > 4:
            raise self.error(f"needs a bottom of at most 4 axes, got shape {text_of(shape)}")
        return [(*shape, *[1] * (4 - len(shape)))]

    def forward(self, x: Tensor) -> Tensor:
        options = self.spec.mvn_param
        x = x.reshape(*x.shape, *[1] * (4 - x.dim()))
        axes = (1, 2, 3) if options.across_channels else (2, 3)
        if options.normalize_variance:
            return _Normalize.apply(x, axes, options.eps)
        return x - x.mean(axes, keepdim=True)


class _Normalize(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, axes: tuple[int, ...], eps: float) -> Tensor:
        variance, mean = torch.var_mean(x, axes, correction=0, keepdim=True)
        deviation = variance.sqrt_().add_(eps)
        y = (x - mean).div_(deviation)
        ctx.axes = axes
        ctx.save_for_backward(y, deviation)
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, None, None]:
        y, deviation = ctx.saved_tensors
        correlation = (y * dy).mean(ctx.axes, keepdim=True)
        centred = dy - dy.mean(ctx.axes, keepdim=True)
        return centred.addcmul_(y, correlation, value=-1).div_(deviation), None, None
