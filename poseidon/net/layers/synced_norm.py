"""Normalisation with the statistics of all workers' batches together, as if they were one batch.

    x̂ = (x - μ) / √(σ² + eps),   μ and σ² over the n values per channel of all P workers

Worker r contributes its mean μ_r, the sum of squares m_r around it, and its count n_r; one exchange brings them all:

    μ = Σ n_r μ_r / n        n σ² = Σ m_r + n_r (μ_r - μ)²        (no cancellation of large sums)

Backward: x of every worker acts on the losses of all, through μ and σ. With g = ∂(Σ loss_r)/∂x̂ one exchange gives

    ∂/∂x = (g - Σ g / n - x̂ · Σ (g x̂) / n) / √(σ² + eps)         Σ over all workers
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

# Every worker's vector as a row, in rank order; called by all workers or by none.
GatherRows = Callable[[Tensor], Tensor]


class SyncedNorm(torch.autograd.Function):
    """(x, eps, gather) -> x̂, μ and the unbiased variance (the biased one of a single value); C is axis 1."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, eps: float, gather: GatherRows) -> tuple[Tensor, Tensor, Tensor]:
        axes = [axis for axis in range(x.dim()) if axis != 1]
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        variance, mean = torch.var_mean(wide, axes, correction=0)
        count = x.numel() // x.shape[1]
        rows = gather(torch.cat((mean, variance * count, mean.new_tensor([count]))))
        means, squares = rows[:, :-1].chunk(2, dim=1)
        counts = rows[:, -1:]
        total = counts.sum()
        mean = (means * counts).sum(0) / total
        variance = (squares + counts * (means - mean).square()).sum(0) / total
        center, scale = _per_channel(mean, x), _per_channel((variance + eps).rsqrt(), x)
        normal = ((wide - center) * scale).to(x.dtype)
        # The next layer may overwrite x̂ (`fresh_top`): what backward reads is x.
        ctx.save_for_backward(x, center, scale, total)
        ctx.axes, ctx.gather = axes, gather
        unbiased = variance * (total / (total - 1).clamp(min=1))
        ctx.mark_non_differentiable(mean, unbiased)
        return normal, mean, unbiased

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, *_: Tensor) -> tuple[Tensor, None, None]:
        x, center, scale, total = ctx.saved_tensors
        normal = (x.to(scale.dtype) - center) * scale
        wide = grad.to(scale.dtype)
        sums = torch.cat((wide.sum(ctx.axes), (wide * normal).sum(ctx.axes)))
        means = (ctx.gather(sums).sum(0) / total).chunk(2)
        own, with_normal = (_per_channel(part, grad) for part in means)
        return ((wide - own - normal * with_normal) * scale).to(grad.dtype), None, None


def _per_channel(values: Tensor, like: Tensor) -> Tensor:
    return values.view(1, -1, *[1] * (like.dim() - 2))


@torch._disable_dynamo  # torch.compiler.disable would import the compiler: a second, and 80 MB, for nothing
def synced_norm(x: Tensor, eps: float, gather: GatherRows) -> tuple[Tensor, Tensor, Tensor]:
    normal, mean, variance = SyncedNorm.apply(x, eps, gather)
    return normal, mean, variance
