"""What needs no blobs' values: the arithmetic of shapes that exporters leave in a graph, computed while it is read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from poseidon.convert.to_caffe.builder import Inexpressible, Value
from poseidon.convert.to_caffe.onnx_table import Node

_MAX_FOLDED_ELEMS = 1 << 24


def _gather(data: np.ndarray, index: np.ndarray, axis: int) -> np.ndarray:
    if index.size * data.size > _MAX_FOLDED_ELEMS:
        raise Inexpressible("picks from constants, many times over")
    return np.take(data, index.astype(np.int64), axis=axis)


def _check_product(node: Node) -> None:
    """Constants that are broadcast may not become much larger than they are."""
    if node.op in ("Add", "Sub", "Mul", "Div"):
        size = int(np.prod(np.broadcast_shapes(*(value.shape for value in node.inputs)), dtype=float))
        if size > max(_MAX_FOLDED_ELEMS, *(value.size for value in node.inputs)):
            raise Inexpressible("broadcasts constants beyond measure")


_FOLDED: dict[str, Callable[[Node], np.ndarray]] = {
    "Identity": lambda n: n.inputs[0],
    "Gather": lambda n: _gather(n.inputs[0], n.inputs[1], int(n.get("axis", 0))),
    "Concat": lambda n: np.concatenate([np.atleast_1d(v) for v in n.inputs], int(n.get("axis", 0))),
    "Unsqueeze": lambda n: np.expand_dims(n.inputs[0], tuple(n.axes(1) or ())),
    "Squeeze": lambda n: np.squeeze(n.inputs[0], None if n.axes(1) is None else tuple(n.axes(1) or ())),
    "Reshape": lambda n: n.inputs[0].reshape([int(i) for i in n.inputs[1]]),
    "Transpose": lambda n: np.transpose(n.inputs[0], n.get("perm")),
    "Add": lambda n: n.inputs[0] + n.inputs[1],
    "Sub": lambda n: n.inputs[0] - n.inputs[1],
    "Mul": lambda n: n.inputs[0] * n.inputs[1],
    "Div": lambda n: n.inputs[0] // n.inputs[1] if n.inputs[0].dtype.kind in "iu" else n.inputs[0] / n.inputs[1],
    "Sqrt": lambda n: np.sqrt(n.inputs[0]),
    "Neg": lambda n: -n.inputs[0],
    "Floor": lambda n: np.floor(n.inputs[0]),
}


def fold_constants(node: Node) -> Any:
    """The result of a node that needs no blobs' values, or None."""
    from onnx import helper

    given = [value for value in node.inputs if value is not None]
    if node.op == "Shape" and isinstance(node.input(0), Value):
        return np.array(node.inputs[0].shape[slice(node.get("start", 0), node.get("end"))], np.int64)
    if not given or not all(isinstance(value, np.ndarray) for value in given):
        return None
    _check_product(node)
    if node.op == "Shape":
        return np.array(given[0].shape, np.int64)
    if node.op == "Cast":
        return given[0].astype(helper.tensor_dtype_to_np_dtype(node.get("to")))
    if node.op == "Slice" and len(given) >= 3:
        axes = given[3] if len(given) > 3 else range(len(given[1]))
        cut = [slice(None)] * given[0].ndim
        for start, end, axis, step in zip(
            given[1], given[2], axes, given[4] if len(given) > 4 else [1] * len(given[1]), strict=True
        ):
            cut[int(axis)] = slice(int(start), int(end), int(step))
        return given[0][tuple(cut)]
    fold = _FOLDED.get(node.op)
    return None if fold is None else np.asarray(fold(node))
