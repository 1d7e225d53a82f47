"""torch function name → Caffe layers. To add one, write it with torch's own parameters after `net` and `name`.

Blobs come as `Value`, parameters and constants as arrays. A function returns the value, or a list of them for
functions that give several tensors; `Inexpressible` says why not.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from poseidon.convert.to_caffe import operations as ops
from poseidon.convert.to_caffe import windows
from poseidon.convert.to_caffe.builder import Inexpressible, NetBuilder, Value
from poseidon.convert.to_caffe.windows import Taps
from poseidon.spec import caffe_pb2

_Pool = caffe_pb2.PoolingParameter
_Reduction = caffe_pb2.ReductionParameter

# Leave values as they are (or cut fractions off indices, as Embed does).
SILENT = frozenset(
    {"contiguous", "clone", "detach", "to", "float", "long", "int", "requires_grad_", "alias", "type_as", "data"}
)
# Take a shape and a type only: what they give is a constant.
CONSTANT = frozenset({"new_zeros", "new_ones", "new_full", "new_tensor", "zeros_like", "ones_like", "full_like"})

FUNCTIONS: dict[str, Callable[..., Any]] = {}


def function(*names: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def add(made: Callable[..., Any]) -> Callable[..., Any]:
        for name in names:
            assert name not in FUNCTIONS, name
            FUNCTIONS[name] = made
        return made

    return add


def _each(value: Any, count: int) -> tuple[int, ...]:
    return (int(value),) * count if isinstance(value, int) else tuple(int(n) for n in value)


def _operand(value: Any) -> Any:
    return value if isinstance(value, Value) else np.asarray(value, np.float32)


# -- windows --------------------------------------------------------------------------------------------------------
@function("conv1d", "conv2d", "conv3d")
def conv(net, name, input, weight, bias=None, stride=1, padding=0, dilation=1, groups=1):
    axes = weight.ndim - 2
    stride, dilation = _each(stride, axes), _each(dilation, axes)
    kernel = weight.shape[2:]
    if padding == "valid":
        padding = 0
    if padding == "same":
        whole = [d * (k - 1) for k, d in zip(kernel, dilation, strict=True)]
        before, after = tuple(n // 2 for n in whole), tuple(n - n // 2 for n in whole)
    else:
        before = after = _each(padding, axes)
    x = _batched(input, axes)
    return windows.convolution(net, name, x, weight, bias, Taps(kernel, stride, before, after, dilation), groups)


@function("conv_transpose1d", "conv_transpose2d", "conv_transpose3d")
def conv_transpose(net, name, input, weight, bias=None, stride=1, padding=0, output_padding=0, groups=1, dilation=1):
    axes = weight.ndim - 2
    if any(_each(output_padding, axes)):
        raise Inexpressible("has output_padding, which Caffe's Deconvolution lacks")
    pad = _each(padding, axes)
    taps = Taps(weight.shape[2:], _each(stride, axes), pad, pad, _each(dilation, axes))
    return windows.deconvolution(net, name, _batched(input, axes), weight, bias, taps, groups)


def _batched(x: Value, axes: int) -> Value:
    if x.rank != axes + 2:
        raise Inexpressible(f"works on an input without a batch axis ({x.rank} axes)")
    return x


def _pool_taps(kernel_size: Any, stride: Any, padding: Any, dilation: Any, ceil_mode: bool) -> Taps:
    kernel, pad = _each(kernel_size, 2), _each(padding, 2)
    return Taps(kernel, _each(stride, 2) if stride else kernel, pad, pad, _each(dilation, 2), ceil_mode)


@function("max_pool2d")
def max_pool2d(
    net, name, input, kernel_size, stride=None, padding=0, dilation=1, ceil_mode=False, return_indices=False
):
    if return_indices:
        raise Inexpressible("gives indices")
    return windows.max_pool(net, name, input, _pool_taps(kernel_size, stride, padding, dilation, ceil_mode))


@function("avg_pool2d")
def avg_pool2d(
    net,
    name,
    input,
    kernel_size,
    stride=None,
    padding=0,
    ceil_mode=False,
    count_include_pad=True,
    divisor_override=None,
):
    taps = _pool_taps(kernel_size, stride, padding, 1, ceil_mode)
    divisors = windows.included_divisors(taps, input.shape[2:], padding=count_include_pad)
    if divisor_override:
        divisors = np.full_like(divisors, divisor_override)
    return windows.average_pool(net, name, input, taps, divisors)


def _adaptive(net: NetBuilder, name: str, x: Value, output_size: Any, method: int) -> Value:
    wanted = _each(output_size, 2) if output_size is not None else x.shape[2:]
    if wanted == (1, 1):
        return windows.global_pool(net, name, x, method)
    sizes = x.shape[2:]
    if any(size % count for size, count in zip(sizes, wanted, strict=True)):
        raise Inexpressible(f"adapts {sizes} to {wanted} with windows of different sizes")
    kernel = tuple(size // count for size, count in zip(sizes, wanted, strict=True))
    taps = Taps(kernel, kernel, (0, 0), (0, 0), (1, 1))
    if method == _Pool.MAX:
        return windows.max_pool(net, name, x, taps)
    return windows.average_pool(net, name, x, taps, windows.included_divisors(taps, sizes, padding=True))


@function("adaptive_avg_pool2d")
def adaptive_avg_pool2d(net, name, input, output_size):
    return _adaptive(net, name, input, output_size, _Pool.AVE)


@function("adaptive_max_pool2d")
def adaptive_max_pool2d(net, name, input, output_size, return_indices=False):
    return _adaptive(net, name, input, output_size, _Pool.MAX)


@function("interpolate", "upsample")
def interpolate(net, name, input, size=None, scale_factor=None, mode="nearest", **_):
    wanted = (
        _each(size, 2)
        if size is not None
        else tuple(
            int(n * f)
            for n, f in zip(
                input.shape[2:],
                (scale_factor,) * 2 if isinstance(scale_factor, (int, float)) else scale_factor,
                strict=True,
            )
        )
    )
    if mode != "nearest" or any(n % m for n, m in zip(wanted, input.shape[2:], strict=True)):
        raise Inexpressible(
            f"resizes {input.shape[2:]} to {wanted} ({mode}); only whole factors of `nearest` can be had"
        )
    return ops.repeat_nearest(net, name, input, [n // m for n, m in zip(wanted, input.shape[2:], strict=True)])


@function("pad")
def pad(net, name, input, pad, mode="constant", value=None):
    if mode != "constant" or value:
        raise Inexpressible("pads with something else than zeros")
    before, after = [0] * input.rank, [0] * input.rank
    for number in range(len(pad) // 2):  # pairs from the last axis on
        before[-1 - number], after[-1 - number] = pad[2 * number], pad[2 * number + 1]
    return windows.zero_pad(net, name, input, before, after)


# -- dense, normalisation -------------------------------------------------------------------------------------------
@function("linear")
def linear(net, name, input, weight, bias=None):
    return ops.linear(net, name, input, weight, bias)


@function("matmul", "mm", "__matmul__")
def matmul(net, name, input, other):
    if not (isinstance(input, Value) and isinstance(other, np.ndarray) and other.ndim == 2):
        raise Inexpressible("multiplies matrices that are not blob times parameter")
    return ops.linear(net, name, input, np.ascontiguousarray(other.T), None)


@function("addmm")
def addmm(net, name, input, mat1, mat2, beta=1, alpha=1):
    if beta != 1 or alpha != 1 or isinstance(input, Value):
        raise Inexpressible("scales or adds a blob")
    return ops.add(net, f"{name}_bias", matmul(net, name, mat1, mat2), input)


@function("embedding")
def embedding(net, name, input, weight, padding_idx=None, *_, **__):
    options = {"input_dim": weight.shape[0], "num_output": weight.shape[1], "bias_term": False}
    return net.add("Embed", name, [input], [weight], embed_param=options)[0]


@function("batch_norm")
def batch_norm(
    net, name, input, running_mean, running_var, weight=None, bias=None, training=False, momentum=0.1, eps=1e-5, *_
):
    if training or running_mean is None:
        raise Inexpressible("normalises with the batch's own statistics; call the model in eval mode")
    y = ops.batch_norm(net, name, input, running_mean, running_var, eps)
    if weight is None and bias is None:
        return y
    weight = np.ones_like(running_mean) if weight is None else weight
    return ops.channel_affine(net, f"{name}_scale", y, weight, bias)


@function("local_response_norm")
def local_response_norm(net, name, input, size, alpha=1e-4, beta=0.75, k=1.0):
    options = {"local_size": size, "alpha": alpha, "beta": beta, "k": k}
    return net.add("LRN", name, [input], lrn_param=options)[0]


@function("dropout", "dropout2d", "dropout1d", "feature_dropout")
def dropout(net, name, input, p=0.5, training=True, inplace=False):
    return net.add("Dropout", name, [input], dropout_param={"dropout_ratio": p})[0]


# -- activations ----------------------------------------------------------------------------------------------------
def _plain(type_name: str) -> Callable[..., Value]:
    def add(net: NetBuilder, name: str, input: Value, *_: Any, **__: Any) -> Value:
        return net.add(type_name, name, [input])[0]

    return add


function("relu")(_plain("ReLU"))
function("sigmoid")(_plain("Sigmoid"))
function("tanh")(_plain("TanH"))
function("abs", "absolute")(_plain("AbsVal"))
function("exp")(_plain("Exp"))
function("log")(_plain("Log"))
function("silu")(_plain("Swish"))


@function("leaky_relu")
def leaky_relu(net, name, input, negative_slope=0.01, inplace=False):
    return net.add("ReLU", name, [input], relu_param={"negative_slope": negative_slope})[0]


@function("elu")
def elu(net, name, input, alpha=1.0, inplace=False):
    return net.add("ELU", name, [input], elu_param={"alpha": alpha})[0]


@function("prelu")
def prelu(net, name, input, weight):
    return ops.prelu(net, name, input, weight)


@function("softplus")
def softplus(net, name, input, beta=1, threshold=20):
    if beta != 1:
        raise Inexpressible("has a beta other than 1")
    return net.add("BNLL", name, [input])[0]


@function("relu6")
def relu6(net, name, input, inplace=False):
    return ops.clip(net, name, input, 0.0, 6.0)


@function("hardtanh")
def hardtanh(net, name, input, min_val=-1.0, max_val=1.0, inplace=False):
    return ops.clip(net, name, input, min_val, max_val)


@function("clamp", "clip")
def clamp(net, name, input, min=None, max=None):
    return ops.clip(net, name, input, min, max)


@function("hardsigmoid")
def hardsigmoid(net, name, input, inplace=False):
    shifted = ops.affine(net, f"{name}_shifted", input, shift=3.0)
    return ops.affine(net, name, ops.clip(net, f"{name}_clipped", shifted, 0.0, 6.0), scale=1 / 6)


@function("hardswish")
def hardswish(net, name, input, inplace=False):
    return ops.multiply(net, name, input, hardsigmoid(net, f"{name}_gate", input))


@function("softmax")
def softmax(net, name, input, dim=None, *_, **__):
    return net.add("Softmax", name, [input], softmax_param={"axis": dim % input.rank})[0]


@function("log_softmax")
def log_softmax(net, name, input, dim=None, *_, **__):
    return net.add("Log", name, [softmax(net, f"{name}_softmax", input, dim)])[0]


# -- arithmetic -----------------------------------------------------------------------------------------------------
@function("add", "__add__", "__radd__", "__iadd__")
def add(net, name, input, other, alpha=1):
    return ops.add(net, name, _operand(input), _operand(other), float(alpha))


@function("sub", "__sub__", "__isub__", "subtract")
def sub(net, name, input, other, alpha=1):
    return ops.add(net, name, _operand(input), _operand(other), -float(alpha))


@function("rsub", "__rsub__")
def rsub(net, name, input, other, alpha=1):
    return ops.add(net, name, _operand(other), _operand(input), -float(alpha))


@function("mul", "__mul__", "__rmul__", "__imul__", "multiply")
def mul(net, name, input, other):
    return ops.multiply(net, name, _operand(input), _operand(other))


@function("div", "__truediv__", "true_divide", "divide", "__itruediv__")
def div(net, name, input, other, rounding_mode=None):
    if rounding_mode is not None:
        raise Inexpressible("rounds")
    return ops.divide(net, name, _operand(input), _operand(other))


@function("__rtruediv__", "__rdiv__")
def rdiv(net, name, input, other):
    return ops.divide(net, name, _operand(other), _operand(input))


@function("neg", "__neg__", "negative")
def neg(net, name, input):
    return ops.affine(net, name, input, scale=-1.0)


@function("pow", "__pow__")
def pow_(net, name, input, exponent):
    if not isinstance(exponent, (int, float)):
        raise Inexpressible("has an exponent that is a tensor")
    return ops.affine(net, name, input, power=float(exponent))


@function("square")
def square(net, name, input):
    return ops.affine(net, name, input, power=2.0)


@function("sqrt")
def sqrt(net, name, input):
    return ops.affine(net, name, input, power=0.5)


@function("rsqrt")
def rsqrt(net, name, input):
    return ops.affine(net, name, input, power=-0.5)


@function("maximum")
def maximum(net, name, input, other):
    return ops.maximum(net, name, _operand(input), _operand(other))


# -- shapes ---------------------------------------------------------------------------------------------------------
@function("flatten")
def flatten(net, name, input, start_dim=0, end_dim=-1):
    return ops.flatten(net, name, input, start_dim, end_dim)


def _known_shape(input: Value, dims: tuple[Any, ...]) -> tuple[int, ...]:
    wanted = [int(n) for n in (dims[0] if len(dims) == 1 and not isinstance(dims[0], int) else dims)]
    if -1 in wanted:
        rest = int(np.prod([n for n in wanted if n != -1]))
        wanted[wanted.index(-1)] = int(np.prod(input.shape)) // max(rest, 1)
    return tuple(wanted)


@function("reshape", "view")
def reshape(net, name, input, *shape, **named):
    return ops.reshape(net, name, input, _known_shape(input, shape or (named["shape"],)))


@function("unflatten")
def unflatten(net, name, input, dim, sizes):
    axis = dim % input.rank
    inner = list(sizes)
    if -1 in inner:
        inner[inner.index(-1)] = input.shape[axis] // int(np.prod([n for n in inner if n != -1]))
    return ops.reshape(net, name, input, (*input.shape[:axis], *inner, *input.shape[axis + 1 :]))


@function("squeeze")
def squeeze(net, name, input, dim=None):
    dims = range(input.rank) if dim is None else [d % input.rank for d in ([dim] if isinstance(dim, int) else dim)]
    kept = [n for axis, n in enumerate(input.shape) if axis not in dims or n != 1]
    return ops.reshape(net, name, input, kept)


@function("unsqueeze")
def unsqueeze(net, name, input, dim):
    axis = dim % (input.rank + 1)
    return ops.reshape(net, name, input, (*input.shape[:axis], 1, *input.shape[axis:]))


@function("permute")
def permute(net, name, input, *dims):
    return ops.permute(net, name, input, dims[0] if len(dims) == 1 and not isinstance(dims[0], int) else dims)


@function("transpose", "swapaxes")
def transpose(net, name, input, dim0, dim1):
    order = list(range(input.rank))
    order[dim0], order[dim1] = order[dim1], order[dim0]
    return ops.permute(net, name, input, order)


@function("T", "mT")
def transposed(net, name, input):
    return ops.permute(net, name, input, [*range(input.rank - 2), input.rank - 1, input.rank - 2])


@function("cat", "concat", "concatenate")
def cat(net, name, tensors, dim=0):
    return ops.concat(net, name, tensors, dim)


@function("chunk")
def chunk(net, name, input, chunks, dim=0):
    size = -(-input.shape[dim] // chunks)
    return split(net, name, input, size, dim)


@function("split")
def split(net, name, tensor, split_size_or_sections=None, dim=0, **named):
    sections = named.get("split_size", split_size_or_sections)
    extent = tensor.shape[dim]
    if isinstance(sections, int):
        sections = [min(sections, extent - start) for start in range(0, extent, sections)]
    return ops.split(net, name, tensor, list(sections), dim)


@function("narrow")
def narrow(net, name, input, dim, start, length):
    return ops.narrow(net, name, input, dim % input.rank, start, start + length)


@function("__getitem__")
def getitem(net, name, input, index):
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
def mean(net, name, input, dim=None, keepdim=False, **_):
    return ops.reduce(net, name, input, _axes(dim), keepdim, _Reduction.MEAN)


@function("sum")
def sum_(net, name, input, dim=None, keepdim=False, **_):
    return ops.reduce(net, name, input, _axes(dim), keepdim, _Reduction.SUM)
