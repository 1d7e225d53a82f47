"""Paced: a layer that hands on what it gets and takes as long, forward and backward, as a device would with more work.

    python_param { param_str: "0.010 0.020" }      seconds forward and backward

For pictures of several hosts on one machine (`pictures.py`): hosts that share two cores cannot all compute at once,
but they can all wait for devices that are not there. Everything else in such a run is real.
"""

from __future__ import annotations

import time
from typing import Any

import torch
from torch import Tensor

from poseidon.net.layer import Layer
from poseidon.net.registry import register


class _Pause(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, forward_s: float, backward_s: float) -> Tensor:
        ctx.backward_s = backward_s
        time.sleep(forward_s)
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        time.sleep(ctx.backward_s)
        return grad.clone(), None, None


@register("Paced")
class Paced(Layer):
    def setup(self, bottom_shapes):
        self._forward_s, self._backward_s = map(float, self.spec.python_param.param_str.split())

    def reshape(self, bottom_shapes):
        return [bottom_shapes[0]]

    def forward(self, x):
        return _Pause.apply(x, self._forward_s, self._backward_s)
