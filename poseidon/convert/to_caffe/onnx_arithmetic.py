"""ONNX operators that compute with tensors and shape them: arithmetic, views, cuts, reductions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from poseidon.convert.to_caffe import operations as ops
from poseidon.convert.to_caffe.builder import Inexpressible, NetBuilder, Value
from poseidon.convert.to_caffe.onnx_table import Node, operator
from poseidon.spec import caffe_pb2

_Reduction = caffe_pb2.ReductionParameter


# -- arithmetic -----------------------------------------------------------------------------------------------------
def _operand(value: Any) -> Any:
    return np.asarray(value, np.float32) if isinstance(value, np.ndarray) else value


@operator("Add")
def add(net: NetBuilder, node: Node) -> Value:
    return ops.add(net, node.name, *map(_operand, node.inputs))


@operator("Sub")
def sub(net: NetBuilder, node: Node) -> Value:
    first, second = map(_operand, node.inputs)
    return ops.add(net, node.name, first, second, -1.0)


@operator("Mul")
def mul(net: NetBuilder, node: Node) -> Value:
    return ops.multiply(net, node.name, *map(_operand, node.inputs))


@operator("Div")
def div(net: NetBuilder, node: Node) -> Value:
    return ops.divide(net, node.name, *map(_operand, node.inputs))


@operator("Sum", "Max")
def several(net: NetBuilder, node: Node) -> Value:
    combine = ops.add if node.op == "Sum" else ops.maximum
    total = _operand(node.inputs[0])
    for number, value in enumerate(node.inputs[1:], start=2):
        name = node.name if number == len(node.inputs) else f"{node.name}_{number}"
        if node.op == "Max" and isinstance(value, np.ndarray) and value.size == 1:
            total = ops.clip(net, name, total, float(value.reshape(())), None)
        else:
            total = combine(net, name, total, _operand(value))
    return total


@operator("Neg")
def neg(net: NetBuilder, node: Node) -> Value:
    return ops.affine(net, node.name, node.x, scale=-1.0)


@operator("Sqrt")
def sqrt(net: NetBuilder, node: Node) -> Value:
    return ops.affine(net, node.name, node.x, power=0.5)


@operator("Reciprocal")
def reciprocal(net: NetBuilder, node: Node) -> Value:
    return ops.affine(net, node.name, node.x, power=-1.0)


@operator("Pow")
def pow_(net: NetBuilder, node: Node) -> Value:
    exponent = node.weights(1, "exponent")
    if exponent.size != 1:
        raise Inexpressible("has several exponents")
    return ops.affine(net, node.name, node.x, power=float(exponent.reshape(())))


# -- shapes ---------------------------------------------------------------------------------------------------------
@operator("Flatten")
def flatten(net: NetBuilder, node: Node) -> Value:
    x, axis = node.x, int(node.get("axis", 1))
    axis = axis % x.rank if axis < 0 else axis
    return (
        ops.reshape(net, node.name, x, (int(np.prod(x.shape[:axis])), int(np.prod(x.shape[axis:]))))
        if axis != 1
        else ops.flatten(net, node.name, x, 1, -1)
    )


@operator("Reshape")
def reshape(net: NetBuilder, node: Node) -> Value:
    wanted = [int(n) for n in node.constant(1, "shape")]
    if not node.get("allowzero", 0):
        wanted = [node.x.shape[i] if n == 0 else n for i, n in enumerate(wanted)]
    if wanted.count(-1) > 1 or min(wanted, default=0) < -1:
        raise Inexpressible(f"has an impossible shape {wanted}")
    if -1 in wanted:
        rest = int(np.prod([n for n in wanted if n != -1]))
        wanted[wanted.index(-1)] = int(np.prod(node.x.shape)) // max(rest, 1)
    return ops.reshape(net, node.name, node.x, wanted)


@operator("Squeeze")
def squeeze(net: NetBuilder, node: Node) -> Value:
    x, axes = node.x, node.axes(1)
    gone = {axis % x.rank for axis in axes} if axes is not None else {i for i, n in enumerate(x.shape) if n == 1}
    return ops.reshape(net, node.name, x, [n for i, n in enumerate(x.shape) if i not in gone])


@operator("Unsqueeze")
def unsqueeze(net: NetBuilder, node: Node) -> Value:
    axes = node.axes(1) or []
    rank = node.x.rank + len(axes)
    new = {axis % rank for axis in axes}
    rest = iter(node.x.shape)
    return ops.reshape(net, node.name, node.x, [1 if i in new else next(rest) for i in range(rank)])


@operator("Transpose")
def transpose(net: NetBuilder, node: Node) -> Value:
    return ops.permute(net, node.name, node.x, node.get("perm", list(reversed(range(node.x.rank)))))


@operator("Concat")
def concat(net: NetBuilder, node: Node) -> Value:
    return ops.concat(net, node.name, node.inputs, int(node.get("axis")))


@operator("Split")
def split(net: NetBuilder, node: Node) -> list[Value]:
    axis = int(node.get("axis", 0)) % node.x.rank
    given = node.get("split") if "split" in node.attributes else node.input(1)
    extent = node.x.shape[axis]
    if given is None:
        size = -(-extent // node.num_outputs)
        given = [min(size, extent - size * i) for i in range(node.num_outputs)]
    return ops.split(net, node.name, node.x, [int(n) for n in given], axis)


@operator("Slice")
def slice_(net: NetBuilder, node: Node) -> Value:
    if "starts" in node.attributes:
        starts, ends = node.get("starts"), node.get("ends")
        axes: Sequence[int] | np.ndarray = node.get("axes", list(range(len(starts))))
        steps: Sequence[int] | np.ndarray = [1] * len(starts)
    else:
        starts, ends = node.constant(1, "starts"), node.constant(2, "ends")
        axes = range(len(starts)) if node.input(3) is None else node.constant(3, "axes")
        steps = [1] * len(starts) if node.input(4) is None else node.constant(4, "steps")
    value = node.x
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        axis = int(axis) % value.rank
        first, last, by = slice(int(start), int(end), int(step)).indices(value.shape[axis])
        if by != 1:
            raise Inexpressible(f"takes every {by}th")
        if (first, last) != (0, value.shape[axis]):
            value = ops.narrow(net, node.name, value, axis, first, last)
    return value


@operator("ReduceMean", "ReduceSum", "ReduceL1", "ReduceSumSquare")
def reduce(net: NetBuilder, node: Node) -> Value:
    operation = {
        "ReduceMean": _Reduction.MEAN,
        "ReduceSum": _Reduction.SUM,
        "ReduceL1": _Reduction.ASUM,
        "ReduceSumSquare": _Reduction.SUMSQ,
    }[node.op]
    return ops.reduce(net, node.name, node.x, node.axes(1) or [], bool(node.get("keepdims", 1)), operation)
