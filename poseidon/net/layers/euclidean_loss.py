"""EuclideanLoss: loss = 1/(2N) Σ (a − b)², for two bottoms with N samples of equal size.

Unlike most losses it back-propagates to both bottoms.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch.nn.functional as F
from torch import Tensor

from poseidon.net.layer import Shape, count_of, text_of
from poseidon.net.layers.loss import LossLayer
from poseidon.net.registry import register


@register("EuclideanLoss")
class EuclideanLoss(LossLayer):
    unforced_bottoms = frozenset()

    def reshape(self, bottom_shapes: Sequence[Shape]) -> list[Shape]:
        tops = super().reshape(bottom_shapes)
        a, b = bottom_shapes
        if count_of(a, 1) != count_of(b, 1):
            raise self.error(f"needs two bottoms with samples of the same size, got {text_of(a)} and {text_of(b)}")
        return tops

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        return F.mse_loss(a, b.reshape(a.shape), reduction="sum") / (2.0 * max(a.shape[0], 1))
