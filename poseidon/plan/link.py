"""Link: one node's network interface, as a queue.

Operations start in the given order, each when it is ready, when the one before it has started, and when fewer than
`in_flight` are on their way. A link may have several entrances where that holds, and serves what has entered one after
the other. Each holds it for

    hold = √((bytes / β)² + (steps · o)²), and no less than memory

and is done, counted from when its turn comes, after

    total = steps · α + memory + bytes / β          (no less than hold)

of which steps that hide behind the operation's own bytes are taken off again, for a quarter of these at most.
So latencies of operations on their way together overlap, bytes do not. Where only one may be on its way, nothing is
taken to overlap, although those of two entrances do a little: a plan shall not count on it.

What hosts do for messages overlaps with the bytes only in part: measured on 8 hosts, all-reduces of 0.25 kB, 128 kB and
1 MB, four on their way, take 15, 17 and 21 ms each, where bytes alone take 0, 2 and 16.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from heapq import heappush, heapreplace

from poseidon.plan.cost import Leg

HIDING_SHARE = 0.25  # of the bytes' time, behind which steps can pass


@dataclass(frozen=True, slots=True)
class Operation:
    """One send, in seconds."""

    hold_s: float
    total_s: float


def operation(leg: Leg, share: float, once_s: float = 0.0) -> Operation:
    """The send of a share of a unit, with `once_s` more on the wire."""
    wire_s, local_s = leg.wire_s * share + once_s, leg.local_s * share
    hold_s = max(math.sqrt(wire_s * wire_s + leg.overhead_s * leg.overhead_s), local_s)
    latency_s = leg.latency_s - min(leg.hidden_s, HIDING_SHARE * wire_s)
    return Operation(hold_s, max(latency_s + local_s + wire_s, hold_s))


class Link:
    """An idle link."""

    __slots__ = ("free_s",)

    def __init__(self, now_s: float = 0.0) -> None:
        self.free_s = now_s


class Entrance:
    """Where operations of one kind enter a link, in order. `serve` those of all entrances as they start."""

    __slots__ = ("_ends", "_in_flight", "_last_start_s", "_link")

    def __init__(self, link: Link, in_flight: int) -> None:
        self._link = link
        self._in_flight = in_flight
        self._ends: list[float] = []  # a heap of the operations on their way, at most in_flight
        self._last_start_s = link.free_s

    @property
    def next_start_s(self) -> float:
        """The earliest an operation that is ready could start."""
        full = len(self._ends) == self._in_flight
        return max(self._last_start_s, self._ends[0]) if full else self._last_start_s

    def serve(self, ready_s: float, work: Operation) -> tuple[float, float]:
        """The next operation in order: when it starts and when it is done."""
        start_s, link, ends = self._last_start_s, self._link, self._ends  # no calls: planning does this a million times
        if ready_s > start_s:
            start_s = ready_s
        is_full = len(ends) == self._in_flight
        if is_full and ends[0] > start_s:
            start_s = ends[0]
        turn_s = start_s if start_s > link.free_s else link.free_s
        end_s = turn_s + work.total_s
        link.free_s = end_s if self._in_flight == 1 else turn_s + work.hold_s
        self._last_start_s = start_s
        if is_full:
            heapreplace(ends, end_s)
        else:
            heappush(ends, end_s)
        return start_s, end_s
