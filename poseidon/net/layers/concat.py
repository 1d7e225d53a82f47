"""Concat: the bottoms one after the other along `axis` (older name: concat_dim).

All bottoms have the same number of axes and agree on every other axis. A single bottom is copied.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from poseidon.net.layer import Layer, Shape, at_least, text_of
from poseidon.net.layers.legacy_axis import axis_or_legacy
from poseidon.net.registry import register


@register("Concat")
class Concat(Layer):
    bottoms = at_least(1)
    fresh_top = True

    def reshape(self, bottom_shapes: Sequence[Shape]) -> list[Shape]:
        first = bottom_shapes[0]
        axis = self.concat_axis(first)
        for shape in bottom_shapes[1:]:
            if len(shape) != len(first) or shape[:axis] != first[:axis] or shape[axis + 1 :] != first[axis + 1 :]:
                raise self.error(f"bottoms may differ on axis {axis} only, got {text_of(first)} and {text_of(shape)}")
        return [(*first[:axis], sum(shape[axis] for shape in bottom_shapes), *first[axis + 1 :])]

    def concat_axis(self, shape: Shape) -> int:
        return axis_or_legacy(self, self.spec.concat_param, "concat_dim", shape)

    def forward(self, *bottoms: Tensor) -> Tensor:
        return torch.cat(bottoms, self.concat_axis(bottoms[0].shape))
