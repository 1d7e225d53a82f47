"""Log: y = log_base(shift + scale · x), any shape; a base of -1 stands for e. As in C, log of a negative is NaN."""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch import Tensor

from poseidon.net.layer import Shape
from poseidon.net.layers.affine import affine
from poseidon.net.layers.neuron import NeuronLayer
from poseidon.net.registry import register


@register("Log")
class Log(NeuronLayer):
    fresh_top = True

    def setup(self, bottom_shapes: Sequence[Shape]) -> None:
        base = self.spec.log_param.base
        if base != -1 and (base <= 0 or base == 1):
            raise self.error(f"log_param.base must be positive and not 1, or -1 for e, got {base:g}")
        self.log_base = 1.0 if base == -1 else math.log(base)

    def forward(self, x: Tensor) -> Tensor:
        options = self.spec.log_param
        y = affine(x, options.scale, options.shift).log()
        return y if self.log_base == 1 else y.mul_(1 / self.log_base)
