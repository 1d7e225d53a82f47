"""Slice: the bottom cut along `axis` (older name: slice_dim) into one top per piece; the inverse of Concat.

    slice_point   where each piece but the first begins, strictly increasing, one fewer than there are tops
    without       all pieces the same size, which must come out even

The tops are views of the bottom.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from torch import Tensor

from poseidon.net.layer import Layer, Shape, at_least, text_of
from poseidon.net.layers.legacy_axis import axis_or_legacy
from poseidon.net.registry import register


@register("Slice")
class Slice(Layer):
    tops = at_least(1)

    def reshape(self, bottom_shapes: Sequence[Shape]) -> list[Shape]:
        shape = bottom_shapes[0]
        axis = self.slice_axis(shape)
        return [(*shape[:axis], size, *shape[axis + 1 :]) for size in self.sizes(shape, axis)]

    def slice_axis(self, shape: Shape) -> int:
        return axis_or_legacy(self, self.spec.slice_param, "slice_dim", shape)

    def sizes(self, shape: Shape, axis: int) -> list[int]:
        """Extent of every piece along the axis."""
        points, extent = list(self.spec.slice_param.slice_point), shape[axis]
        if not points:
            if extent % self.num_tops:
                raise self.error(
                    f"cannot cut axis {axis} of a bottom of shape {text_of(shape)} into {self.num_tops} equal pieces; "
                    "give slice_point"
                )
            return [extent // self.num_tops] * self.num_tops
        if len(points) != self.num_tops - 1:
            raise self.error(f"{self.num_tops} tops need {self.num_tops - 1} slice_point entries, got {len(points)}")
        bounds = [0, *points, extent]
        sizes = [end - start for start, end in pairwise(bounds)]
        if min(sizes[:-1]) <= 0 or sizes[-1] < 0:
            raise self.error(
                f"slice_point must increase strictly within axis {axis} of a bottom of shape {text_of(shape)}, "
                f"got {', '.join(map(str, points))}"
            )
        return sizes

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        axis = self.slice_axis(x.shape)
        return x.split(self.sizes(x.shape, axis), axis)
