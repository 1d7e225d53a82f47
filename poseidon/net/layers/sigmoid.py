"""Sigmoid: y = 1 / (1 + e⁻ˣ), any shape; dy/dx = y (1 - y)."""

from __future__ import annotations

import torch
from torch import Tensor

from poseidon.net.layers.neuron import NeuronLayer
from poseidon.net.registry import register


@register("Sigmoid")
class Sigmoid(NeuronLayer):
    # sigmoid_param.engine chooses among Caffe's implementations of the same function: nothing to choose here.
    overwrites_bottom = True

    def forward(self, x: Tensor) -> Tensor:
        return torch.sigmoid_(x) if self.in_place else torch.sigmoid(x)
