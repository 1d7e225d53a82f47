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
from torch.autograd.function import once_differentiable

from poseidon.net.layer import Layer, Shape, text_of
from poseidon.net.registry import register

# Keeps 1 / σ finite where x is constant; far below any variance that float32 input can have.
_TINY = 1e-30


@register("MVN")
class MVN(Layer):
    fresh_top = True

    def reshape(self, bottom_shapes: Sequence[Shape]) -> list[Shape]:
        shape = bottom_shapes[0]
        if len(shape) > 4:
            raise self.error(f"needs a bottom of at most 4 axes, got shape {text_of(shape)}")
        return [(*shape, *[1] * (4 - len(shape)))]

    def forward(self, x: Tensor) -> Tensor:
        options = self.spec.mvn_param
        x = x.reshape(*x.shape, *[1] * (4 - x.dim()))
        first = 1 if options.across_channels else 2
        if options.normalize_variance:
            return _Normalize.apply(x, x.shape[first:], options.eps)
        return x - x.mean(tuple(range(first, 4)), keepdim=True)


class _Normalize(torch.autograd.Function):
    """Layer normalisation without a weight is MVN with eps 0; what remains is a factor per map:

    1 / (σ + eps) = r / (1 + eps · r)    with r = 1 / σ
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, extents: Shape, eps: float) -> Tensor:
        y, mean, inverse = torch.native_layer_norm(x, extents, None, None, _TINY)
        shrink = 1 + eps * inverse
        ctx.extents = extents
        ctx.save_for_backward(x, mean, inverse / shrink)
        return y.div_(shrink)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, None, None]:
        x, mean, inverse = ctx.saved_tensors
        # With 1 / (σ + eps) in place of 1 / σ, this kernel's formula is Caffe's.
        needs = (True, False, False)
        dx, _, _ = torch.ops.aten.native_layer_norm_backward(dy, x, ctx.extents, mean, inverse, None, None, needs)
        return dx, None, None
