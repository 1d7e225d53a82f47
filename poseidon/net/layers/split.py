"""Split: the bottom under several names. All tops are the bottom itself, so nothing is copied; gradients add up."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from poseidon.net.layer import Layer, Shape, at_least
from poseidon.net.layers.in_place import forbid_in_place
from poseidon.net.registry import register


@register("Split")
class Split(Layer):
    tops = at_least(1)
    views_bottom = True

    def setup(self, bottom_shapes: Sequence[Shape]) -> None:
        forbid_in_place(self)

    def reshape(self, bottom_shapes: Sequence[Shape]) -> list[Shape]:
        return [bottom_shapes[0]] * self.num_tops

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        return (x,) * self.num_tops
