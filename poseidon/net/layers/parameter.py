"""Parameter: a learned blob as a top, for layers that take it as a bottom. No bottoms; the shape is given.

The blob starts at 0 (there is no filler), as in Caffe.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from poseidon.net.layer import Layer, Shape, exactly, text_of
from poseidon.net.registry import register


@register("Parameter")
class Parameter(Layer):
    bottoms = exactly(0)

    def setup(self, bottom_shapes: Sequence[Shape]) -> None:
        shape = tuple(self.spec.parameter_param.shape.dim)
        if any(extent < 0 for extent in shape):
            raise self.error(f"parameter_param.shape cannot be negative, got {text_of(shape)}")
        self.add_param(shape)

    def reshape(self, bottom_shapes: Sequence[Shape]) -> list[Shape]:
        return [self.param_shapes[0]]

    def forward(self) -> Tensor:
        return self.param(0)
