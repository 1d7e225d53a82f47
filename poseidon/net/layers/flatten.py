"""Flatten: the axes from `axis` to `end_axis`, both included, become one.

    N × C × H × W   axis 1, end_axis -1 (the defaults)  ->  N × CHW

An end_axis just before axis stands for no axes at all: their product, 1, is inserted there. The top is a view.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from poseidon.net.layer import Layer, Shape, count_of
from poseidon.net.layers.in_place import forbid_in_place
from poseidon.net.registry import register


@register("Flatten")
class Flatten(Layer):
    views_bottom = True

    def setup(self, bottom_shapes: Sequence[Shape]) -> None:
        forbid_in_place(self)

    def reshape(self, bottom_shapes: Sequence[Shape]) -> list[Shape]:
        return [self.flat_shape(bottom_shapes[0])]

    def flat_shape(self, shape: Shape) -> Shape:
        options = self.spec.flatten_param
        start = self.axis(options.axis, shape)
        end = self.axis(options.end_axis, shape, "end_axis") + 1
        if start > end:
            raise self.error(f"axis must not lie beyond end_axis, got {options.axis} and {options.end_axis}")
        return (*shape[:start], count_of(shape, start, end), *shape[end:])

    def forward(self, x: Tensor) -> Tensor:
        return x.reshape(self.flat_shape(x.shape))
