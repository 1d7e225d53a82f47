"""Swish: y = x · sigmoid(beta · x), any shape."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from poseidon.net.layers.neuron import NeuronLayer
from poseidon.net.registry import register


@register("Swish")
class Swish(NeuronLayer):
    fresh_top = True

    def forward(self, x: Tensor) -> Tensor:
        beta = self.spec.swish_param.beta
        return F.silu(x) if beta == 1 else x * torch.sigmoid(beta * x)
