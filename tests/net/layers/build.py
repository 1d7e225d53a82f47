"""One layer from a few words of prototxt, set up for given bottoms."""

from __future__ import annotations

from collections.abc import Sequence

import torch

import poseidon.net.layers  # noqa: F401  (registers every built-in layer)
from poseidon.net.draws import Draws
from poseidon.net.layer import Layer, LayerContext, Shape
from poseidon.net.registry import layer_class
from poseidon.spec import caffe_pb2, parse


def build(
    text: str, *shapes: Sequence[int], phase: int = caffe_pb2.TRAIN, draws: Draws | None = None, name: str = "L"
) -> Layer:
    """`text` is the inside of a layer message, without its name."""
    spec = parse(f'name: "{name}" {text}', caffe_pb2.LayerParameter(), "test.prototxt")
    context = LayerContext(phase, "test.prototxt:7", dtype=torch.float64, draws=draws or Draws(5))
    layer = layer_class(spec.type)(spec, context)
    bottoms: list[Shape] = [tuple(shape) for shape in shapes]
    layer.setup(bottoms)
    layer.reshape(bottoms)
    return layer


def one(type_name: str, options: str = "") -> str:
    """The text of a layer from x to y."""
    return f'type: "{type_name}" bottom: "x" top: "y" {options}'
