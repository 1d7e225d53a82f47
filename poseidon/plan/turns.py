"""Turns: when a worker may start the next Send of its plan. The scheduler asks it, and so does the simulator.

Sends start in the plan's order, round and round, one round an iteration. The next one may start when

    its unit's gradient of that round is final, and
    fewer than `in_flight` are on their way.

A Send is on its way until nothing of it will cross the network any more: of schemes in which every worker updates,
until all is here that its sum is made of; of those with owners, until the new values are in; behind a barrier, until
its sum is here, since nothing is applied before all sums are. A unit is done when all its Sends have been applied.

Pure: no threads, no clock. Who calls it from several threads holds a lock.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from poseidon.plan.commplan import Send


class Turns:
    """One worker's place in the order."""

    __slots__ = ("_in_flight", "_num_applied", "_num_on_way", "_num_ready", "_num_sends", "_order", "_place", "_round")

    def __init__(self, order: Sequence[Send], in_flight: int) -> None:
        self._order = order
        self._in_flight = in_flight
        self._num_sends = Counter(send.unit for send in order)
        self._num_ready = dict.fromkeys(self._num_sends, 0)  # rounds whose gradients are final
        self._num_applied = dict.fromkeys(self._num_sends, 0)  # Sends of the current round
        self._place = 0
        self._round = 1
        self._num_on_way = 0

    def ready(self, unit: int) -> None:
        """The unit's gradient of another round is final."""
        self._num_ready[unit] += 1
        self._num_applied[unit] = 0

    def next_send(self) -> Send | None:
        """The Send that may start now; None: not yet."""
        if not self._order or self._num_on_way >= self._in_flight:
            return None
        send = self._order[self._place]
        return send if self._num_ready[send.unit] >= self._round else None

    def start(self) -> None:
        """That Send is on its way."""
        self._num_on_way += 1
        self._place += 1
        if self._place == len(self._order):
            self._place = 0
            self._round += 1

    def left(self) -> None:
        """A Send is no longer on its way."""
        self._num_on_way -= 1

    def applied(self, unit: int) -> bool:
        """One of the unit's Sends has been applied; true if that was the last: the unit is done."""
        self._num_applied[unit] += 1
        return self._num_applied[unit] == self._num_sends[unit]
