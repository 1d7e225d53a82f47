"""Agenda: what happens when. Of things at the same moment, the one that was put down first comes first."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any


class Agenda:
    """The simulation's clock and everything that is still to come."""

    __slots__ = ("_coming", "_num_put", "now_s")

    def __init__(self) -> None:
        self.now_s = 0.0
        self._coming: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._num_put = 0

    def at(self, time_s: float, call: Callable[..., None], *arguments: Any) -> None:
        """Calls at that time, with these arguments."""
        self._num_put += 1
        heappush(self._coming, (time_s, self._num_put, call, arguments))

    def run(self) -> None:
        """Until nothing is left to come."""
        coming = self._coming
        while coming:
            self.now_s, _, call, arguments = heappop(coming)
            call(*arguments)
