"""ShuffleChannel (ShuffleNet): channels dealt out across groups: C channels as group × C/group, turned on its side.

x   N × C × …          y[:, j · group + i] = x[:, i · (C / group) + j]
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from poseidon.net.layer import Layer, Shape, text_of
from poseidon.net.registry import register


@register("ShuffleChannel")
class ShuffleChannel(Layer):
    def reshape(self, bottom_shapes: Sequence[Shape]) -> list[Shape]:
        (shape,) = bottom_shapes
        group = self.spec.shuffle_channel_param.group
        if len(shape) < 2:
            raise self.error(f"needs a bottom with at least 2 axes, N x C x ..., got {text_of(shape)}")
        if group < 1 or shape[1] % group:
            raise self.error(f"group must divide the channels, got group {group} for a bottom of {text_of(shape)}")
        return [shape]

    def forward(self, x: Tensor) -> Tensor:
        group = self.spec.shuffle_channel_param.group
        return x.unflatten(1, (group, x.shape[1] // group)).transpose(1, 2).flatten(1, 2)
