"""ReLU6 (MobileNetV2): y = min(max(x, 0), 6) + negative_slope · min(x, 0), element by element, any shape.

The derivative is 1 strictly between 0 and 6, negative_slope up to and including 0, and 0 from 6 on.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from poseidon.net.layers.neuron import NeuronLayer
from poseidon.net.registry import register


@register("ReLU6")
class ReLU6(NeuronLayer):
    overwrites_bottom = True

    def forward(self, x: Tensor) -> Tensor:
        slope = self.spec.relu6_param.negative_slope
        if slope == 0:
            return F.hardtanh_(x, 0, 6) if self.in_place else F.hardtanh(x, 0, 6)
        return F.hardtanh(x, 0, 6) + slope * x.clamp(max=0)
