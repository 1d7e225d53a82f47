"""Warp: how a window of an image becomes a square of crop_size × crop_size.

Without padding the window itself is stretched to the square. With `context_pad` it is first widened about its centre by

    crop_size / (crop_size − 2 · context_pad)

so that the original window fills all but that much padding on each side; `square` first lengthens its shorter side to
the longer one. What sticks out of the image is left out of the square, not stretched: the visible part is placed where
it belongs. Caffe computes this in single precision and rounds halves away from zero, and so does this.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True)
class WarpOptions:
    """As in window_data_param; 2 · context_pad is less than crop_size."""

    crop_size: int
    context_pad: int = 0
    square: bool = False


@dataclass(frozen=True, slots=True)
class Warp:
    """Where a window is cut out of its image, the size it is warped to, and where that lies in the crop."""

    x1: int
    y1: int
    x2: int
    y2: int
    height: int
    width: int
    pad_top: int
    pad_left: int


def warp_of(box: tuple[int, int, int, int], image_size: tuple[int, int], mirrored: bool, options: WarpOptions) -> Warp:
    """The warp of a window (x1, y1, x2, y2) of an image of (height, width)."""
    crop_size = options.crop_size
    if not options.context_pad and not options.square:
        return Warp(*box, crop_size, crop_size, 0, 0)
    one = np.float32
    widening = one(crop_size) / one(crop_size - 2 * options.context_pad)
    x1, y1, x2, y2 = box
    half_height, half_width = one((y2 - y1 + 1) / 2), one((x2 - x1 + 1) / 2)
    center_x, center_y = one(x1) + half_width, one(y1) + half_height
    if options.square:
        half_height = half_width = max(half_height, half_width)
    columns = _Side.of(center_x, half_width * widening, image_size[1], crop_size)
    rows = _Side.of(center_y, half_height * widening, image_size[0], crop_size)
    # When mirrored, what sticks out on the right comes to lie on the left.
    pad_left = columns.pad_after if mirrored else columns.pad_before
    return Warp(
        columns.first,
        rows.first,
        columns.last,
        rows.last,
        min(rows.length, crop_size - rows.pad_before),
        min(columns.length, crop_size - pad_left),
        rows.pad_before,
        pad_left,
    )


@dataclass(frozen=True, slots=True)
class _Side:
    """One dimension of a widened window: what the image has of it (first..last), and how long that and what sticks
    out before and after become in the crop."""

    first: int
    last: int
    length: int
    pad_before: int
    pad_after: int

    @classmethod
    def of(cls, center: np.float32, half: np.float32, extent: int, crop_size: int) -> _Side:
        first, last = _round(center - half), _round(center + half)
        scale = np.float32(crop_size) / np.float32(last - first + 1)
        before, after = max(0, -first), max(0, last - extent + 1)
        first, last = first + before, last - after
        return cls(
            first,
            last,
            _round(np.float32(last - first + 1) * scale),
            _round(np.float32(before) * scale),
            _round(np.float32(after) * scale),
        )


def _round(x: np.floating) -> int:
    """C's round: halves away from zero."""
    return int(math.copysign(math.floor(abs(float(x)) + 0.5), x))
