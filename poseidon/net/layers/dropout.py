"""Dropout: in TRAIN phase y = x · m / (1 - ratio) with m drawn from {0, 1}, P(m = 1) = 1 - ratio; in TEST phase y = x.

A new mask is drawn in every forward pass; backward uses the same one. Each sample (row of the first axis) draws its
own, keyed by seed, layer, clock and global sample index, so the masks do not depend on how a batch is spread over
workers. One element takes 31 random bits: P is exact to 2⁻³¹. Only the mask is kept for backward, a byte per element.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from poseidon.net.layer import Shape
from poseidon.net.layers.neuron import NeuronLayer
from poseidon.net.registry import register


def _masked(x: Tensor, mask: Tensor, scale: float) -> Tensor:
    """x · mask · scale. Widening the mask first is faster than multiplying by a boolean."""
    return mask.to(x.dtype).mul_(scale).mul_(x)


class _Drop(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, mask: Tensor, scale: float, in_place: bool) -> Tensor:
        ctx.save_for_backward(mask)
        ctx.scale = scale
        if not in_place:
            return _masked(x, mask, scale)
        ctx.mark_dirty(x)
        return x.mul_(mask.to(x.dtype).mul_(scale))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        (mask,) = ctx.saved_tensors
        return _masked(grad, mask, ctx.scale), None, None, None


@register("Dropout")
class Dropout(NeuronLayer):
    overwrites_bottom = True

    def setup(self, bottom_shapes: Sequence[Shape]) -> None:
        ratio = self.spec.dropout_param.dropout_ratio
        if not 0 <= ratio < 1:
            raise self.error(f"dropout_ratio must be at least 0 and below 1, got {ratio:g}")

    def forward(self, x: Tensor) -> Tensor:
        ratio = self.spec.dropout_param.dropout_ratio
        if not self.training_phase or ratio == 0:
            return x
        return _Drop.apply(x, self.draw_mask(x, ratio), 1 / (1 - ratio), self.in_place)

    def draw_mask(self, x: Tensor, ratio: float) -> Tensor:
        """Which elements are kept: booleans in x's memory order, the same whatever that order is."""
        mask = torch.empty_like(x, dtype=torch.bool)
        bits = torch.empty(x.shape[1:], dtype=torch.int32, device=x.device)
        first_kept = round(ratio * 2**31)

        def draw(row: Tensor, generator: torch.Generator) -> None:
            torch.ge(bits.random_(generator=generator), first_kept, out=row)

        return self.context.draws.per_sample(self.name, mask, draw)
