"""clip_gradients: all gradients scaled down together when their common L2 norm is above a limit.

    norm = √(Σ over all parameters, all elements, of g²)
    g ← g · limit / norm                if norm > limit

Caffe clips the sum over iter_size batches, before it is divided by iter_size. Whoever applies updates one parameter at
a time must wait for all of them first: this needs every gradient.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Clipping:
    """What was done to the gradients of one iteration."""

    norm: float
    limit: float

    @property
    def factor(self) -> float:
        return self.limit / self.norm


@torch.no_grad()
def clip_gradients(grads: Sequence[Tensor], limit: float) -> Clipping | None:
    """Scales the gradients in place. None: nothing to do. A negative limit is no limit, as in Caffe."""
    if limit < 0 or not grads:
        return None
    norms = [norm.to(grads[0].device) for norm in torch._foreach_norm(list(grads))]
    norm = float(torch.linalg.vector_norm(torch.stack(norms)))
    if not norm > limit:
        return None
    clipping = Clipping(norm, limit)
    torch._foreach_mul_(list(grads), clipping.factor)
    return clipping
