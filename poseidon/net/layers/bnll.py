"""BNLL: y = log(1 + eˣ), binomial normal log likelihood, any shape; the derivative is eˣ / (1 + eˣ).

Above 50 Caffe holds the exponent at 50, where y = x and the derivative 1 are exact in both precisions.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from poseidon.net.layers.neuron import NeuronLayer
from poseidon.net.registry import register

LINEAR_ABOVE = 50.0


@register("BNLL")
class BNLL(NeuronLayer):
    fresh_top = True

    def forward(self, x: Tensor) -> Tensor:
        return F.softplus(x, threshold=LINEAR_ABOVE)
