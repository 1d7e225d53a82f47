"""Timeline: the traces of all ranks as one file that Perfetto (ui.perfetto.dev) and chrome://tracing open.

The file is Chrome's trace-event JSON: {"traceEvents": […]}, times in microseconds from the first event on.

    a rank              a process (pid), called by its rank and host; its label says how well its clock is known
    compute             a thread: iterations, and inside of them forward, backward, update and wait   (ph X)
    updates             rules applied by other threads than the one that computes                     (ph X)
    network             moves (ph X); ready, start and end as instants (ph i)
    ready → moves →     an arrow (ph s, t, f): from the backward pass that made a gradient final over its chunks on the
      wait              network to the forward pass that stood waiting for it, if one did

Slices of one thread lie beside or inside each other. Chunks that are on their way at the same time do neither: they
get as many rows as it needs ("network", "network 2", …), each chunk the first one that is free.
"""

from __future__ import annotations

import gzip
import heapq
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from poseidon.errors import RecordError
from poseidon.record.event import Event, Trace
from poseidon.record.writing import unwritable

_COMPUTE, _UPDATES, _NETWORK = 1, 100, 200  # numbers of threads; rows that are added get the numbers after
_ROWS = {_UPDATES: "updates", _NETWORK: "network"}
_COLOURS = {"wait": "terrible", "forward": "thread_state_running", "backward": "thread_state_runnable"}


def write_timeline(path: str | Path, traces: Sequence[Trace]) -> int:
    """Writes the file, packed if its name ends in .gz; returns how many events of the traces it shows."""
    path = Path(path)
    if not any(trace.events for trace in traces):
        raise RecordError("no events were recorded; `poseidon train --trace FOLDER …` records those of all iterations")
    try:
        with (
            gzip.open(path, "wt", encoding="utf-8") if path.suffix == ".gz" else path.open("w", encoding="utf-8") as out
        ):
            _write(out, chrome_events(traces))
    except OSError as problem:
        raise unwritable(path, problem) from None
    return sum(len(trace.events) for trace in traces)


def _write(out: TextIO, entries: Iterable[dict[str, Any]]) -> None:
    out.write('{"displayTimeUnit":"ms","traceEvents":[')
    for number, entry in enumerate(entries):
        out.write(",\n" if number else "\n")
        out.write(json.dumps(entry, separators=(",", ":"), allow_nan=False, ensure_ascii=False))
    out.write("\n]}\n")


def chrome_events(traces: Sequence[Trace]) -> Iterator[dict[str, Any]]:
    """First the names of processes and threads, then all events in the order of their times."""
    first_s = min(event.start_s for trace in traces for event in trace.events)
    ranks = [_Rank(trace, first_s) for trace in traces]
    for rank in ranks:
        yield from rank.names()
    # Of slices that begin together the longest comes first: it holds the others.
    yield from heapq.merge(*(rank.entries for rank in ranks), key=_place)


def _place(entry: dict[str, Any]) -> tuple[float, float]:
    return entry["ts"], -entry.get("dur", 0.0)


class _Rank:
    """One rank's part of the file."""

    def __init__(self, trace: Trace, first_s: float) -> None:
        self._trace, self._first_s = trace, first_s
        self._threads: dict[int, str] = {_COMPUTE: "compute"}
        self._rows: dict[int, list[float]] = {}  # by the first row's number: when each row is free again
        self._slots: dict[int, int] = {}  # by the place of a move among the events: its thread
        entries: list[dict[str, Any]] = []
        for place, event in enumerate(trace.events):
            entries.append(self._entry(event, place))
        self.entries = sorted([*entries, *self._arrows()], key=_place)

    def names(self) -> Iterator[dict[str, Any]]:
        trace = self._trace
        label = f"clock ±{trace.uncertainty_s * 1e6:.0f} µs"
        yield self._name("process_name", 0, name=f"rank {trace.rank} ({trace.host})")
        yield self._name("process_sort_index", 0, sort_index=trace.rank)
        yield self._name("process_labels", 0, labels=label)
        for thread, name in sorted(self._threads.items()):
            yield self._name("thread_name", thread, name=name)
            yield self._name("thread_sort_index", thread, sort_index=thread)

    def _name(self, what: str, thread: int, **args: object) -> dict[str, Any]:
        return {"name": what, "ph": "M", "pid": self._trace.rank, "tid": thread, "args": args}

    # -- events -----------------------------------------------------------------------------------------------------
    def _entry(self, event: Event, place: int) -> dict[str, Any]:
        args = {"iteration": event.iteration}
        for name, value in (("unit", event.unit), ("chunk", event.chunk), ("bytes", event.num_bytes)):
            if value is not None:
                args[name] = value
        title = f"iteration {event.iteration}" if event.kind == "iteration" else f"{event.kind} {event.name}".rstrip()
        thread = self._slots[place] = self._row_of(event)
        entry: dict[str, Any] = {"name": title, "cat": event.kind, "pid": self._trace.rank, "tid": thread}
        if event.duration_s is None:
            return {**entry, "ph": "i", "s": "t", "ts": self._us(event.start_s), "args": args}
        start = self._us(event.start_s)
        # From rounded ends: slices that touch must not overlap by a rounding.
        span = {"ph": "X", "ts": start, "dur": round(self._us(event.end_s) - start, 3), "args": args}
        colour = _COLOURS.get(event.kind)
        return {**entry, **span, **({"cname": colour} if colour else {})}

    def _row_of(self, event: Event) -> int:
        """The thread of an event; the first row that is free, of those that are several."""
        first = _thread_of(event)
        if first == _COMPUTE:
            return first
        rows = self._rows.setdefault(first, [0.0])
        start, end = self._us(event.start_s), self._us(event.end_s)
        row = 0
        if event.duration_s is not None:
            row = next((number for number, free_at in enumerate(rows) if free_at <= start), len(rows))
            rows[row:] = [end, *rows[row + 1 :]]
        self._threads[first + row] = f"{_ROWS[first]} {row + 1}" if row else _ROWS[first]
        return first + row

    def _us(self, time_s: float) -> float:
        return round((time_s - self._first_s) * 1e6, 3)

    # -- arrows -----------------------------------------------------------------------------------------------------
    def _arrows(self) -> Iterator[dict[str, Any]]:
        """An arrow of every exchange that was seen from the gradient to its first chunk. An end of an arrow belongs to
        the slice around it: nothing is drawn where there is none."""
        slices = _Slices([event for event in self._trace.events if _thread_of(event) == _COMPUTE])
        for journey in _journeys(self._trace.events):
            if not journey.moves or not slices.hold(journey.ready.start_s):
                continue
            number = f"{self._trace.rank}.{journey.ready.iteration}.{journey.ready.unit}"
            arrow = {"name": "gradient", "cat": "gradient", "id": number, "pid": self._trace.rank}
            yield {**arrow, "ph": "s", "tid": _COMPUTE, "ts": self._us(journey.ready.start_s)}
            *others, last = journey.moves
            for place in others:
                yield {**arrow, "ph": "t", "tid": self._slots[place], "ts": self._us(self._start(place))}
            if journey.wait is None:
                yield {**arrow, "ph": "f", "bp": "e", "tid": self._slots[last], "ts": self._us(self._start(last))}
            else:
                yield {**arrow, "ph": "t", "tid": self._slots[last], "ts": self._us(self._start(last))}
                yield {**arrow, "ph": "f", "bp": "e", "tid": _COMPUTE, "ts": self._us(journey.wait.end_s)}

    def _start(self, place: int) -> float:
        return self._trace.events[place].start_s


def _thread_of(event: Event) -> int:
    """The thread, or the first of several rows. What is updated unit by unit is so by threads beside the compute's."""
    if event.kind == "update" and event.unit is not None:
        return _UPDATES
    return _COMPUTE if event.is_compute else _NETWORK


@dataclass(slots=True)
class _Journey:
    """One unit's exchange in one iteration: when its gradient was final, the places of its moves among the events, and
    who stood waiting for it."""

    ready: Event
    moves: list[int]
    wait: Event | None = None


def _journeys(events: Sequence[Event]) -> list[_Journey]:
    found: dict[tuple[int, int | None], _Journey] = {}
    latest: dict[int | None, _Journey] = {}
    for place, event in enumerate(events):
        if event.kind == "ready":
            found[event.iteration, event.unit] = latest[event.unit] = _Journey(event, [])
        elif event.kind == "move" and (event.iteration, event.unit) in found:
            found[event.iteration, event.unit].moves.append(place)
        elif event.kind == "wait" and event.unit in latest:
            latest[event.unit].wait = latest[event.unit].wait or event
    return list(found.values())


class _Slices:
    """Whether some slice of a thread is there at a moment; slices lie beside or inside each other."""

    def __init__(self, events: Sequence[Event]) -> None:
        self._events = sorted(events, key=lambda event: event.start_s)
        self._next, self._until_s = 0, float("-inf")

    def hold(self, time_s: float) -> bool:
        """Asked in the order of time."""
        while self._next < len(self._events) and self._events[self._next].start_s <= time_s:
            self._until_s = max(self._until_s, self._events[self._next].end_s)
            self._next += 1
        return time_s <= self._until_s
