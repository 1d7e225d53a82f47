"""What layers of Caffe's forks say about sizes, worked out from their options and shapes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def permuted_axes(spec: Any, rank: int) -> list[int]:
    """Permute: the axes named, then the others in their own order."""
    order = list(spec.permute_param.order)
    return order + [axis for axis in range(rank) if axis not in order]


def cropped_sizes(spec: Any, sizes: Sequence[int]) -> tuple[int, ...]:
    """Interp: what pad_beg and pad_end, zero or negative, leave of the bottom."""
    return tuple(size + spec.interp_param.pad_beg + spec.interp_param.pad_end for size in sizes)


def nearest_positions(old: int, new: int) -> list[int]:
    """Interp's nearest neighbour with corners kept: the position in `old` for each one in `new`, halves up."""
    step = (old - 1) / (new - 1) if new > 1 else 0.0
    return [min(int(i * step + 0.5), old - 1) for i in range(new)]
