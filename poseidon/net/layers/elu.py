"""ELU: y = x for x > 0, alpha · (eˣ - 1) for x ≤ 0, any shape. At 0 the derivative is alpha."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from poseidon.net.layers.neuron import NeuronLayer
from poseidon.net.registry import register


@register("ELU")
class ELU(NeuronLayer):
    overwrites_bottom = True

    def forward(self, x: Tensor) -> Tensor:
        alpha = self.spec.elu_param.alpha
        # In place the sign of x is read off y, which a negative alpha would turn.
        return F.elu_(x, alpha) if self.in_place and alpha >= 0 else F.elu(x, alpha)
