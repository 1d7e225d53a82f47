"""Reorg (YOLO ports): pixels moved into channels, as darknet's "passthrough" moves them.

    x   N × C × H × W          y   N × C·s² × H/s × W/s          s = stride, H and W multiples of it, C of s²
    reverse                    y   N × C/s² × H·s × W·s

With D = C / s², the memory of x is read as D × H·s × W·s planes p, and the memory of y is written as C × H × W:

    y[k, j, i] = p[k mod D, j · s + k/D / s, i · s + k/D mod s]              (divisions rounded down)

It is not the plain space-to-depth one would expect (that would read x as it is), but trained weights rely on it. In
reverse it is the plain one: y[k mod D, j · s + …, i · s + …] = x[k, j, i].
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from poseidon.net.layer import Layer, Shape, text_of
from poseidon.net.registry import register


@register("Reorg")
class Reorg(Layer):
    def reshape(self, bottom_shapes: Sequence[Shape]) -> list[Shape]:
        (shape,) = bottom_shapes
        options = self.spec.reorg_param
        stride = options.stride
        if stride < 1:
            raise self.error(f"reorg_param.stride must be at least 1, got {stride}")
        if len(shape) != 4 or shape[1] % stride**2:
            raise self.error(
                f"takes a bottom N x C x H x W with C a multiple of stride² = {stride**2}, got {text_of(shape)}"
            )
        num, channels, height, width = shape
        if options.reverse:
            return [(num, channels // stride**2, height * stride, width * stride)]
        if height % stride or width % stride:
            raise self.error(f"needs height and width that are multiples of stride {stride}, got {text_of(shape)}")
        return [(num, channels * stride**2, height // stride, width // stride)]

    def forward(self, x: Tensor) -> Tensor:
        stride = self.spec.reorg_param.stride
        num, channels, height, width = x.shape
        depth = channels // stride**2
        if self.spec.reorg_param.reverse:
            blocks = x.reshape(num, stride, stride, depth, height, width)
            return blocks.permute(0, 3, 4, 1, 5, 2).reshape(num, depth, height * stride, width * stride)
        planes = x.reshape(num, depth, height, stride, width, stride)
        moved = planes.permute(0, 3, 5, 1, 2, 4)
        return moved.reshape(num, channels * stride**2, height // stride, width // stride)
