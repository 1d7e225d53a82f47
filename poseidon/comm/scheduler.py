"""Scheduler: starts exchanges in the plan's order, the moment their gradients are final, and never stops the net.

Three kinds of threads meet here:

    compute     offers gradients (`ready`), goes on at once; before a layer reads its parameters it waits (`wait`)
    starter     walks the plan's order round and round: waits for the unit, starts its Send, hands it on. The order of
                starting is the same on all workers, so collectives match without anybody coordinating
    finishers   as many as Sends may be in flight: wait for the reduction, apply the rule, spread values

Nothing deadlocks: finishers take Sends in the order they were started, so the first one that is not over anywhere is
being carried out everywhere.

With a barrier in the plan (something needs all gradients at once), reductions wait to be applied until `release`.
Whatever fails in a thread is raised to everyone who waits, the other workers are told, and nothing is started any more.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch

from poseidon.comm.events import (
    CommEvent,
    CommListener,
    SendApplied,
    SendReduced,
    SendStarted,
    UnitDone,
    UnitReady,
    WaitEnded,
    WaitStarted,
)
from poseidon.comm.exchange import Exchange
from poseidon.comm.part import Apply, Part
from poseidon.errors import PeerLost, PoseidonError, TransportError
from poseidon.plan import CommPlan, Send


@dataclass(slots=True)
class _Progress:
    """How far a unit is in its current iteration."""

    num_sends: int
    iteration: int = 0  # the last one made ready
    done: int = 0  # the last one finished
    num_applied: int = 0  # Sends of the current one that are through
    context: Any = None  # what the iteration was started with
    held: dict[Send, list[Part]] = field(default_factory=dict)  # reduced, waiting behind a barrier

    @property
    def is_over(self) -> bool:
        return self.done == self.iteration


class Scheduler:
    """Drives the exchanges of one worker."""

    def __init__(
        self, plan: CommPlan, exchanges: Sequence[Exchange], apply: Apply, listener: CommListener | None = None
    ) -> None:
        self.plan = plan
        self._exchanges = {exchange.unit.index: exchange for exchange in exchanges}
        self._order = [send for send in plan.order if send.unit in self._exchanges]
        self._apply = apply
        self._listener = listener
        self._listening = threading.Lock()
        self._progress = {index: _Progress(len(exchange.sends)) for index, exchange in self._exchanges.items()}
        self._changed = threading.Condition()  # guards everything below, and all progress
        self._num_in_flight = 0
        self._num_busy = 0  # finishers at work
        self._handed: deque[Callable[[], None]] = deque()  # to finishers
        self._is_failing = False
        self._failure: BaseException | None = None
        self._closed = False
        self._starter = threading.Thread(target=self._run_starter, name="poseidon-starter", daemon=True)
        self._finishers = [
            threading.Thread(target=self._run_finisher, name=f"poseidon-finisher-{number}", daemon=True)
            for number in range(min(plan.in_flight, len(self._order)))
        ]
        for thread in (self._starter, *self._finishers):
            thread.start()

    # -- compute thread ---------------------------------------------------------------------------------------------
    def ready(self, unit: int, context: Any) -> None:
        """The unit's gradients of a new iteration are all offered; `context` comes back with them to `apply`."""
        progress = self._progress[unit]
        assert progress.is_over, f"unit {unit} is ready again before it was done"
        self._tell(UnitReady(unit))
        with self._changed:
            progress.context = context
            progress.num_applied = 0
            progress.iteration += 1
            self._changed.notify_all()

    def wait(self, unit: int) -> None:
        """Returns when nothing of the unit is on its way."""
        progress = self._progress[unit]
        with self._changed:
            must_wait = not progress.is_over and not self._has_ended
        if must_wait:
            self._tell(WaitStarted(unit))
        with self._changed:
            self._changed.wait_for(lambda: progress.is_over or self._has_ended)
            self._raise_failure()
            if not progress.is_over:
                raise TransportError(f"{self._exchanges[unit]} was on its way when communication was closed")
        if must_wait:
            self._tell(WaitEnded(unit))

    def drain(self) -> None:
        """Returns when nothing is on its way."""
        for unit in self._progress:
            self.wait(unit)
        with self._changed:
            self._raise_failure()

    def wait_reduced(self) -> list[Part]:
        """Behind a barrier: waits for all reductions of this iteration; their parts, in the order of the plan."""
        with self._changed:
            self._changed.wait_for(lambda: self._has_ended or all(map(self._is_reduced, self._progress.values())))
            self._raise_failure()
            if self._closed:
                raise TransportError("gradients were on their way when communication was closed")
            return [part for send in self._order for part in self._progress[send.unit].held.get(send, ())]

    def release(self) -> None:
        """Behind a barrier: what `wait_reduced` has seen may be applied, in the order of the plan."""
        with self._changed:
            for send in self._order:
                parts = self._progress[send.unit].held.pop(send, None)
                if parts is not None:
                    self._handed.append(partial(self._finish, send, parts))
            self._changed.notify_all()

    def close(self) -> None:
        """Ends the threads; what is on its way is given up.

        A finisher that waits for the transport is not waited for: it ends with its operation, or with the transport.
        """
        with self._changed:
            self._closed = True
            self._handed.clear()
            self._changed.notify_all()
        self._starter.join()
        with self._changed:
            is_idle = self._num_busy == 0
        if is_idle:
            for thread in self._finishers:
                thread.join()

    @property
    def _has_ended(self) -> bool:
        return self._closed or self._failure is not None

    @staticmethod
    def _is_reduced(progress: _Progress) -> bool:
        return progress.is_over or len(progress.held) == progress.num_sends

    # -- starter ----------------------------------------------------------------------------------------------------
    def _run_starter(self) -> None:
        self._use_device()
        iteration = 0
        while self._order:
            iteration += 1
            for send in self._order:
                if not self._may_start(send, iteration):
                    return
                try:
                    token = self._exchanges[send.unit].begin(send)
                    self._tell(SendStarted(send.unit, send))
                except BaseException as problem:  # raised again to whoever waits
                    self._fail(problem, send)
                    return
                self._hand_over(partial(self._reduce, send, token))

    def _may_start(self, send: Send, iteration: int) -> bool:
        """Waits until the Send's unit is ready and there is room for it; false if nothing starts any more."""
        progress = self._progress[send.unit]
        with self._changed:
            self._changed.wait_for(
                lambda: (
                    self._has_ended or (progress.iteration >= iteration and self._num_in_flight < self.plan.in_flight)
                )
            )
            if self._has_ended:
                return False
            self._num_in_flight += 1
            return True

    def _hand_over(self, job: Callable[[], None]) -> None:
        with self._changed:
            self._handed.append(job)
            self._changed.notify_all()

    # -- finishers --------------------------------------------------------------------------------------------------
    def _run_finisher(self) -> None:
        self._use_device()
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._handed or self._has_ended)
                if self._has_ended:
                    return
                job = self._handed.popleft()
                self._num_busy += 1
            job()
            del job  # and with it gradients, while this thread waits for the next
            with self._changed:
                self._num_busy -= 1

    def _reduce(self, send: Send, token: Any) -> None:
        try:
            parts = self._exchanges[send.unit].reduced(send, token)
            self._tell(SendReduced(send.unit, send))
        except BaseException as problem:  # raised again to whoever waits
            self._fail(problem, send)
            return
        if self.plan.barrier:
            with self._changed:
                self._progress[send.unit].held[send] = parts
        else:
            self._finish(send, parts)
        with self._changed:
            self._num_in_flight -= 1
            self._changed.notify_all()

    def _finish(self, send: Send, parts: list[Part]) -> None:
        progress, exchange = self._progress[send.unit], self._exchanges[send.unit]
        try:
            self._apply(parts, progress.context)
            parts.clear()
            exchange.spread(send)
            self._tell(SendApplied(send.unit, send))
            with self._changed:
                progress.num_applied += 1
                is_last = progress.num_applied == progress.num_sends
            if is_last:
                exchange.drop()
                self._tell(UnitDone(send.unit))
        except BaseException as problem:  # raised again to whoever waits
            self._fail(problem, send)
            return
        if is_last:
            with self._changed:
                progress.done = progress.iteration
                self._changed.notify_all()

    # -- both -------------------------------------------------------------------------------------------------------
    def _use_device(self) -> None:
        """CUDA's current device is each thread's own."""
        for exchange in self._exchanges.values():
            device = exchange.members[0].value.device
            if device.type == "cuda":
                torch.cuda.set_device(device)

    def _tell(self, event: CommEvent) -> None:
        if self._listener is not None:
            with self._listening:
                self._listener(event)

    def _fail(self, problem: BaseException, send: Send) -> None:
        """Ends everything. Whoever is lost to us is lost to the others too; all else they have to be told."""
        exchange = self._exchanges[send.unit]
        place = f"while exchanging {exchange}"
        with self._changed:
            if self._has_ended or self._is_failing:  # what follows from the first failure, or from closing, is no news
                return
            self._is_failing = True
        # Before anybody here hears of it and leaves: the others shall know why.
        if not isinstance(problem, PeerLost):
            exchange.transport.abort(f"{type(problem).__name__}: {problem} ({place})")
        with self._changed:
            self._failure = placed(problem, place)
            self._changed.notify_all()

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure


def placed(problem: BaseException, place: str) -> BaseException:
    """The problem with the place where it happened."""
    if isinstance(problem, TransportError):
        found: BaseException = type(problem)(f"{problem} ({place})", problem.ranks)
    elif isinstance(problem, PoseidonError):
        found = type(problem)(f"{problem} ({place})")
    else:
        if hasattr(problem, "add_note"):  # Python 3.11
            problem.add_note(place)
        return problem
    found.__cause__ = problem
    return found
