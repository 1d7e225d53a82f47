"""Blobs as code written for pycaffe sees them: NumPy arrays `data` and `diff`, a shape, and Caffe's old names for the
first four axes.

    NetBlob     one of a net's activations: arrays over the memory the net computes with
    ParamBlob   one of a layer's parameters: arrays over the parameter and over its gradient
    HostBlob    arrays of its own (`host_blob.py`)

Sharers of a parameter show the same memory, each in its own shape.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

import numpy as np
import torch

from poseidon.net.blob import Blob

if TYPE_CHECKING:
    from poseidon.net.layer import Layer


class ArrayBlob(ABC):
    """What all of them offer."""

    @property
    @abstractmethod
    def data(self) -> np.ndarray: ...

    @property
    @abstractmethod
    def diff(self) -> np.ndarray: ...

    @property
    @abstractmethod
    def shape(self) -> tuple[int, ...]: ...

    @abstractmethod
    def reshape(self, *dims: int) -> None:
        """Another shape; values are kept as far as the memory goes."""

    @property
    def count(self) -> int:
        return math.prod(self.shape)

    @property
    def num(self) -> int:
        return self._legacy_extent(0)

    @property
    def channels(self) -> int:
        return self._legacy_extent(1)

    @property
    def height(self) -> int:
        return self._legacy_extent(2)

    @property
    def width(self) -> int:
        return self._legacy_extent(3)

    def _legacy_extent(self, axis: int) -> int:
        if len(self.shape) > 4:
            raise ValueError(f"num, channels, height and width are for blobs of at most 4 axes, got shape {self.shape}")
        return self.shape[axis] if axis < len(self.shape) else 1


def extents(dims: tuple[int, ...]) -> tuple[int, ...]:
    """The arguments of a call of `reshape`, as a shape."""
    shape = tuple(int(n) for n in dims)
    if any(n < 0 for n in shape):
        raise ValueError(f"a blob's shape cannot be negative, got {shape}")
    return shape


class NetBlob(ArrayBlob):
    """One of the net's activations."""

    def __init__(self, blob: Blob) -> None:
        self._blob = blob

    @property
    def data(self) -> np.ndarray:
        return self._blob.data_array()

    @property
    def diff(self) -> np.ndarray:
        return self._blob.diff_array()

    @property
    def shape(self) -> tuple[int, ...]:
        return self._blob.shape

    def reshape(self, *dims: int) -> None:
        self._blob.reshape(extents(dims))


class ParamBlob(ArrayBlob):
    """A layer's parameter by its index, whoever owns it at the moment."""

    def __init__(self, layer: Layer, index: int) -> None:
        self._layer = layer
        self._index = index

    @property
    def data(self) -> np.ndarray:
        return self._layer.param_owner(self._index).detach().numpy().reshape(self.shape)

    @property
    def diff(self) -> np.ndarray:
        owner = self._layer.param_owner(self._index)
        if owner.grad is None:
            owner.grad = torch.zeros_like(owner, requires_grad=False)
        elif not owner.grad.is_contiguous():
            owner.grad = owner.grad.contiguous()
        return owner.grad.numpy().reshape(self.shape)

    @property
    def shape(self) -> tuple[int, ...]:
        return self._layer.param_shapes[self._index]

    def reshape(self, *dims: int) -> None:
        if extents(dims) != self.shape:
            raise self._layer.error(
                f"parameter {self._index} has shape {self.shape} and keeps it, got reshape{extents(dims)}; "
                "change the prototxt instead"
            )
