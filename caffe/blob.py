"""Blobs as pycaffe shows them: `data` and `diff` are NumPy arrays over the net's own memory."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import nn

from poseidon.net import blob as net_blob


class _Shaped:
    """Shape in the forms Caffe offers, the old four-axis names included."""

    @property
    def data(self) -> np.ndarray:
        raise NotImplementedError

    @property
    def shape(self) -> tuple[int, ...]:
        return self.data.shape

    @property
    def count(self) -> int:
        return math.prod(self.shape)

    def _legacy(self, axis: int) -> int:
        if len(self.shape) > 4:
            raise ValueError(f"num, channels, height and width need at most 4 axes, got shape {self.shape}")
        return self.shape[axis] if axis < len(self.shape) else 1

    @property
    def num(self) -> int:
        return self._legacy(0)

    @property
    def channels(self) -> int:
        return self._legacy(1)

    @property
    def height(self) -> int:
        return self._legacy(2)

    @property
    def width(self) -> int:
        return self._legacy(3)


class Blob(_Shaped):
    """One of the net's activations."""

    def __init__(self, blob: net_blob.Blob) -> None:
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
        self._blob.reshape(tuple(int(n) for n in dims))


class ParamBlob(_Shaped):
    """One of a layer's parameters; sharers of a parameter show the same memory in their own shapes."""

    def __init__(self, parameter: nn.Parameter, shape: tuple[int, ...]) -> None:
        self._parameter = parameter
        self._shape = shape

    @property
    def data(self) -> np.ndarray:
        return self._parameter.detach().numpy().reshape(self._shape)

    @property
    def diff(self) -> np.ndarray:
        if self._parameter.grad is None:
            self._parameter.grad = torch.zeros_like(self._parameter)
        return self._parameter.grad.numpy().reshape(self._shape)
