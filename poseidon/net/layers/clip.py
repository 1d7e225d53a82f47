"""Clip: y = max(min, min(x, max)), any shape. The gradient passes where min ≤ x ≤ max, both ends included."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from poseidon.net.layer import Shape
from poseidon.net.layers.neuron import NeuronLayer
from poseidon.net.registry import register


@register("Clip")
class Clip(NeuronLayer):
    fresh_top = True

    def setup(self, bottom_shapes: Sequence[Shape]) -> None:
        options = self.spec.clip_param
        if not (options.HasField("min") and options.HasField("max")):
            raise self.error("needs clip_param with both min and max")
        if options.min > options.max:
            raise self.error(f"clip_param needs min <= max, got min {options.min:g} and max {options.max:g}")

    def forward(self, x: Tensor) -> Tensor:
        options = self.spec.clip_param
        return x.clamp(options.min, options.max)
