"""Scheduler: starts exchanges in the plan's order, the moment their gradients are final, and never stops the net.

Three kinds of threads meet here:

    compute     offers gradients (`ready`), goes on at once; before a layer reads its parameters it waits (`wait`)
    starter     walks the plan's order round and round: waits for the unit, starts its Send, hands it on. The order of
                starting is the same on all workers, so collectives match without anybody coordinating
    finishers   wait for the reduction, apply the rule, spread values. A Send whose sum, or update, waits for a device
                that is busy with a layer makes room for the next; so there are more of them than Sends may be in flight

Gathers on the host need neither: whoever makes it a gather's turn begins it, compute or the end of the one before, and
the thread of the transport's engine that has gathered goes on with sum and update. Each hand-over that is spared is a
thread less that has to wake up and to get the interpreter: milliseconds, where hosts are short of processors.

A Send has the link to itself: that is faster than several that share it (each lengthens the queues that the others'
messages stand in, at every step of a ring). But none may hold up what is needed sooner: if one takes much longer than
the plan says, the next starts beside it (`plan/turns.py`).

Nothing deadlocks: finishers take Sends in the order they were started, so the first one that is not over everywhere has
one everywhere, and gets its turn (`plan/turns.py`).

With a barrier in the plan, reductions wait to be applied until `release`. What others see, and what happens when a
thread fails: `conductor.py`.
"""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any

import torch

from poseidon.comm.conductor import Conductor, Progress
from poseidon.comm.events import CommListener, SendApplied, SendLeft, SendReduced, SendStarted, UnitDone, UnitReady
from poseidon.comm.exchange import Exchange, Gathering
from poseidon.comm.part import Apply, Part
from poseidon.plan import CommPlan, Lane, Send, Ticket, patience_s, turns_of
from poseidon.plan.turns import num_finishers


@dataclass(slots=True)
class _Sends(Progress):
    """How far a unit's Sends are."""

    @property
    def num_sends(self) -> int:
        return len(self.exchange.sends)


class Scheduler(Conductor[_Sends]):
    """Runs collectives, which all workers start in the same order."""

    def __init__(
        self, plan: CommPlan, exchanges: Sequence[Exchange], apply: Apply, listener: CommListener | None = None
    ) -> None:
        super().__init__(plan, {exchange.unit.index: _Sends(exchange) for exchange in exchanges}, apply, listener)
        self._order = [send for send in plan.order if send.unit in self._units]
        self._turns = turns_of(plan, self._order)
        self._places = {send: place for place, send in enumerate(self._order)}
        self._patience_s = {send: patience_s(plan, send) for send in self._order}
        self._gathers = {
            exchange.unit.index: exchange
            for exchange in exchanges
            if isinstance(exchange, Gathering) and exchange.is_on_host
        }
        self._handed: SimpleQueue[Callable[[], None] | None] = SimpleQueue()  # to finishers; None ends one
        self._num_jobs = 0  # handed to them and not done
        self._finishers: list[threading.Thread] = []
        self._is_starting = False  # somebody is
        self._looks_s = math.inf  # when the starter looks again by itself
        self._starter = threading.Thread(target=self._run_starter, name="poseidon-starter", daemon=True)
        self._starter.start()

    # -- compute thread ---------------------------------------------------------------------------------------------
    def ready(self, unit: int, context: Any) -> None:
        progress = self._units[unit]
        assert progress.is_over, f"unit {unit} is ready again before it was done"
        self._tell(UnitReady(unit))
        with self._changed:
            progress.context = context
            progress.iteration += 1
            is_turn = self._turns.ready(unit)
        if is_turn:
            self._start_here()

    def release(self) -> None:
        with self._changed:
            held = [(send, self._units[send.unit].held.pop(send, None)) for send in self._order]
            self._hand_over(*(partial(self._finish, send, parts) for send, parts in held if parts is not None))

    def close(self) -> None:
        """A finisher that waits for the transport is not waited for: it ends with its operation, or with that."""
        with self._changed:
            self._closed = True
            self._tell_end()
        self._starter.join()
        with self._changed:
            self._drop_jobs()
            is_idle = self._num_jobs == 0 or all(progress.is_over for progress in self._units.values())
        for _ in self._finishers:
            self._handed.put(None)
        if is_idle:
            for thread in self._finishers:
                thread.join()

    def _is_reduced(self, progress: _Sends) -> bool:
        return progress.is_over or len(progress.held) == progress.num_sends

    def _held(self) -> list[Part]:
        return [part for send in self._order for part in self._units[send.unit].held.get(send, ())]

    # -- starting ---------------------------------------------------------------------------------------------------
    def _run_starter(self) -> None:
        self._use_device()
        while (started := self._next_send()) is not None:
            self._start(*started)

    def _next_send(self) -> tuple[Send, Ticket] | None:
        """Waits until a Send may start, and counts it as started; None if nothing starts any more."""
        with self._changed:
            while not self._has_ended:
                now_s = time.monotonic()
                place = self._next_place(now_s)
                if place is not None:
                    return self._take_turn(place, now_s)
                due_s = self._turns.pushes.next_due_s(now_s)
                self._looks_s = math.inf if due_s is None else due_s
                self._changed.wait(None if due_s is None else due_s - now_s)
            return None

    def _start_here(self) -> None:
        """Gathers whose turn it is are begun by the thread that notices: another would have to wake up first, and would
        take the interpreter from this one. The starter is told of all else, and of when patience is over."""
        while True:
            with self._changed:
                now_s = time.monotonic()
                place = self._next_place(now_s)
                if place is None or self._order[place].unit not in self._gathers:
                    due_s = self._turns.pushes.next_due_s(now_s) if place is None else now_s
                    if due_s is not None and due_s < self._looks_s:
                        self._changed.notify_all()
                    return
                started = self._take_turn(place, now_s)
            self._start(*started)

    def _next_place(self, now_s: float) -> int | None:
        """Of the Send that may start. While one thread starts a Send no other does: the order is the plan's."""
        return None if self._is_starting or self._has_ended else self._turns.pushes.next_place(now_s)

    def _take_turn(self, place: int, now_s: float) -> tuple[Send, Ticket]:
        self._is_starting = True
        send = self._order[place]
        return send, self._turns.pushes.start(place, now_s + self._patience_s[send])

    def _start(self, send: Send, ticket: Ticket) -> None:
        exchange = self._units[send.unit].exchange
        try:
            token = exchange.begin(send)
            self._tell(SendStarted(send.unit, send))
        except BaseException as problem:  # raised again to whoever waits
            self._fail(problem, exchange)
            return
        with self._changed:
            self._is_starting = False
        job = partial(self._reduce, send, token, ticket)
        gather = self._gathers.get(send.unit)
        if gather is None or not gather.arrival(token).then(partial(self._go_on, gather, job)):
            self._hand_over(job)

    def _go_on(self, gather: Gathering, job: Callable[[], None]) -> None:
        """By the thread that has gathered. Whoever tells it that it has failed has other things to do: it may be in the
        middle of failing itself, and would wait for its own end."""
        if self._is_failing or not gather.transport.engine.runs_here():
            self._hand_over(job)
        elif not self._has_ended:
            job()

    def _leave(self, lane: Lane, ticket: Ticket) -> None:
        """A Send gives its place away; said twice of some."""
        with self._changed:
            has_left = lane.leave(ticket)
            if has_left and lane is not self._turns.pushes and lane.has_ready(time.monotonic()):
                self._changed.notify_all()
        if has_left and lane is self._turns.pushes:
            self._start_here()

    # -- finishers --------------------------------------------------------------------------------------------------
    def _hand_over(self, *jobs: Callable[[], None]) -> None:
        """To finishers, first come first served; where none is idle there will be one more, up to a limit.

        They have a queue of their own, which wakes one of them: all that changes for the others does not concern them.
        """
        with self._changed:
            self._num_jobs += len(jobs)
            while len(self._finishers) < min(self._num_jobs, num_finishers(self.plan)):
                name = f"poseidon-finisher-{len(self._finishers)}"
                self._finishers.append(threading.Thread(target=self._run_finisher, name=name, daemon=True))
                self._finishers[-1].start()
            for job in jobs:
                self._handed.put(job)

    def _drop_jobs(self) -> None:
        """Those that nobody has begun."""
        with contextlib.suppress(Empty):
            while True:
                self._handed.get_nowait()
                self._num_jobs -= 1

    def _run_finisher(self) -> None:
        self._use_device()
        while (job := self._handed.get()) is not None:
            if not self._has_ended:
                job()
            del job  # and with it gradients, while this thread waits for the next
            with self._changed:
                self._num_jobs -= 1

    def _reduce(self, send: Send, token: Any, ticket: Ticket) -> None:
        exchange = self._units[send.unit].exchange
        try:
            if exchange.arrive(send, token):
                self._tell(SendLeft(send.unit, send))
                self._leave(self._turns.pushes, ticket)
            parts = exchange.reduced(send, token)
            self._tell(SendReduced(send.unit, send, exchange.newly_sent(send)))
        except BaseException as problem:  # raised again to whoever waits
            self._fail(problem, exchange)
            return
        self._leave(self._turns.pushes, ticket)
        if self.plan.barrier:
            with self._changed:
                self._units[send.unit].held[send] = parts
                self._arrived.notify_all()
        else:
            self._finish(send, parts)

    def _finish(self, send: Send, parts: list[Part]) -> None:
        progress = self._units[send.unit]
        exchange = progress.exchange
        try:
            self._apply(parts, progress.context)
            parts.clear()
            self._spread(send, exchange)
            self._tell(SendApplied(send.unit, send, exchange.newly_sent(send)))
            with self._changed:
                is_last = self._turns.applied(send.unit)
            if is_last:
                exchange.drop()
                self._tell(UnitDone(send.unit))
        except BaseException as problem:  # raised again to whoever waits
            self._fail(problem, self._units[send.unit].exchange)
            return
        if is_last:
            with self._changed:
                progress.done = progress.iteration
                self._arrived.notify_all()

    def _spread(self, send: Send, exchange: Exchange) -> None:
        """Brings owners' new values when it is this Send's turn; not at all if everything is ending."""
        if not self.plan.units[send.unit].scheme.has_owners:
            exchange.spread(send)
            return
        pulls, place = self._turns.pulls, self._places[send]
        with self._changed:
            now_s = time.monotonic()
            pulls.ready(place, now_s + self._patience_s[send])
            self._changed.notify_all()
            while pulls.next_place(now_s) != place:
                if self._has_ended:
                    return
                due_s = pulls.next_due_s(now_s)
                self._changed.wait(None if due_s is None else due_s - now_s)
                now_s = time.monotonic()
            ticket = pulls.start(place, now_s + self._patience_s[send])
            self._changed.notify_all()
        exchange.spread(send)
        self._leave(pulls, ticket)

    # -- both -------------------------------------------------------------------------------------------------------
    def _use_device(self) -> None:
        """CUDA's current device is each thread's own."""
        for progress in self._units.values():
            device = progress.exchange.members[0].value.device
            if device.type == "cuda":
                torch.cuda.set_device(device)

    def _abort(self, exchange: Exchange, reason: str) -> None:
        exchange.transport.abort(reason)
