"""Sparkline: a curve in one line of text, as ▇▆▄▃▂▂▁▁."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

_LEVELS = "▁▂▃▄▅▆▇█"
_ASCII_LEVELS = "_.-=+*%#"
_MOST_KEPT = 512


def sparkline(values: Sequence[float], width: int, *, ascii_only: bool = False) -> str:
    """The whole curve in at most `width` letters: means of neighbours, from the lowest (▁) to the highest (█).

    What is no finite number is `x`; a curve without ups and downs is a low line.
    """
    means = _means(values, width)
    finite = [value for value in means if math.isfinite(value)]
    if not finite:
        return "x" * len(means)
    levels = _ASCII_LEVELS if ascii_only else _LEVELS
    least, most = min(finite), max(finite)
    span = most - least
    top = len(levels) - 1
    # A span beyond the largest float is a curve gone astray: its low end is shown as such.
    return "".join(
        "x"
        if not math.isfinite(value)
        else levels[0 if not 0 < span < math.inf else round((value - least) / span * top)]
        for value in means
    )


def _means(values: Sequence[float], width: int) -> list[float]:
    count = min(len(values), max(width, 1))
    edges = [len(values) * place // count for place in range(count + 1)] if count else []
    return [sum(values[a:b]) / (b - a) for a, b in itertools.pairwise(edges)]


class Curve:
    """Values of a whole run, of which it keeps a few hundred: neighbours become their mean when they are too many."""

    def __init__(self) -> None:
        self._values: list[float] = []
        self._each = 1  # how many values a kept one stands for
        self._sum, self._count = 0.0, 0
        self.last: float | None = None

    def add(self, value: float) -> None:
        self.last = value
        self._sum += value
        self._count += 1
        if self._count == self._each:
            self._values.append(self._sum / self._count)
            self._sum, self._count = 0.0, 0
        if len(self._values) == _MOST_KEPT:
            self._values = [(a + b) / 2 for a, b in zip(self._values[::2], self._values[1::2], strict=True)]
            self._each *= 2

    @property
    def values(self) -> list[float]:
        return self._values
