"""Turns: when a worker may start the next Send of its plan. The scheduler asks it, and so does the simulator.

Sends start in the plan's order, round and round, one round an iteration. The next one may start when

    its unit's gradient of that round is final, and
    fewer than `in_flight` are on their way.

A Send is on its way until nothing of it will cross the network any more: of schemes in which every worker updates,
until all is here that its sum is made of; of those with owners, until the new values are in; behind a barrier, until
its sum is here, since nothing is applied before all sums are. A unit is done when all its Sends have been applied.

None may hold up what is needed sooner, though: a Send that takes PATIENCE times as long as the plan says loses its
place, and the next starts beside it (`Holders`); with MOST_LATE such, nothing does.

Pure: no threads, no clock. Who calls it from several threads holds a lock.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from poseidon.plan.commplan import CommPlan, Scheme, Send

PATIENCE = 4.0
MOST_LATE = 3
NUM_APPLYING = 4  # Sends whose sums may wait for the device while others are on their way

Ticket = int
"""Tells a Send of one iteration from the same one of the next."""


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


class Holders:
    """Sends that have a place on the link, and until when; and those that are late: on their way without one."""

    __slots__ = ("_due_s", "_late", "_num_tickets")

    def __init__(self) -> None:
        self._due_s: dict[Ticket, float] = {}
        self._late: set[Ticket] = set()
        self._num_tickets = 0

    def take(self, due_s: float) -> Ticket:
        """A Send has a place from now on, until that time."""
        self._num_tickets += 1
        self._due_s[self._num_tickets] = due_s
        return self._num_tickets

    def give_up(self, now_s: float) -> int:
        """Takes away the places of those whose time is over; how many there were."""
        over = [ticket for ticket, due_s in self._due_s.items() if due_s <= now_s]
        over = over[: MOST_LATE - len(self._late)]
        for ticket in over:
            del self._due_s[ticket]
            self._late.add(ticket)
        return len(over)

    def leave(self, ticket: Ticket) -> bool:
        """A Send is through with the network; true if it gives a place away. May be said twice."""
        self._late.discard(ticket)
        return self._due_s.pop(ticket, None) is not None

    @property
    def next_due_s(self) -> float | None:
        """When the next one might lose its place; None if none can."""
        return min(self._due_s.values()) if self._due_s and len(self._late) < MOST_LATE else None


def patience_s(plan: CommPlan, send: Send) -> float:
    """How long a Send may have its place: PATIENCE times what it should take with nothing else on the link."""
    unit = plan.units[send.unit]
    return PATIENCE * unit.seconds * (send.stop - send.start) / unit.num_elems


def leaves_early(plan: CommPlan, send: Send, elem_bytes: int) -> bool:
    """Whether a Send is through with the network before its sum is made: where nothing is handed out after it."""
    is_narrow = plan.wire != "fp32" and elem_bytes > 2 and plan.cluster.num_nodes > 1
    scheme = plan.units[send.unit].scheme
    return scheme in (Scheme.DOUBLING, Scheme.FACTORS, Scheme.ROWS) or (scheme is Scheme.RING and not is_narrow)


def num_finishers(in_flight: int) -> int:
    """How many Sends may be anywhere between their start and their end."""
    return in_flight + MOST_LATE + NUM_APPLYING
