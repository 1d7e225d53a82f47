"""Tile: the bottom repeated `tiles` times along `axis`; gradients of the copies add up."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from poseidon.net.layer import Layer, Shape
from poseidon.net.registry import register


@register("Tile")
class Tile(Layer):
    def reshape(self, bottom_shapes: Sequence[Shape]) -> list[Shape]:
        options, shape = self.spec.tile_param, bottom_shapes[0]
        axis = self.axis(options.axis, shape)
        if options.tiles < 1:
            given = options.tiles if options.HasField("tiles") else "none"
            raise self.error(f"tile_param.tiles must be at least 1, got {given}")
        return [(*shape[:axis], shape[axis] * options.tiles, *shape[axis + 1 :])]

    def forward(self, x: Tensor) -> Tensor:
        options = self.spec.tile_param
        if options.tiles == 1:
            return x
        axis = self.axis(options.axis, x.shape)
        copies = x.unsqueeze(axis).expand(*x.shape[:axis], options.tiles, *x.shape[axis:])
        return copies.flatten(axis, axis + 1)
