"""Blob: a named pair of tensors, data and diff, that keeps its memory for as long as somebody looks at it.

A layer-by-layer run replaces a blob's tensors freely, which costs nothing. Once the memory has been handed out as a
NumPy array that is still alive, later results are copied into that same memory instead: an array taken before a
forward pass shows the values after it, as in Caffe.
"""

from __future__ import annotations

import weakref

import numpy as np
import torch
from torch import Tensor


class _Memory:
    """One tensor and, while it lives, the array that shows it."""

    __slots__ = ("_array", "tensor")

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor
        self._array: weakref.ref[np.ndarray] | None = None

    @property
    def watched(self) -> bool:
        return self._array is not None and self._array() is not None

    def array(self) -> np.ndarray:
        alive = self._array() if self._array is not None else None
        if alive is None:
            self.tensor = self.tensor.detach().contiguous()
            alive = self.tensor.numpy()
            self._array = weakref.ref(alive)
        return alive

    def put(self, value: Tensor) -> None:
        if self._array is not None and self.watched and value.shape == self.tensor.shape:
            if value.data_ptr() != self.tensor.data_ptr() or value.stride() != self.tensor.stride():
                self.tensor.copy_(value)
        else:
            self.tensor = value
            self._array = None


class Blob:
    """A blob of a net: `data`, and `diff` made on first use."""

    def __init__(self, name: str, data: Tensor) -> None:
        self.name = name
        self._data = _Memory(data)
        self._diff: _Memory | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self._data.tensor.shape)

    @property
    def data(self) -> Tensor:
        return self._data.tensor

    @data.setter
    def data(self, value: Tensor) -> None:
        self._data.put(value)

    @property
    def diff(self) -> Tensor:
        return self._diff_memory().tensor

    @diff.setter
    def diff(self, value: Tensor) -> None:
        self._diff_memory().put(value)

    @property
    def watched(self) -> bool:
        """True while an array handed out by `data_array` is alive."""
        return self._data.watched

    def data_array(self) -> np.ndarray:
        """The data as a writable array over the same memory (CPU)."""
        return self._data.array()

    def diff_array(self) -> np.ndarray:
        """The diff as a writable array over the same memory (CPU)."""
        return self._diff_memory().array()

    def fit_diff(self, weight: float) -> None:
        """For a loss: fills the diff with its weight if the data has got another shape since."""
        if self._diff is None or self._diff.tensor.shape != self._data.tensor.shape:
            self.diff.fill_(weight)

    def reshape(self, shape: tuple[int, ...]) -> None:
        """Another shape: values are kept in memory order as far as they go, new ones are zero; a diff starts anew."""
        if shape == self.shape:
            return
        self._data = _Memory(_resized(self._data.tensor, shape))

    def _diff_memory(self) -> _Memory:
        if self._diff is None or self._diff.tensor.shape != self._data.tensor.shape:
            self._diff = _Memory(torch.zeros_like(self._data.tensor, memory_format=torch.contiguous_format))
        return self._diff


def _resized(old: Tensor, shape: tuple[int, ...]) -> Tensor:
    new = torch.zeros(shape, dtype=old.dtype, device=old.device)
    kept = min(old.numel(), new.numel())
    new.view(-1)[:kept] = old.detach().reshape(-1)[:kept]
    return new
