"""Reduction: one value out of all axes from `axis` on.

    SUM    coeff · Σ x          ASUM   coeff · Σ |x|    (derivative sign(x), 0 at 0)
    MEAN   coeff · Σ x / n      SUMSQ  coeff · Σ x²

The top keeps the axes before `axis`; axis 0 gives a scalar ().
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from poseidon.net.layer import Layer, Shape
from poseidon.net.registry import register
from poseidon.spec import caffe_pb2

_Options = caffe_pb2.ReductionParameter

_OPERATIONS: dict[int, Callable[[Tensor, tuple[int, ...]], Tensor]] = {
    _Options.SUM: lambda x, axes: x.sum(axes),
    _Options.ASUM: lambda x, axes: torch.linalg.vector_norm(x, ord=1, dim=axes),
    _Options.SUMSQ: lambda x, axes: x.square().sum(axes),
    _Options.MEAN: lambda x, axes: x.mean(axes),
}


@register("Reduction")
class Reduction(Layer):
    def reshape(self, bottom_shapes: Sequence[Shape]) -> list[Shape]:
        shape = bottom_shapes[0]
        return [shape[: self.axis(self.spec.reduction_param.axis, shape)]]

    def forward(self, x: Tensor) -> Tensor:
        options = self.spec.reduction_param
        axes = tuple(range(self.axis(options.axis, x.shape), x.dim()))
        reduced = _OPERATIONS[options.operation](x, axes)
        return reduced if options.coeff == 1 else reduced * options.coeff
