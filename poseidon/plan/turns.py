"""Turns: when a worker may start the next Send of its plan. The scheduler asks it, and so does the simulator.

A Send pushes, and where owners update, it pulls their new values afterwards. A push is on its way until all is here
that its sum is made of: then the sum, and the update, may have to wait for the device, which is busy with a layer, and
others can have the link meanwhile. A pull is on its way until the values are in. A unit is done when all its Sends have
been applied.

    pushes   start in the plan's order, round and round, one round an iteration: the next one when its unit's gradient
             of that round is final, and fewer than `in_flight` pushes are on their way
    pulls    too, the next one when this worker's update is done, and fewer than `in_flight` pulls are on their way, or
             two: what a pull waits for is other workers' updates, and their threads, more than the link

None may hold up what is needed sooner, though. What takes PATIENCE times as long as the plan says loses its place, and
the next starts beside it (`Holders`): of pushes at most MOST_LATE, lest all share the link, of pulls any number. And a
pull that has waited so long for the updates of those before it goes first.

Nothing deadlocks, although updates are done when devices have time for them, which differs from worker to worker. A
push waits for earlier pushes only, which all workers start in one order; a pull that waits for another worker gets its
turn there, at the latest when its patience is over and that of those which have the places.

Pure: no threads, no clock. Who calls it from several threads holds a lock.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Sequence

from poseidon.plan.commplan import CommPlan, Send

PATIENCE = 4.0
MOST_LATE = 3
LEAST_PULLS = 2  # at a time. With one, ResNet-50 by SERVER on 4 hosts took 1.05 to 1.28 s instead of 0.93 to 0.96
NUM_APPLYING = 28  # Sends whose updates may wait for the device, or new values for their turn, while others are pushed
NUM_APPLYING_AT_ONCE = 4  # behind a barrier, where no update waits while something is pushed

Ticket = int
"""Tells a Send of one iteration from the same one of the next."""


class Holders:
    """Sends that have a place on the link, and until when; and those that are late: on their way without one. `most`:
    how many have one at a time; `most_late`: how many may lose it."""

    __slots__ = ("_due_s", "_late", "_most", "_most_late", "_num_tickets")

    def __init__(self, most: int, most_late: float) -> None:
        self._due_s: dict[Ticket, float] = {}
        self._late: set[Ticket] = set()
        self._num_tickets = 0
        self._most, self._most_late = most, most_late

    def has_room(self, now_s: float) -> bool:
        """Whether there is a place; if need be, whose time is over loses it."""
        if len(self._due_s) < self._most:
            return True
        over = [ticket for ticket, due_s in self._due_s.items() if due_s <= now_s]
        for ticket in over:
            if len(self._late) < self._most_late:
                del self._due_s[ticket]
                self._late.add(ticket)
        return len(self._due_s) < self._most

    def take(self, due_s: float) -> Ticket:
        """A Send has a place from now on, until that time."""
        self._num_tickets += 1
        self._due_s[self._num_tickets] = due_s
        return self._num_tickets

    def leave(self, ticket: Ticket) -> bool:
        """A Send needs its place no longer. May be said twice; false if it was."""
        was_there = ticket in self._late or ticket in self._due_s
        self._late.discard(ticket)
        self._due_s.pop(ticket, None)
        return was_there

    @property
    def next_due_s(self) -> float | None:
        """When the next one might lose its place; None if none can."""
        return min(self._due_s.values()) if self._due_s and len(self._late) < self._most_late else None


class Lane(ABC):
    """What starts few at a time, when it is its turn. Sends are known by their place in the plan's order."""

    def __init__(self, in_flight: int, most_late: float) -> None:
        self._holders = Holders(in_flight, most_late)

    def next_place(self, now_s: float) -> int | None:
        """The Send that may start now; None: none yet."""
        place = self._first_ready(now_s)
        return place if place is not None and self._holders.has_room(now_s) else None

    def start(self, place: int, due_s: float) -> Ticket:
        """That Send is on its way; until `due_s` it should be through."""
        self._count_start(place)
        return self._holders.take(due_s)

    def leave(self, ticket: Ticket) -> bool:
        """It is on its way no longer. May be said twice; false if it was."""
        return self._holders.leave(ticket)

    def has_ready(self, now_s: float) -> bool:
        """Whether a Send waits for nothing but room."""
        return self._first_ready(now_s) is not None

    def next_due_s(self, now_s: float) -> float | None:
        """When another may start because patience is over; None: never, as things are."""
        return None if self._first_ready(now_s) is None else self._holders.next_due_s

    @abstractmethod
    def _first_ready(self, now_s: float) -> int | None:
        """Whose turn it is."""

    @abstractmethod
    def _count_start(self, place: int) -> None:
        """It has started."""


class Pushes(Lane):
    """Sends in the plan's order, which wait for their units."""

    def __init__(self, order: Sequence[Send], in_flight: int) -> None:
        super().__init__(in_flight, MOST_LATE)
        self._units = [send.unit for send in order]
        self._num_ready = dict.fromkeys(self._units, 0)  # rounds
        self._place = 0
        self._round = 1

    def ready(self, unit: int) -> bool:
        """The unit's gradient of another round is final. True if it is its turn, as soon as there is room."""
        self._num_ready[unit] += 1
        return self._units[self._place] == unit and self._num_ready[unit] == self._round

    def _first_ready(self, now_s: float) -> int | None:
        if not self._units or self._num_ready[self._units[self._place]] < self._round:
            return None
        return self._place

    def _count_start(self, place: int) -> None:
        self._place += 1
        if self._place == len(self._units):
            self._place = 0
            self._round += 1


class Pulls(Lane):
    """Sends with owners, at these places of the plan's order, which wait for their updates."""

    def __init__(self, places: Sequence[int], in_flight: int) -> None:
        super().__init__(in_flight, math.inf)
        self._places = places
        self._next = 0
        self._ahead: set[int] = set()  # those that went before their turn
        self._ready: dict[int, float] = {}  # and until when they wait for those before them

    def ready(self, place: int, due_s: float) -> None:
        """The Send's new values can be handed out; it waits for its turn until `due_s`."""
        self._ready[place] = due_s

    def next_due_s(self, now_s: float) -> float | None:
        waits = [due_s for due_s in (self._holders.next_due_s, *self._ready.values()) if due_s is not None]
        return min((due_s for due_s in waits if due_s > now_s), default=None)

    def _first_ready(self, now_s: float) -> int | None:
        if not self._ready:
            return None
        if self._places[self._next] in self._ready:
            return self._places[self._next]
        return min((place for place, due_s in self._ready.items() if due_s <= now_s), default=None)

    def _count_start(self, place: int) -> None:
        del self._ready[place]
        self._ahead.add(place)
        while self._places[self._next] in self._ahead:
            self._ahead.remove(self._places[self._next])
            self._next = (self._next + 1) % len(self._places)


class Turns:
    """One worker's place in the order. `has_owners`: by unit."""

    def __init__(self, order: Sequence[Send], in_flight: int, has_owners: Sequence[bool]) -> None:
        self.pushes = Pushes(order, in_flight)
        owned = [place for place, send in enumerate(order) if has_owners[send.unit]]
        self.pulls = Pulls(owned, max(in_flight, LEAST_PULLS))
        self._num_sends = Counter(send.unit for send in order)
        self._num_applied = dict.fromkeys(self._num_sends, 0)  # of the current round

    def ready(self, unit: int) -> bool:
        """The unit's gradient of another round is final. True if whoever starts Sends should look."""
        self._num_applied[unit] = 0
        return self.pushes.ready(unit)

    def applied(self, unit: int) -> bool:
        """One of the unit's Sends has been applied; true if that was the last: the unit is done."""
        self._num_applied[unit] += 1
        return self._num_applied[unit] == self._num_sends[unit]


def turns_of(plan: CommPlan, order: Sequence[Send]) -> Turns:
    """For those of the plan's Sends that a worker takes part in."""
    return Turns(order, plan.in_flight, [unit.scheme.has_owners for unit in plan.units])


def patience_s(plan: CommPlan, send: Send) -> float:
    """How long a Send may have a place: PATIENCE times what all of it should take with nothing else on the link."""
    unit = plan.units[send.unit]
    return PATIENCE * unit.seconds * (send.stop - send.start) / unit.num_elems


def num_finishers(plan: CommPlan) -> int:
    """How many Sends may be anywhere between their start and their end."""
    return plan.in_flight + MOST_LATE + (NUM_APPLYING_AT_ONCE if plan.barrier else NUM_APPLYING)
