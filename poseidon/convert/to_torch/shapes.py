"""Layers that move values about without computing: Concat, Slice, Flatten, Reshape, Tile, Crop."""

from __future__ import annotations

from itertools import pairwise

from poseidon.convert.to_torch.writing import Writing
from poseidon.net.layers.concat import Concat
from poseidon.net.layers.slice import Slice


def concat(w: Writing) -> str:
    assert isinstance(w.layer, Concat)
    return f"torch.cat([{', '.join(w.inputs)}], dim={w.layer.concat_axis(w.shape)})"


def slice_(w: Writing) -> str | list[str]:
    assert isinstance(w.layer, Slice)
    axis = w.layer.slice_axis(w.shape)
    points = list(w.spec.slice_param.slice_point)
    if len(w.tops) == 1:
        return [w.x]
    if not points:
        return f"{w.x}.chunk({len(w.tops)}, dim={axis})"
    if isinstance(w.bottoms[0][axis], str):
        before = ":, " * axis
        bounds = pairwise(["", *map(str, points), ""])
        return [f"{w.x}[{before}{start}:{end}]" for start, end in bounds]
    return f"{w.x}.split({w.layer.sizes(w.shape, axis)}, dim={axis})"


def split(w: Writing) -> list[str]:
    return [w.x] * len(w.tops)


def flatten(w: Writing) -> str:
    options = w.spec.flatten_param
    start, end = options.axis % w.rank, options.end_axis % w.rank
    if start > end:
        return f"{w.x}.unsqueeze({start})"
    if start == end:
        return w.x
    return f"{w.x}.flatten({start})" if end == w.rank - 1 else f"{w.x}.flatten({start}, {end})"


def reshape(w: Writing) -> str:
    return w.reshaped(w.x, w.bottoms[0], w.tops[0])


def tile(w: Writing) -> str:
    options = w.spec.tile_param
    if options.tiles == 1:
        return w.x
    repeats = [1] * w.rank
    repeats[options.axis % w.rank] = options.tiles
    return f"{w.x}.repeat({', '.join(map(str, repeats))})"


def crop(w: Writing) -> str:
    axis = w.spec.crop_param.axis % w.rank
    given = list(w.spec.crop_param.offset)
    offsets = given if len(given) > 1 else (given or [0]) * (w.rank - axis)
    reference, cuts = w.inputs[1], [":"] * axis
    for i, offset in enumerate(offsets, start=axis):
        cuts.append(f"{offset} : {offset} + {reference}.shape[{i}]" if offset else f": {reference}.shape[{i}]")
    return f"{w.x}[{', '.join(cuts)}]"
