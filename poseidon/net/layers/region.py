"""Region (YOLO ports): what a grid of boxes predicts, made into coordinates, scores and class probabilities.

    x   N × B·(K + 1 + classes) × H × W: for each of B boxes of a cell K coordinates, its objectness, then the classes

Two families of ports share the name, and are told apart by how they spell B:

    boxes_of_each_grid   the values of one box lie side by side: the memory of y is N × H × W × B × (K + 1 + classes).
                         Sigmoid of the objectness; with `softmax`, softmax over the classes
    num                  y is laid out like x. Sigmoid of the first two coordinates and of the objectness; softmax over
                         the classes

y has the shape of x in both. `anchors` is for whoever draws the boxes, and no layer reads it. In the ports nothing
flows back through Region; here its gradient is that of the formulas.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from poseidon.net.layer import Layer, Shape, text_of
from poseidon.net.registry import register


@register("Region")
class Region(Layer):
    def reshape(self, bottom_shapes: Sequence[Shape]) -> list[Shape]:
        (shape,) = bottom_shapes
        options = self.spec.region_param
        if options.coords < 2 or options.classes < 1 or self._num_boxes() < 1:
            raise self.error(
                f"needs at least 2 coords, 1 class and 1 box per cell, got {options.coords}, {options.classes} and "
                f"{self._num_boxes()}"
            )
        num_channels = self._num_boxes() * (options.coords + 1 + options.classes)
        if len(shape) != 4 or shape[1] != num_channels:
            raise self.error(
                f"takes a bottom N x {num_channels} x H x W, {self._num_boxes()} boxes of {options.coords} coords, 1 "
                f"objectness and {options.classes} classes, got {text_of(shape)}"
            )
        return [shape]

    def _num_boxes(self) -> int:
        options = self.spec.region_param
        return options.num if options.HasField("num") else options.boxes_of_each_grid

    def forward(self, x: Tensor) -> Tensor:
        options = self.spec.region_param
        coords = options.coords
        if options.HasField("num"):
            boxes = x.unflatten(1, (options.num, -1))
            centre, rest = boxes[:, :, :2].sigmoid(), boxes[:, :, 2:coords]
            objectness, classes = boxes[:, :, coords : coords + 1].sigmoid(), boxes[:, :, coords + 1 :].softmax(2)
            return torch.cat((centre, rest, objectness, classes), 2).flatten(1, 2)
        boxes = x.permute(0, 2, 3, 1).unflatten(3, (options.boxes_of_each_grid, -1))
        objectness, classes = boxes[..., coords : coords + 1].sigmoid(), boxes[..., coords + 1 :]
        if options.softmax:
            classes = classes.softmax(-1)
        return torch.cat((boxes[..., :coords], objectness, classes), -1).reshape(x.shape)
