"""Pooling, SPP and LRN.

Windows are laid out by padding: in front as the prototxt says, behind as far as Caffe's last window reaches. So no
runtime's own idea of rounding up is asked for. Averages divide by what Caffe counts (window and padding, not what lies
beyond): where that is not the whole kernel, a constant per window corrects it.
"""

from __future__ import annotations

import numpy as np

from poseidon.convert.to_onnx.builder import Emission
from poseidon.net.layers.pool_methods import LOWEST
from poseidon.net.layers.pool_window import PoolWindow
from poseidon.net.layers.pooling import Pooling
from poseidon.net.layers.spp import SPP
from poseidon.spec import caffe_pb2

_Pool = caffe_pb2.PoolingParameter


def pooling(e: Emission) -> str | list[str]:
    assert isinstance(e.layer, Pooling)
    options = e.spec.pooling_param
    window = e.layer.window_over(e.shape[2:])
    if len(e.tops) == 2:
        return _with_mask(e, window)
    if options.global_pooling and options.pool != _Pool.STOCHASTIC:
        return e.op("GlobalAveragePool" if options.pool == _Pool.AVE else "GlobalMaxPool", e.x)
    return _pool(e, e.x, window, options.pool)


def spp(e: Emission) -> str:
    assert isinstance(e.layer, SPP)
    windows = e.layer.windows(e.shape[2:])
    levels = [_pool(e, e.x, window, e.spec.spp_param.pool) for window in windows]
    if len(levels) == 1:
        return levels[0]
    return e.op("Concat", *[e.op("Flatten", level, axis=1) for level in levels], axis=1)


def _pool(e: Emission, x: str, window: PoolWindow, method: int) -> str:
    if method == _Pool.MAX:
        return _windows(e, "MaxPool", x, window)
    if method == _Pool.AVE:
        return _average(e, x, window)
    total, squares = _windows(e, "AveragePool", x, window), _windows(e, "AveragePool", e.op("Mul", x, x), window)
    zero = e.number(0)
    positive = e.op("Greater", total, zero)
    return e.op("Where", positive, e.op("Div", squares, e.op("Where", positive, total, e.number(1))), zero)


def _average(e: Emission, x: str, window: PoolWindow) -> str:
    y = _windows(e, "AveragePool", x, window)
    heights, widths = (np.array(window.divisors(axis, size), float) for axis, size in enumerate(e.shape[2:]))
    counted, area = np.outer(heights, widths), float(np.prod(window.kernel))
    if (counted == area).all():
        return y
    with np.errstate(divide="ignore"):  # an empty window is 0 / 0, here as in Caffe
        return e.op("Mul", y, e.constant(area / counted, f"{e.layer.name}.area"))


def _windows(e: Emission, op: str, x: str, window: PoolWindow) -> str:
    """One operator over the windows that lie whole inside the padded plane. Windows beyond the bottom, which runtimes
    do not take, come behind: their maximum is the lowest number, their sum 0."""
    pads_behind, beyond = [], []
    for axis, (size, count) in enumerate(zip(e.shape[2:], window.outputs(e.shape[2:]), strict=True)):
        kernel, stride, pad = window.kernel[axis], window.stride[axis], window.pad[axis]
        inside = min(count, (size + pad - 1) // stride + 1)
        pads_behind.append(max((inside - 1) * stride + kernel - pad - size, 0))
        beyond.append(count - inside)
    counts_pads = {"count_include_pad": 1} if op == "AveragePool" else {}
    pads = [*window.pad, *pads_behind]
    shape = {"kernel_shape": list(window.kernel), "strides": list(window.stride)}
    y = e.op(op, x, pads=pads, **shape, **counts_pads)
    return e.pad(y, [0] * 4, [0, 0, *beyond], LOWEST if op == "MaxPool" else 0.0)


def _with_mask(e: Emission, window: PoolWindow) -> list[str]:
    """Indices count through the whole tensor; the mask through one plane, and −1 where a window is empty."""
    height, width = e.shape[2:]
    left, right, above, below = window.margins((height, width))
    padded = e.pad(e.x, [0, 0, above, left], [0, 0, below, right], LOWEST)
    wide, high = left + width + right, above + height + below
    attributes = {"kernel_shape": list(window.kernel), "strides": list(window.stride)}
    y, indices = e.ops("MaxPool", padded, num_outputs=2, **attributes)
    indices = e.op("Mod", indices, e.integers(high * wide))
    row = e.op("Sub", e.op("Div", indices, e.integers(wide)), e.integers(above))
    column = e.op("Sub", e.op("Mod", indices, e.integers(wide)), e.integers(left))
    mask = e.op("Add", e.op("Mul", row, e.integers(width)), column)
    if any((left, right, above, below)):
        inside = [e.op("GreaterOrEqual", value, e.integers(0)) for value in (row, column)]
        inside += [e.op("Less", row, e.integers(height)), e.op("Less", column, e.integers(width))]
        both = inside[0]
        for condition in inside[1:]:
            both = e.op("And", both, condition)
        mask = e.op("Where", both, mask, e.integers(-1))
    return [y, e.cast(mask, "FLOAT")]


def lrn(e: Emission) -> str:
    options = e.spec.lrn_param
    size = options.local_size
    if options.norm_region == caffe_pb2.LRNParameter.WITHIN_CHANNEL:
        pads = [size // 2] * 4
        squares = e.op("Mul", e.x, e.x)
        mean = e.op("AveragePool", squares, kernel_shape=[size, size], pads=pads, count_include_pad=1)
        return _divided(e, e.affine(mean, options.alpha, 1.0), options.beta)
    if options.alpha > 0 and options.beta > 0:
        return e.op("LRN", e.x, size=size, alpha=options.alpha, beta=options.beta, bias=options.k)
    # Runtimes refuse such an LRN: the same by an average over channels, seen as depth.
    deep = e.unsqueeze(e.op("Mul", e.x, e.x), 1)
    half = size // 2
    mean = e.op("AveragePool", deep, kernel_shape=[size, 1, 1], pads=[half, 0, 0, half, 0, 0], count_include_pad=1)
    return _divided(e, e.affine(e.squeeze(mean, 1), options.alpha, options.k), options.beta)


def _divided(e: Emission, scale: str, power: float) -> str:
    return e.op("Mul", e.x, e.op("Pow", scale, e.number(-power)))
