"""Axpy (SENet): y = a · x + b, with one factor per sample and channel.

a   N × C, or N × C × 1 × 1 …          x, b, y   N × C × …
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from poseidon.net.layer import Layer, Shape, count_of, exactly, text_of
from poseidon.net.registry import register


@register("Axpy")
class Axpy(Layer):
    bottoms = exactly(3)

    def reshape(self, bottom_shapes: Sequence[Shape]) -> list[Shape]:
        factor, x, added = bottom_shapes
        if len(x) < 2 or x != added:
            raise self.error(
                f"needs a second and third bottom of one shape, N x C x ..., got {text_of(x)} and {text_of(added)}"
            )
        if factor[:2] != x[:2] or count_of(factor, 2) != 1:
            raise self.error(
                f"needs one factor per sample and channel, {text_of((*x[:2], 1, 1))} for {text_of(x)}, "
                f"got {text_of(factor)}"
            )
        return [x]

    def forward(self, factor: Tensor, x: Tensor, added: Tensor) -> Tensor:
        return torch.addcmul(added, factor.reshape(*x.shape[:2], *[1] * (x.dim() - 2)), x)
