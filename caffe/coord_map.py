"""Where a blob's pixels lie in another's, from the layers of a net spec between them.

A coordinate map (axis, a, b) sends the coordinate x of a layer's bottom to a·x + b of its top, for every spatial axis
from `axis` + 1 on; axis None means that it does not matter. Per layer, k being the extent of a dilated kernel:

    Convolution, Pooling, Im2col    a = 1 / stride      b = (pad − (k − 1)/2) / stride
    Deconvolution                   a = stride          b = (k − 1)/2 − pad
    Crop                            a = 1               b = −offset
    layers that work point by point a = 1               b = 0

`crop` uses that to cut one blob to the part that lies over another.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from caffe.net_spec import Function, Top, layers
from poseidon.errors import UsageError

PASS_THROUGH_LAYERS = [
    "AbsVal", "BatchNorm", "Bias", "BNLL", "Dropout", "Eltwise", "ELU", "Log", "LRN", "Exp", "MVN", "Power", "ReLU",
    "PReLU", "Scale", "Sigmoid", "Split", "TanH", "Threshold",
]  # fmt: skip

CoordMap = tuple[int | None, Any, Any]
_IDENTITY: CoordMap = (None, 1, 0)


class UndefinedMapException(Exception):  # noqa: N818 (Caffe's name)
    """A layer without a coordinate map: it mixes positions."""


class AxisMismatchException(Exception):  # noqa: N818 (Caffe's name)
    """Two maps that begin at different axes."""


class UnconnectedError(UsageError, RuntimeError):
    """Two blobs that no chain of spatial layers connects."""


class CropError(UsageError, AssertionError):
    """A crop that cannot be: other scale, outside, or between pixels."""


def conv_params(fn: Function) -> tuple[int, np.ndarray, np.ndarray, np.ndarray]:
    """Axis, strides, extents of the dilated kernel, and pads, one or as many as there are spatial axes."""
    options = fn.params.get("convolution_param", fn.params.get("pooling_param", fn.params))
    legacy = {f"{what}_{axis}" for what in ("pad", "kernel", "stride") for axis in "hw"} & set(options)
    if legacy:
        raise CropError(
            f"{fn.type_name}: coordinates need kernel_size, stride and pad, got {', '.join(sorted(legacy))}; "
            "write kernel_size=[h, w] instead"
        )
    extent = (_row(options["kernel_size"]) - 1) * _row(options.get("dilation", 1)) + 1
    return options.get("axis", 1), _row(options.get("stride", 1)), extent, _row(options.get("pad", 0))


def crop_params(fn: Function) -> tuple[int, np.ndarray]:
    options = fn.params.get("crop_param", fn.params)
    return options.get("axis", 2), _row(options.get("offset", 0))


def coord_map(fn: Function) -> CoordMap:
    """The map from a layer's bottom to its top."""
    if fn.type_name in ("Convolution", "Pooling", "Im2col"):
        axis, stride, extent, pad = conv_params(fn)
        return axis, 1 / stride, (pad - (extent - 1) / 2) / stride
    if fn.type_name == "Deconvolution":
        axis, stride, extent, pad = conv_params(fn)
        return axis, stride, (extent - 1) / 2 - pad
    if fn.type_name in PASS_THROUGH_LAYERS:
        return _IDENTITY
    if fn.type_name == "Crop":
        axis, offset = crop_params(fn)
        return axis - 1, 1, -offset  # a crop begins with a spatial axis, a convolution with the one before
    raise UndefinedMapException(fn.type_name)


def compose(base: CoordMap, then: CoordMap) -> CoordMap:
    """x -> base(then(x)): scales multiply, and the inner shift is scaled by the outer map."""
    (axis, a, b), (inner_axis, inner_a, inner_b) = base, then
    if axis is not None and inner_axis is not None and axis != inner_axis:
        raise AxisMismatchException(f"maps along axes from {axis} and from {inner_axis} do not compose")
    return (inner_axis if axis is None else axis), a * inner_a, a * inner_b + b


def inverse(mapping: CoordMap) -> CoordMap:
    axis, a, b = mapping
    return axis, 1 / a, -b / a


def coord_map_from_to(top_from: Top, top_to: Top) -> CoordMap:
    """The map from the coordinates of one blob to another's, through a blob both descend from."""
    from_maps = dict(_walk(top_from))
    for top, mapping in _walk(top_to):
        if top in from_maps:
            return compose(mapping, inverse(from_maps[top]))
    raise UnconnectedError(
        f"Could not compute map between tops of {top_from.fn.type_name} and {top_to.fn.type_name}: "
        "no chain of spatial layers connects them"
    )


def crop(top_from: Top, top_to: Top) -> Any:
    """A Crop layer that cuts the first blob to the part that lies over the second."""
    axis, a, b = coord_map_from_to(top_from, top_to)
    offset = -np.atleast_1d(b)
    if not np.all(a == 1):
        raise CropError(f"scale mismatch on crop (a = {a}): both blobs must have the same pixels")
    if not np.all(offset >= 0):
        raise CropError(f"cannot crop negative width (b = {b}): the blob to be cropped is the smaller one")
    if not np.all(np.round(offset) == offset):
        raise CropError(f"cannot crop noninteger width (b = {b})")
    options = {"axis": (1 if axis is None else axis) + 1, "offset": [int(n) for n in offset]}
    return layers.Crop(top_from, top_to, crop_param=options)


def _walk(start: Top) -> Iterable[tuple[Top, CoordMap]]:
    """A blob, then those it is made from, each with the map from it to the first; layers without a map end the way."""
    maps: dict[Top, CoordMap] = {start: _IDENTITY}
    waiting = [start]
    while waiting:
        top = waiting.pop()
        yield top, maps[top]
        # A Crop's second bottom only lends its extents.
        bottoms = top.fn.inputs[:1] if top.fn.type_name == "Crop" else top.fn.inputs
        try:
            step = coord_map(top.fn)
        except UndefinedMapException:
            continue
        for bottom in bottoms:
            if bottom not in maps:
                maps[bottom] = compose(maps[top], step)
                waiting.append(bottom)


def _row(value: Any) -> np.ndarray:
    return np.array(value, ndmin=1)
