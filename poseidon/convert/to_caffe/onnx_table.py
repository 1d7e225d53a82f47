"""ONNX operator → how it becomes Caffe layers. To add one, write a function of the net and the node in onnx_layers.py
or onnx_arithmetic.py.

Blobs are `Value`s, constants arrays; `Inexpressible` says why not.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from poseidon.convert.to_caffe.builder import Inexpressible, NetBuilder, Value


@dataclass(frozen=True, slots=True)
class Node:
    name: str
    op: str
    inputs: list[Any]
    attributes: dict[str, Any]
    num_outputs: int
    opset: int

    def get(self, name: str, default: Any = None) -> Any:
        return self.attributes.get(name, default)

    def input(self, index: int) -> Any:
        return self.inputs[index] if index < len(self.inputs) else None

    @property
    def x(self) -> Value:
        if not self.inputs or not isinstance(self.inputs[0], Value):
            raise Inexpressible("its first operand is a constant")
        return self.inputs[0]

    def constant(self, index: int, what: str) -> np.ndarray:
        value = self.input(index)
        if not isinstance(value, np.ndarray):
            raise Inexpressible(f"its {what} is computed from the inputs")
        return value

    def weights(self, index: int, what: str) -> np.ndarray:
        return np.asarray(self.constant(index, what), np.float32)

    def optional(self, index: int, what: str) -> np.ndarray | None:
        return None if self.input(index) is None else self.weights(index, what)

    def axes(self, index: int) -> list[int] | None:
        """An attribute in older opsets, an input in newer ones."""
        if "axes" in self.attributes:
            return [int(axis) for axis in self.attributes["axes"]]
        return None if self.input(index) is None else [int(axis) for axis in self.constant(index, "axes")]


OPERATORS: dict[str, Callable[[NetBuilder, Node], Any]] = {}


def operator(*names: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def add(made: Callable[..., Any]) -> Callable[..., Any]:
        OPERATORS.update(dict.fromkeys(names, made))
        return made

    return add
