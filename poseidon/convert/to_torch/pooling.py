"""Pooling, SPP and LRN. torch's own pooling has Caffe's windows unless padding is wide or windows are empty."""

from __future__ import annotations

from poseidon.convert.to_torch import parts
from poseidon.convert.to_torch.writing import Writing, arguments, number, sizes
from poseidon.net.layers.pool_methods import LOWEST
from poseidon.net.layers.pool_window import PoolWindow
from poseidon.net.layers.pooling import Pooling
from poseidon.net.layers.spp import SPP
from poseidon.spec import caffe_pb2

_Pool = caffe_pb2.PoolingParameter


def pooling(w: Writing) -> str:
    assert isinstance(w.layer, Pooling)
    options = w.spec.pooling_param
    window = w.layer.window_over(w.shape[2:])
    if len(w.tops) == 2:
        margins = tuple(window.margins(w.shape[2:]))
        given = arguments(w.x, sizes(window.kernel), sizes(window.stride), margins)
        return f"{w.part(parts.max_pool_with_mask)}({given})"
    if options.global_pooling and options.pool != _Pool.STOCHASTIC:
        return f"F.adaptive_{'avg' if options.pool == _Pool.AVE else 'max'}_pool2d({w.x}, 1)"
    return _pool(w, window, options.pool)


def spp(w: Writing) -> str:
    assert isinstance(w.layer, SPP)
    levels = [_pool(w, window, w.spec.spp_param.pool) for window in w.layer.windows(w.shape[2:])]
    if len(levels) == 1:
        return levels[0]
    return f"torch.cat([{', '.join(f'{level}.flatten(1)' for level in levels)}], dim=1)"


def _pool(w: Writing, window: PoolWindow, method: int) -> str:
    spatial = w.shape[2:]
    kernel, stride = sizes(window.kernel), sizes(window.stride)
    margins = tuple(window.margins(spatial))
    if method == _Pool.STOCHASTIC:
        return f"{w.part(parts.stochastic_pool)}({w.x}, {kernel}, {stride}, {margins})"
    if window.suits_torch(spatial):
        given = arguments(
            w.x,
            kernel,
            stride=stride,
            padding=None if not any(window.pad) else sizes(window.pad),
            ceil_mode=True if window.rounds_up else None,
        )
        return f"F.{'avg' if method == _Pool.AVE else 'max'}_pool2d({given})"
    if method == _Pool.MAX:
        return f"F.max_pool2d(F.pad({w.x}, {margins}, value={LOWEST!r}), {kernel}, {stride})"
    heights, widths = (window.divisors(axis, size) for axis, size in enumerate(spatial))
    given = arguments(w.x, kernel, stride, margins, heights, widths)
    return f"{w.part(parts.average_clipped)}({given})"


def lrn(w: Writing) -> str:
    options = w.spec.lrn_param
    if options.norm_region == caffe_pb2.LRNParameter.WITHIN_CHANNEL:
        part = w.part(parts.lrn_within_channel)
        return f"{part}({w.x}, {options.local_size}, {number(options.alpha)}, {number(options.beta)})"
    given = arguments(
        w.x, options.local_size, alpha=number(options.alpha), beta=number(options.beta), k=number(options.k)
    )
    return f"F.local_response_norm({given})"
