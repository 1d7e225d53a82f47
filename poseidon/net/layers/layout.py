"""Layout: in which order the memory of an N × C × H × W tensor runs. The logical shape is the same for both.

On a CPU, oneDNN's convolutions and torch's pooling work on channels-last memory (N, H, W, C) without reordering it and
with full vectors; row by row (N, C, H, W) the same pooling is up to ten times slower. So Convolution, Pooling and
friends turn their bottom once, and what follows inherits the order. Other devices keep what they are given.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

# From this many weights per element of the bottom on, turning the weights costs more than channels-last memory saves.
WEIGHTS_PER_ELEM = 3


def channels_last(x: Tensor) -> Tensor:
    """A 4-D CPU tensor in channels-last order, copied only if it is not so already; anything else unchanged."""
    if x.dim() != 4 or x.device.type != "cpu":
        return x
    if x.shape[1] == 1 and x.is_contiguous():
        # With one channel both orders are the same memory, and torch tells them apart by the strides alone.
        return x.view(x.shape[0], x.shape[2], x.shape[3], 1).permute(0, 3, 1, 2)
    return x.contiguous(memory_format=torch.channels_last)


def memory_order(x: Tensor) -> torch.memory_format:
    """The order a 4-D tensor's memory runs in, channels last or plain."""
    # With one channel or one position both hold; plain is what torch itself then assumes.
    is_last = x.is_contiguous(memory_format=torch.channels_last) and not x.is_contiguous()
    return torch.channels_last if is_last else torch.contiguous_format


def convolved_channels_last(x: Tensor, weight: Tensor, run: Callable[[Tensor], Tensor]) -> Tensor:
    """`run(x)`, a convolution with `weight`, in the memory order that suits both; the result is channels-last.

    For a channels-last bottom torch turns the weights as well, forward and backward, and their gradient back again.
    """
    if x.dim() == 4 and x.is_cpu and weight.numel() > WEIGHTS_PER_ELEM * x.numel():
        return channels_last(run(x.contiguous()))
    return run(channels_last(x))
