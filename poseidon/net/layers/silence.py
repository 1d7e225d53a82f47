"""Silence: takes any blobs and gives none, so that they do not count as outputs of the net; their gradient is 0."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from poseidon.net.layer import Layer, Shape, at_least, exactly
from poseidon.net.registry import register


@register("Silence")
class Silence(Layer):
    bottoms = at_least(1)
    tops = exactly(0)

    def reshape(self, bottom_shapes: Sequence[Shape]) -> list[Shape]:
        return []

    def forward(self, *bottoms: Tensor) -> tuple[Tensor, ...]:
        return ()
