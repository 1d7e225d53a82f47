"""MemoryBudget: how much memory a net may ask for, so that one that can never fit is refused by name.

Without it a wrong digit in a prototxt ends in the allocator's words, or with the kernel killing the process. The limit
is all the memory there is: what is refused could not have run, what passes may still be too large in practice.

    extents     at most 2³¹ − 1 each and 32 of them, as in Caffe
    blob        each one by itself below the limit (a pass frees blobs as it goes, so their sum says little)
    parameters  below the limit all together
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from pathlib import Path

import torch

MAX_EXTENT = 2**31 - 1
MAX_AXES = 32
# Strides are 64-bit numbers of bytes, also where an extent of 0 makes a tensor empty.
_MAX_STRIDE_ELEMS = 2**59


class MemoryBudget:
    """Of one net on one device; `total_bytes` is for tests."""

    def __init__(self, device: torch.device | None = None, total_bytes: int | None = None) -> None:
        self._device = device or torch.device("cpu")
        self._total_bytes = total_bytes
        self._taken_bytes = 0

    @property
    def total_bytes(self) -> int:
        if self._total_bytes is None:
            self._total_bytes = device_bytes(self._device)
        return self._total_bytes

    def refusal(self, shape: Sequence[int], itemsize: int) -> str | None:
        """Why there can be no tensor of this shape, or None."""
        if len(shape) > MAX_AXES:
            return f"{len(shape)} axes, expected at most {MAX_AXES}"
        for extent in shape:
            if not 0 <= extent <= MAX_EXTENT:
                return f"an extent of {extent}, expected 0 to {MAX_EXTENT}"
        num_bytes = math.prod(shape) * itemsize
        if num_bytes > self.total_bytes:
            return f"{_amount(num_bytes)}, expected at most the {_amount(self.total_bytes)} there are"
        if math.prod(max(extent, 1) for extent in shape) > _MAX_STRIDE_ELEMS:
            return "no values, but extents too large to count with"
        return None

    def take(self, shape: Sequence[int], itemsize: int) -> str | None:
        """Counts a parameter of this shape; why it cannot be had beside those before it, or None."""
        refusal = self.refusal(shape, itemsize)
        if refusal is not None:
            return refusal
        num_bytes = math.prod(shape) * itemsize
        if self._taken_bytes + num_bytes > self.total_bytes:
            return (
                f"{_amount(num_bytes)} beside the {_amount(self._taken_bytes)} of the parameters before it, "
                f"expected at most the {_amount(self.total_bytes)} there are"
            )
        self._taken_bytes += num_bytes
        return None


def device_bytes(device: torch.device) -> int:
    """All the memory of a device; of the CPU's, what this container may use."""
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory
    return min(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"), _container_bytes())


def _container_bytes() -> int:
    try:
        return int(Path("/sys/fs/cgroup/memory.max").read_text())
    except (OSError, ValueError):  # no such limit here: the file is missing, or says `max`
        return 2**63


def _amount(num_bytes: int) -> str:
    """Bytes for people, in the unit they read most easily."""
    for unit, size in (("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20)):
        if num_bytes >= size:
            return f"{num_bytes / size:,.1f} {unit}"
    return f"{num_bytes:,} bytes"
