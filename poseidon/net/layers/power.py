"""Power: y = (shift + scale · x)^power, any shape;  dy/dx = power · scale · (shift + scale · x)^(power - 1).

With power · scale = 0 the input does not matter: y is 1 (power 0, even for 0⁰) or shift^power, the gradient 0.
Where Caffe divides y by x to get the gradient (shift 0), it returns NaN at x = 0; here that is the true derivative.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from poseidon.net.layers.affine import affine
from poseidon.net.layers.neuron import NeuronLayer
from poseidon.net.registry import register


class _Constant(torch.autograd.Function):
    """The same value everywhere, still part of the graph so that the gradient is 0 and not absent."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, value: Tensor) -> Tensor:
        return value.to(x).expand_as(x).clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return torch.zeros_like(grad), None


@register("Power")
class Power(NeuronLayer):
    def forward(self, x: Tensor) -> Tensor:
        options = self.spec.power_param
        if options.power * options.scale == 0:
            # torch's pow, unlike Python's, has C's answers for 0^-1 and the root of a negative.
            return _Constant.apply(x, torch.tensor(options.shift, dtype=torch.float64).pow(options.power))
        base = affine(x, options.scale, options.shift)
        return base if options.power == 1 else base.pow(options.power)
