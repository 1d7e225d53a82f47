"""An ONNX graph as a Caffe net, node by node. What only computes with constants and shapes is worked out on the way.

Inputs need whole shapes: unknown extents are taken from --shape, a changing batch as 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from poseidon.convert.to_caffe import onnx_arithmetic, onnx_layers  # noqa: F401  (fill the table)
from poseidon.convert.to_caffe.builder import Inexpressible, NetBuilder, Value
from poseidon.convert.to_caffe.from_torch import inexpressible
from poseidon.convert.to_caffe.onnx_constants import fold_constants
from poseidon.convert.to_caffe.onnx_file import array_of, read_onnx
from poseidon.convert.to_caffe.onnx_table import OPERATORS, Node
from poseidon.convert.to_onnx.model import require_onnx
from poseidon.errors import ConvertError, UsageError
from poseidon.net.layer import Shape

Original = Any
# What Python and NumPy say of attributes and operands of the wrong kind, number or size.
_MALFORMED = (
    TypeError,
    ValueError,
    KeyError,
    IndexError,
    AttributeError,
    AssertionError,
    ArithmeticError,
    MemoryError,
    StopIteration,
)


def read_graph(path: str, shapes: Mapping[str, Shape]) -> tuple[NetBuilder, list[str], Original]:
    """The net, its output blobs in the model's order, and what runs the model itself."""
    require_onnx()
    model = read_onnx(path)
    graph = model.graph
    net = NetBuilder(Path(path).stem)
    values: dict[str, Any] = {tensor.name: array_of(tensor, path) for tensor in graph.initializer}
    inputs = {}
    for info in graph.input:
        if info.name not in values:
            values[info.name] = net.input(info.name, _shape(info, shapes, path))
            inputs[values[info.name].blob] = info.name
    problems: list[str] = []
    for node in graph.node:
        problem = _convert(net, node, values, model.opset_import, path)
        if problem:
            problems.append(problem)
    outputs = []
    for info in graph.output:
        value = values.get(info.name)
        if isinstance(value, Value):
            outputs.append(value.blob)
        elif not problems:
            problems.append(f"output {info.name!r} does not depend on the inputs")
    if problems:
        raise ConvertError(inexpressible(path, problems))
    return net, outputs, _original(model, inputs, [info.name for info in graph.output])


def _original(model: Any, inputs: Mapping[str, str], outputs: list[str]) -> Original:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = 1
    session: list[Any] = []

    def run(given: Mapping[str, Tensor]) -> list[np.ndarray]:
        if not session:
            data = model.SerializeToString()
            session.append(onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"]))
        feeds = {inputs[blob]: value.numpy() for blob, value in given.items()}
        return session[0].run(outputs, feeds)

    return run


def _shape(info: Any, shapes: Mapping[str, Shape], path: str) -> Shape:
    if info.name in shapes:
        return shapes[info.name]
    dims = info.type.tensor_type.shape.dim
    extents = [dim.dim_value if dim.HasField("dim_value") else 0 for dim in dims]
    if extents and extents[0] == 0:
        extents[0] = 1
    if not extents or min(extents) < 1 or max(extents) >= 2**31:
        raise UsageError(f"{path}: input {info.name!r} has no whole shape; give it as in --shape {info.name}=1,…")
    return tuple(extents)


def _convert(net: NetBuilder, node: Any, values: dict[str, Any], opsets: Any, path: str) -> str:
    """Adds a node's layers; says why not, in one line."""
    from onnx import helper

    opset = next((entry.version for entry in opsets if entry.domain in ("", "ai.onnx")), 0)
    operands = [values.get(name) if name else None for name in node.input]
    lost = any(name and name not in values for name in node.input)
    name = node.name or (node.output[0] if node.output else node.op_type)
    made: Any = None
    try:
        attributes = {entry.name: helper.get_attribute_value(entry) for entry in node.attribute}
        facts = Node(name, node.op_type, operands, attributes, len(node.output), opset)
        if node.op_type == "Constant":
            made = [_constant(node, path)]
        elif not lost:
            made = fold_constants(facts)
        if made is None:
            handler = OPERATORS.get(node.op_type)
            if handler is None:
                raise Inexpressible("has no counterpart among Caffe's layers")
            if not lost:
                made = handler(net, facts)
    except Inexpressible as problem:
        return f"{name}: {node.op_type}: {problem}"
    # A node that lacks an input or holds one of another kind than its operator takes.
    except _MALFORMED as problem:
        return f"{name}: {node.op_type}: not as the operator is defined ({problem})"
    if made is not None:
        for output, value in zip(node.output, made if isinstance(made, list) else [made], strict=False):
            values[output] = value
    return ""


def _constant(node: Any, path: str) -> np.ndarray:
    for entry in node.attribute:
        if entry.name == "value":
            return array_of(entry.t, path)
        if entry.name in ("value_float", "value_floats"):
            return np.asarray(entry.f if entry.name == "value_float" else list(entry.floats), np.float32)
        if entry.name in ("value_int", "value_ints"):
            return np.asarray(entry.i if entry.name == "value_int" else list(entry.ints), np.int64)
    raise Inexpressible("is a constant of a kind that is not known")
