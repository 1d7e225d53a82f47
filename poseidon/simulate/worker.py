"""Worker: one device that computes and updates, and one scheduler that starts Sends by the runtime's own rules.

The device does one thing at a time, first come first served: a layer's pass, or an update. Forward waits before a layer
until the layer's units are done; backward never waits, and makes units ready. When a Send may start, `plan/turns.py`
decides, as in the runtime; and as there, so many finishers see to what has started, each to one Send until its new
values are in, first come first served.

With a barrier, the worker waits after backward until all sums are here; then Sends are applied and pulled in the order
of the plan.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Protocol

from poseidon.plan import CommPlan, Lane, NetProfile, Scheme, Ticket, turns_of
from poseidon.plan.turns import num_finishers
from poseidon.simulate.agenda import Agenda
from poseidon.simulate.legs import Trip


@dataclass(frozen=True, slots=True)
class Happening:
    """Something that a worker did, from start_s to end_s (None: a moment); `kind` as in poseidon/record/event.py.

    `index` is the layer's (forward, backward) or the unit's; `chunk` the number of the Send among the unit's. `pull`
    marks the move of values that owners hand out.
    """

    kind: str
    index: int
    iteration: int
    start_s: float
    end_s: float | None = None
    chunk: int | None = None
    is_pull: bool = False


Listener = Callable[[int, Happening], None]
"""Told a worker's rank and what it did."""


class Roads(Protocol):
    """Where Sends go."""

    def push(self, place: int, iteration: int, worker: int) -> None: ...

    def handle(self, num_bytes: float, worker: int, call: Callable[[], None]) -> None: ...

    def pull(self, place: int, iteration: int, worker: int) -> None: ...


@dataclass(frozen=True)
class Script:
    """What all workers play: a plan for a net, its Sends as trips, and how often."""

    plan: CommPlan
    profile: NetProfile
    trips: tuple[Trip, ...]
    num_iterations: int

    @cached_property
    def num_sends(self) -> Counter[int]:
        """By unit."""
        return Counter(trip.send.unit for trip in self.trips)

    @cached_property
    def units_at(self) -> dict[int, tuple[int, ...]]:
        """By layer, the units of which it is the first reader."""
        found: dict[int, tuple[int, ...]] = {}
        for unit, place in self.places.items():
            found[place] = (*found.get(place, ()), unit)
        return found

    @cached_property
    def places(self) -> dict[int, int]:
        """The first layer that reads a unit's parameters."""
        reader: dict[str, int] = {}
        for index, layer in enumerate(self.profile.layers):
            for name in layer.params:
                reader.setdefault(name, index)
        travelling = [unit for unit in self.plan.units if unit.scheme is not Scheme.LOCAL]
        return {unit.index: min(reader[name] for name in unit.params) for unit in travelling}


class Worker:
    """`factors`: by iteration, how many times as long this worker computes."""

    def __init__(
        self, rank: int, script: Script, factors: Sequence[float], agenda: Agenda, roads: Roads, tell: Listener | None
    ) -> None:
        self.rank, self._script, self._factors, self._agenda, self._roads = rank, script, factors, agenda, roads
        self._tell = tell
        self._layers = script.profile.layers
        self._units_at = script.units_at
        self._turns = turns_of(script.plan, script.plan.order)
        self._tickets: dict[int, Ticket] = {}  # by place in the order, of Sends that are on their way
        self._num_started = 0
        self._iteration = -1
        self._began_s = 0.0
        self._device_free_s = 0.0
        self._done = dict.fromkeys(script.places, -1)  # the last iteration of each unit that is done
        self._num_missing: dict[int, int] = {}  # Sends of a unit that have not arrived
        self._waits_at: int | None = None  # the layer before which forward waits
        self._awaited = -1  # the unit it waits for
        self._wait_began_s = 0.0
        self._moves_since: dict[int, float] = {}  # by place in the order
        self._updated: dict[int, int] = {}  # by place, the iteration of Sends that are to be pulled
        self._num_idle = num_finishers(script.plan)
        self._handed: deque[tuple[Callable[[int, int], None], int, int]] = deque()  # to finishers
        self._is_here: dict[int, bool] = {}  # by place, of Sends that a finisher waits for, or (True) that wait for one
        self._num_reduced = 0
        self._is_past_backward = False
        self.iteration_s: list[float] = []
        self.wait_s: list[float] = []

    def begin(self) -> None:
        """The next iteration, if there is one."""
        self._iteration += 1
        if self._iteration == self._script.num_iterations:
            return
        self._began_s = self._agenda.now_s
        self.wait_s.append(0.0)
        self._forward(0)

    def _see(
        self,
        kind: str,
        index: int,
        iteration: int,
        start_s: float,
        end_s: float | None = None,
        chunk: int | None = None,
        *,
        is_pull: bool = False,
    ) -> None:
        if self._tell is not None:
            self._tell(self.rank, Happening(kind, index, iteration, start_s, end_s, chunk, is_pull))

    # -- compute ----------------------------------------------------------------------------------------------------
    def _compute(self, seconds: float) -> tuple[float, float]:
        """When the device does it, from and to."""
        start_s = max(self._agenda.now_s, self._device_free_s)
        self._device_free_s = start_s + seconds
        return start_s, self._device_free_s

    def _forward(self, index: int) -> None:
        """Goes on before this layer."""
        factor = self._factors[self._iteration]
        while index < len(self._layers):
            for unit in self._units_at.get(index, ()):
                if self._done[unit] < self._iteration - 1:
                    self._waits_at, self._awaited = index, unit
                    self._wait_began_s = self._agenda.now_s
                    return
            seconds = self._layers[index].forward_s * factor
            start_s, end_s = self._compute(seconds) if seconds else (self._agenda.now_s,) * 2
            self._see("forward", index, self._iteration, start_s, end_s)
            index += 1
            if end_s > self._agenda.now_s:
                self._agenda.at(end_s, self._forward, index)
                return
        between_s = self._script.profile.between_s * factor
        _, end_s = self._compute(between_s)
        self._agenda.at(end_s, self._backward, len(self._layers) - 1, False)

    def _backward(self, index: int, is_over: bool) -> None:
        """Goes on with this layer, or behind it."""
        factor = self._factors[self._iteration]
        while index >= 0:
            seconds = self._layers[index].backward_s * factor
            if not is_over:
                start_s, end_s = self._compute(seconds) if seconds else (self._agenda.now_s,) * 2
                self._see("backward", index, self._iteration, start_s, end_s)
                if end_s > self._agenda.now_s:
                    self._agenda.at(end_s, self._backward, index, True)
                    return
            for unit in self._units_at.get(index, ()):
                self._ready(unit)
            index, is_over = index - 1, False
        if self._script.plan.barrier and self._script.trips:
            self._is_past_backward = True
            self._perhaps_release()
        else:
            self._end()

    def _end(self) -> None:
        now_s = self._agenda.now_s
        self._see("iteration", 0, self._iteration, self._began_s, now_s)
        self.iteration_s.append(now_s - self._began_s)
        self.begin()

    # -- communication ----------------------------------------------------------------------------------------------
    def _ready(self, unit: int) -> None:
        self._see("ready", unit, self._iteration, self._agenda.now_s)
        self._turns.ready(unit)
        self._num_missing[unit] = self._script.num_sends[unit]
        self._start()

    def _start(self) -> None:
        """Starts what may start."""
        while (place := self._turns.pushes.next_place(self._agenda.now_s)) is not None:
            self._take_place(self._turns.pushes, place)
            self._started(place, self._num_started // len(self._script.trips))
            self._num_started += 1
        while (place := self._turns.pulls.next_place(self._agenda.now_s)) is not None:
            self._take_place(self._turns.pulls, place)
            self._roads.pull(place, self._updated.pop(place), self.rank)

    def _started(self, place: int, iteration: int) -> None:
        trip = self._script.trips[place]
        if trip.chunk == 0:
            self._see("start", trip.send.unit, iteration, self._agenda.now_s)
        self._moves_since[place] = self._agenda.now_s
        self._hand_over(self._await, place, iteration)
        self._roads.push(place, iteration, self.rank)

    def _take_place(self, lane: Lane, place: int) -> None:
        self._tickets[place] = lane.start(place, self._due_s(place))

    def _due_s(self, place: int) -> float:
        """When patience with a Send is over; what may start then, starts."""
        due_s = self._agenda.now_s + self._script.trips[place].patience_s
        self._agenda.at(due_s, self._start)
        return due_s

    def _leave(self, lane: Lane, place: int) -> None:
        """A Send gives its place away: room for another."""
        lane.leave(self._tickets.pop(place))
        self._start()

    def _hand_over(self, job: Callable[[int, int], None], place: int, iteration: int) -> None:
        """To the next finisher that is idle."""
        self._handed.append((job, place, iteration))
        self._set_to_work()

    def _set_to_work(self) -> None:
        while self._num_idle and self._handed:
            self._num_idle -= 1
            job, place, iteration = self._handed.popleft()
            job(place, iteration)

    def _is_through(self) -> None:
        """A finisher is idle again."""
        self._num_idle += 1
        self._set_to_work()

    def _await(self, place: int, iteration: int) -> None:
        """A finisher waits for what the sum is made of, unless it is here."""
        if self._is_here.pop(place, False):
            self._reduce(place, iteration)
        else:
            self._is_here[place] = False

    def reduced(self, place: int, iteration: int) -> None:
        """All that a Send pushes has arrived."""
        if place in self._is_here:
            del self._is_here[place]
            self._reduce(place, iteration)
        else:
            self._is_here[place] = True

    def _reduce(self, place: int, iteration: int) -> None:
        self._moved(place, iteration, is_pull=False)
        self._leave(self._turns.pushes, place)
        if self._script.plan.barrier:
            self._num_reduced += 1
            self._is_through()
            self._perhaps_release()
        else:
            self._apply(place, iteration)

    def _moved(self, place: int, iteration: int, *, is_pull: bool) -> None:
        trip, now_s = self._script.trips[place], self._agenda.now_s
        since_s = self._moves_since.pop(place)
        self._see("move", trip.send.unit, iteration, since_s, now_s, trip.chunk, is_pull=is_pull)

    def _perhaps_release(self) -> None:
        trips = self._script.trips
        if self._is_past_backward and self._num_reduced == len(trips):
            self._num_reduced, self._is_past_backward = 0, False
            for place in range(len(trips)):
                self._hand_over(self._apply, place, self._iteration)
            self._end()

    def _apply(self, place: int, iteration: int) -> None:
        trip = self._script.trips[place]
        unit = trip.send.unit
        if trip.is_pulled:
            self._moves_since[place] = self._agenda.now_s
        self._num_missing[unit] -= 1
        if self._num_missing[unit]:
            self._update(place, iteration, trip.apply_s)
        else:
            seconds = trip.apply_s + trip.last_s
            self._roads.handle(trip.last_bytes, self.rank, partial(self._update, place, iteration, seconds))

    def _update(self, place: int, iteration: int, seconds: float) -> None:
        trip = self._script.trips[place]
        if not (seconds or trip.is_pulled):
            self.arrived(place, iteration)
            return
        start_s, end_s = self._compute(seconds)
        self._see("update", trip.send.unit, iteration, start_s, end_s, trip.chunk)
        self._agenda.at(end_s, self._pull if trip.is_pulled else self.arrived, place, iteration)

    def _pull(self, place: int, iteration: int) -> None:
        """Owners' new values are handed out, when it is this Send's turn."""
        self._updated[place] = iteration
        self._turns.pulls.ready(place, self._due_s(place))
        self._start()

    def arrived(self, place: int, iteration: int) -> None:
        """A Send's new values are in."""
        trip = self._script.trips[place]
        unit = trip.send.unit
        if trip.is_pulled:
            self._moved(place, iteration, is_pull=True)
            self._leave(self._turns.pulls, place)
        if self._turns.applied(unit):
            self._done[unit] = iteration
            self._see("end", unit, iteration, self._agenda.now_s)
        self._is_through()
        if self._waits_at is not None and self._done[self._awaited] >= self._iteration - 1:
            self._go_on()

    def _go_on(self) -> None:
        """What forward waited for has come."""
        index, now_s = self._waits_at, self._agenda.now_s
        assert index is not None
        self._waits_at = None
        self._see("wait", self._awaited, self._iteration, self._wait_began_s, now_s)
        self.wait_s[-1] += now_s - self._wait_began_s
        self._forward(index)
