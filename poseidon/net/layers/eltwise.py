"""Eltwise: several bottoms of one shape combined element by element.

    SUM    Σ coeff_i · x_i     coeff 1 unless given, one per bottom
    PROD   Π x_i
    MAX    max x_i             the whole gradient goes to one bottom

Caffe's ties in MAX: the second bottom wins over the first, a later one wins only if strictly greater. Coefficients
with PROD are an error; MAX takes and disregards them. stable_prod_grad picks between two formulas of PROD's gradient
that agree unless a factor is 0, where the unstable one divides by 0: the stable one always runs here.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Any

import torch
from torch import Tensor

from poseidon.net.layer import Layer, Shape, at_least, text_of
from poseidon.net.registry import register
from poseidon.spec import caffe_pb2

_Options = caffe_pb2.EltwiseParameter


@register("Eltwise")
class Eltwise(Layer):
    bottoms = at_least(2)
    fresh_top = True

    def setup(self, bottom_shapes: Sequence[Shape]) -> None:
        options = self.spec.eltwise_param
        if options.coeff and options.operation == _Options.PROD:
            raise self.error("takes coefficients for SUM only, got coeff with operation PROD")
        if options.coeff and len(options.coeff) != len(bottom_shapes):
            raise self.error(f"takes one coeff per bottom ({len(bottom_shapes)}), got {len(options.coeff)}")

    def reshape(self, bottom_shapes: Sequence[Shape]) -> list[Shape]:
        first = bottom_shapes[0]
        for shape in bottom_shapes[1:]:
            if shape != first:
                raise self.error(f"bottoms need the same shape, got {text_of(first)} and {text_of(shape)}")
        return [first]

    def forward(self, *bottoms: Tensor) -> Tensor:
        options = self.spec.eltwise_param
        if options.operation == _Options.PROD:
            return reduce(torch.mul, bottoms)
        if options.operation == _Options.MAX:
            return _Largest.apply(*bottoms)
        return _sum(bottoms, list(options.coeff) or [1.0] * len(bottoms))


def _sum(bottoms: Sequence[Tensor], coeffs: Sequence[float]) -> Tensor:
    first = bottoms[0] if coeffs[0] == 1 else bottoms[0] * coeffs[0]
    total = torch.add(first, bottoms[1], alpha=coeffs[1])
    for bottom, coeff in zip(bottoms[2:], coeffs[2:], strict=True):
        total = total.add_(bottom, alpha=coeff)
    return total


class _Largest(torch.autograd.Function):
    """torch.maximum() with Caffe's ties; torch's own gradient splits them, and where() is several times slower."""

    @staticmethod
    def forward(ctx: Any, *bottoms: Tensor) -> Tensor:
        first_wins = bottoms[0] > bottoms[1]
        largest = torch.maximum(bottoms[0], bottoms[1])
        later_wins = []
        for bottom in bottoms[2:]:
            later_wins.append(bottom > largest)
            largest = torch.maximum(largest, bottom)
        ctx.save_for_backward(first_wins, *later_wins)
        return largest

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, ...]:
        first_wins, *later_wins = ctx.saved_tensors
        shares: list[Tensor] = []
        for wins in reversed(later_wins):
            shares.append(grad * wins)
            grad = grad - shares[-1]
        first = grad * first_wins
        return (first, grad - first, *reversed(shares))
