"""Observation: everything that watches one worker's run, from the plan to the end (`poseidon/observe`).

    with Observation(solver, options, seat) as observation:
        with distribute(solver, …, listener=observation.heard_by(others)) as distribution:
            observation.join(distribution.meter)
            solver.solve()

Rank 0's options are everybody's. Every rank traces; rank 0 alone tells the sinks. What cannot be written later on (a
full disk) is said once, and training goes on.
"""

from __future__ import annotations

import json
import time
from dataclasses import replace
from types import TracebackType

from poseidon.comm.events import CommEvent, CommListener
from poseidon.errors import PoseidonError
from poseidon.observe.effort import Effort, EffortTeam
from poseidon.observe.folder import RunFolder
from poseidon.observe.metrics import Metrics
from poseidon.observe.options import ObserveOptions
from poseidon.observe.sink import Lasting, Sink
from poseidon.observe.sinks import open_sinks
from poseidon.record import Facts
from poseidon.run.attempt import attempt
from poseidon.run.meter import Counters, Meter
from poseidon.run.roundtable import Roundtable
from poseidon.run.seat import Seat, run_facts
from poseidon.run.shards import sharded_layers
from poseidon.run.tracing import Tracing
from poseidon.solver import Solver, events


class Observation:
    """One worker's. All workers make theirs together, and join it together."""

    def __init__(self, solver: Solver, options: ObserveOptions, seat: Seat) -> None:
        self._solver, self._seat = solver, seat
        self._options = options if seat.table is None else _rank_0s(options, seat.table)
        self._started = time.time()
        self._sinks: list[Sink] = []
        if seat.table is None:
            self._open()
        else:
            attempt(seat.table, self._open, by=0)
        self._effort = Effort()
        self._meter: Meter | None = None
        self._own_meter: Meter | None = None  # of a worker that is alone
        self._team: EffortTeam | None = None
        self._metrics: Metrics | None = None
        self._tracing = Tracing(self._options, seat) if self._options.folder else None
        self._outcome = "ended"

    def _open(self) -> None:
        options = self._options
        if options.folder:
            folder = RunFolder(options.folder, continues=options.continues)
            self._started = folder.started or self._started
            self._sinks.append(folder)
        self._sinks += open_sinks(options, self._solver)
        for sink in self._sinks:
            sink.begin(self._facts())
        self._sinks = [Lasting(sink) for sink in self._sinks]

    def _facts(self) -> Facts:
        return run_facts(self._solver, self._options, self._seat, self._started)

    @property
    def lines(self) -> list[str]:
        """Where people find what is told; rank 0 says it."""
        return [sink.line for sink in self._sinks]

    def heard_by(self, other: CommListener) -> CommListener:
        """A listener for the scheduler that tells both."""
        if self._tracing is None:
            return other
        trace = self._tracing.tracer.hear_comm

        def hear(event: CommEvent) -> None:
            other(event)
            trace(event)

        return hear

    # -- life -------------------------------------------------------------------------------------------------------
    def join(self, meter: Meter | None = None) -> None:
        """The solver is ready to train: from now on it is watched. `meter` is the team's, if there is one."""
        solver = self._solver
        if not self._options.has_metrics:
            return
        self._meter = meter or Meter(Counters)
        self._own_meter = None if meter is not None else self._meter
        if self._own_meter is not None:
            solver.callbacks.append(self._own_meter)
        solver.listeners.append(self._hear)
        team = EffortTeam(solver.team, self._seat.size, lambda: self._effort)
        solver.team = self._team = team
        if self._seat.rank == 0:
            self._metrics = Metrics(self._sinks, lambda: team.efforts, self._samples(), self._started)
            solver.listeners.append(self._metrics)
        if self._tracing is not None:
            self._tracing.attach(solver)

    def _leave(self) -> None:
        """The solver is as it was before it was watched."""
        solver = self._solver
        if self._own_meter is not None:
            solver.callbacks.remove(self._own_meter)
        for listener in (self._hear, self._metrics):
            if listener in solver.listeners:
                solver.listeners.remove(listener)
        if self._team is not None and solver.team is self._team:
            solver.team = self._team.inner

    def __enter__(self) -> Observation:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._leave()
        if self._tracing is not None:
            self._tracing.close(together=problem is None)
        if problem is not None:
            name = "" if isinstance(problem, PoseidonError) else f"{type(problem).__name__}: "
            self._outcome = f"failed: {name}{problem}"
        for sink in self._sinks:
            sink.end(replace(self._facts(), finished=time.time(), outcome=self._outcome))

    # -- while training ---------------------------------------------------------------------------------------------
    def _hear(self, event: events.Event) -> None:
        if isinstance(event, events.IterationDone):
            self._note(event.iteration + 1)
        elif isinstance(event, events.SolvingDone):
            self._outcome = f"{'stopped at' if event.stopped_early else 'trained to'} iteration {event.iteration}"

    def _note(self, clock: int) -> None:
        assert self._meter is not None, "nobody listens before there is one"
        last = self._meter.last if self._own_meter is None else self._own_meter.done(clock)
        if last is not None:
            done = self._effort
            self._effort = Effort(
                done.iterations + 1,
                done.compute_s + last.compute_s,
                done.wait_s + last.blocked_s,
                done.sent_bytes + last.sent_bytes,
                done.received_bytes + last.received_bytes,
                done.staleness + last.staleness,
            )

    def _samples(self) -> float | None:
        """Of one iteration, over all workers, where the net's data has one batch size."""
        sizes = {layer.batch_size for layer in sharded_layers(self._solver.net)}
        return sizes.pop() * self._solver.param.iter_size * self._seat.size if len(sizes) == 1 else None


def _rank_0s(options: ObserveOptions, table: Roundtable) -> ObserveOptions:
    """What rank 0 was asked for, as far as all have a part in it; whom it tells is its own affair."""
    own = json.dumps([options.folder, options.all_iterations, options.has_metrics])
    folder, all_iterations, has_metrics = json.loads(table.gather_texts(own)[0])
    if table.rank == 0:
        return options
    return ObserveOptions(folder, all_iterations, metrics_port=0 if has_metrics else None)
