"""RNN: a plain recurrent layer. See Recurrent for the bottoms and tops.

    h_t = tanh(W_x x_t + b (+ W_s static) + W_h (cont_t · h_{t-1}))          state: h
    o_t = tanh(W_o h_t + b_o)                                                top 0

Blobs: W_x D × I, b D, (W_s D × S,) W_h D × D, W_o D × D, b_o D.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from poseidon.net.layers.recurrent import Recurrent, interrupted
from poseidon.net.registry import register


@register("RNN")
class RNN(Recurrent):
    num_states = 1
    num_gates = 1

    def add_step_params(self) -> None:
        options = self.spec.recurrent_param
        square = (options.num_output, options.num_output)
        self.add_param(square, options.weight_filler)
        self.add_param(square, options.weight_filler)
        self.add_param((options.num_output,), options.bias_filler)

    def run_steps(
        self, x: Tensor, static: Tensor | None, cont: Tensor, states: list[Tensor]
    ) -> tuple[Tensor, list[Tensor]]:
        step_weight, output_weight, output_bias = (self.param(self.num_params - i) for i in (3, 2, 1))
        projected = self.projected(x, static)
        hidden = _Steps.apply(projected, *(value.to(projected.dtype) for value in (step_weight, cont, *states)))
        return torch.tanh(F.linear(hidden, output_weight, output_bias)), [hidden[-1]]


class _Steps(torch.autograd.Function):
    """All steps of the state and their gradient through time, one product and one tanh each."""

    @staticmethod
    def forward(ctx: Any, projected: Tensor, weight: Tensor, cont: Tensor, h: Tensor) -> Tensor:
        hidden = torch.empty_like(projected)
        ctx.breaks = interrupted(cont)
        start, transposed = h, weight.t()
        for t, keep in enumerate(cont.unsqueeze(2).unbind()):
            if ctx.breaks[t]:
                h = h * keep
            h = torch.addmm(projected[t], h, transposed, out=hidden[t]).tanh_()
        ctx.save_for_backward(weight, cont, start, hidden)
        return hidden

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_hidden: Tensor) -> tuple[Tensor | None, ...]:
        weight, cont, start, hidden = ctx.saved_tensors
        keep = cont.unsqueeze(2)
        slopes = 1 - hidden * hidden
        d_sums = torch.empty_like(hidden)
        d_h = d_hidden[-1]
        for t in range(len(hidden) - 1, -1, -1):
            torch.mul(d_h, slopes[t], out=d_sums[t])
            if t == 0:
                break
            if ctx.breaks[t]:
                d_h = torch.mm(d_sums[t], weight).mul_(keep[t]).add_(d_hidden[t - 1])
            else:
                d_h = torch.addmm(d_hidden[t - 1], d_sums[t], weight)
        before = torch.cat([start.unsqueeze(0), hidden[:-1]]).mul_(keep)
        d_weight = d_sums.flatten(0, 1).t() @ before.flatten(0, 1) if ctx.needs_input_grad[1] else None
        return d_sums, d_weight, None, None
