"""affine: scale · x + shift in one pass over memory, the first half of Exp, Log and Power."""

from __future__ import annotations

import torch
from torch import Tensor


def affine(x: Tensor, scale: float, shift: float) -> Tensor:
    if shift == 0:
        return x if scale == 1 else x * scale
    if scale == 1:
        return x + shift
    # A tensor without axes takes part as a number and leaves x's type alone.
    return torch.add(torch.tensor(shift, dtype=torch.float64), x, alpha=scale)
