"""Permute (SSD): the bottom's axes in another order: axis i of the top is axis order[i] of the bottom.

Axes that `order` does not name follow in their own order; each may be named once. Without any the top is the bottom.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from poseidon.net.layer import Layer, Shape, text_of
from poseidon.net.registry import register


@register("Permute")
class Permute(Layer):
    def reshape(self, bottom_shapes: Sequence[Shape]) -> list[Shape]:
        (shape,) = bottom_shapes
        order = list(self.spec.permute_param.order)
        if max(order, default=-1) >= len(shape):
            raise self.error(
                f"order names axis {max(order)}, expected axes 0 to {len(shape) - 1} of a bottom of shape "
                f"{text_of(shape)}"
            )
        if len(set(order)) < len(order):
            raise self.error(f"order names an axis twice, expected each at most once, got {order}")
        return [tuple(shape[axis] for axis in self._axes(len(shape)))]

    def _axes(self, num_axes: int) -> list[int]:
        order = list(self.spec.permute_param.order)
        return order + [axis for axis in range(num_axes) if axis not in order]

    def forward(self, x: Tensor) -> Tensor:
        return x.permute(self._axes(x.dim())).contiguous()
