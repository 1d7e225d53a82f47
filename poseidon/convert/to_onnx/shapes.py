"""Layers that move values about without computing: Concat, Slice, Flatten, Reshape, Tile, Crop."""

from __future__ import annotations

from itertools import pairwise

from poseidon.convert.to_onnx.builder import Emission
from poseidon.net.layers.concat import Concat
from poseidon.net.layers.slice import Slice

_TO_THE_END = 2**62
_NUM_OUTPUTS_SINCE = 18


def concat(e: Emission) -> str:
    assert isinstance(e.layer, Concat)
    return e.op("Concat", *e.inputs, axis=e.layer.concat_axis(e.shape))


def slice_(e: Emission) -> list[str]:
    assert isinstance(e.layer, Slice)
    axis = e.layer.slice_axis(e.shape)
    points = list(e.spec.slice_param.slice_point)
    num_tops = len(e.tops)
    if num_tops == 1:
        return [e.x]
    if isinstance(e.bottoms[0][axis], str):
        if points:
            bounds = [0, *points, _TO_THE_END]
            return [e.slice(e.x, axis, start, end) for start, end in pairwise(bounds)]
        count = {"num_outputs": num_tops} if e.graph.opset >= _NUM_OUTPUTS_SINCE else {}
        return e.graph.add("Split", [e.x], num_tops, e.layer.name, {"axis": axis, **count})
    sizes = e.integers(e.layer.sizes(e.shape, axis))
    return e.graph.add("Split", [e.x, sizes], num_tops, e.layer.name, {"axis": axis})


def split(e: Emission) -> list[str]:
    return [e.x] * len(e.tops)


def flatten(e: Emission) -> str:
    options = e.spec.flatten_param
    if (options.axis % e.rank, options.end_axis % e.rank) == (1, e.rank - 1) and e.rank > 1:
        return e.op("Flatten", e.x, axis=1)
    return reshape(e)


def reshape(e: Emission) -> str:
    return e.reshape(e.x, e.bottoms[0], e.tops[0])


def tile(e: Emission) -> str:
    options = e.spec.tile_param
    repeats = [1] * e.rank
    repeats[options.axis % e.rank] = options.tiles
    return e.op("Tile", e.x, e.integers(repeats)) if options.tiles != 1 else e.x


def crop(e: Emission) -> str:
    axis = e.spec.crop_param.axis % e.rank
    given = list(e.spec.crop_param.offset)
    offsets = given if len(given) > 1 else (given or [0]) * (e.rank - axis)
    value = e.x
    for i, offset in enumerate(offsets, start=axis):
        size = e.bottoms[1][i]
        if offset == 0 and size == e.bottoms[0][i]:
            continue
        if isinstance(size, str):
            end = e.op("Add", e.extent_of(e.inputs[1], i), e.integers([offset]))
            value = e.slice(value, i, offset, end)
        else:
            value = e.slice(value, i, offset, offset + size)
    return value
