"""Layers of Caffe's forks: ReLU6, Permute, Normalize, Interp, ShuffleChannel, Axpy, Reorg, Upsample, PriorBox."""

from __future__ import annotations

import numpy as np
import torch

from poseidon.convert.extents import Dims
from poseidon.convert.fork_sizes import cropped_sizes, nearest_positions, permuted_axes
from poseidon.convert.to_onnx.builder import Emission


def relu6(e: Emission) -> str:
    clipped = e.op("Clip", e.x, e.number(0), e.number(6))
    slope = e.spec.relu6_param.negative_slope
    if slope == 0:
        return clipped
    return e.op("Add", clipped, e.affine(e.op("Min", e.x, e.number(0)), slope, 0))


def permute(e: Emission) -> str:
    return e.op("Transpose", e.x, perm=permuted_axes(e.spec, e.rank))


def normalize(e: Emission) -> str:
    options = e.spec.norm_param
    axes = range(1, e.rank) if options.across_spatial else [1]
    energy = e.reduce("ReduceSumSquare", e.x, axes, keep=True)
    y = e.op("Div", e.x, e.op("Sqrt", e.affine(energy, 1, options.eps)))
    scale = e.param_value(0)
    scale = scale.reshape((-1, *[1] * (e.rank - 2))) if scale.ndim else scale
    return e.op("Mul", y, e.constant(scale, f"{e.layer.name}.0"))


def interp(e: Emission) -> str:
    options = e.spec.interp_param
    inner, sizes = cropped_sizes(e.spec, e.shape[2:]), [int(n) for n in e.tops[0][2:]]
    x, begin = e.x, -options.pad_beg
    for axis, size in enumerate(inner, start=2):
        x = x if size == e.shape[axis] else e.slice(x, axis, begin, begin + size)
    if options.interp_type == "nearest_neighbor":
        for axis, (old, new) in enumerate(zip(inner, sizes, strict=True), start=2):
            x = e.op("Gather", x, e.integers(nearest_positions(old, new)), axis=axis)
        return x
    if tuple(inner) == tuple(sizes):
        return x
    mode = {"mode": "linear", "coordinate_transformation_mode": "align_corners"}
    return e.op("Resize", x, "", _scales(e, inner, sizes), **mode)


def _scales(e: Emission, inner: tuple[int, ...], sizes: list[int]) -> str:
    """Factors whose products, rounded down, are the sizes: a little above where float32 falls below.

    Sizes themselves would fix the batch; positions do not depend on the factors where corners are kept.
    """
    factors = [1.0, 1.0]
    for old, new in zip(inner, sizes, strict=True):
        factor = np.float32(new / old)
        while old * float(factor) < new:
            factor = np.nextafter(factor, np.float32(np.inf), dtype=np.float32)
        factors.append(float(factor))
    return e.constant(factors)


def shuffle_channel(e: Emission) -> str:
    group, (batch, channels, *rest) = e.spec.shuffle_channel_param.group, e.bottoms[0]
    assert isinstance(channels, int)
    apart: Dims = (batch, group, channels // group, *rest)
    value = e.op("Transpose", e.reshape(e.x, e.bottoms[0], apart), perm=[0, 2, 1, *range(3, len(apart))])
    return e.reshape(value, (batch, channels // group, group, *rest), e.bottoms[0])


def axpy(e: Emission) -> str:
    factor, x, added = e.inputs
    rank = len(e.bottoms[1])
    target: Dims = (*e.bottoms[1][:2], *[1] * (rank - 2))
    return e.op("Add", e.op("Mul", e.reshape(factor, e.bottoms[0], target), x), added)


def reorg(e: Emission) -> str:
    stride, (batch, *_) = e.spec.reorg_param.stride, e.bottoms[0]
    channels, height, width = e.shape[1:]
    depth = channels // stride**2
    if e.spec.reorg_param.reverse:
        apart: Dims = (batch, stride, stride, depth, height, width)
        order = [0, 3, 4, 1, 5, 2]
    else:
        apart = (batch, depth, height, stride, width, stride)
        order = [0, 3, 5, 1, 2, 4]
    moved = e.op("Transpose", e.reshape(e.x, e.bottoms[0], apart), perm=order)
    return e.reshape(moved, tuple(apart[axis] for axis in order), e.tops[0])


def upsample(e: Emission) -> str:
    batch, channels, *_ = e.bottoms[0]
    height, width = e.shape[2:]
    large_height, large_width = (int(n) for n in e.tops[0][2:])
    if len(e.inputs) == 1:
        scales = e.constant([1, 1, large_height // height, large_width // width])
        mode = {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
        return e.op("Resize", e.x, "", scales, **mode)
    flat: Dims = (batch, channels, height * width)
    values, places = (e.reshape(value, e.bottoms[0], flat) for value in e.inputs)
    room = e.reduce("ReduceSum", values, [2], keep=True)
    room = e.op("Tile", e.op("Sub", room, room), e.integers([1, 1, large_height * large_width]))
    placed = e.op("ScatterElements", room, e.cast(places, "INT64"), values, axis=2)
    return e.reshape(placed, (batch, channels, large_height * large_width), e.tops[0])


def prior_box(e: Emission) -> str:
    """Boxes depend on sizes only: they are constants here."""
    bottoms = [torch.zeros(1, 1, *shape[2:]) for shape in e.bottom_shapes]
    return e.constant(e.layer(*bottoms).numpy(), f"{e.layer.name}.boxes")
