"""A net's weights at one moment, in memory of their own: they can be written while the net learns on.

A shared parameter is copied once. `WeightsView` reads a net as it is, for whoever does not mind waiting.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import numpy as np
import torch
from torch import Tensor

from poseidon.net.layer import Layer

if TYPE_CHECKING:
    from poseidon.net.net import Net


class Weights(Protocol):
    """Parameters and gradients as files hold them: in the layer's own shape, float64 if the net is, else float32."""

    def value(self, layer: Layer, index: int) -> np.ndarray: ...

    def diff(self, layer: Layer, index: int) -> np.ndarray:
        """Zeros where there is no gradient."""


class WeightsView:
    """As they are when they are asked for."""

    def value(self, layer: Layer, index: int) -> np.ndarray:
        return _array(layer.param_owner(index).detach()).reshape(layer.param_shapes[index])

    def diff(self, layer: Layer, index: int) -> np.ndarray:
        return _array(_gradient(layer.param_owner(index))).reshape(layer.param_shapes[index])


class WeightsCopy:
    """As they were when this was made."""

    def __init__(self, net: Net, *, with_diff: bool) -> None:
        self._values: dict[int, np.ndarray] = {}
        self._diffs: dict[int, np.ndarray] = {}
        self._owners: list[Tensor] = []  # kept, so that nobody else gets their ids
        for node in net.graph.nodes:
            for index in range(node.layer.num_params):
                owner = node.layer.param_owner(index)
                if id(owner) not in self._values:
                    self._owners.append(owner)
                    self._values[id(owner)] = _array(owner.detach(), copies=True)
                    if with_diff:
                        self._diffs[id(owner)] = _array(_gradient(owner), copies=True)

    def value(self, layer: Layer, index: int) -> np.ndarray:
        return self._values[id(layer.param_owner(index))].reshape(layer.param_shapes[index])

    def diff(self, layer: Layer, index: int) -> np.ndarray:
        return self._diffs[id(layer.param_owner(index))].reshape(layer.param_shapes[index])


def _gradient(owner: Tensor) -> Tensor:
    return torch.zeros_like(owner) if owner.grad is None else owner.grad


def _array(value: Tensor, *, copies: bool = False) -> np.ndarray:
    dtype = torch.float64 if value.dtype == torch.float64 else torch.float32
    found = value.to("cpu", dtype, copy=copies)
    return found.contiguous().numpy()
