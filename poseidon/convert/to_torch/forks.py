"""Layers of Caffe's forks: ReLU6, Permute, Normalize, Interp, ShuffleChannel, Axpy, Reorg, Upsample, PriorBox."""

from __future__ import annotations

import torch

from poseidon.convert.fork_sizes import cropped_sizes, nearest_positions, permuted_axes
from poseidon.convert.to_torch import parts
from poseidon.convert.to_torch.writing import Writing, number


def relu6(w: Writing) -> str:
    slope = w.spec.relu6_param.negative_slope
    return f"F.relu6({w.x})" if slope == 0 else f"F.relu6({w.x}) + {number(slope)} * {w.x}.clamp(max=0)"


def permute(w: Writing) -> str:
    return f"{w.x}.permute({', '.join(map(str, permuted_axes(w.spec, w.rank)))})"


def normalize(w: Writing) -> str:
    options = w.spec.norm_param
    axes = tuple(range(1, w.rank)) if options.across_spatial else 1
    scale = w.param_value(0)
    factor = w.parameter("scale", scale.reshape((-1, *[1] * (w.rank - 2))) if scale.ndim else scale)
    return f"{factor} * {w.x} / ({w.x}.square().sum({axes}, keepdim=True) + {number(options.eps)}).sqrt()"


def interp(w: Writing) -> str:
    options = w.spec.interp_param
    inner, sizes = cropped_sizes(w.spec, w.shape[2:]), tuple(int(n) for n in w.tops[0][2:])
    begin, x = -options.pad_beg, w.x
    if inner != w.shape[2:]:
        x = f"{x}[:, :, {begin}:{begin + inner[0]}, {begin}:{begin + inner[1]}]"
    if options.interp_type == "nearest_neighbor":
        rows, columns = (nearest_positions(old, new) for old, new in zip(inner, sizes, strict=True))
        return f"{x}[:, :, {rows}][:, :, :, {columns}]"
    return f'F.interpolate({x}, {sizes}, mode="bilinear", align_corners=True)'


def shuffle_channel(w: Writing) -> str:
    return f"{w.x}.unflatten(1, ({w.spec.shuffle_channel_param.group}, -1)).transpose(1, 2).flatten(1, 2)"


def axpy(w: Writing) -> str:
    factor, x, added = w.inputs
    rank = len(w.bottoms[1])
    if len(w.bottoms[0]) != rank:
        factor = f"{factor}.flatten(1)[{', '.join([':', ':', *['None'] * (rank - 2)])}]"
    return f"{factor} * {x} + {added}"


def reorg(w: Writing) -> str:
    stride, reverse = w.spec.reorg_param.stride, bool(w.spec.reorg_param.reverse)
    return f"{w.part(parts.reorg)}({w.x}, {stride}, {reverse})"


def upsample(w: Writing) -> str:
    large = tuple(int(n) for n in w.tops[0][2:])
    if len(w.inputs) == 2:
        return f"{w.part(parts.unpool)}({w.x}, {w.inputs[1]}, {large})"
    rows, columns = (new // old for old, new in zip(w.shape[2:], large, strict=True))
    if rows == columns:
        return f'F.interpolate({w.x}, scale_factor={rows}, mode="nearest")'
    return f"{w.x}.repeat_interleave({rows}, 2).repeat_interleave({columns}, 3)"


def prior_box(w: Writing) -> str:
    """Boxes depend on sizes only: they are constants here."""
    bottoms = [torch.zeros(1, 1, *shape[2:]) for shape in w.bottom_shapes]
    return w.parameter("boxes", w.layer(*bottoms).numpy(), learned=False)
