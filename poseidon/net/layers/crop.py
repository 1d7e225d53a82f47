"""Crop: the part of the first bottom that has the second bottom's size.

From `axis` on, every axis i is cut to  [offset_i, offset_i + size of the second bottom along i);  axes before it stay
whole. `offset` is given not at all (0), once for all cut axes, or once for each. The second bottom gives its shape
only; its values are never read and it gets no gradient.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from poseidon.net.layer import Layer, Shape, exactly, text_of
from poseidon.net.registry import register


@register("Crop")
class Crop(Layer):
    bottoms = exactly(2)
    unforced_bottoms = frozenset({1})

    def reshape(self, bottom_shapes: Sequence[Shape]) -> list[Shape]:
        shape, reference = bottom_shapes
        axis = self.axis(self.spec.crop_param.axis, shape)
        offsets = self._offsets(axis, len(shape))
        if len(reference) < len(shape):
            raise self.error(
                f"needs a second bottom with at least as many axes as the first, got {text_of(shape)} and "
                f"{text_of(reference)}"
            )
        for i in range(axis, len(shape)):
            if offsets[i - axis] + reference[i] > shape[i]:
                raise self.error(
                    f"the crop along axis {i} is out of bounds: offset {offsets[i - axis]} + size {reference[i]} "
                    f"of a bottom of shape {text_of(shape)}"
                )
        return [(*shape[:axis], *reference[axis : len(shape)])]

    def _offsets(self, axis: int, num_axes: int) -> list[int]:
        """One offset for every axis from `axis` on."""
        given = list(self.spec.crop_param.offset)
        if len(given) > 1 and len(given) != num_axes - axis:
            raise self.error(
                f"offset must be given once, or once for each of the {num_axes - axis} axes from axis {axis} on, "
                f"got {len(given)} values"
            )
        return given if len(given) > 1 else (given or [0]) * (num_axes - axis)

    def forward(self, x: Tensor, reference: Tensor) -> Tensor:
        axis = self.spec.crop_param.axis % x.dim()
        for i, offset in enumerate(self._offsets(axis, x.dim()), start=axis):
            x = x.narrow(i, offset, reference.shape[i])
        return x
