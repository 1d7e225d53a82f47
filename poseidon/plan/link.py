"""Link: one node's network interface, as a queue.

Operations start in the given order, each when it is ready, when the one before it has started, and when fewer than
`in_flight` are on their way. The link serves them one after the other; each holds it for

    hold = √((bytes / β)² + (steps · o)²), and no less than memory

and is done, counted from when its turn comes, after

    total = steps · α + memory + bytes / β          (no less than hold)

So latencies of operations on their way together overlap, bytes do not. What hosts do for messages overlaps with the
bytes only in part: measured on 8 hosts, all-reduces of 0.25 kB, 128 kB and 1 MB, four on their way, take 15, 17 and 21
ms each, where bytes alone take 0, 2 and 16.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from heapq import heappush, heapreplace

from poseidon.plan.cost import Leg


@dataclass(frozen=True, slots=True)
class Operation:
    """One send, in seconds."""

    hold_s: float
    total_s: float


def operation(leg: Leg, share: float, once_s: float = 0.0) -> Operation:
    """The send of a share of a unit, with `once_s` more on the wire."""
    wire_s, local_s = leg.wire_s * share + once_s, leg.local_s * share
    hold_s = max(math.sqrt(wire_s * wire_s + leg.overhead_s * leg.overhead_s), local_s)
    return Operation(hold_s, max(leg.latency_s + local_s + wire_s, hold_s))


class Link:
    """An idle link; `serve` the operations in order."""

    __slots__ = ("_ends", "_free_s", "_in_flight", "_last_start_s")

    def __init__(self, in_flight: int, now_s: float = 0.0) -> None:
        self._in_flight = in_flight
        self._ends: list[float] = []  # a heap of the operations on their way, at most in_flight
        self._free_s = now_s
        self._last_start_s = now_s

    @property
    def next_start_s(self) -> float:
        """The earliest an operation that is ready could start."""
        full = len(self._ends) == self._in_flight
        return max(self._last_start_s, self._ends[0]) if full else self._last_start_s

    def serve(self, ready_s: float, work: Operation) -> tuple[float, float]:
        """The next operation in order: when it starts and when it is done."""
        start_s = max(ready_s, self.next_start_s)
        turn_s = max(start_s, self._free_s)
        end_s = turn_s + work.total_s
        self._free_s = turn_s + work.hold_s
        self._last_start_s = start_s
        if len(self._ends) == self._in_flight:
            heapreplace(self._ends, end_s)
        else:
            heappush(self._ends, end_s)
        return start_s, end_s
