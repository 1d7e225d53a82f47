"""Segments: this worker's memory that others can reach, and the windows it has into others' on the same host.

All segments of a worker lie in one anonymous file (memfd), each from a page border on. A worker of the same host gets
the file when the two connect and maps a segment when it is told of it. Nothing has a name in a file system, so nothing
is left behind, and only who was given the file can look into it.
"""

from __future__ import annotations

import fcntl
import mmap
import os
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from poseidon.errors import TransportError


@dataclass(frozen=True, slots=True)
class Segment:
    """`start` is where it begins in its worker's file; `array` and `view` are the same bytes as `memory`."""

    memory: Tensor
    array: np.ndarray
    view: memoryview
    start: int
    num_bytes: int


class Segments:
    """The segments of one worker, by number."""

    def __init__(self, name: str) -> None:
        self.fd = os.memfd_create(f"poseidon-{name}", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        fcntl.fcntl(self.fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)  # what others have mapped cannot be cut off
        self._end = 0
        self._by_number: dict[int, Segment] = {}

    def allocate(self, number: int, num_bytes: int) -> Segment:
        if number in self._by_number:
            raise TransportError(f"segment {number} is there already; take another number")
        if num_bytes <= 0 or number < 0:
            raise TransportError(f"a segment has a number, 0 or more, and 1 byte or more; got {number}, {num_bytes}")
        start, self._end = self._end, self._end + -(-num_bytes // mmap.PAGESIZE) * mmap.PAGESIZE
        os.ftruncate(self.fd, self._end)
        segment = mapped(self.fd, start, num_bytes)
        self._by_number[number] = segment
        return segment

    def get(self, number: int) -> Segment | None:
        return self._by_number.get(number)

    def close(self) -> None:
        """Gives up the file; memory that somebody still holds stays as it is."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1
            self._by_number.clear()


def mapped(fd: int, start: int, num_bytes: int) -> Segment:
    """A segment of somebody's file."""
    pages = mmap.mmap(fd, num_bytes, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE, offset=start)
    memory = torch.frombuffer(pages, dtype=torch.uint8)
    return Segment(memory, memory.numpy(), memoryview(pages), start, num_bytes)


def bytes_of(tensor: Tensor) -> Tensor:
    """A contiguous tensor's memory as bytes."""
    if tensor.requires_grad:
        tensor = tensor.detach()
    if tensor.dim() != 1:
        tensor = tensor.reshape(-1)
    return tensor if tensor.dtype is torch.uint8 else tensor.view(torch.uint8)
