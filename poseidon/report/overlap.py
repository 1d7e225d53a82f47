"""Overlap: how much of a worker's communication was hidden behind its computing.

For each rank, over the iterations whose events were recorded, as sets of intervals:

    N   when bytes moved, in these iterations         "move"
    W   when the compute thread stood still           "wait"
    C   when it computed                              "forward", "backward", but for W (waits lie inside), and "update"
                                                      of a worker that applies the rule itself. Units are updated by
                                                      threads beside it: that hides nothing

    hidden    |N ∩ C| / |N|       the worker had other things to do
    waited    |N ∩ W|             the network made the worker wait
    between   |N \\ C \\ W|         neither: between two layers, while data were fetched, …

The three add up to |N|. An iteration lasts until the next one begins, if that was recorded too. Of several ranks, times
are added up before they are divided.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from poseidon.record import Event, Trace
from poseidon.report.intervals import Interval, common, length, merged, without

# What a report looks at of a long run's events: the last iterations, which say as much as all of them would.
MOST_ITERATIONS, MOST_EVENTS = 100, 400_000


@dataclass(frozen=True, slots=True)
class Overlap:
    """Seconds of one worker (`rank`), or of all (None), over `num_iterations`."""

    rank: int | None
    num_iterations: int
    network_s: float
    hidden_s: float
    waited_s: float
    between_s: float
    compute_s: float
    standing_s: float

    @property
    def hidden_share(self) -> float | None:
        """From 0 to 1; None where nothing moved."""
        return self.hidden_s / self.network_s if self.network_s > 0 else None


def overlap_of(trace: Trace) -> Overlap:
    """The overlap of one worker."""
    waiting = _spans(trace.events, "wait")
    own = [event for event in trace.events if event.kind != "update" or event.unit is None]
    compute = without(_spans(own, "forward", "backward", "update"), waiting)
    network = common(_spans(trace.events, "move"), _recorded(trace))
    hidden_s, waited_s = length(common(network, compute)), length(common(network, waiting))
    return Overlap(
        rank=trace.rank,
        num_iterations=len(trace.iterations),
        network_s=length(network),
        hidden_s=hidden_s,
        waited_s=waited_s,
        between_s=length(without(without(network, compute), waiting)),
        compute_s=length(compute),
        standing_s=length(waiting),
    )


def together(overlaps: Sequence[Overlap]) -> Overlap:
    """The overlap of all workers."""
    return Overlap(
        rank=None,
        num_iterations=max((one.num_iterations for one in overlaps), default=0),
        network_s=sum(one.network_s for one in overlaps),
        hidden_s=sum(one.hidden_s for one in overlaps),
        waited_s=sum(one.waited_s for one in overlaps),
        between_s=sum(one.between_s for one in overlaps),
        compute_s=sum(one.compute_s for one in overlaps),
        standing_s=sum(one.standing_s for one in overlaps),
    )


def _recorded(trace: Trace) -> tuple[Interval, ...]:
    """When everything that went on was recorded: bytes also move when nobody takes down any more who computes."""
    marks = {event.iteration: event for event in trace.events if event.kind == "iteration"}
    return merged(
        (mark.start_s, max(mark.end_s, marks[iteration + 1].start_s) if iteration + 1 in marks else mark.end_s)
        for iteration, mark in marks.items()
    )


def _spans(events: Sequence[Event], *kinds: str) -> tuple[Interval, ...]:
    """When something of these kinds went on."""
    return merged((event.start_s, event.end_s) for event in events if event.kind in kinds)
