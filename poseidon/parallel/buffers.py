"""Buffers: one worker's on every worker, before a forward pass that follows one that trained.

As in DistributedDataParallel. They travel as bytes, in one broadcast.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from poseidon.run.roundtable import Roundtable


@torch.no_grad()
def copy_buffers(model: nn.Module, table: Roundtable, root: int = 0) -> None:
    """All buffers of rank `root`, everywhere."""
    _copy([buffer for buffer in model.buffers() if buffer.numel()], table, root)


@torch.no_grad()
def copy_parameters(model: nn.Module, table: Roundtable, root: int = 0) -> None:
    """All parameters of rank `root`, everywhere."""
    for parameter in model.parameters():
        _copy([parameter.detach()] if parameter.numel() else [], table, root)


def _copy(tensors: list[Tensor], table: Roundtable, root: int) -> None:
    if not tensors:
        return
    carried = torch.cat([_bytes_of(tensor) for tensor in tensors])
    table.copy(carried, root)
    if table.rank == root:
        return
    position = 0
    for tensor in tensors:
        part = carried[position : position + tensor.nbytes].clone()
        tensor.copy_(part.view(tensor.dtype).view(tensor.shape))
        position += tensor.nbytes


def _bytes_of(tensor: Tensor) -> Tensor:
    return tensor.reshape(-1).contiguous().view(torch.uint8).cpu()
