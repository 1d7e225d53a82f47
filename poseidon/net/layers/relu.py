"""ReLU: y = max(x, 0) + negative_slope · min(x, 0), element by element, any shape.

Caffe's derivative at 0 is negative_slope (x > 0 is what passes the gradient).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from poseidon.net.layer import Layer, Shape
from poseidon.net.registry import register


@register("ReLU")
class ReLU(Layer):
    overwrites_bottom = True
    keeps_top = True

    def reshape(self, bottom_shapes: Sequence[Shape]) -> list[Shape]:
        return [bottom_shapes[0]]

    def forward(self, x: Tensor) -> Tensor:
        slope = self.spec.relu_param.negative_slope
        if slope:
            return F.leaky_relu(x, slope)
        return torch.relu_(x) if self.in_place else torch.relu(x)
