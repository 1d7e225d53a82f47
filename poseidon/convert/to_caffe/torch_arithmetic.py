"""Functions of torch that compute with tensors and shape them: arithmetic, views, cuts, reductions."""

from __future__ import annotations

from typing import Any

import numpy as np

from poseidon.convert.to_caffe import operations as ops
from poseidon.convert.to_caffe.builder import Inexpressible, NetBuilder, Value
from poseidon.convert.to_caffe.torch_table import function
from poseidon.spec import caffe_pb2

_Reduction = caffe_pb2.ReductionParameter


def _operand(value: Any) -> Any:
    return value if isinstance(value, Value) else np.asarray(value, np.float32)


# -- arithmetic -----------------------------------------------------------------------------------------------------
@function("add", "__add__", "__radd__", "__iadd__")
def add(net: NetBuilder, name: str, input: Any, other: Any, alpha: Any = 1) -> Value:
    return ops.add(net, name, _operand(input), _operand(other), float(alpha))


@function("sub", "__sub__", "__isub__", "subtract")
def sub(net: NetBuilder, name: str, input: Any, other: Any, alpha: Any = 1) -> Value:
    return ops.add(net, name, _operand(input), _operand(other), -float(alpha))


@function("rsub", "__rsub__")
def rsub(net: NetBuilder, name: str, input: Any, other: Any, alpha: Any = 1) -> Value:
    return ops.add(net, name, _operand(other), _operand(input), -float(alpha))


@function("mul", "__mul__", "__rmul__", "__imul__", "multiply")
def mul(net: NetBuilder, name: str, input: Any, other: Any) -> Value:
    return ops.multiply(net, name, _operand(input), _operand(other))


@function("div", "__truediv__", "true_divide", "divide", "__itruediv__")
def div(net: NetBuilder, name: str, input: Any, other: Any, rounding_mode: Any = None) -> Value:
    if rounding_mode is not None:
        raise Inexpressible("rounds")
    return ops.divide(net, name, _operand(input), _operand(other))


@function("__rtruediv__", "__rdiv__")
def rdiv(net: NetBuilder, name: str, input: Any, other: Any) -> Value:
    return ops.divide(net, name, _operand(other), _operand(input))


@function("neg", "__neg__", "negative")
def neg(net: NetBuilder, name: str, input: Value) -> Value:
    return ops.affine(net, name, input, scale=-1.0)


@function("pow", "__pow__")
def pow_(net: NetBuilder, name: str, input: Value, exponent: Any) -> Value:
    if not isinstance(exponent, (int, float)):
        raise Inexpressible("has an exponent that is a tensor")
    return ops.affine(net, name, input, power=float(exponent))


@function("square")
def square(net: NetBuilder, name: str, input: Value) -> Value:
    return ops.affine(net, name, input, power=2.0)


@function("sqrt")
def sqrt(net: NetBuilder, name: str, input: Value) -> Value:
    return ops.affine(net, name, input, power=0.5)


@function("rsqrt")
def rsqrt(net: NetBuilder, name: str, input: Value) -> Value:
    return ops.affine(net, name, input, power=-0.5)


@function("maximum")
def maximum(net: NetBuilder, name: str, input: Any, other: Any) -> Value:
    return ops.maximum(net, name, _operand(input), _operand(other))


# -- shapes ---------------------------------------------------------------------------------------------------------
@function("flatten")
def flatten(net: NetBuilder, name: str, input: Value, start_dim: Any = 0, end_dim: Any = -1) -> Value:
    return ops.flatten(net, name, input, start_dim, end_dim)


def _known_shape(input: Value, dims: tuple[Any, ...]) -> tuple[int, ...]:
    wanted = [int(n) for n in (dims[0] if len(dims) == 1 and not isinstance(dims[0], int) else dims)]
    if -1 in wanted:
        rest = int(np.prod([n for n in wanted if n != -1]))
        wanted[wanted.index(-1)] = int(np.prod(input.shape)) // max(rest, 1)
    return tuple(wanted)


@function("reshape", "view")
def reshape(net: NetBuilder, name: str, input: Value, *shape: Any, **named: Any) -> Value:
    return ops.reshape(net, name, input, _known_shape(input, shape or (named["shape"],)))


@function("unflatten")
def unflatten(net: NetBuilder, name: str, input: Value, dim: Any, sizes: Any) -> Value:
    axis = dim % input.rank
    inner = list(sizes)
    if -1 in inner:
        inner[inner.index(-1)] = input.shape[axis] // int(np.prod([n for n in inner if n != -1]))
    return ops.reshape(net, name, input, (*input.shape[:axis], *inner, *input.shape[axis + 1 :]))


@function("squeeze")
def squeeze(net: NetBuilder, name: str, input: Value, dim: Any = None) -> Value:
    dims = range(input.rank) if dim is None else [d % input.rank for d in ([dim] if isinstance(dim, int) else dim)]
    kept = [n for axis, n in enumerate(input.shape) if axis not in dims or n != 1]
    return ops.reshape(net, name, input, kept)


@function("unsqueeze")
def unsqueeze(net: NetBuilder, name: str, input: Value, dim: Any) -> Value:
    axis = dim % (input.rank + 1)
    return ops.reshape(net, name, input, (*input.shape[:axis], 1, *input.shape[axis:]))


@function("permute")
def permute(net: NetBuilder, name: str, input: Value, *dims: Any) -> Value:
    return ops.permute(net, name, input, dims[0] if len(dims) == 1 and not isinstance(dims[0], int) else dims)


@function("transpose", "swapaxes")
def transpose(net: NetBuilder, name: str, input: Value, dim0: Any, dim1: Any) -> Value:
    order = list(range(input.rank))
    order[dim0], order[dim1] = order[dim1], order[dim0]
    return ops.permute(net, name, input, order)


@function("T", "mT")
def transposed(net: NetBuilder, name: str, input: Value) -> Value:
    return ops.permute(net, name, input, [*range(input.rank - 2), input.rank - 1, input.rank - 2])


@function("cat", "concat", "concatenate")
def cat(net: NetBuilder, name: str, tensors: Any, dim: Any = 0) -> Value:
    return ops.concat(net, name, tensors, dim)


@function("chunk")
def chunk(net: NetBuilder, name: str, input: Value, chunks: Any, dim: Any = 0) -> list[Value]:
    size = -(-input.shape[dim] // chunks)
    return split(net, name, input, size, dim)


@function("split")
def split(
    net: NetBuilder, name: str, tensor: Value, split_size_or_sections: Any = None, dim: Any = 0, **named: Any
) -> list[Value]:
    sections = named.get("split_size", split_size_or_sections)
    extent = tensor.shape[dim]
    if isinstance(sections, int):
        sections = [min(sections, extent - start) for start in range(0, extent, sections)]
    return ops.split(net, name, tensor, list(sections), dim)


@function("narrow")
def narrow(net: NetBuilder, name: str, input: Value, dim: Any, start: Any, length: Any) -> Value:
    return ops.narrow(net, name, input, dim % input.rank, start, start + length)


@function("__getitem__")
def getitem(net: NetBuilder, name: str, input: Value, index: Any) -> Value:
    cuts = index if isinstance(index, tuple) else (index,)
    if any(not isinstance(cut, (slice, int, type(None), type(...))) for cut in cuts):
        raise Inexpressible("is indexed by a tensor")
    if ... in [cut for cut in cuts if cut is ...]:
        at = [cut is ... for cut in cuts].index(True)
        missing = input.rank - sum(cut is not None and cut is not ... for cut in cuts)
        cuts = (*cuts[:at], *[slice(None)] * missing, *cuts[at + 1 :])
    value, axis, shape = input, 0, []
    for cut in cuts:
        if cut is None:
            shape.append(1)
            continue
        extent = value.shape[axis]
        if isinstance(cut, int):
            start, stop, step = cut % extent, cut % extent + 1, 1
        else:
            start, stop, step = cut.indices(extent)
        if step != 1:
            raise Inexpressible(f"takes every {step}th")
        if (start, stop) != (0, extent):
            value = ops.narrow(net, name, value, axis, start, stop)
        if not isinstance(cut, int):
            shape.append(value.shape[axis])
        axis += 1
    return ops.reshape(net, f"{name}_shape", value, (*shape, *value.shape[axis:]))


# -- reductions -----------------------------------------------------------------------------------------------------
def _axes(dim: Any) -> list[int]:
    return [] if dim is None else [dim] if isinstance(dim, int) else list(dim)


@function("mean")
def mean(net: NetBuilder, name: str, input: Value, dim: Any = None, keepdim: bool = False, **_: Any) -> Value:
    return ops.reduce(net, name, input, _axes(dim), keepdim, _Reduction.MEAN)


@function("sum")
def sum_(net: NetBuilder, name: str, input: Value, dim: Any = None, keepdim: bool = False, **_: Any) -> Value:
    return ops.reduce(net, name, input, _axes(dim), keepdim, _Reduction.SUM)
