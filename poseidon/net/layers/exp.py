"""Exp: y = base^(shift + scale · x), any shape; a base of -1 stands for e.

y = e^(a·x + b),   a = scale · ln base,   b = shift · ln base,   dy/dx = a · y
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch import Tensor

from poseidon.net.layer import Shape
from poseidon.net.layers.affine import affine
from poseidon.net.layers.neuron import NeuronLayer
from poseidon.net.registry import register


@register("Exp")
class Exp(NeuronLayer):
    overwrites_bottom = True

    def setup(self, bottom_shapes: Sequence[Shape]) -> None:
        options = self.spec.exp_param
        if options.base != -1 and options.base <= 0:
            raise self.error(f"exp_param.base must be positive, or -1 for e, got {options.base:g}")
        log_base = 1.0 if options.base == -1 else math.log(options.base)
        self.factor, self.offset = options.scale * log_base, options.shift * log_base

    def forward(self, x: Tensor) -> Tensor:
        exponent = affine(x, self.factor, self.offset)
        return exponent.exp() if exponent is x and not self.in_place else exponent.exp_()
