"""Timeline: the events of a few iterations on all ranks, laid out as tracks for the page to draw.

A rank has one track for its compute and one for the network. On a track, spans that overlap go to different *lanes*,
each to the first one that is free: a network track has as many lanes as chunks were on their way at once, a compute
track usually one; a wait, which lies inside of a forward pass, is drawn over it. Iterations are marks on the rank's
compute track.

As JSON, times are microseconds since the first event shown, names are numbers of a common list:

    {"names": […], "kinds": […], "span": µs, "iterations": […], "uncertainty": µs, "left_out": ranks that are not drawn,
     "tracks": [{"rank", "host", "kind": "compute" | "network", "lanes": n, "events": [
                    [kind, name, iteration, start, duration, lane, bytes, unit, chunk], …]}],
     "marks": [[rank, iteration, start, duration], …]}

An instant has duration −1; where bytes, unit or chunk are not known, they are −1 too.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from poseidon.record import Event, Run, Trace

NUM_ITERATIONS = 5
# A drawing with more events is slow on a phone: fewer iterations are shown then, but at least one.
MOST_EVENTS = 120_000
MOST_RANKS = 64
KINDS = ("forward", "backward", "update", "wait", "move", "ready", "start", "end")
_OVER = ("wait", "update")  # drawn over the pass they lie in
_COMPUTE = ("forward", "backward", "update", "wait")
_NETWORK = ("move", "ready", "start", "end")
_SLACK_S = 2e-6  # layers follow each other within less: they share a lane


@dataclass(frozen=True, slots=True)
class Shown:
    """Which iterations: from `first` up to, but without, `stop` (None: to the end). Without `first`: the last few."""

    first: int | None = None
    stop: int | None = None


def iterations_shown(run: Run, shown: Shown) -> list[int]:
    """The iterations on the page: those asked for, or the last few that every rank has recorded."""
    common = sorted(set.intersection(*(set(trace.iterations) for trace in run.traces))) if run.traces else []
    if shown.first is not None:
        return [i for i in common if shown.first <= i and (shown.stop is None or i < shown.stop)]
    chosen = common[-NUM_ITERATIONS:]
    while len(chosen) > 1 and _num_events(run, chosen) > MOST_EVENTS:
        chosen = chosen[1:]
    return chosen


def _num_events(run: Run, iterations: Sequence[int]) -> int:
    wanted = set(iterations)
    return sum(event.iteration in wanted for trace in run.traces for event in trace.events)


def timeline_of(run: Run, shown: Shown) -> dict[str, Any] | None:
    """The page's data, or None if nothing was recorded."""
    iterations = iterations_shown(run, shown)
    if not iterations:
        return None
    drawn = run.traces[:MOST_RANKS]
    events = {trace.rank: _events_shown(trace, iterations) for trace in drawn}
    start_s = min(event.start_s for found in events.values() for event in found)
    end_s = max(event.end_s for found in events.values() for event in found)
    names = _Names()
    tracks: list[dict[str, Any]] = []
    marks: list[list[float]] = []
    for trace in drawn:
        found = events[trace.rank]
        for kind, kinds in (("compute", _COMPUTE), ("network", _NETWORK)):
            tracks.append(_track(trace, kind, [event for event in found if event.kind in kinds], names, start_s))
        marks += [
            [trace.rank, event.iteration, _us(event.start_s - start_s), _us(event.duration_s or 0.0)]
            for event in found
            if event.kind == "iteration"
        ]
    return {
        "names": names.listed,
        "kinds": list(KINDS),
        "span": _us(end_s - start_s),
        "iterations": iterations,
        "tracks": tracks,
        "marks": marks,
        "uncertainty": _us(max(trace.uncertainty_s for trace in run.traces)),
        "left_out": len(run.traces) - len(drawn),
    }


def _events_shown(trace: Trace, iterations: Sequence[int]) -> list[Event]:
    """What belongs to these iterations, and what of others went on meanwhile: exchanges reach into the next one."""
    wanted = set(iterations)
    marks = [event for event in trace.events if event.kind == "iteration" and event.iteration in wanted]
    start_s, end_s = marks[0].start_s, marks[-1].end_s
    return [
        event
        for event in trace.events
        if event.iteration in wanted or (event.kind in _NETWORK and start_s < event.end_s and event.start_s < end_s)
    ]


class _Names:
    """Numbers instead of names that come up again and again."""

    def __init__(self) -> None:
        self.listed: list[str] = []
        self._numbers: dict[str, int] = {}

    def number(self, name: str) -> int:
        if name not in self._numbers:
            self._numbers[name] = len(self.listed)
            self.listed.append(name)
        return self._numbers[name]


def _track(trace: Trace, kind: str, events: list[Event], names: _Names, start_s: float) -> dict[str, Any]:
    events = sorted(events, key=lambda event: (event.start_s, -(event.duration_s or 0.0)))
    packed = [event for event in events if event.duration_s is not None and event.kind not in _OVER]
    slack_s = _SLACK_S if kind == "compute" else 0.0
    lanes = dict(zip(map(id, packed), lanes_of((e.start_s, e.end_s - slack_s) for e in packed), strict=True))
    rows = [
        [
            KINDS.index(event.kind),
            names.number(event.name),
            event.iteration,
            _us(event.start_s - start_s),
            -1 if event.duration_s is None else _us(event.duration_s),
            lanes.get(id(event), 0),
            _or_minus(event.num_bytes),
            _or_minus(event.unit),
            _or_minus(event.chunk),
        ]
        for event in events
    ]
    num_lanes = max(lanes.values(), default=0) + 1
    return {"rank": trace.rank, "host": trace.host, "kind": kind, "lanes": num_lanes, "events": rows}


def lanes_of(spans: Iterable[tuple[float, float]]) -> list[int]:
    """A lane for each span, in order of their starts: the lowest that is free, so that no two in one lane overlap."""
    busy: list[tuple[float, int]] = []
    free: list[int] = []
    found = []
    num_lanes = 0
    for start, end in spans:
        while busy and busy[0][0] <= start:
            heapq.heappush(free, heapq.heappop(busy)[1])
        if free:
            lane = heapq.heappop(free)
        else:
            lane, num_lanes = num_lanes, num_lanes + 1
        heapq.heappush(busy, (end, lane))
        found.append(lane)
    return found


def _us(seconds: float) -> float:
    return round(seconds * 1e6, 1)


def _or_minus(number: int | None) -> int:
    return -1 if number is None else number
