"""Ratio: what every benchmark of the suite gives, and what two runs of it are compared by."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Ratio:
    """A median over turns, and the lowest and highest turn.

    name        what is divided by what, unique in its section
    limit       the worst that is acceptable, if there is one
    is_gain     whether more is better
    """

    name: str
    value: float
    low: float
    high: float
    limit: float | None = None
    is_gain: bool = False

    @property
    def holds(self) -> bool:
        if self.limit is None:
            return True
        return self.value >= self.limit if self.is_gain else self.value <= self.limit

    def fall_from(self, before: Ratio) -> float:
        """By which part of itself it has become worse; below 0: better."""
        return 1 - self.value / before.value if self.is_gain else 1 - before.value / self.value


def single(name: str, value: float, limit: float | None = None, *, is_gain: bool = False) -> Ratio:
    """A ratio of figures that have no turns of their own."""
    return Ratio(name, value, value, value, limit, is_gain)


def of_turns(name: str, turns: Sequence[float], limit: float | None = None, *, is_gain: bool = False) -> Ratio:
    return Ratio(name, statistics.median(turns), min(turns), max(turns), limit, is_gain)
