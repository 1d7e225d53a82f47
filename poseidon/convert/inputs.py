"""Values for a net's inputs to try it with: given in .npy files, or random.

Random ones suit what reads them: class numbers for labels and indices, zeros and ones for cont and selectors, positive
numbers for logarithms and roots, else normally distributed ones. The same seed gives the same values.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from poseidon.errors import UsageError
from poseidon.net import Net
from poseidon.net.graph import Node
from poseidon.net.layer import Shape, count_of

MAX_INPUT_BYTES = 1 << 30
_PASS_ON = frozenset({"Split", "Flatten", "Reshape", "Slice", "Concat", "Silence", "Filter", "Tile"})
_CLASSES = {
    "SoftmaxWithLoss": lambda spec: spec.softmax_param.axis,
    "InfogainLoss": lambda spec: spec.infogain_loss_param.axis,
    "Accuracy": lambda spec: spec.accuracy_param.axis,
}


@dataclass(frozen=True, slots=True)
class _Kind:
    """`below`: whole numbers 0 … below − 1; otherwise positive or normal numbers."""

    below: int = 0
    positive: bool = False


def random_inputs(net: Net, shapes: Mapping[str, Shape], seed: int = 0) -> dict[str, Tensor]:
    """For a net whose inputs have these shapes."""
    kinds = _kinds(net, shapes)
    generator = torch.Generator().manual_seed(seed)
    made = {}
    for name, shape in shapes.items():
        kind = kinds.get(name, _Kind())
        if kind.below:
            made[name] = torch.randint(0, kind.below, shape, generator=generator).float()
            if made[name].numel():
                made[name].view(-1)[0] = kind.below - 1  # so that a selector selects something
        else:
            values = torch.randn(shape, generator=generator)
            made[name] = values.abs() + 0.1 if kind.positive else values
    return made


def read_input(name: str, path: str) -> Tensor:
    """An array from a .npy file."""
    try:
        if os.path.getsize(path) > MAX_INPUT_BYTES:
            raise UsageError(f"--input {name}={path}: found more than {MAX_INPUT_BYTES} bytes: refused")
        array = np.load(path, allow_pickle=False)
        if not isinstance(array, np.ndarray) or array.dtype.kind not in "fiub":
            raise UsageError(f"--input {name}={path}: expected one array of numbers, as numpy.save writes it")
        return torch.from_numpy(np.ascontiguousarray(array, np.float32))
    except (OSError, ValueError, EOFError) as problem:
        raise UsageError(f"--input {name}={path}: not a .npy file of numbers: {problem}") from None


def _kinds(net: Net, shapes: Mapping[str, Shape]) -> dict[str, _Kind]:
    origin: dict[str, str] = {}
    kinds: dict[str, _Kind] = {}
    for node in net.graph.nodes:
        if node.layer.type_name == "Input":
            origin.update((top, top) for top in node.tops)
            continue
        for index, blob in enumerate(node.bottoms):
            kind = _wanted(node, index, shapes)
            if kind is not None and blob in origin:
                kinds[origin[blob]] = kind
        for top in node.tops:
            origin.pop(top, None)
            if node.layer.type_name in _PASS_ON and node.bottoms and node.bottoms[0] in origin:
                origin[top] = origin[node.bottoms[0]]
    return kinds


def _wanted(node: Node, index: int, shapes: Mapping[str, Shape]) -> _Kind | None:
    """What a layer needs its bottom to hold; None: anything."""
    layer, spec, kind = node.layer, node.layer.spec, node.layer.type_name
    bottoms = node.bottom_shapes
    if kind == "Embed":
        return _Kind(below=spec.embed_param.input_dim)
    if kind == "BatchReindex" and index == 1:
        return _Kind(below=min(bottoms[0][0], *(shape[0] for shape in shapes.values() if shape)))
    if kind == "Filter" and index == len(bottoms) - 1:
        return _Kind(below=2)
    if (kind in ("LSTM", "RNN") and index == 1) or (kind in ("LSTMUnit", "ContrastiveLoss") and index == 2):
        return _Kind(below=2)
    if kind in _CLASSES and index == 1:
        return _Kind(below=bottoms[0][_CLASSES[kind](spec)])
    if kind in ("HingeLoss", "MultinomialLogisticLoss") and index == 1:
        return _Kind(below=count_of(bottoms[0], 1))
    if kind == "SigmoidCrossEntropyLoss" and index == 1:
        return _Kind(below=2)
    fractional = kind == "Power" and not float(spec.power_param.power).is_integer()
    positive = fractional or kind in ("Log", "MultinomialLogisticLoss")
    return _Kind(positive=True) if positive and not layer.num_params else None
