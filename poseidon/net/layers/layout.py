"""Layout: in which order the memory of an N × C × H × W tensor runs. The logical shape is the same for both.

On a CPU, oneDNN's convolutions and torch's pooling work on channels-last memory (N, H, W, C) without reordering it and
with full vectors; row by row (N, C, H, W) the same pooling is up to ten times slower. So Convolution, Pooling and
friends turn their bottom once, and what follows inherits the order. Other devices keep what they are given.
"""

from __future__ import annotations

import torch
from torch import Tensor


def channels_last(x: Tensor) -> Tensor:
    """A 4-D CPU tensor in channels-last order, copied only if it is not so already; anything else unchanged."""
    if x.dim() != 4 or x.device.type != "cpu":
        return x
    if x.shape[1] == 1 and x.is_contiguous():
        # With one channel both orders are the same memory, and torch tells them apart by the strides alone.
        return x.view(x.shape[0], x.shape[2], x.shape[3], 1).permute(0, 3, 1, 2)
    return x.contiguous(memory_format=torch.channels_last)
