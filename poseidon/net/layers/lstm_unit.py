"""LSTMUnit: one step of an LSTM from gates that are already summed up.

bottom 0   c_prev   1 × N × D
bottom 1   gates    1 × N × 4D          [i f o g] of each stream
bottom 2   cont     1 × N               takes no gradient
top 0      c = cont · σ(f) · c_prev + σ(i) · tanh(g)          1 × N × D
top 1      h = σ(o) · tanh(c)                                 1 × N × D
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from poseidon.net.layer import Layer, Shape, exactly, text_of
from poseidon.net.registry import register


@register("LSTMUnit")
class LSTMUnit(Layer):
    bottoms = exactly(3)
    tops = exactly(2)
    unforced_bottoms = frozenset({2})

    def reshape(self, bottom_shapes: Sequence[Shape]) -> list[Shape]:
        cell, gates, cont = bottom_shapes
        if len(cell) != 3 or cell[0] != 1:
            raise self.error(f"bottom 0 (cell state) must be 1 x streams x size, got {text_of(cell)}")
        for index, what, got, expected in (
            (1, "gates", gates, (1, cell[1], 4 * cell[2])),
            (2, "cont", cont, (1, cell[1])),
        ):
            if got != expected:
                raise self.error(f"bottom {index} ({what}) must be {text_of(expected)}, got {text_of(got)}")
        return [cell, cell]

    def forward(self, cell: Tensor, gates: Tensor, cont: Tensor) -> tuple[Tensor, Tensor]:
        size = cell.shape[2]
        i, f, o = torch.sigmoid(gates[..., : 3 * size]).split(size, 2)
        g = torch.tanh(gates[..., 3 * size :])
        new_cell = f * cont.detach().unsqueeze(2) * cell + i * g
        return new_cell, o * torch.tanh(new_cell)
