"""ONNX operator → Caffe layers. To add one, write a function of the net and the node.

Blobs are `Value`s, constants arrays; `Inexpressible` says why not. What takes constants only (the arithmetic of shapes
that exporters leave behind) is computed in `fold_constants`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from poseidon.convert.to_caffe import operations as ops
from poseidon.convert.to_caffe import windows
from poseidon.convert.to_caffe.builder import Inexpressible, NetBuilder, Value
from poseidon.convert.to_caffe.windows import Taps
from poseidon.spec import caffe_pb2

_Pool = caffe_pb2.PoolingParameter
_Reduction = caffe_pb2.ReductionParameter
_MAX_FOLDED_ELEMS = 1 << 24
_LAST_AXIS_SOFTMAX = 13  # the opset from which Softmax works on one axis


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


# -- windows --------------------------------------------------------------------------------------------------------
def _taps(node: Node, kernel: Sequence[int], sizes: Sequence[int]) -> Taps:
    count = len(kernel)
    stride = tuple(int(n) for n in node.get("strides", [1] * count))
    dilation = tuple(int(n) for n in node.get("dilations", [1] * count))
    pads = [int(n) for n in node.get("pads", [0] * (2 * count))]
    auto = node.get("auto_pad", b"NOTSET")
    auto = auto.decode() if isinstance(auto, bytes) else auto
    if auto.startswith("SAME"):
        for axis in range(count):
            extent = dilation[axis] * (kernel[axis] - 1) + 1
            total = max((-(-sizes[axis] // stride[axis]) - 1) * stride[axis] + extent - sizes[axis], 0)
            small, large = total // 2, total - total // 2
            pads[axis], pads[count + axis] = (small, large) if auto == "SAME_UPPER" else (large, small)
    if min((*stride, *dilation, *kernel)) < 1 or min(pads) < 0:
        raise Inexpressible("has a stride, dilation, kernel or pad below what is possible")
    return Taps(
        tuple(int(n) for n in kernel),
        stride,
        tuple(pads[:count]),
        tuple(pads[count:]),
        dilation,
        bool(node.get("ceil_mode", 0)),
    )


@operator("Conv")
def conv(net: NetBuilder, node: Node) -> Value:
    weight = node.weights(1, "weight")
    taps = _taps(node, weight.shape[2:], node.x.shape[2:])
    bias = node.optional(2, "bias")
    return windows.convolution(net, node.name, node.x, weight, bias, taps, int(node.get("group", 1)))


@operator("ConvTranspose")
def conv_transpose(net: NetBuilder, node: Node) -> Value:
    weight = node.weights(1, "weight")
    if any(node.get("output_padding", [])) or "output_shape" in node.attributes:
        raise Inexpressible("has output padding or an output shape of its own, which Caffe's Deconvolution lacks")
    taps = _taps(node, weight.shape[2:], node.x.shape[2:])
    bias = node.optional(2, "bias")
    return windows.deconvolution(net, node.name, node.x, weight, bias, taps, int(node.get("group", 1)))


@operator("MaxPool")
def max_pool(net: NetBuilder, node: Node) -> Value:
    if node.num_outputs > 1:
        raise Inexpressible("gives indices")
    return windows.max_pool(net, node.name, node.x, _taps(node, node.get("kernel_shape"), node.x.shape[2:]))


@operator("AveragePool")
def average_pool(net: NetBuilder, node: Node) -> Value:
    sizes = node.x.shape[2:]
    taps = _taps(node, node.get("kernel_shape"), sizes)
    divisors = windows.included_divisors(taps, sizes, padding=bool(node.get("count_include_pad", 0)))
    return windows.average_pool(net, node.name, node.x, taps, divisors)


@operator("GlobalAveragePool")
def global_average_pool(net: NetBuilder, node: Node) -> Value:
    return windows.global_pool(net, node.name, node.x, _Pool.AVE)


@operator("GlobalMaxPool")
def global_max_pool(net: NetBuilder, node: Node) -> Value:
    return windows.global_pool(net, node.name, node.x, _Pool.MAX)


@operator("Resize", "Upsample")
def resize(net: NetBuilder, node: Node) -> Value:
    mode = node.get("mode", b"nearest")
    if mode not in (b"nearest", "nearest"):
        raise Inexpressible(f"resizes by {mode!r}; only whole factors of `nearest` can be had")
    scales = node.input(1 if node.op == "Upsample" else 2)
    if isinstance(scales, np.ndarray) and scales.size:
        factors = np.asarray(scales, float)
    else:
        factors = node.constant(3, "sizes") / np.array(node.x.shape, float)
    if node.x.rank != 4 or (factors[:2] != 1).any() or (factors != np.round(factors)).any() or factors.min() < 1:
        raise Inexpressible(f"resizes by {factors.tolist()}; only whole factors of height and width can be had")
    return ops.repeat_nearest(net, node.name, node.x, [int(n) for n in factors[2:]])


# -- dense, normalisation -------------------------------------------------------------------------------------------
@operator("Gemm")
def gemm(net: NetBuilder, node: Node) -> Value:
    if node.get("transA", 0):
        raise Inexpressible("transposes its input")
    weight = node.weights(1, "weight") * np.float32(node.get("alpha", 1.0))
    weight = weight if node.get("transB", 0) else weight.T
    bias = node.optional(2, "bias")
    if bias is not None:
        bias = np.broadcast_to(bias * np.float32(node.get("beta", 1.0)), (1, weight.shape[0])).reshape(-1)
    return ops.linear(net, node.name, node.x, np.ascontiguousarray(weight), bias)


@operator("MatMul")
def matmul(net: NetBuilder, node: Node) -> Value:
    weight = node.weights(1, "right operand")
    if weight.ndim != 2:
        raise Inexpressible(f"multiplies with {weight.ndim} axes, expected a matrix")
    return ops.linear(net, node.name, node.x, np.ascontiguousarray(weight.T), None)


@operator("Gather")
def gather(net: NetBuilder, node: Node) -> Value:
    table = node.weights(0, "table")
    if table.ndim != 2 or int(node.get("axis", 0)) != 0 or not isinstance(node.input(1), Value):
        raise Inexpressible("picks by index; Caffe does so from the rows of a table only")
    options = {"input_dim": table.shape[0], "num_output": table.shape[1], "bias_term": False}
    return net.add("Embed", node.name, [node.inputs[1]], [table], embed_param=options)[0]


@operator("BatchNormalization")
def batch_normalization(net: NetBuilder, node: Node) -> Value:
    if node.get("training_mode", 0):
        raise Inexpressible("normalises with the batch's own statistics")
    scale, shift, mean, variance = (node.weights(i, "statistics") for i in range(1, 5))
    y = ops.batch_norm(net, node.name, node.x, mean, variance, float(node.get("epsilon", 1e-5)))
    if (scale == 1).all() and (shift == 0).all():
        return y
    return ops.channel_affine(net, f"{node.name}_scale", y, scale, shift)


@operator("LRN")
def lrn(net: NetBuilder, node: Node) -> Value:
    options = {
        "local_size": int(node.get("size")),
        "alpha": node.get("alpha", 1e-4),
        "beta": node.get("beta", 0.75),
        "k": node.get("bias", 1.0),
    }
    return net.add("LRN", node.name, [node.x], lrn_param=options)[0]


# -- activations ----------------------------------------------------------------------------------------------------
def _plain(op: str, type_name: str) -> None:
    OPERATORS[op] = lambda net, node: net.add(type_name, node.name, [node.x])[0]


for _op, _type in {
    "Relu": "ReLU",
    "Sigmoid": "Sigmoid",
    "Tanh": "TanH",
    "Abs": "AbsVal",
    "Exp": "Exp",
    "Log": "Log",
    "Softplus": "BNLL",
}.items():
    _plain(_op, _type)


@operator("LeakyRelu")
def leaky_relu(net: NetBuilder, node: Node) -> Value:
    return net.add("ReLU", node.name, [node.x], relu_param={"negative_slope": node.get("alpha", 0.01)})[0]


@operator("Elu")
def elu(net: NetBuilder, node: Node) -> Value:
    return net.add("ELU", node.name, [node.x], elu_param={"alpha": node.get("alpha", 1.0)})[0]


@operator("PRelu")
def prelu(net: NetBuilder, node: Node) -> Value:
    slopes = node.weights(1, "slope")
    if slopes.size > 1 and slopes.shape[slopes.ndim - (node.x.rank - 1)] != slopes.size:
        raise Inexpressible("has slopes along other axes than the channels")
    return ops.prelu(net, node.name, node.x, slopes)


@operator("Clip")
def clip(net: NetBuilder, node: Node) -> Value:
    bounds: list[float | None] = []
    for index, name in ((1, "min"), (2, "max")):
        value = node.get(name) if name in node.attributes else node.optional(index, name)
        bounds.append(None if value is None else float(np.asarray(value).reshape(())))
    return ops.clip(net, node.name, node.x, *bounds)


@operator("HardSigmoid")
def hard_sigmoid(net: NetBuilder, node: Node) -> Value:
    line = ops.affine(net, f"{node.name}_line", node.x, float(node.get("alpha", 0.2)), float(node.get("beta", 0.5)))
    return ops.clip(net, node.name, line, 0.0, 1.0)


@operator("HardSwish")
def hard_swish(net: NetBuilder, node: Node) -> Value:
    line = ops.affine(net, f"{node.name}_line", node.x, 1 / 6, 0.5)
    return ops.multiply(net, node.name, node.x, ops.clip(net, f"{node.name}_gate", line, 0.0, 1.0))


@operator("Softmax")
def softmax(net: NetBuilder, node: Node) -> Value:
    axis = int(node.get("axis", -1 if node.opset >= _LAST_AXIS_SOFTMAX else 1)) % node.x.rank
    if node.opset < _LAST_AXIS_SOFTMAX and any(extent != 1 for extent in node.x.shape[axis + 1 :]):
        raise Inexpressible(f"works on all axes from {axis} on, as in opsets before {_LAST_AXIS_SOFTMAX}")
    return net.add("Softmax", node.name, [node.x], softmax_param={"axis": axis})[0]


@operator("LogSoftmax")
def log_softmax(net: NetBuilder, node: Node) -> Value:
    return net.add("Log", f"{node.name}_log", [softmax(net, node)])[0]


@operator("Pad")
def pad(net: NetBuilder, node: Node) -> Value:
    mode = node.get("mode", b"constant")
    value = node.get("value", 0.0) if node.input(2) is None else float(node.weights(2, "value").reshape(()))
    if mode not in (b"constant", "constant") or value != 0 or node.input(3) is not None:
        raise Inexpressible("pads with something else than zeros, or along chosen axes")
    pads = [int(n) for n in (node.get("pads") if "pads" in node.attributes else node.constant(1, "pads"))]
    return windows.zero_pad(net, node.name, node.x, pads[: node.x.rank], pads[node.x.rank :])


@operator("Dropout")
def dropout(net: NetBuilder, node: Node) -> Value:
    ratio = node.get("ratio", 0.5) if node.input(1) is None else float(node.weights(1, "ratio").reshape(()))
    return net.add("Dropout", node.name, [node.x], dropout_param={"dropout_ratio": ratio})[0]


@operator("Identity", "Cast")
def identity(net: NetBuilder, node: Node) -> Value:
    return node.x


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


# -- constants ------------------------------------------------------------------------------------------------------
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
