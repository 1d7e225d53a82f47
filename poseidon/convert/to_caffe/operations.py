"""What PyTorch functions and ONNX operators have in common, as Caffe layers: arithmetic, shapes, reductions.

Operands are `Value`s (blobs) or NumPy arrays (constants and parameters).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from poseidon.convert.to_caffe.builder import Inexpressible, NetBuilder, Value
from poseidon.convert.to_caffe.windows import global_pool
from poseidon.net.layer import count_of, text_of
from poseidon.net.registry import layer_types
from poseidon.spec import caffe_pb2

Operand = Value | np.ndarray
_Eltwise = caffe_pb2.EltwiseParameter
_Reduction = caffe_pb2.ReductionParameter


# -- arithmetic -----------------------------------------------------------------------------------------------------
def affine(net: NetBuilder, name: str, x: Value, scale: float = 1.0, shift: float = 0.0, power: float = 1.0) -> Value:
    """(scale · x + shift)^power"""
    options = {"scale": scale, "shift": shift, "power": power}
    return net.add("Power", name, [x], power_param=options)[0]


def add(net: NetBuilder, name: str, a: Operand, b: Operand, sign: float = 1.0) -> Value:
    """a + sign · b"""
    if isinstance(a, np.ndarray) and isinstance(b, Value):
        b = b if sign == 1 else affine(net, f"{name}_negated", b, scale=sign)
        return add(net, name, b, a)
    assert isinstance(a, Value)
    if isinstance(b, np.ndarray):
        b = np.asarray(sign * b)
        if b.size == 1 and b.ndim <= a.rank:
            return affine(net, name, a, shift=float(b.reshape(())))
        axis, operand = _span(b.shape, a)
        options = {"axis": axis, "num_axes": len(operand)}
        return net.add("Bias", name, [a], [b.reshape(operand).astype(np.float32)], bias_param=options)[0]
    if a.shape == b.shape:
        coeff = [] if sign == 1 else [1.0, sign]
        return net.add("Eltwise", name, [a, b], eltwise_param={"operation": _Eltwise.SUM, "coeff": coeff})[0]
    if count_of(a.shape) < count_of(b.shape):
        b = b if sign == 1 else affine(net, f"{name}_negated", b, scale=sign)
        a, b, sign = b, a, 1.0
    b = b if sign == 1 else affine(net, f"{name}_negated", b, scale=sign)
    axis, laid_out = _laid_out(net, name, b, a)
    return net.add("Bias", name, [a, laid_out], bias_param={"axis": axis})[0]


def multiply(net: NetBuilder, name: str, a: Operand, b: Operand) -> Value:
    if isinstance(a, np.ndarray) and isinstance(b, Value):
        a, b = b, a
    assert isinstance(a, Value)
    if isinstance(b, np.ndarray):
        if b.size == 1 and b.ndim <= a.rank:
            return affine(net, name, a, scale=float(b.reshape(())))
        axis, operand = _span(b.shape, a)
        options = {"axis": axis, "num_axes": len(operand), "bias_term": False}
        return net.add("Scale", name, [a], [b.reshape(operand).astype(np.float32)], scale_param=options)[0]
    if a.shape == b.shape:
        return net.add("Eltwise", name, [a, b], eltwise_param={"operation": _Eltwise.PROD})[0]
    if count_of(a.shape) < count_of(b.shape):
        a, b = b, a
    axis, laid_out = _laid_out(net, name, b, a)
    return net.add("Scale", name, [a, laid_out], scale_param={"axis": axis, "bias_term": False})[0]


def divide(net: NetBuilder, name: str, a: Operand, b: Operand) -> Value:
    if isinstance(b, np.ndarray):
        with np.errstate(divide="ignore"):
            return multiply(net, name, a, np.asarray(1 / np.asarray(b, np.float64)))
    return multiply(net, name, a, affine(net, f"{name}_inverse", b, power=-1.0))


def maximum(net: NetBuilder, name: str, a: Operand, b: Operand) -> Value:
    if isinstance(a, np.ndarray) or isinstance(b, np.ndarray) or a.shape != b.shape:
        raise Inexpressible("takes the larger of operands that are not two blobs of one shape")
    return net.add("Eltwise", name, [a, b], eltwise_param={"operation": _Eltwise.MAX})[0]


def _span(shape: Sequence[int], x: Value) -> tuple[int, tuple[int, ...]]:
    """Where an operand that is broadcast over x lies: its first axis, and its extents without ones at both ends."""
    padded = (1,) * (x.rank - len(shape)) + tuple(shape)
    if len(shape) > x.rank or any(n not in (1, m) for n, m in zip(padded, x.shape, strict=True)):
        raise Inexpressible(f"broadcasts {text_of(x.shape)} with {text_of(shape)}: Caffe repeats one operand only")
    wide = [axis for axis, n in enumerate(padded) if n != 1]
    first, last = (wide[0], wide[-1] + 1) if wide else (0, 0)
    if padded[first:last] != x.shape[first:last]:
        raise Inexpressible(f"broadcasts {text_of(shape)} over {text_of(x.shape)} with a gap between its axes")
    return first, padded[first:last]


def _laid_out(net: NetBuilder, name: str, operand: Value, x: Value) -> tuple[int, Value]:
    axis, shape = _span(operand.shape, x)
    return axis, operand if operand.shape == shape else reshape(net, f"{name}_operand", operand, shape)


# -- shapes ---------------------------------------------------------------------------------------------------------
def reshape(net: NetBuilder, name: str, x: Value, shape: Sequence[int]) -> Value:
    """The leading axis is copied where it stays the same, so that the batch may change later."""
    target = tuple(shape)
    if target == x.shape:
        return x
    dims = [0 if i == 0 and x.rank and n == x.shape[0] else n for i, n in enumerate(target)]
    if not target:
        raise Inexpressible("makes a scalar of a blob")
    return net.add("Reshape", name, [x], reshape_param={"shape": {"dim": dims}})[0]


def flatten(net: NetBuilder, name: str, x: Value, start: int, end: int) -> Value:
    if x.rank == 0 or start % x.rank == end % x.rank:
        return x
    options = {"axis": start % x.rank, "end_axis": end % x.rank}
    return net.add("Flatten", name, [x], flatten_param=options)[0]


def permute(net: NetBuilder, name: str, x: Value, order: Sequence[int]) -> Value:
    order = [axis % x.rank for axis in order]
    shape = tuple(x.shape[axis] for axis in order)
    wide = [axis for axis in order if x.shape[axis] != 1]
    if wide == sorted(wide):  # only axes of extent 1 move: the values stay where they are
        return reshape(net, name, x, shape)
    if "Permute" not in layer_types():
        raise Inexpressible(f"permutes axes {tuple(order)}, which Caffe cannot")
    return net.add("Permute", name, [x], permute_param={"order": order})[0]


def concat(net: NetBuilder, name: str, values: Sequence[Operand], axis: int) -> Value:
    blobs = [value for value in values if isinstance(value, Value)]
    if len(blobs) != len(values):
        raise Inexpressible("joins a constant with a blob")
    return net.add("Concat", name, blobs, concat_param={"axis": axis % blobs[0].rank})[0]


def split(net: NetBuilder, name: str, x: Value, sizes: Sequence[int], axis: int) -> list[Value]:
    if len(sizes) == 1:
        return [x]
    points = np.cumsum(sizes[:-1]).tolist()
    options = {"axis": axis % x.rank, "slice_point": points}
    return net.add("Slice", name, [x], num_tops=len(sizes), slice_param=options)


def narrow(net: NetBuilder, name: str, x: Value, axis: int, start: int, end: int) -> Value:
    """x[start:end] along one axis; what is cut off is silenced."""
    extent = x.shape[axis]
    start, end = max(start, 0), min(end, extent)
    if start >= end:
        raise Inexpressible("cuts out nothing")
    sizes = [size for size in (start, end - start, extent - end) if size]
    pieces = split(net, name, x, sizes, axis)
    kept = pieces[1 if start else 0]
    unused = [piece for piece in pieces if piece is not kept]
    if unused:
        net.add("Silence", f"{name}_rest", unused, num_tops=0)
    return kept


# -- reductions and activations -------------------------------------------------------------------------------------
def reduce(net: NetBuilder, name: str, x: Value, axes: Sequence[int], keep: bool, operation: int) -> Value:
    axes = sorted({axis % x.rank for axis in axes}) if axes else list(range(x.rank))
    if axes == [2, 3] and x.rank == 4 and operation == _Reduction.MEAN:
        y = global_pool(net, name, x, caffe_pb2.PoolingParameter.AVE)
        return y if keep else reshape(net, f"{name}_flat", y, x.shape[:2])
    if axes != list(range(axes[0], x.rank)):
        raise Inexpressible(f"reduces axes {tuple(axes)} of {x.rank}: Caffe reduces all from one axis on")
    if axes[0] == 0:
        raise Inexpressible("reduces the batch away")
    y = net.add("Reduction", name, [x], reduction_param={"axis": axes[0], "operation": operation})[0]
    return reshape(net, f"{name}_kept", y, (*y.shape, *[1] * len(axes))) if keep else y


def linear(net: NetBuilder, name: str, x: Value, weight: np.ndarray, bias: np.ndarray | None) -> Value:
    """`weight`: outputs × inputs."""
    options = {"num_output": weight.shape[0], "axis": x.rank - 1, "bias_term": bias is not None}
    params = [weight] if bias is None else [weight, bias.reshape(-1)]
    return net.add("InnerProduct", name, [x], params, inner_product_param=options)[0]


def batch_norm(net: NetBuilder, name: str, x: Value, mean: np.ndarray, variance: np.ndarray, eps: float) -> Value:
    params = [mean, variance, np.ones(1, np.float32)]
    options = {"eps": eps, "use_global_stats": True}
    return net.add("BatchNorm", name, [x], params, batch_norm_param=options)[0]


def channel_affine(net: NetBuilder, name: str, x: Value, weight: np.ndarray, bias: np.ndarray | None) -> Value:
    params = [weight] if bias is None else [weight, bias]
    options = {"axis": 1, "num_axes": 1, "bias_term": bias is not None}
    return net.add("Scale", name, [x], params, scale_param=options)[0]


def clip(net: NetBuilder, name: str, x: Value, low: float | None, high: float | None) -> Value:
    if low == 0 and high is None:
        return net.add("ReLU", name, [x])[0]
    largest = float(np.finfo(np.float32).max)
    options = {"min": -largest if low is None else low, "max": largest if high is None else high}
    if math.isinf(options["min"]):
        options["min"] = -largest
    if math.isinf(options["max"]):
        options["max"] = largest
    return net.add("Clip", name, [x], clip_param=options)[0]


def prelu(net: NetBuilder, name: str, x: Value, slopes: np.ndarray) -> Value:
    if slopes.size == 1:
        return net.add("PReLU", name, [x], [slopes.reshape(())], prelu_param={"channel_shared": True})[0]
    return net.add("PReLU", name, [x], [slopes.reshape(-1)])[0]


def repeat_nearest(net: NetBuilder, name: str, x: Value, factors: Sequence[int]) -> Value:
    """Every value factors[0] × factors[1] times: a Deconvolution of ones, channel by channel."""
    if x.rank != 4:
        raise Inexpressible(f"enlarges {x.rank - 2} spatial axes")
    channels = x.shape[1]
    options = {
        "num_output": channels,
        "group": channels,
        "kernel_h": factors[0],
        "kernel_w": factors[1],
        "stride_h": factors[0],
        "stride_w": factors[1],
        "bias_term": False,
    }
    ones = np.ones((channels, 1, *factors), np.float32)
    return net.add("Deconvolution", name, [x], [ones], convolution_param=options)[0]
