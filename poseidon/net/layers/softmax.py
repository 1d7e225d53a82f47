"""Softmax: p_k = exp(x_k − max x) / Σ_j exp(x_j − max x) over softmax_param.axis, any shape.

`engine` chooses between Caffe's implementations and means nothing here.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from poseidon.net.layer import Layer, Shape
from poseidon.net.layers.classes import from_rows, rows_of, softmax_rows
from poseidon.net.registry import register


@register("Softmax")
class Softmax(Layer):
    def reshape(self, bottom_shapes: Sequence[Shape]) -> list[Shape]:
        self.axis(self.spec.softmax_param.axis, bottom_shapes[0], "softmax_param.axis")
        return [bottom_shapes[0]]

    def forward(self, x: Tensor) -> Tensor:
        axis = self.spec.softmax_param.axis % x.dim()
        return from_rows(softmax_rows(rows_of(x, axis)), x.shape, axis)
