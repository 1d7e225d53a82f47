"""LSTM: long short-term memory, without peepholes. See Recurrent for the bottoms and tops.

    [i f o g] = W_x x_t + b (+ W_s static) + W_h (cont_t · h_{t-1})          four gates of D values each
    c_t = σ(f) · (cont_t · c_{t-1}) + σ(i) · tanh(g)
    h_t = σ(o) · tanh(c_t)                                                   top 0; states: h, c

Blobs: W_x 4D × I, b 4D, (W_s 4D × S,) W_h 4D × D.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from poseidon.net.layers.recurrent import Recurrent, interrupted
from poseidon.net.registry import register


@register("LSTM")
class LSTM(Recurrent):
    num_states = 2
    num_gates = 4

    def add_step_params(self) -> None:
        options = self.spec.recurrent_param
        self.add_param((4 * options.num_output, options.num_output), options.weight_filler)

    def run_steps(self, projected: Tensor, cont: Tensor, states: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
        weight = self.param(self.num_params - 1).to(projected.dtype)
        hidden, cells = _Steps.apply(projected, weight, cont, *states)
        return hidden, [hidden[-1], cells[-1]]


class _Steps(torch.autograd.Function):
    """All steps of an LSTM and their gradient through time.

    Autograd would record every step's small operations; here each step is one product and a few element-wise calls,
    and all that does not depend on the order of steps is computed for all of them at once.
    """

    @staticmethod
    def forward(
        ctx: Any, projected: Tensor, weight: Tensor, cont: Tensor, h: Tensor, c: Tensor
    ) -> tuple[Tensor, Tensor]:
        size = h.shape[1]
        gates = torch.empty_like(projected)
        hidden, cells, squashed = (projected.new_empty(*projected.shape[:2], size) for _ in range(3))
        breaks = interrupted(cont)
        ctx.breaks = breaks
        start = (h, c)
        sigmoids = gates[..., : 3 * size].unbind()
        i, f, o, g = (gate.unbind() for gate in gates.split(size, 2))
        transposed = weight.t()
        for t, keep in enumerate(cont.unsqueeze(2).unbind()):
            if breaks[t]:
                h, c = h * keep, c * keep
            torch.addmm(projected[t], h, transposed, out=gates[t])
            sigmoids[t].sigmoid_()
            g[t].tanh_()
            c = torch.mul(i[t], g[t], out=cells[t]).addcmul_(f[t], c)
            h = torch.mul(o[t], torch.tanh(c, out=squashed[t]), out=hidden[t])
        ctx.save_for_backward(weight, cont, *start, gates, hidden, cells, squashed)
        ctx.mark_non_differentiable(cells)
        return hidden, cells

    @staticmethod
    def backward(ctx: Any, d_hidden: Tensor, _d_cells: Tensor) -> tuple[Tensor | None, ...]:
        weight, cont, h, c, gates, hidden, cells, squashed = ctx.saved_tensors
        size = h.shape[1]
        keep = cont.unsqueeze(2)
        h_before = torch.cat([h.unsqueeze(0), hidden[:-1]]).mul_(keep)
        c_before = torch.cat([c.unsqueeze(0), cells[:-1]]).mul_(keep)
        _, f, o, _ = gates.split(size, 2)
        slopes = _gate_slopes(gates, c_before, squashed)
        d_cell_by_hidden = o - o * squashed * squashed
        d_gates = torch.empty_like(gates)
        d_c = torch.zeros_like(h)
        d_h = d_hidden[-1]
        for t in range(len(gates) - 1, -1, -1):
            d_c = d_c.addcmul_(d_h, d_cell_by_hidden[t])
            _fill_gate_gradients(d_gates[t], slopes[t], d_c, d_h)
            d_c.mul_(f[t])
            if t == 0:
                break
            if ctx.breaks[t]:
                d_c.mul_(keep[t])
                d_h = torch.mm(d_gates[t], weight).mul_(keep[t]).add_(d_hidden[t - 1])
            else:
                d_h = torch.addmm(d_hidden[t - 1], d_gates[t], weight)
        d_weight = d_gates.flatten(0, 1).t() @ h_before.flatten(0, 1) if ctx.needs_input_grad[1] else None
        return d_gates, d_weight, None, None, None


def _gate_slopes(gates: Tensor, c_before: Tensor, squashed: Tensor) -> Tensor:
    """d c / d gate input for i, f and g, and d h / d gate input for o, at all steps."""
    size = c_before.shape[2]
    i, _, _, g = gates.split(size, 2)
    slopes = torch.empty_like(gates)
    sigmoids = gates[..., : 3 * size]
    torch.addcmul(sigmoids, sigmoids, sigmoids, value=-1, out=slopes[..., : 3 * size])
    by_i, by_f, by_o, by_g = slopes.split(size, 2)
    by_i.mul_(g)
    by_f.mul_(c_before)
    by_o.mul_(squashed)
    torch.mul(g, g, out=by_g).neg_().add_(1).mul_(i)
    return slopes


def _fill_gate_gradients(out: Tensor, slopes: Tensor, d_c: Tensor, d_h: Tensor) -> None:
    streams, size = d_c.shape
    out, slopes = out.view(streams, 4, size), slopes.view(streams, 4, size)
    torch.mul(slopes[:, :2], d_c.unsqueeze(1), out=out[:, :2])
    torch.mul(slopes[:, 2], d_h, out=out[:, 2])
    torch.mul(slopes[:, 3], d_c, out=out[:, 3])
