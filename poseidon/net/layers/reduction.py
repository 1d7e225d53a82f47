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

_OPERATIONS: dict[int, Callable[[Tensor], Tensor]] = {
    _Options.SUM: lambda rows: rows.sum(-1),
    _Options.ASUM: lambda rows: torch.linalg.vector_norm(rows, ord=1, dim=-1),
    _Options.SUMSQ: lambda rows: rows.square().sum(-1),
    _Options.MEAN: lambda rows: rows.mean(-1),
}


@register("Reduction")
class Reduction(Layer):
    def reshape(self, bottom_shapes: Sequence[Shape]) -> list[Shape]:
        shape = bottom_shapes[0]
        return [shape[: self.axis(self.spec.reduction_param.axis, shape)]]

    def forward(self, x: Tensor) -> Tensor:
        options = self.spec.reduction_param
        rows = x.flatten(self.axis(options.axis, x.shape))
        reduced = _OPERATIONS[options.operation](rows)
        return reduced if options.coeff == 1 else reduced * options.coeff
