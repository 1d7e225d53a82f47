"""Meter: what one worker does in each clock: computes, is blocked, sends and receives, and how stale its reads are.

    compute   the time of an iteration in which the compute thread was not blocked
    blocked   it waited for parameters that were on their way, for other workers, or for what clip_gradients needs
    sent, received   payload bytes since the clock before: exchanges run beside the net, so that what a clock's backward
                     pass gave may leave in the next
    staleness   how many clocks the oldest parameters were behind that the iteration has read; 0: exact

Tests and snapshots lie between iterations and count for none. Times are the caller's clock's, which tests may replace.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from poseidon.comm.events import CommEvent, WaitEnded, WaitStarted


@dataclass(frozen=True, slots=True)
class ClockFigures:
    """What a worker did in one clock; `clock` counts its finished iterations, from 1."""

    clock: int
    compute_s: float
    blocked_s: float
    sent_bytes: int
    received_bytes: int
    staleness: int = 0


@dataclass(frozen=True, slots=True)
class Counters:
    """What a worker has done so far, all of it ever growing; `staleness` is the last clock's."""

    waited_s: float = 0.0
    sent_bytes: int = 0
    received_bytes: int = 0
    staleness: int = 0


class ReadCounters(Protocol):
    def __call__(self) -> Counters: ...


class Meter:
    """Hears the scheduler; is called around iterations as one of the solver's callbacks. `last` is the latest clock.

    `read` gives the counters of everything that the scheduler does not tell about.
    """

    def __init__(self, read: ReadCounters, now: Callable[[], float] = time.perf_counter) -> None:
        self._read, self._now = read, now
        self._waiting_since_s: float | None = None
        self._waited_s = 0.0  # as the scheduler tells it
        self._begun_s = now()
        self._at_start = self._at_end = read()
        self._waited_at_start_s = 0.0
        self.last: ClockFigures | None = None

    def hear_comm(self, event: CommEvent) -> None:
        if isinstance(event, WaitStarted):
            self._waiting_since_s = self._now()
        elif isinstance(event, WaitEnded) and self._waiting_since_s is not None:
            self._waited_s += self._now() - self._waiting_since_s
            self._waiting_since_s = None

    def on_start(self) -> None:
        """An iteration begins."""
        self._begun_s, self._at_start, self._waited_at_start_s = self._now(), self._read(), self._waited_s

    def on_gradients_ready(self) -> None:
        """Nothing to note."""

    def done(self, clock: int) -> ClockFigures:
        """An iteration is over, the clock-th of all."""
        now_s, counters = self._now(), self._read()
        blocked_s = self._waited_s - self._waited_at_start_s + counters.waited_s - self._at_start.waited_s
        self.last = ClockFigures(
            clock,
            max(now_s - self._begun_s - blocked_s, 0.0),
            blocked_s,
            counters.sent_bytes - self._at_end.sent_bytes,
            counters.received_bytes - self._at_end.received_bytes,
            counters.staleness,
        )
        self._at_end = counters
        return self.last
