"""Tracing: what one rank's tracer sees, written to its file of the run folder while the run goes on.

Clocks are compared when tracing begins and when it ends: in between they drift evenly, as far as that matters.
"""

from __future__ import annotations

import json
import logging
import time
from dataclasses import replace

from poseidon.errors import RecordError
from poseidon.observe.options import ObserveOptions
from poseidon.observe.tracer import Tracer, Window
from poseidon.record import Trace, TraceWriter
from poseidon.run.attempt import attempt
from poseidon.run.clocks import ClockOffset, compare_clocks
from poseidon.run.seat import Seat
from poseidon.run.trace_files import bring_traces
from poseidon.solver import Solver, events

NUM_TRACED = 5  # iterations, where not all are
WARM_UP = 10  # the first ones are slower: memory is new, caches are cold
_FLUSH_S = 1.0
_MOST_UNWRITTEN = 10_000

_log = logging.getLogger(__name__)


class Tracing:
    """One rank's tracer and its file. All ranks make theirs together."""

    def __init__(self, options: ObserveOptions, seat: Seat) -> None:
        self._options, self._seat = options, seat
        window = Window() if options.all_iterations else Window(0, 0)  # which ones, is known when training begins
        self.tracer = Tracer(window, seat.plan)
        self._zero_s = self.tracer.zero_s  # rank 0's, as all others are measured against it
        origin = time.time() - (time.perf_counter() - self._zero_s)
        if seat.table is not None:
            zeros = [json.loads(text) for text in seat.table.gather_texts(json.dumps([self._zero_s, origin]))]
            self._zero_s, origin = zeros[0]
        found = self._compare()
        head = Trace(seat.rank, seat.host, found.offset_s, found.uncertainty_s, origin)
        self._writer: TraceWriter | None = self._made(head)
        self._written_s = time.monotonic()
        self._solver: Solver | None = None

    def _made(self, head: Trace) -> TraceWriter | None:
        table = self._seat.table
        make = lambda: TraceWriter(self._options.folder, head)  # noqa: E731  (tried in one of two ways)
        return make() if table is None else attempt(table, make)

    def _compare(self) -> ClockOffset:
        """From times of this tracer to those of rank 0's."""
        if self._seat.table is None:
            return ClockOffset()
        found = compare_clocks(self._seat.table, time.perf_counter)
        return replace(found, offset_s=self.tracer.zero_s + found.offset_s - self._zero_s)

    def attach(self, solver: Solver) -> None:
        self._solver = solver
        self.tracer.attach(solver)
        solver.listeners.append(self._hear)

    def _hear(self, event: events.Event) -> None:
        if isinstance(event, events.SolvingStarted) and not self._options.all_iterations and self._solver is not None:
            self.tracer.window = traced_window(self._solver.iter, self._solver.param.max_iter)
        elif isinstance(event, events.IterationDone) and self.tracer.num_recorded:
            is_due = time.monotonic() - self._written_s > _FLUSH_S
            if is_due or self.tracer.num_recorded > _MOST_UNWRITTEN:
                self._write()

    def _write(self) -> None:
        self._written_s = time.monotonic()
        recorded = self.tracer.take_rows()
        if self._writer is not None:
            try:
                self._writer.write_rows(recorded)
            except RecordError as problem:
                _log.warning("%s; tracing has ended, training goes on", problem)
                self._writer = None

    def close(self, *, together: bool) -> None:
        """`together`: all workers have come here; else one has failed, and nobody waits for anybody."""
        if self._solver is not None:
            self.tracer.detach(self._solver)
            self._solver.listeners.remove(self._hear)
        self._write()
        table = self._seat.table
        if together and table is not None:
            at_s = time.perf_counter() - self.tracer.zero_s
            found = self._compare()
            if self._writer is not None:
                self._writer.compare(at_s, found.offset_s, found.uncertainty_s)
        if self._writer is not None:
            self._writer.close()
        if together and table is not None:
            bring_traces(table, self._options.folder)


def traced_window(first: int, stop: int) -> Window:
    """A few iterations after the first ones; in the middle of a run that is short."""
    count = min(NUM_TRACED, max(stop - first, 0))
    begin = first + min(WARM_UP, (max(stop - first, 0) - count) // 2)
    return Window(begin, begin + count)
