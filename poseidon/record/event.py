"""Event: something that happened on one rank; Trace: all that one rank has recorded.

    kind        track     time      what
    forward     compute   span      a layer's forward pass; waits for its parameters lie inside
    backward    compute   span      a layer's backward pass
    update      compute   span      the rule applied to a unit (or to all parameters, name "")
    wait        compute   span      the compute thread stood still until a unit had come
    iteration   compute   span      a whole iteration, from the first layer to the last gradient
    ready       network   instant   a unit's gradient is final
    start       network   instant   its exchange begins
    move        network   span      a chunk on its way
    end         network   instant   new parameters are in place

A line of `trace-<rank>.jsonl` has an event's fields under short names: k(ind), n(ame), i(teration), t (start),
d(uration), b(ytes), u(nit), c(hunk). The first line of a file is about the rank's clock: see `Trace`. Lines like it
further down ({"offset", "uncertainty", "t"}) are later comparisons of the clocks: readers lay a line through them, as
clocks of two hosts drift apart by milliseconds in a minute.
"""

from __future__ import annotations

from dataclasses import dataclass

COMPUTE_KINDS = ("forward", "backward", "update", "wait", "iteration")
NETWORK_KINDS = ("ready", "start", "move", "end")
KINDS = COMPUTE_KINDS + NETWORK_KINDS


@dataclass(frozen=True, slots=True)
class Event:
    """One event.

    name          of a layer (forward, backward), or of a unit, which is called by its first parameter
    iteration     the one that the event belongs to: an exchange to the one that gave the gradient
    start_s       when it began (or was, if it is an instant), in seconds on rank 0's clock
    duration_s    None: an instant
    num_bytes     payload that has left this worker for it, as its transport counted; None: nothing is said
    unit, chunk   numbers in the plan: of the unit, and of the piece among the unit's pieces
    """

    kind: str
    name: str
    iteration: int
    start_s: float
    duration_s: float | None = None
    num_bytes: int | None = None
    unit: int | None = None
    chunk: int | None = None

    @property
    def end_s(self) -> float:
        return self.start_s + (self.duration_s or 0.0)

    @property
    def is_compute(self) -> bool:
        return self.kind in COMPUTE_KINDS


@dataclass(frozen=True, slots=True)
class Trace:
    """What one rank has recorded, in order of time.

    offset_s        what was added to its own times to get those of rank 0, at the beginning
    uncertainty_s   how far that can be off: half the shortest round trip to rank 0
    origin          Unix seconds of time 0
    """

    rank: int
    host: str
    offset_s: float
    uncertainty_s: float
    origin: float
    events: tuple[Event, ...] = ()

    def of_iteration(self, iteration: int) -> tuple[Event, ...]:
        return tuple(event for event in self.events if event.iteration == iteration)

    @property
    def iterations(self) -> tuple[int, ...]:
        """Those that were recorded from beginning to end."""
        return tuple(sorted({event.iteration for event in self.events if event.kind == "iteration"}))
