"""Functions of torch that are layers: convolutions, pooling, normalisation, activations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from poseidon.convert.to_caffe import operations as ops
from poseidon.convert.to_caffe import windows
from poseidon.convert.to_caffe.builder import Inexpressible, NetBuilder, Value
from poseidon.convert.to_caffe.torch_table import function
from poseidon.convert.to_caffe.windows import Taps
from poseidon.spec import caffe_pb2

_Pool = caffe_pb2.PoolingParameter


def _each(value: Any, count: int) -> tuple[int, ...]:
    return (int(value),) * count if isinstance(value, int) else tuple(int(n) for n in value)


# -- windows --------------------------------------------------------------------------------------------------------
@function("conv1d", "conv2d", "conv3d")
def conv(
    net: NetBuilder,
    name: str,
    input: Value,
    weight: Any,
    bias: Any = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: Any = 1,
) -> Value:
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
def conv_transpose(
    net: NetBuilder,
    name: str,
    input: Value,
    weight: Any,
    bias: Any = None,
    stride: Any = 1,
    padding: Any = 0,
    output_padding: Any = 0,
    groups: Any = 1,
    dilation: Any = 1,
) -> Value:
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
    net: NetBuilder,
    name: str,
    input: Value,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Value:
    if return_indices:
        raise Inexpressible("gives indices")
    return windows.max_pool(net, name, input, _pool_taps(kernel_size, stride, padding, dilation, ceil_mode))


@function("avg_pool2d")
def avg_pool2d(
    net: NetBuilder,
    name: str,
    input: Value,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: Any = None,
) -> Value:
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
def adaptive_avg_pool2d(net: NetBuilder, name: str, input: Value, output_size: Any) -> Value:
    return _adaptive(net, name, input, output_size, _Pool.AVE)


@function("adaptive_max_pool2d")
def adaptive_max_pool2d(
    net: NetBuilder, name: str, input: Value, output_size: Any, return_indices: bool = False
) -> Value:
    if return_indices:
        raise Inexpressible("gives indices")
    return _adaptive(net, name, input, output_size, _Pool.MAX)


@function("interpolate", "upsample")
def interpolate(
    net: NetBuilder,
    name: str,
    input: Value,
    size: Any = None,
    scale_factor: Any = None,
    mode: Any = "nearest",
    **_: Any,
) -> Value:
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
def pad(net: NetBuilder, name: str, input: Value, pad: Any, mode: Any = "constant", value: Any = None) -> Value:
    if mode != "constant" or value:
        raise Inexpressible("pads with something else than zeros")
    before, after = [0] * input.rank, [0] * input.rank
    for number in range(len(pad) // 2):  # pairs from the last axis on
        before[-1 - number], after[-1 - number] = pad[2 * number], pad[2 * number + 1]
    return windows.zero_pad(net, name, input, before, after)


# -- dense, normalisation -------------------------------------------------------------------------------------------
@function("linear")
def linear(net: NetBuilder, name: str, input: Value, weight: Any, bias: Any = None) -> Value:
    return ops.linear(net, name, input, weight, bias)


@function("matmul", "mm", "__matmul__")
def matmul(net: NetBuilder, name: str, input: Any, other: Any) -> Value:
    if not (isinstance(input, Value) and isinstance(other, np.ndarray) and other.ndim == 2):
        raise Inexpressible("multiplies matrices that are not blob times parameter")
    return ops.linear(net, name, input, np.ascontiguousarray(other.T), None)


@function("addmm")
def addmm(net: NetBuilder, name: str, input: Any, mat1: Any, mat2: Any, beta: Any = 1, alpha: Any = 1) -> Value:
    if beta != 1 or alpha != 1 or isinstance(input, Value):
        raise Inexpressible("scales or adds a blob")
    return ops.add(net, f"{name}_bias", matmul(net, name, mat1, mat2), input)


@function("embedding")
def embedding(
    net: NetBuilder, name: str, input: Value, weight: Any, padding_idx: Any = None, *_: Any, **__: Any
) -> Value:
    options = {"input_dim": weight.shape[0], "num_output": weight.shape[1], "bias_term": False}
    return net.add("Embed", name, [input], [weight], embed_param=options)[0]


@function("batch_norm")
def batch_norm(
    net: NetBuilder,
    name: str,
    input: Value,
    running_mean: Any,
    running_var: Any,
    weight: Any = None,
    bias: Any = None,
    training: bool = False,
    momentum: Any = 0.1,
    eps: Any = 1e-5,
    *_: Any,
) -> Value:
    if training or running_mean is None:
        raise Inexpressible("normalises with the batch's own statistics; call the model in eval mode")
    y = ops.batch_norm(net, name, input, running_mean, running_var, eps)
    if weight is None and bias is None:
        return y
    weight = np.ones_like(running_mean) if weight is None else weight
    return ops.channel_affine(net, f"{name}_scale", y, weight, bias)


@function("local_response_norm")
def local_response_norm(
    net: NetBuilder, name: str, input: Value, size: Any, alpha: Any = 1e-4, beta: Any = 0.75, k: Any = 1.0
) -> Value:
    options = {"local_size": size, "alpha": alpha, "beta": beta, "k": k}
    return net.add("LRN", name, [input], lrn_param=options)[0]


@function("dropout", "dropout2d", "dropout1d", "feature_dropout")
def dropout(
    net: NetBuilder, name: str, input: Value, p: Any = 0.5, training: bool = True, inplace: bool = False
) -> Value:
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
def leaky_relu(net: NetBuilder, name: str, input: Value, negative_slope: Any = 0.01, inplace: bool = False) -> Value:
    return net.add("ReLU", name, [input], relu_param={"negative_slope": negative_slope})[0]


@function("elu")
def elu(net: NetBuilder, name: str, input: Value, alpha: Any = 1.0, inplace: bool = False) -> Value:
    return net.add("ELU", name, [input], elu_param={"alpha": alpha})[0]


@function("prelu")
def prelu(net: NetBuilder, name: str, input: Value, weight: Any) -> Value:
    return ops.prelu(net, name, input, weight)


@function("softplus")
def softplus(net: NetBuilder, name: str, input: Value, beta: Any = 1, threshold: Any = 20) -> Value:
    if beta != 1:
        raise Inexpressible("has a beta other than 1")
    return net.add("BNLL", name, [input])[0]


@function("relu6")
def relu6(net: NetBuilder, name: str, input: Value, inplace: bool = False) -> Value:
    return ops.clip(net, name, input, 0.0, 6.0)


@function("hardtanh")
def hardtanh(
    net: NetBuilder, name: str, input: Value, min_val: Any = -1.0, max_val: Any = 1.0, inplace: bool = False
) -> Value:
    return ops.clip(net, name, input, min_val, max_val)


@function("clamp", "clip")
def clamp(net: NetBuilder, name: str, input: Value, min: Any = None, max: Any = None) -> Value:
    return ops.clip(net, name, input, min, max)


@function("hardsigmoid")
def hardsigmoid(net: NetBuilder, name: str, input: Value, inplace: bool = False) -> Value:
    shifted = ops.affine(net, f"{name}_shifted", input, shift=3.0)
    return ops.affine(net, name, ops.clip(net, f"{name}_clipped", shifted, 0.0, 6.0), scale=1 / 6)


@function("hardswish")
def hardswish(net: NetBuilder, name: str, input: Value, inplace: bool = False) -> Value:
    return ops.multiply(net, name, input, hardsigmoid(net, f"{name}_gate", input))


@function("softmax")
def softmax(net: NetBuilder, name: str, input: Value, dim: Any = None, *_: Any, **__: Any) -> Value:
    return net.add("Softmax", name, [input], softmax_param={"axis": dim % input.rank})[0]


@function("log_softmax")
def log_softmax(net: NetBuilder, name: str, input: Value, dim: Any = None, *_: Any, **__: Any) -> Value:
    return net.add("Log", name, [softmax(net, f"{name}_softmax", input, dim)])[0]
