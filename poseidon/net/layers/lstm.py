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
from torch.autograd.function import once_differentiable

from poseidon.net.layers.recurrent import Recurrent, interrupted
from poseidon.net.registry import register


@register("LSTM")
class LSTM(Recurrent):
    num_states = 2
    num_gates = 4

    def add_step_params(self) -> None:
        options = self.spec.recurrent_param
        self.add_param((4 * options.num_output, options.num_output), options.weight_filler)

    def run_steps(
        self, x: Tensor, static: Tensor | None, cont: Tensor, states: list[Tensor]
    ) -> tuple[Tensor, list[Tensor]]:
        weight = self.param(self.num_params - 1)
        breaks = interrupted(cont)
        if static is None and not any(breaks[1:]) and self._suits_whole_kernel(x):
            return _whole(x, self.param(0), self.param(1), weight, [state * cont[0].unsqueeze(1) for state in states])
        projected = self.projected(x, static)
        steps = [value.to(projected.dtype) for value in (weight, cont, *states)]
        hidden, cells = _Steps.apply(projected, breaks, *steps)
        return hidden, [hidden[-1], cells[-1]]

    def _suits_whole_kernel(self, x: Tensor) -> bool:
        """torch's kernel for whole sequences saves calls, but is slow at projecting wide inputs (measured on CPU)."""
        return x.shape[2] <= 2 * self.spec.recurrent_param.num_output and x.dtype == self.param(0).dtype


def _whole(
    x: Tensor, input_weight: Tensor, bias: Tensor, step_weight: Tensor, states: list[Tensor]
) -> tuple[Tensor, list[Tensor]]:
    """Uninterrupted sequences by torch's own kernel, whose gates stand in the order i f g o."""
    order = [torch.cat([i, f, g, o]) for i, f, o, g in (w.chunk(4) for w in (input_weight, step_weight, bias))]
    weights = [*order, torch.zeros_like(bias)]
    has_biases, num_layers, dropout, bidirectional, batch_first = True, 1, 0.0, False, False
    train = torch.is_grad_enabled()
    before = [state.unsqueeze(0) for state in states]
    top, h, c = torch.lstm(x, before, weights, has_biases, num_layers, dropout, train, bidirectional, batch_first)
    return top, [h[0], c[0]]


class _Steps(torch.autograd.Function):
    """All steps of an LSTM and their gradient through time.

    Autograd would record every step's small operations; here each step is one product and a few element-wise calls,
    and all that does not depend on the order of steps is computed for all of them at once.
    """

    @staticmethod
    def forward(
        ctx: Any, projected: Tensor, breaks: list[bool], weight: Tensor, cont: Tensor, h: Tensor, c: Tensor
    ) -> tuple[Tensor, Tensor]:
        size = h.shape[1]
        gates = torch.empty_like(projected)
        hidden, cells, squashed = (projected.new_empty(*projected.shape[:2], size) for _ in range(3))
        start, transposed = (h, c), weight.t()
        sigmoids = gates[..., : 3 * size]
        i, f, o, g = gates.split(size, 2)
        # Views of all steps at once: making them one by one costs more than a small step's arithmetic.
        views = (projected, cont.unsqueeze(2), gates, sigmoids, i, f, o, g, hidden, cells, squashed)
        steps = zip(breaks, *(view.unbind() for view in views), strict=True)
        for broken, inputs, keep, gate, sigmoid, i, f, o, g, h_now, c_now, squash in steps:
            if broken:
                h, c = h * keep, c * keep
            torch.addmm(inputs, h, transposed, out=gate)
            sigmoid.sigmoid_()
            g.tanh_()
            c = torch.mul(i, g, out=c_now).addcmul_(f, c)
            h = torch.mul(o, torch.tanh(c, out=squash), out=h_now)
        ctx.breaks = breaks
        ctx.save_for_backward(weight, cont, *start, gates, hidden, cells, squashed)
        ctx.mark_non_differentiable(cells)
        return hidden, cells

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_hidden: Tensor, _d_cells: Tensor) -> tuple[Tensor | None, ...]:
        weight, cont, h, c, gates, hidden, cells, squashed = ctx.saved_tensors
        size = h.shape[1]
        keep = cont.unsqueeze(2)
        h_before = torch.cat([h.unsqueeze(0), hidden[:-1]]).mul_(keep)
        c_before = torch.cat([c.unsqueeze(0), cells[:-1]]).mul_(keep)
        _, f, o, _ = gates.split(size, 2)
        d_cell_by_hidden = torch.addcmul(o, o, squashed.square(), value=-1)
        slopes, d_gates = _gate_slopes(gates, c_before, squashed), torch.empty_like(gates)
        views = [keep, f, d_cell_by_hidden, d_hidden, d_gates]
        for tensor in (slopes.unflatten(2, (4, size)), d_gates.unflatten(2, (4, size))):
            views += [tensor[:, :, :2], tensor[:, :, 2], tensor[:, :, 3]]
        steps = list(zip(ctx.breaks, *(view.unbind() for view in views), strict=True))
        d_h, d_c = torch.zeros_like(h), torch.zeros_like(c)
        for broken, keep_t, f_t, by_h, d_top, d_all, by_if, by_o, by_g, d_if, d_o, d_g in reversed(steps):
            d_h.add_(d_top)
            d_c.addcmul_(d_h, by_h)
            torch.mul(by_if, d_c.unsqueeze(1), out=d_if)
            torch.mul(by_o, d_h, out=d_o)
            torch.mul(by_g, d_c, out=d_g)
            d_c.mul_(f_t)
            d_h = torch.mm(d_all, weight)
            if broken:
                d_h.mul_(keep_t)
                d_c.mul_(keep_t)
        d_weight = d_gates.flatten(0, 1).t() @ h_before.flatten(0, 1) if ctx.needs_input_grad[2] else None
        return d_gates, None, d_weight, None, None, None


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
