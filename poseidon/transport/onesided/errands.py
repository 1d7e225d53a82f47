"""Errands: what one thread has to do for others, round by round, the lowest queue first, in each queue in the order
given."""

from __future__ import annotations

import heapq
import threading
from collections.abc import Callable
from itertools import count

Errand = Callable[[], None]


class Errands:
    """Any thread adds errands, one carries them out."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._waiting: list[tuple[int, int, int, Errand]] = []
        self._round = 0
        self._numbers = count()

    @property
    def is_empty(self) -> bool:
        return not self._waiting

    def begin_round(self) -> None:
        """What is added from now on waits behind what was added before, whatever its queue."""
        self._round += 1

    def add(self, queue: int, errand: Errand) -> None:
        with self._changed:
            heapq.heappush(self._waiting, (self._round, queue, next(self._numbers), errand))
            self._changed.notify()

    def carry_out_next(self, wait_s: float) -> bool:
        """Does the most urgent one, and waits for one if there is none; false if none came."""
        with self._changed:
            if not self._waiting and not self._changed.wait_for(lambda: self._waiting, wait_s):
                return False
            errand = heapq.heappop(self._waiting)[3]
        errand()
        return True
