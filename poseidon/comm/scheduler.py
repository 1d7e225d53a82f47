"""Scheduler: starts exchanges in the plan's order, the moment their gradients are final, and never stops the net.

Three kinds of threads meet here:

    compute     offers gradients (`ready`), goes on at once; before a layer reads its parameters it waits (`wait`)
    starter     walks the plan's order round and round: waits for the unit, starts its Send, hands it on. The order of
                starting is the same on all workers, so collectives match without anybody coordinating
    finishers   as many as Sends may be in flight: wait for the reduction, apply the rule, spread values

With a barrier in the plan (something needs all gradients at once), reductions wait to be applied until `release`.
Whatever fails in a thread is raised to everyone who waits, and nothing is started any more.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from poseidon.comm.events import CommListener, SendApplied, SendReduced, SendStarted, UnitDone, UnitReady
from poseidon.comm.exchange import Exchange
from poseidon.comm.part import Apply, Part
from poseidon.errors import PoseidonError
from poseidon.plan import CommPlan, Send


@dataclass(slots=True)
class _Progress:
    """How far a unit is in its current iteration."""

    num_sends: int
    iteration: int = 0  # the last one made ready
    done: int = 0  # the last one finished
    applied: int = 0  # Sends of the current one that are through
    context: Any = None  # what the iteration was started with
    held: list[tuple[Send, list[Part]]] = field(default_factory=list)  # reduced, waiting behind a barrier


class Scheduler:
    """Drives the exchanges of one worker. `exchanges` holds them by unit index."""

    def __init__(
        self, plan: CommPlan, exchanges: Sequence[Exchange], apply: Apply, listener: CommListener | None = None
    ) -> None:
        self.plan = plan
        self._exchanges = {exchange.unit.index: exchange for exchange in exchanges}
        self._order = [send for send in plan.order if send.unit in self._exchanges]
        self._apply = apply
        self._tell = listener or (lambda event: None)
        sends = [send.unit for send in self._order]
        self._progress = {index: _Progress(sends.count(index)) for index in self._exchanges}
        self._changed = threading.Condition()
        self._room = threading.Semaphore(max(plan.in_flight, 1))
        self._failure: BaseException | None = None
        self._closed = False
        self._finishers = ThreadPoolExecutor(max(plan.in_flight, 1), thread_name_prefix="poseidon-finisher")
        self._starter = threading.Thread(target=self._run_starter, name="poseidon-starter", daemon=True)
        self._starter.start()

    # -- compute thread ---------------------------------------------------------------------------------------------
    def ready(self, unit: int, context: Any) -> None:
        """The unit's gradients of a new iteration are all offered; `context` comes back with them to `apply`."""
        with self._changed:
            progress = self._progress[unit]
            assert progress.done == progress.iteration, f"unit {unit} is ready again before it was done"
            progress.iteration += 1
            progress.applied = 0
            progress.context = context
            self._tell(UnitReady(unit))
            self._changed.notify_all()

    def wait(self, unit: int) -> None:
        """Returns when nothing of the unit is on its way."""
        progress = self._progress[unit]
        if progress.done == progress.iteration and self._failure is None:
            return
        with self._changed:
            self._changed.wait_for(lambda: progress.done == progress.iteration or self._failure is not None)
            self._raise_failure()

    def drain(self) -> None:
        """Returns when nothing is on its way."""
        for unit in self._progress:
            self.wait(unit)

    def wait_reduced(self) -> list[Part]:
        """Behind a barrier: waits for all reductions of this iteration and returns their parts."""
        with self._changed:
            self._changed.wait_for(
                lambda: (
                    self._failure is not None
                    or all(len(p.held) == p.num_sends or p.done == p.iteration for p in self._progress.values())
                )
            )
            self._raise_failure()
            return [part for progress in self._progress.values() for _, parts in progress.held for part in parts]

    def release(self) -> None:
        """Behind a barrier: applies what `wait_reduced` has seen, in the order of the plan."""
        for send in self._order:
            progress = self._progress[send.unit]
            parts = next((parts for held, parts in progress.held if held == send), None)
            if parts is not None:
                self._finish(send, parts)
        for progress in self._progress.values():
            progress.held.clear()

    def close(self) -> None:
        """Ends the threads; what is on its way is given up."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._starter.join(timeout=10)
        self._finishers.shutdown(wait=False, cancel_futures=True)

    # -- starter ----------------------------------------------------------------------------------------------------
    def _run_starter(self) -> None:
        iteration = 0
        while True:
            iteration += 1
            for send in self._order:
                if not self._await_ready(send.unit, iteration):
                    return
                self._room.acquire()
                try:
                    token = self._exchanges[send.unit].begin(send)
                    self._tell(SendStarted(send.unit, send))
                    self._finishers.submit(self._run_finisher, send, token)
                except BaseException as problem:  # raised again to whoever waits
                    self._fail(problem, send.unit)
                    return
            if not self._order:
                return

    def _await_ready(self, unit: int, iteration: int) -> bool:
        with self._changed:
            self._changed.wait_for(
                lambda: self._progress[unit].iteration >= iteration or self._closed or self._failure is not None
            )
            return not self._closed and self._failure is None

    # -- finishers --------------------------------------------------------------------------------------------------
    def _run_finisher(self, send: Send, token: Any) -> None:
        try:
            parts = self._exchanges[send.unit].reduced(send, token)
            self._tell(SendReduced(send.unit, send))
            if self.plan.barrier:
                with self._changed:
                    self._progress[send.unit].held.append((send, parts))
                    self._changed.notify_all()
            else:
                self._finish(send, parts)
        except BaseException as problem:  # raised again to whoever waits
            self._fail(problem, send.unit)
        finally:
            self._room.release()

    def _finish(self, send: Send, parts: list[Part]) -> None:
        progress = self._progress[send.unit]
        self._apply(parts, progress.context)
        self._exchanges[send.unit].spread(send)
        self._tell(SendApplied(send.unit, send))
        with self._changed:
            progress.applied += 1
            if progress.applied == progress.num_sends:
                progress.done = progress.iteration
                self._tell(UnitDone(send.unit))
            self._changed.notify_all()

    # -- failure ----------------------------------------------------------------------------------------------------
    def _fail(self, problem: BaseException, unit: int) -> None:
        if isinstance(problem, PoseidonError):
            names = ", ".join(member.name for member in self._exchanges[unit].members)
            problem = type(problem)(f"{problem} (while exchanging unit {unit}: {names})")
        with self._changed:
            self._failure = self._failure or problem
            self._changed.notify_all()

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure
