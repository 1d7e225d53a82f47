"""Input: blobs that the caller of the net sets.

One `shape` serves all tops, or there is one for each; without any, tops are scalars until they are reshaped.
A blob that nobody sets holds zeros.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from poseidon.net.layer import Layer, Shape, at_least, exactly, text_of
from poseidon.net.registry import register


@register("Input")
class Input(Layer):
    bottoms = exactly(0)
    tops = at_least(1)

    def reshape(self, bottom_shapes: Sequence[Shape]) -> list[Shape]:
        shapes = [tuple(shape.dim) for shape in self.spec.input_param.shape]
        if len(shapes) not in (0, 1, self.num_tops):
            raise self.error(
                f"input_param.shape must be given once or once per top ({self.num_tops}), got {len(shapes)}"
            )
        for shape in shapes:
            if any(extent < 0 for extent in shape):
                raise self.error(f"input_param.shape cannot be negative, got {text_of(shape)}")
        if len(shapes) < self.num_tops:
            shapes = (shapes or [()]) * self.num_tops
        return list(shapes)

    def forward(self) -> tuple[Tensor, ...]:
        return tuple(
            torch.zeros(shape, dtype=self.context.dtype, device=self.context.device) for shape in self.reshape([])
        )
