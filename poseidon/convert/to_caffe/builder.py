"""NetBuilder: a Caffe net made layer by layer, with the values of its parameters.

    y, = net.add("ReLU", "relu1", [x])
    y, = net.add("InnerProduct", "fc1", [x], [weight, bias], inner_product_param={"num_output": 10})

Every layer is built at once, so that its own checks speak and the shapes of its tops are Caffe's. What it refuses is
`Inexpressible`, which names the operation; whoever walks a model collects these and goes on, to name them all.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

import poseidon.net.layers  # noqa: F401  (registers every built-in layer)
from poseidon.errors import ConvertError, LayerError, NetError
from poseidon.net import Net
from poseidon.net.layer import LayerContext, Shape, count_of, text_of
from poseidon.net.memory import MemoryBudget
from poseidon.net.registry import layer_class
from poseidon.spec import caffe_pb2, net_source

_MAX_INPUT_ELEMS = 1 << 28


class Inexpressible(Exception):  # noqa: N818 (an answer, not a mistake)
    """Why an operation has no counterpart in Caffe."""


@dataclass(frozen=True, slots=True)
class Value:
    """A blob of the net being made."""

    blob: str
    shape: Shape

    @property
    def rank(self) -> int:
        return len(self.shape)


class NetBuilder:
    def __init__(self, name: str) -> None:
        self.message = caffe_pb2.NetParameter(name=name)
        self.values: dict[str, list[np.ndarray]] = {}
        self._blobs: set[str] = set()
        self._context = LayerContext(caffe_pb2.TEST, name, memory=MemoryBudget())

    def input(self, name: str, shape: Shape) -> Value:
        if count_of(shape) > _MAX_INPUT_ELEMS:
            raise ConvertError(f"{self.message.name}: input {name!r} of shape {text_of(shape)} is too large: refused")
        blob = self._unique(name, self._blobs)
        layer = caffe_pb2.LayerParameter(name=self._unique(blob, set(self.values)), type="Input", top=[blob])
        layer.input_param.shape.add(dim=shape)
        self._append(layer, [])
        return Value(blob, tuple(shape))

    def add(
        self,
        type_name: str,
        name: str,
        bottoms: Sequence[Value],
        params: Sequence[np.ndarray] = (),
        num_tops: int = 1,
        **options: Any,
    ) -> list[Value]:
        """A layer; `options` are its parameter messages as dictionaries. Gives its tops."""
        layer = caffe_pb2.LayerParameter(type=type_name, name=self._unique(name, set(self.values)), **options)
        layer.bottom.extend(bottom.blob for bottom in bottoms)
        tops = [layer.name] if num_tops == 1 else [f"{layer.name}_{i}" for i in range(num_tops)]
        layer.top.extend(self._unique(top, self._blobs | set(layer.top)) for top in tops)
        try:
            built = layer_class(type_name)(layer, self._context)
            shapes = tuple(bottom.shape for bottom in bottoms)
            built.setup(shapes)
            top_shapes = built.reshape(shapes)
        except (LayerError, NetError) as problem:
            raise Inexpressible(str(problem).partition(": ")[2] or str(problem)) from None
        for index, (value, shape) in enumerate(zip(params, built.param_shapes, strict=True)):
            if value.shape != shape:
                raise Inexpressible(f"parameter {index} has shape {text_of(value.shape)}, Caffe's {text_of(shape)}")
        self._append(layer, list(params))
        return [Value(top, tuple(shape)) for top, shape in zip(layer.top, top_shapes, strict=True)]

    def built(self) -> Net:
        """The net with its parameters."""
        net = Net(net_source(self.message, self.message.name), phase="TEST", seed=0)
        with torch.no_grad():
            for name, values in self.values.items():
                for parameter, value in zip(net.params.get(name, []), values, strict=True):
                    parameter.copy_(torch.from_numpy(np.array(value, np.float32)))
        return net

    def _append(self, layer: caffe_pb2.LayerParameter, params: list[np.ndarray]) -> None:
        self.message.layer.append(layer)
        self.values[layer.name] = params
        self._blobs.update(layer.top)

    @staticmethod
    def _unique(name: str, taken: set[str]) -> str:
        name = re.sub(r"[^\w./-]", "_", name) or "blob"
        found, count = name, 1
        while found in taken:
            count += 1
            found = f"{name}_{count}"
        return found
