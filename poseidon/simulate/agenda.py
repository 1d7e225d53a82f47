"""Agenda: what happens when.

Of things at the same moment those of a lower `order` come first, then those that were put down first. Messages have an
order by collective and wave, the same at all nodes: so nodes that are alike stay alike, and one can stand for all.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any


class Agenda:
    """The simulation's clock and everything that is still to come."""

    __slots__ = ("_coming", "_num_put", "now_s")

    def __init__(self) -> None:
        self.now_s = 0.0
        self._coming: list[tuple[float, int, int, Callable[..., None], tuple[Any, ...]]] = []
        self._num_put = 0

    def at(self, time_s: float, call: Callable[..., None], *arguments: Any, order: int = 0) -> None:
        """Calls at that time, with these arguments."""
        self._num_put += 1
        heappush(self._coming, (time_s, order, self._num_put, call, arguments))

    def run(self) -> None:
        """Until nothing is left to come."""
        coming = self._coming
        while coming:
            self.now_s, _, _, call, arguments = heappop(coming)
            call(*arguments)
