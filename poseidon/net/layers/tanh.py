"""TanH: y = tanh x, any shape; dy/dx = 1 - y²."""

from __future__ import annotations

import torch
from torch import Tensor

from poseidon.net.layers.neuron import NeuronLayer
from poseidon.net.registry import register


@register("TanH")
class TanH(NeuronLayer):
    # tanh_param.engine chooses among Caffe's implementations of the same function: nothing to choose here.
    overwrites_bottom = True

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh_(x) if self.in_place else torch.tanh(x)
