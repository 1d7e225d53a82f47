"""GraphBuilder: an ONNX graph made node by node, and Emission: what one layer's emitter works with.

An emitter calls operators by their ONNX names and gets back names of values:

    def threshold(e: Emission) -> str:
        above = e.op("Greater", e.x, e.number(e.spec.threshold_param.threshold))
        return e.cast(above, "FLOAT")

Values get their final names at the end: those that are a blob the blob's, all others the layer's with a number. What
changed between opsets (axes as attribute or as input) is hidden here, from opset 13 on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from poseidon.convert.extents import Dims
from poseidon.convert.outgoing import OutgoingLayer
from poseidon.convert.steps import ConvertStep
from poseidon.net.layer import Layer, count_of

if TYPE_CHECKING:
    import onnx

LEAST_OPSET = 13
# From this opset on, reductions take their axes as an input instead of an attribute.
_AXES_AS_INPUT = 18
_REDUCTIONS_BEFORE = frozenset({"ReduceSum"})  # was the first to change, in opset 13


@dataclass(slots=True)
class _Node:
    op: str
    inputs: list[str]
    outputs: list[str]
    name: str
    attributes: dict[str, Any]


@dataclass(slots=True)
class GraphBuilder:
    """Nodes and constants of one graph. A body (of Scan) is a builder of its own that sees its parent's values."""

    opset: int
    prefix: str = ""
    nodes: list[_Node] = field(default_factory=list)
    constants: dict[str, np.ndarray] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)  # of values, as they are called in the end
    _by_content: dict[tuple[str, tuple[int, ...], bytes], str] = field(default_factory=dict)
    _count: int = 0

    def add(
        self, op: str, inputs: Sequence[str], num_outputs: int, layer: str, attributes: dict[str, Any]
    ) -> list[str]:
        outputs = [self.fresh(layer) for _ in range(num_outputs)]
        self.nodes.append(_Node(op, list(inputs), outputs, f"{layer}/{op}_{self._count}", attributes))
        return outputs

    def fresh(self, layer: str) -> str:
        self._count += 1
        return f"{self.prefix}{layer}/{self._count}"

    def constant(self, array: np.ndarray, name: str) -> str:
        """An initializer; small ones with the same contents are one."""
        array = np.ascontiguousarray(array).reshape(np.shape(array))
        if array.size <= 64:
            key = (array.dtype.str, array.shape, array.tobytes())
            if key in self._by_content:
                return self._by_content[key]
            self._by_content[key] = name
        assert name not in self.constants, name
        self.constants[name] = array
        return name

    def rename(self, value: str, name: str) -> bool:
        """Gives a node's result its final name; false for inputs and constants, and for what has one already."""
        made = any(value in node.outputs for node in reversed(self.nodes))
        if not made or value in self.names:
            return False
        self.names[value] = name
        return True

    def name_node(self, value: str, name: str) -> None:
        """Names the node that made a value."""
        for node in reversed(self.nodes):
            if value in node.outputs:
                node.name = name
                return

    def proto(self, name: str, inputs: Sequence[onnx.ValueInfoProto], outputs: Sequence[onnx.ValueInfoProto]) -> Any:
        """The GraphProto, constants included."""
        graph = self.structure(name, inputs, outputs)
        self.add_constants(graph)
        return graph

    def add_constants(self, graph: onnx.GraphProto) -> None:
        """What the nodes read of them. Apart from the structure, because messages are copied when they are put together
        and weights are large."""
        from onnx import numpy_helper

        used = {value for node in graph.node for value in node.input} | {value.name for value in graph.output}
        used |= _used_in_bodies(graph.node)
        for name, array in self.constants.items():
            if name in used:
                graph.initializer.append(numpy_helper.from_array(array, name))

    def structure(
        self, name: str, inputs: Sequence[onnx.ValueInfoProto], outputs: Sequence[onnx.ValueInfoProto]
    ) -> Any:
        """The GraphProto without its constants."""
        from onnx import helper

        def called(value: str) -> str:
            return self.names.get(value, value)

        nodes = []
        for node in self.nodes:
            attributes = {
                key: value.proto(node.name, *value_infos) if isinstance(value, GraphBuilder) else value
                for key, (value, value_infos) in ((k, _body(v)) for k, v in node.attributes.items())
            }
            nodes.append(
                helper.make_node(
                    node.op,
                    [called(i) for i in node.inputs],
                    [called(o) for o in node.outputs],
                    node.name,
                    **attributes,
                )
            )
        return helper.make_graph(nodes, name, list(inputs), list(outputs))


def _body(value: Any) -> tuple[Any, Any]:
    return value if isinstance(value, tuple) and isinstance(value[0], GraphBuilder) else (value, ())


def _used_in_bodies(nodes: Sequence[onnx.NodeProto]) -> set[str]:
    used: set[str] = set()
    for node in nodes:
        for attribute in node.attribute:
            for inner in attribute.g.node:
                used.update(inner.input)
    return used


class Emission(OutgoingLayer):
    """One layer on its way into a graph."""

    def __init__(
        self, graph: GraphBuilder, layer: Layer, inputs: Sequence[str] = (), step: ConvertStep | None = None
    ) -> None:
        super().__init__(layer, inputs, step)
        self.graph = graph

    def param(self, index: int) -> str:
        """A parameter as an initializer; a blob that layers share is one."""
        return self.constant(self.param_value(index), f"{self.layer.name}.{index}")

    # -- values -----------------------------------------------------------------------------------------------------
    def constant(self, array: Any, name: str = "", dtype: Any = np.float32) -> str:
        array = np.asarray(array, dtype)
        return self.graph.constant(array, self._free(name or f"{self.graph.prefix}{self.layer.name}.constant"))

    def _free(self, name: str) -> str:
        taken, number = name, 1
        while taken in self.graph.constants:
            number += 1
            taken = f"{name}#{number}"
        return taken

    def number(self, value: float) -> str:
        return self.constant(np.float32(value))

    def integers(self, values: Sequence[int] | int) -> str:
        return self.constant(values, dtype=np.int64)

    def op(self, op: str, *inputs: str, **attributes: Any) -> str:
        """A node with one result."""
        return self.ops(op, *inputs, num_outputs=1, **attributes)[0]

    def ops(self, op: str, *inputs: str, num_outputs: int, **attributes: Any) -> list[str]:
        return self.graph.add(op, inputs, num_outputs, self.layer.name, attributes)

    # -- operators that need care -----------------------------------------------------------------------------------
    def cast(self, value: str, to: str) -> str:
        from onnx import TensorProto

        return self.op("Cast", value, to=getattr(TensorProto, to))

    def affine(self, value: str, scale: float, shift: float) -> str:
        if scale != 1:
            value = self.op("Mul", value, self.number(scale))
        return value if shift == 0 else self.op("Add", value, self.number(shift))

    def reduce(self, op: str, value: str, axes: Sequence[int], *, keep: bool = False) -> str:
        keepdims = int(keep)
        if not axes:  # ONNX would take no axes for all of them
            reduced = self.op("Abs", value) if op == "ReduceL1" else value
            return self.op("Mul", value, value) if op == "ReduceSumSquare" else reduced
        if self.graph.opset >= _AXES_AS_INPUT or op in _REDUCTIONS_BEFORE:
            return self.op(op, value, self.integers(list(axes)), keepdims=keepdims)
        return self.op(op, value, axes=list(axes), keepdims=keepdims)

    def unsqueeze(self, value: str, *axes: int) -> str:
        return self.op("Unsqueeze", value, self.integers(axes))

    def squeeze(self, value: str, *axes: int) -> str:
        return self.op("Squeeze", value, self.integers(axes))

    def slice(self, value: str, axis: int, start: int, end: int | str, step: int = 1) -> str:
        """`end` is a number or the name of a value that holds it."""
        ends = end if isinstance(end, str) else self.integers([end])
        one = [self.integers([n]) for n in (start, axis, step)]
        return self.op("Slice", value, one[0], ends, one[1], one[2])

    def pad(self, value: str, before: Sequence[int], after: Sequence[int], fill: float = 0.0) -> str:
        if not any((*before, *after)):
            return value
        return self.op("Pad", value, self.integers([*before, *after]), self.number(fill))

    def extent_of(self, value: str, axis: int) -> str:
        """One extent of a value, known when the graph runs, as a list of one integer."""
        return self.op("Gather", self.op("Shape", value), self.integers([axis]), axis=0)

    def reshape(self, value: str, source: Dims, target: Dims) -> str:
        """`value` of extents `source` as `target`."""
        if source == target:
            return value
        dims: list[int] = []
        for axis, dim in enumerate(target):
            if not isinstance(dim, str):
                dims.append(dim)
            elif axis < len(source) and source[axis] == dim:
                dims.append(0)
            else:
                dims.append(-1)
        has_zero = any(dim == 0 for dim in target)
        if dims.count(-1) <= 1 and not has_zero:
            return self.op("Reshape", value, self.integers(dims))
        return self._reshape_at_run_time(value, source, target)

    def _reshape_at_run_time(self, value: str, source: Dims, target: Dims) -> str:
        parts, unknown = [], 0
        for dim in target:
            if isinstance(dim, str) and dim in source:
                parts.append(self.extent_of(value, source.index(dim)))
            else:
                unknown += isinstance(dim, str)
                parts.append(self.integers([-1 if isinstance(dim, str) else dim]))
        if unknown > 1:
            raise self.error("more than one extent changes with the batch here; convert with --fixed-batch")
        return self.op("Reshape", value, self.op("Concat", *parts, axis=0), allowzero=1)


def product(dims: Dims, numbers: Sequence[int]) -> int | str:
    """The extent of several axes made one."""
    changing = [dim for dim in dims if isinstance(dim, str)]
    if not changing:
        return count_of(numbers)
    static = count_of([dim for dim in dims if not isinstance(dim, str)])
    return changing[0] if len(changing) == 1 and static == 1 else "·".join(changing) + f"·{static}"
