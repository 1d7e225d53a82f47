"""ONNX operators that are layers: convolutions, pooling, normalisation, activations."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from poseidon.convert.to_caffe import operations as ops
from poseidon.convert.to_caffe import windows
from poseidon.convert.to_caffe.builder import Inexpressible, NetBuilder, Value
from poseidon.convert.to_caffe.onnx_table import OPERATORS, Node, operator
from poseidon.convert.to_caffe.windows import Taps
from poseidon.spec import caffe_pb2

_Pool = caffe_pb2.PoolingParameter
_LAST_AXIS_SOFTMAX = 13  # the opset from which Softmax works on one axis


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
