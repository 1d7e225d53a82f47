"""Bias: y = x + b, b repeated over the axes it does not have.

x   bottom 0, any shape
b   blob 0, or bottom 1 where there is one; the extents of x from `axis` on: `num_axes` of them for a blob
    (-1: all the rest, 0: a scalar), as many as it has for a bottom
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from poseidon.net.layer import Layer, Shape, between
from poseidon.net.layers.broadcast import check_operand, laid_over, operand_shape
from poseidon.net.registry import register


@register("Bias")
class Bias(Layer):
    bottoms = between(1, 2)
    overwrites_bottom = True
    fresh_top = True

    def setup(self, bottom_shapes: Sequence[Shape]) -> None:
        options = self.spec.bias_param
        if len(bottom_shapes) == 1:
            self.add_param(operand_shape(self, bottom_shapes[0], options.axis, options.num_axes), options.filler)

    def reshape(self, bottom_shapes: Sequence[Shape]) -> list[Shape]:
        operand = bottom_shapes[1] if len(bottom_shapes) == 2 else self.param_shapes[0]
        check_operand(self, bottom_shapes[0], operand, self.spec.bias_param.axis)
        return [bottom_shapes[0]]

    def forward(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        if bias is None:
            bias = self.param(0)
        shift = laid_over(bias, x, self.spec.bias_param.axis)
        return x.add_(shift) if self.in_place else x + shift
