"""Threshold: y = 1 for x > threshold, else 0, any shape.

It has no useful derivative. Like Caffe, a net that asks it for one gets an error instead of silent zeros.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from poseidon.errors import LayerError
from poseidon.net.layers.neuron import NeuronLayer
from poseidon.net.registry import register


class _Step(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, threshold: float, refusal: LayerError) -> Tensor:
        ctx.refusal = refusal
        return (x > threshold).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        raise ctx.refusal


@register("Threshold")
class Threshold(NeuronLayer):
    fresh_top = True

    def forward(self, x: Tensor) -> Tensor:
        refusal = self.error("cannot back-propagate through a step; set propagate_down to false for its bottom")
        return _Step.apply(x, self.spec.threshold_param.threshold, refusal)
