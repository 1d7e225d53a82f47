"""Convolution, Deconvolution and Im2col, over any number of spatial axes.

Runtimes convolve over one to three axes. Beyond that a convolution is taken apart along its first axis, tap by tap,
each tap a convolution over the others; without spatial axes it gets one of extent 1. A kernel that overhangs the padded
bottom sees zeros there (Caffe's rounding towards zero): more padding behind.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import reduce

import numpy as np

from poseidon.convert.extents import Dims
from poseidon.convert.to_onnx.builder import Emission, product
from poseidon.net.layers.convolution import ConvolutionBase
from poseidon.net.layers.im2col import Im2col
from poseidon.net.layers.window import Window

_MOST_AXES = 3


def convolution(e: Emission) -> list[str]:
    return _windowed(e, _convolve)


def deconvolution(e: Emission) -> list[str]:
    return _windowed(e, _deconvolve)


def im2col(e: Emission) -> str:
    """One output channel per input channel and tap: a grouped convolution with a single 1 in every kernel."""
    assert isinstance(e.layer, Im2col)
    window = e.layer.window
    axis = e.spec.convolution_param.axis % e.rank
    num_channels, num_taps = e.shape[axis], int(np.prod(window.kernel))
    taps = np.eye(num_taps, dtype=np.float32).reshape(num_taps, 1, *window.kernel)
    weight = np.tile(taps, (num_channels, *[1] * (taps.ndim - 1)))
    return _folded(e, 0, axis, lambda x, dims: _convolve(e, x, dims, weight, None, window, num_channels))


def _windowed(e: Emission, run: Callable[..., str]) -> list[str]:
    assert isinstance(e.layer, ConvolutionBase)
    options = e.spec.convolution_param
    weight = e.param_value(0)
    bias = e.param_value(1) if options.bias_term else None
    window = e.layer.window
    axis = options.axis % e.rank
    return [
        _folded(e, i, axis, lambda x, dims: run(e, x, dims, weight, bias, window, options.group))
        for i in range(len(e.inputs))
    ]


def _folded(e: Emission, index: int, axis: int, run: Callable[[str, Dims], str]) -> str:
    """Runs on N × C × spatial, the axes before the channels made one."""
    x, dims = e.inputs[index], e.bottoms[index]
    if axis == 1:
        return run(x, dims)
    folded: Dims = (product(dims[:axis], e.shape[:axis]), *dims[axis:])
    y = run(e.reshape(x, dims, folded), folded)
    top = e.tops[index]
    return e.reshape(y, (folded[0], *top[axis:]), top)


def _sizes(dims: Dims, e: Emission) -> tuple[int, ...]:
    sizes = dims[2:]
    if any(isinstance(size, str) for size in sizes):
        raise e.error("its spatial extents change with the batch; convert with --fixed-batch")
    return tuple(int(size) for size in sizes)


def _named(e: Emission, value: np.ndarray, what: str) -> str:
    return e.constant(value, f"{e.layer.name}.{what}")


def _convolve(
    e: Emission, x: str, dims: Dims, weight: np.ndarray, bias: np.ndarray | None, window: Window, group: int
) -> str:
    num_axes = len(window.kernel)
    if num_axes == 0:
        y = _convolve(e, e.unsqueeze(x, 2), (*dims, 1), weight[..., None], bias, Window((1,), (1,), (0,), (1,)), group)
        return e.squeeze(y, 2)
    sizes = _sizes(dims, e)
    after = [pad + over for pad, over in zip(window.pad, window.overhang(sizes), strict=True)]
    if num_axes > _MOST_AXES:
        return _convolve_first_axis(e, x, dims, weight, bias, window, group)
    values = [_named(e, weight, "0")] + ([] if bias is None else [_named(e, bias, "1")])
    return e.op(
        "Conv",
        x,
        *values,
        kernel_shape=list(window.kernel),
        strides=list(window.stride),
        pads=[*window.pad, *after],
        dilations=list(window.dilation),
        group=group,
    )


def _convolve_first_axis(
    e: Emission, x: str, dims: Dims, weight: np.ndarray, bias: np.ndarray | None, window: Window, group: int
) -> str:
    sizes = _sizes(dims, e)
    stride, pad, dilation = window.stride[0], window.pad[0], window.dilation[0]
    num_outputs = window.outputs(sizes)[0]
    x = e.pad(x, [0, 0, pad, *[0] * (len(sizes) - 1)], [0, 0, pad + window.overhang(sizes)[0], *[0] * (len(sizes) - 1)])
    rank = len(dims)
    outward = [0, 2, 1, *range(3, rank)]
    rows: Dims = (f"{dims[0]}·{num_outputs}", dims[1], *dims[3:])
    parts = []
    for tap in range(window.kernel[0]):
        start = tap * dilation
        taken = e.slice(x, 2, start, start + (num_outputs - 1) * stride + 1, stride)
        taken = e.reshape(e.op("Transpose", taken, perm=outward), (), rows)
        parts.append(_convolve(e, taken, rows, weight[:, :, tap], None, window.after_first(), group))
    total = reduce(lambda a, b: e.op("Add", a, b), parts)
    inner = window.after_first().outputs(sizes[1:])
    unfolded: Dims = (dims[0], num_outputs, len(weight), *inner)
    y = e.op("Transpose", e.reshape(total, (), unfolded), perm=outward)
    return y if bias is None else e.op("Add", y, e.constant(bias.reshape(-1, *[1] * len(sizes))))


def _deconvolve(
    e: Emission, x: str, dims: Dims, weight: np.ndarray, bias: np.ndarray | None, window: Window, group: int
) -> str:
    num_axes = len(window.kernel)
    if num_axes == 0:
        one = Window((1,), (1,), (0,), (1,))
        y = _deconvolve(e, e.unsqueeze(x, 2), (*dims, 1), weight[..., None], bias, one, group)
        return e.squeeze(y, 2)
    if num_axes > _MOST_AXES:
        return _deconvolve_first_axis(e, x, dims, weight, bias, window, group)
    values = [_named(e, weight, "0")] + ([] if bias is None else [_named(e, bias, "1")])
    return e.op(
        "ConvTranspose",
        x,
        *values,
        kernel_shape=list(window.kernel),
        strides=list(window.stride),
        pads=[*window.pad, *window.pad],
        dilations=list(window.dilation),
        group=group,
    )


def _deconvolve_first_axis(
    e: Emission, x: str, dims: Dims, weight: np.ndarray, bias: np.ndarray | None, window: Window, group: int
) -> str:
    sizes = _sizes(dims, e)
    size, stride, pad, dilation = sizes[0], window.stride[0], window.pad[0], window.dilation[0]
    full = stride * (size - 1) + window.extent[0]
    num_outputs = weight.shape[1] * group
    outward = [0, 2, 1, *range(3, len(dims))]
    rows: Dims = (f"{dims[0]}·{size}", dims[1], *dims[3:])
    taken = e.reshape(e.op("Transpose", x, perm=outward), (), rows)
    inner = window.after_first().inputs(sizes[1:])
    zeros = [0] * (len(sizes) - 1)
    parts = []
    for tap in range(window.kernel[0]):
        part = _deconvolve(e, taken, rows, weight[:, :, tap], None, window.after_first(), group)
        part = e.op("Transpose", e.reshape(part, (), (dims[0], size, num_outputs, *inner)), perm=outward)
        # Every row, then stride − 1 rows of zeros; those behind the last one go again.
        spread = e.pad(e.unsqueeze(part, 3), [0] * (len(dims) + 1), [0, 0, 0, stride - 1, *zeros])
        spread = e.reshape(spread, (), (dims[0], num_outputs, size * stride, *inner))
        spread = e.slice(spread, 2, 0, stride * (size - 1) + 1)
        start = tap * dilation
        parts.append(e.pad(spread, [0, 0, start, *zeros], [0, 0, full - start - stride * (size - 1) - 1, *zeros]))
    total = reduce(lambda a, b: e.op("Add", a, b), parts)
    total = e.slice(total, 2, pad, full - pad)
    return total if bias is None else e.op("Add", total, e.constant(bias.reshape(-1, *itertools.repeat(1, len(sizes)))))
