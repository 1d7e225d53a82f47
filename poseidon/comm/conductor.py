"""Conductor: what both schedulers are to the taps and the solver's updates, and how they end.

    ready(unit)          compute thread: all of the unit's gradients are offered
    wait(unit), drain    until nothing of it, or nothing at all, is on its way
    wait_reduced         behind a barrier (something needs all gradients at once): until all sums are here
    release              they may be applied
    close                ends the threads; what is on its way is given up

Whatever fails in a thread is raised to everyone who waits, the other workers are told, and nothing is started any more.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from poseidon.comm.events import CommEvent, CommListener, WaitEnded, WaitStarted
from poseidon.comm.exchange import Exchange
from poseidon.comm.part import Apply, Part
from poseidon.errors import PeerLost, PoseidonError, TransportError
from poseidon.plan import CommPlan


@dataclass(slots=True)
class Progress:
    """How far a unit is in its current iteration."""

    exchange: Exchange
    iteration: int = 0  # the last one made ready
    done: int = 0  # the last one finished
    context: Any = None  # what the iteration was started with
    held: dict[Any, list[Part]] = field(default_factory=dict)  # reduced, waiting behind a barrier

    @property
    def is_over(self) -> bool:
        return self.done == self.iteration


AnyProgress = TypeVar("AnyProgress", bound=Progress)


class Conductor(ABC, Generic[AnyProgress]):
    """Drives the exchanges of one worker. Who derives from it starts its own threads, last."""

    def __init__(
        self, plan: CommPlan, units: Mapping[int, AnyProgress], apply: Apply, listener: CommListener | None
    ) -> None:
        self.plan = plan
        self._units = units
        self._apply = apply
        self._listener = listener
        self._listening = threading.Lock()
        lock = threading.RLock()  # guards everything below, and all progress
        self._changed = threading.Condition(lock)  # told to the threads of a scheduler
        self._arrived = threading.Condition(lock)  # told to those who compute: all else need not wake them
        self._awaited: int | None = None  # the unit that the compute thread waits for
        self._is_failing = False
        self._failure: BaseException | None = None
        self._closed = False

    @abstractmethod
    def ready(self, unit: int, context: Any) -> None:
        """The unit's gradients of a new iteration are all offered; `context` comes back with them to `apply`."""

    @abstractmethod
    def release(self) -> None:
        """Behind a barrier: what `wait_reduced` has seen may be applied."""

    @abstractmethod
    def close(self) -> None:
        """Ends the threads; what is on its way is given up."""

    @abstractmethod
    def _is_reduced(self, progress: AnyProgress) -> bool:
        """Whether all sums are here that this worker applies the rule to."""

    @abstractmethod
    def _held(self) -> list[Part]:
        """What is reduced and not yet applied, in an order that is the same every time."""

    @abstractmethod
    def _abort(self, exchange: Exchange, reason: str) -> None:
        """Tells the other workers why this one ends."""

    # -- waiting ----------------------------------------------------------------------------------------------------
    def wait(self, unit: int) -> None:
        """Returns when nothing of the unit is on its way."""
        progress = self._units[unit]
        if progress.is_over and not self._has_ended:
            return  # what is over stays so until this thread makes it ready again
        with self._changed:
            must_wait = not progress.is_over and not self._has_ended
        if must_wait:
            self._tell(WaitStarted(unit))
        with self._changed:
            self._awaited = unit
            while not (progress.is_over or self._has_ended):
                self._arrived.wait()
            self._awaited = None
            self._raise_failure()
            if not progress.is_over:
                raise TransportError(f"{progress.exchange} was on its way when communication was closed")
        if must_wait:
            self._tell(WaitEnded(unit))

    def drain(self) -> None:
        """Returns when nothing is on its way."""
        for unit in self._units:
            self.wait(unit)
        with self._changed:
            self._raise_failure()

    def wait_reduced(self) -> list[Part]:
        """Behind a barrier: waits for all sums that this worker applies the rule to, and returns their parts."""
        with self._changed:
            self._arrived.wait_for(lambda: self._has_ended or all(map(self._is_reduced, self._units.values())))
            self._raise_failure()
            if self._closed:
                raise TransportError("gradients were on their way when communication was closed")
            return self._held()

    @property
    def _has_ended(self) -> bool:
        return self._closed or self._failure is not None

    def _tell_end(self) -> None:
        """The lock is held."""
        self._changed.notify_all()
        self._arrived.notify_all()

    def _tell(self, event: CommEvent) -> None:
        if self._listener is not None:
            with self._listening:
                self._listener(event)

    # -- failing ----------------------------------------------------------------------------------------------------
    def _fail(self, problem: BaseException, exchange: Exchange) -> None:
        """Ends everything. Whoever is lost to us is lost to the others too; all else they have to be told."""
        with self._changed:
            if self._is_failing:  # what follows from the first failure is no news, but comes after it
                self._changed.wait_for(lambda: self._has_ended)
            if self._has_ended:
                return
            self._is_failing = True
        place = f"while exchanging {exchange}"
        try:
            # Before anybody here hears of it and leaves: the others shall know why.
            if not isinstance(problem, PeerLost):
                self._abort(exchange, f"{type(problem).__name__}: {problem} ({place})")
        finally:
            with self._changed:
                self._failure = placed(problem, place)
                self._tell_end()

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
