"""Tracer: when each layer ran and each unit moved, on one worker, as events of `poseidon/record`.

    forward    around each layer's work, which the net's program hands out (`Program.observer`)
    backward   autograd runs the nodes of a layer one after the other, latest layer first: a layer's backward pass lasts
               from the moment its top's node is about to run until that of another layer is, or the pass is over.
               One hook per layer, and nothing changes in the graph
    update     of a worker that is alone: from the last gradient to the end of the iteration; of several: unit by unit,
               as the scheduler's threads apply the rule
    moves      SendStarted → SendReduced. Where owners hand out values afterwards (SERVER, FACTOR_SERVER), these are a
               second move, which begins with the owner's update: SendReduced → SendApplied. Notified puts tell of one
               move, from the first put to the values' arrival

A move's bytes are payload that really left this worker, as its transport has counted it.

An exchange belongs to the iteration that gave its gradients, although it ends in the next one. A recorded event costs
two or three microseconds, one that is not recorded a fraction of that. On a GPU layers are seen as they are launched.
"""

from __future__ import annotations

import time
from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from poseidon.comm.events import (
    CommEvent,
    SendApplied,
    SendReduced,
    SendStarted,
    UnitDone,
    UnitReady,
    WaitEnded,
    WaitStarted,
)
from poseidon.net.graph import Node
from poseidon.plan import GPI, CommPlan, Scheme, Send, Unit
from poseidon.record import Event
from poseidon.solver import Solver, events
from poseidon.solver.passes import FusedPass, Pass, PassResult

_HAS_OWNERS = (Scheme.SERVER, Scheme.FACTOR_SERVER)


@dataclass(frozen=True, slots=True)
class Window:
    """The iterations that are recorded: from `first` up to, but without, `stop`; None: no end."""

    first: int = 0
    stop: int | None = None

    def __contains__(self, iteration: int) -> bool:
        return self.first <= iteration and (self.stop is None or iteration < self.stop)


@dataclass(slots=True)
class _Round:
    """One iteration's exchange of a unit. `iteration` None: it is not recorded."""

    iteration: int | None
    started: dict[Send, float] = field(default_factory=dict)
    reduced: dict[Send, float] = field(default_factory=dict)
    applied: set[Send] = field(default_factory=set)


class Tracer:
    """Records what happens from `attach` on; `take` gives it away. `now` tells the time in seconds; 0 is `zero_s`."""

    def __init__(
        self, window: Window, plan: CommPlan | None = None, now: Callable[[], float] = time.perf_counter
    ) -> None:
        self.window, self._now = window, now
        self.zero_s = now()
        self._recorded: deque[tuple[Any, ...]] = deque()  # filled by several threads
        self._is_on = False
        self._iteration = 0
        self._began_s = self._gradients_s = 0.0
        self._layer: tuple[str, float] | None = None  # whose backward pass runs, and since when
        self._seen: set[Any] = set()  # nodes of autograd with a hook in this pass
        self._wait_began_s = 0.0
        self._rounds: dict[int, deque[_Round]] = defaultdict(deque)  # by unit, oldest first
        self._units: dict[int, Unit] = {}
        self._chunks: dict[Send, int] = {}
        self._has_barrier = self._is_gpi = False
        if plan is not None:
            self.follow(plan)

    def follow(self, plan: CommPlan) -> None:
        """From now on exchanges go by this plan."""
        self._units = {unit.index: unit for unit in plan.units}
        places: dict[int, int] = defaultdict(int)
        for send in plan.order:
            self._chunks[send] = places[send.unit]
            places[send.unit] += 1
        self._has_barrier, self._is_gpi = plan.barrier, plan.pattern == GPI
        self._rounds.clear()

    def attach(self, solver: Solver) -> None:
        """Sees the solver's iterations from now on."""
        self._iteration = solver.iter
        # Layers of another kind of pass are not handed out, and a compiled net has none that could be told apart.
        if isinstance(solver.run, FusedPass) and not solver.net.is_compiled:
            solver.net.program.observer = self.observe
            solver.run = _TracedPass(solver.run, self)
        solver.callbacks.append(self)
        solver.listeners.append(self.hear_solver)

    def detach(self, solver: Solver) -> None:
        solver.net.program.observer = None
        if isinstance(solver.run, _TracedPass):
            solver.run = solver.run.inner
        solver.callbacks.remove(self)
        solver.listeners.remove(self.hear_solver)

    def take(self) -> list[Event]:
        """What was recorded since the last time."""
        return [Event(*row) for row in self.take_rows()]

    def take_rows(self) -> list[tuple[Any, ...]]:
        """The same as tuples of an event's fields, of which the last may be missing."""
        return [self._recorded.popleft() for _ in range(len(self._recorded))]

    @property
    def num_recorded(self) -> int:
        """How much there is to be taken."""
        return len(self._recorded)

    def _record(self, kind: str, name: str, iteration: int, start_s: float, *rest: Any) -> None:
        self._recorded.append((kind, name, iteration, start_s - self.zero_s, *rest))

    # -- iterations -------------------------------------------------------------------------------------------------
    def on_start(self) -> None:
        self._is_on = self._iteration in self.window
        self._began_s = self._now()

    def on_gradients_ready(self) -> None:
        self._gradients_s = self._now()

    def hear_solver(self, event: events.Event) -> None:
        if isinstance(event, events.IterationDone):
            if self._is_on:
                self._end_iteration()
            self._is_on = False
            self._iteration = event.iteration + 1
        elif isinstance(event, events.Restored):
            self._iteration = event.iteration

    def _end_iteration(self) -> None:
        now_s = self._now()
        if not self._units:
            self._record("update", "", self._iteration, self._gradients_s, now_s - self._gradients_s)
        self._record("iteration", "", self._iteration, self._began_s, now_s - self._began_s)

    # -- layers -----------------------------------------------------------------------------------------------------
    def observe(self, node: Node, work: Callable[[], Any]) -> Any:
        """A net's observer: does a layer's work."""
        if not self._is_on:
            return work()
        began_s = self._now()
        tops = work()
        self._record("forward", node.layer.name, self._iteration, began_s, self._now() - began_s)
        for top in tops if isinstance(tops, tuple) else (tops,):
            self._watch_backward(top, node.layer.name)
        return tops

    def _watch_backward(self, top: Tensor, layer: str) -> None:
        """A node that an earlier layer has made (Split hands its bottom on) stays that one's."""
        node = top.grad_fn
        if node is not None and node not in self._seen:
            self._seen.add(node)
            node.register_prehook(lambda _: self._turn_to(layer))

    def _turn_to(self, layer: str) -> None:
        now_s = self._now()
        if self._layer is not None:
            name, began_s = self._layer
            if name == layer:
                return
            self._record("backward", name, self._iteration, began_s, now_s - began_s)
        self._layer = (layer, now_s)

    def end_pass(self) -> None:
        """Forward and backward of one batch are over."""
        if self._layer is not None:
            name, began_s = self._layer
            self._record("backward", name, self._iteration, began_s, self._now() - began_s)
            self._layer = None
        self._seen.clear()

    # -- exchanges --------------------------------------------------------------------------------------------------
    def hear_comm(self, event: CommEvent) -> None:
        """The scheduler's listener."""
        if isinstance(event, WaitStarted | WaitEnded):
            self._hear_wait(event)
        elif isinstance(event, UnitReady):
            self._ready(event.unit)
        elif isinstance(event, SendStarted):
            self._started(event.send)
        elif isinstance(event, SendReduced):
            self._reduced(event.send, event.sent_bytes)
        elif isinstance(event, SendApplied):
            self._applied(event.send, event.sent_bytes)
        elif isinstance(event, UnitDone):
            self._done(event.unit)

    def _hear_wait(self, event: CommEvent) -> None:
        if isinstance(event, WaitStarted):
            self._wait_began_s = self._now()
        elif self._is_on:
            began_s = self._wait_began_s
            duration_s = self._now() - began_s
            self._record("wait", self._name(event.unit), self._iteration, began_s, duration_s, None, event.unit)

    def _ready(self, unit: int) -> None:
        self._rounds[unit].append(_Round(self._iteration if self._is_on else None))
        if self._is_on:
            self._record("ready", self._name(unit), self._iteration, self._now(), None, None, unit)

    def _started(self, send: Send) -> None:
        round_ = next((found for found in self._rounds[send.unit] if send not in found.started), None)
        if round_ is None:  # its gradient was final before anybody listened
            return
        now_s = self._now()
        if round_.iteration is not None and not round_.started:
            self._record("start", self._name(send.unit), round_.iteration, now_s, None, None, send.unit)
        round_.started[send] = now_s

    def _reduced(self, send: Send, sent_bytes: int) -> None:
        round_ = next((r for r in self._rounds[send.unit] if send in r.started and send not in r.reduced), None)
        if round_ is None:
            return
        now_s = round_.reduced[send] = self._now()
        if round_.iteration is not None and not self._is_gpi:
            self._move(round_.iteration, send, round_.started[send], now_s, sent_bytes)

    def _applied(self, send: Send, sent_bytes: int) -> None:
        round_ = next((r for r in self._rounds[send.unit] if send in r.reduced and send not in r.applied), None)
        if round_ is None:
            return
        round_.applied.add(send)
        if round_.iteration is None:
            return
        now_s, began_s = self._now(), round_.reduced[send]
        if self._has_barrier:
            began_s = max(began_s, self._gradients_s)
        if self._is_gpi:
            self._move(round_.iteration, send, round_.started[send], now_s, sent_bytes)
        elif self._units[send.unit].scheme in _HAS_OWNERS:
            self._move(round_.iteration, send, began_s, now_s, sent_bytes)
        else:
            place = (None, send.unit, self._chunks.get(send))
            self._record("update", self._name(send.unit), round_.iteration, began_s, now_s - began_s, *place)

    def _move(self, iteration: int, send: Send, began_s: float, now_s: float, sent_bytes: int) -> None:
        place = (sent_bytes, send.unit, self._chunks.get(send))
        self._record("move", self._name(send.unit), iteration, began_s, now_s - began_s, *place)

    def _done(self, unit: int) -> None:
        if self._rounds[unit]:
            round_ = self._rounds[unit].popleft()
            if round_.iteration is not None:
                self._record("end", self._name(unit), round_.iteration, self._now(), None, None, unit)

    def _name(self, unit: int) -> str:
        """A unit is called by its first parameter."""
        return self._units[unit].params[0]


class _TracedPass:
    """A pass whose end the tracer hears of."""

    def __init__(self, inner: Pass, tracer: Tracer) -> None:
        self.inner, self._tracer = inner, tracer

    def __call__(self, *, backward: bool) -> PassResult:
        result = self.inner(backward=backward)
        self._tracer.end_pass()
        return result
