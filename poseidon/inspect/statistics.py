"""Statistics of an array of numbers, over its finite values, in double precision and a block at a time."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

MAX_BYTES = 2 << 30
"""Of one array: larger ones are listed and not read. A small file can promise terabytes of compressed zeros."""

_BLOCK = 1 << 20


@dataclass(frozen=True, slots=True)
class Statistics:
    """Of the finite values (None where there are none); `zeros` is a share of all, `not_finite` a count."""

    least: float | None
    largest: float | None
    mean: float | None
    deviation: float | None
    zeros: float
    not_finite: int


def statistics_of(values: np.ndarray) -> Statistics:
    flat = values.reshape(-1)
    least, largest, total, num_zeros, num_finite = math.inf, -math.inf, 0.0, 0, 0
    for start in range(0, flat.size, _BLOCK):
        block = _finite(flat[start : start + _BLOCK])
        if block.size:
            least, largest = min(least, float(block.min())), max(largest, float(block.max()))
            total += float(block.sum())
            num_zeros += int(block.size - np.count_nonzero(block))
            num_finite += int(block.size)
    if not num_finite:
        return Statistics(None, None, None, None, 0.0, int(flat.size))
    mean = total / num_finite
    # A second pass: sums of squares would lose small deviations around a large mean.
    squares = sum(
        float(np.square(_finite(flat[start : start + _BLOCK]) - mean).sum()) for start in range(0, flat.size, _BLOCK)
    )
    deviation = math.sqrt(squares / num_finite)
    return Statistics(least, largest, mean, deviation, num_zeros / flat.size, int(flat.size) - num_finite)


def _finite(block: np.ndarray) -> np.ndarray:
    double = block.astype(np.float64)
    return double[np.isfinite(double)]
