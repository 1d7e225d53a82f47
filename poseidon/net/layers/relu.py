"""ReLU: y = max(x, 0) + negative_slope · min(x, 0), element by element, any shape.

Caffe's derivative at 0 is negative_slope (x > 0 is what passes the gradient).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from poseidon.net.layers.neuron import NeuronLayer
from poseidon.net.registry import register


@register("ReLU")
class ReLU(NeuronLayer):
    # relu_param.engine chooses among Caffe's implementations of the same function: nothing to choose here.
    overwrites_bottom = True

    def forward(self, x: Tensor) -> Tensor:
        slope = self.spec.relu_param.negative_slope
        if slope == 0:
            return torch.relu_(x) if self.in_place else torch.relu(x)
        # In place the sign of x is read off y, which a negative slope would turn.
        return F.leaky_relu_(x, slope) if self.in_place and slope > 0 else F.leaky_relu(x, slope)
