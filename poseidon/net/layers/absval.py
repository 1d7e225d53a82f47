"""AbsVal: y = |x|, any shape. The derivative is sign(x), 0 at 0. Caffe allows no in-place use."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from poseidon.net.layer import Shape
from poseidon.net.layers.in_place import forbid_in_place
from poseidon.net.layers.neuron import NeuronLayer
from poseidon.net.registry import register


@register("AbsVal")
class AbsVal(NeuronLayer):
    fresh_top = True

    def setup(self, bottom_shapes: Sequence[Shape]) -> None:
        forbid_in_place(self)

    def forward(self, x: Tensor) -> Tensor:
        return x.abs()
