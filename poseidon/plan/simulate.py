"""Simulate: a plan played for one worker; all workers are alike.

The device runs one thing at a time: backward from the last layer to the first, then the next forward pass. A unit is
ready when backward has passed its layer; its pieces go over the link in the plan's order (`traffic.py`), beside the
device. When all have arrived, the device applies it: rebuilds a sum from factors, updates, and pays for the handling of
the sends. Backward never waits; what can be applied is, while forward would wait for something else, and at the latest
before the layer that reads it. A barrier holds forward, and the owners' updates and so all pulls, until everything
pushed has arrived.

Forward ends only when every unit is applied, so each backward pass begins with an idle link and nothing left over:
every iteration takes as long as the first, and one of them is the steady state.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from poseidon.plan.bundles import load_of
from poseidon.plan.commplan import COLLECTIVE, CommPlan, Scheme
from poseidon.plan.cost import CostModel
from poseidon.plan.drafts import Piece, piece_of
from poseidon.plan.fits import check_fits
from poseidon.plan.link import Entrance, Link
from poseidon.plan.profile import NetProfile
from poseidon.plan.traffic import Moved, Traffic


@dataclass(frozen=True, slots=True)
class Event:
    """Something that took from start_s to end_s.

    kind        "forward", "backward" (of layer `index`); "ready" (a moment), "send", "pull", "apply" (of unit `index`)
    name        the layer's, or the unit's first parameter
    iteration   whose gradients these are; for "forward" and "backward" whose pass
    """

    kind: str
    index: int
    name: str
    iteration: int
    start_s: float
    end_s: float


@dataclass(frozen=True, slots=True)
class Timeline:
    """What happened in `num_iterations` iterations, by start; the forward pass after the last of them is included,
    since its waits end the last exchanges."""

    iteration_s: float
    num_iterations: int
    events: tuple[Event, ...]

    def of(self, kind: str, iteration: int | None = None) -> list[Event]:
        """The events of a kind, of one iteration or of all."""
        return [event for event in self.events if event.kind == kind and iteration in (None, event.iteration)]


Seen = Callable[[str, int, float, float], None]
"""Told what happens: kind, index, start and end."""


class Passes:
    """A worker's passes laid out in time, counted from the start of backward."""

    __slots__ = ("backward_s", "between_s", "forward_s", "layer_ends_s", "profile", "ready_s")

    def __init__(self, profile: NetProfile) -> None:
        self.profile = profile
        backward = list(accumulate(layer.backward_s for layer in reversed(profile.layers)))
        self.ready_s = backward[::-1]  # when backward has passed a layer
        self.backward_s = backward[-1] if backward else 0.0
        self.forward_s = [layer.forward_s for layer in profile.layers]
        self.between_s = profile.between_s
        forward = accumulate(self.forward_s, initial=self.backward_s)
        self.layer_ends_s = [*backward, *forward]  # if no layer waits

    def traffic(self, in_flight: int, num_units: int, *, barrier: bool, moved: Moved | None = None) -> Traffic:
        """A link beside these passes."""
        return Traffic(in_flight, num_units, None if barrier else self.layer_ends_s, moved)


@dataclass(frozen=True, slots=True)
class Job:
    """A unit as the device sees it: the layer that gives and needs it, and the work when it has arrived."""

    place: int
    apply_s: float


def iteration_seconds(
    passes: Passes,
    jobs: Sequence[Job],
    order: Sequence[Piece],
    in_flight: int,
    *,
    barrier: bool,
    seen: Seen | None = None,
) -> float:
    """From the start of one backward pass to the start of the next."""
    if seen is not None:
        _tell_backward(passes, jobs, seen)
    traffic = passes.traffic(in_flight, len(jobs), barrier=barrier, moved=seen)
    for piece in order:
        traffic.send(piece.unit, passes.ready_s[jobs[piece.unit].place], piece.push, piece.pull)
    traffic.end()
    done_s = traffic.done_s
    now_s = passes.backward_s
    if barrier:
        now_s = max([now_s, *done_s])
        _pull_after(now_s, order, done_s, in_flight, seen)
    return _Device(passes, jobs, done_s, seen).forward(now_s) + passes.between_s


def in_two_legs(pattern: str, barrier: bool) -> bool:
    """Whether what owners hand out waits for something else than the network: their device, or a barrier. Owners that
    are put to update on a thread of their own, and put new values at once."""
    return barrier or pattern == COLLECTIVE


def _pull_after(
    barrier_s: float, order: Sequence[Piece], done_s: list[float], in_flight: int, seen: Seen | None
) -> None:
    """What the barrier held back; `done_s` is brought up to date."""
    link = Entrance(Link(barrier_s), in_flight)
    for piece in order:
        if piece.pull is not None:
            start_s, end_s = link.serve(barrier_s, piece.pull)
            done_s[piece.unit] = max(done_s[piece.unit], end_s)
            if seen is not None:
                seen("pull", piece.unit, start_s, end_s)


class _Device:
    """Runs the forward pass, and applies units on the way."""

    def __init__(self, passes: Passes, jobs: Sequence[Job], done_s: Sequence[float], seen: Seen | None) -> None:
        self._passes = passes
        self._done_s = done_s
        self._seen = seen
        self._left_s = [job.apply_s for job in jobs]
        by_arrival = sorted(range(len(jobs)), key=done_s.__getitem__)
        self._arrivals = [unit for unit in reversed(by_arrival) if jobs[unit].apply_s > 0]  # the last is the next
        self._needed: dict[int, list[int]] = {}
        for unit in by_arrival:
            self._needed.setdefault(jobs[unit].place, []).append(unit)

    def forward(self, now_s: float) -> float:
        """When the pass that starts now is over."""
        for index, forward_s in enumerate(self._passes.forward_s):
            for unit in self._needed.get(index, ()):
                if self._done_s[unit] > now_s:
                    self._use_wait(now_s, self._done_s[unit])
                    now_s = self._done_s[unit]
                now_s = self._apply(unit, now_s, math.inf)
            if self._seen is not None:
                self._seen("forward", index, now_s, now_s + forward_s)
            now_s += forward_s
        return now_s

    def _use_wait(self, now_s: float, until_s: float) -> None:
        """Applies what has arrived, first come first, until forward can go on."""
        while self._arrivals:
            unit = self._arrivals[-1]
            if self._done_s[unit] >= until_s or now_s >= until_s:
                return
            now_s = self._apply(unit, max(now_s, self._done_s[unit]), until_s)
            if self._left_s[unit] <= 0:
                self._arrivals.pop()

    def _apply(self, unit: int, now_s: float, until_s: float) -> float:
        spent_s = min(self._left_s[unit], until_s - now_s)
        if spent_s <= 0:
            return now_s
        self._left_s[unit] -= spent_s
        if self._seen is not None:
            self._seen("apply", unit, now_s, now_s + spent_s)
        return now_s + spent_s


def _tell_backward(passes: Passes, jobs: Sequence[Job], seen: Seen) -> None:
    for index in reversed(range(len(passes.ready_s))):
        end_s = passes.ready_s[index]
        seen("backward", index, end_s - passes.profile.layers[index].backward_s, end_s)
    for unit, job in enumerate(jobs):
        seen("ready", unit, passes.ready_s[job.place], passes.ready_s[job.place])


# -- a finished plan --------------------------------------------------------------------------------------------------
def simulate(plan: CommPlan, profile: NetProfile, num_iterations: int = 1) -> Timeline:
    """Plays a plan on its cluster for a net."""
    check_fits(plan, profile)
    passes = Passes(profile)
    period: list[Event] = []

    def seen(kind: str, index: int, start_s: float, end_s: float) -> None:
        name = profile.layers[index].name if kind in ("forward", "backward") else plan.units[index].params[0]
        period.append(Event(kind, index, name, int(kind == "forward"), start_s, end_s))

    jobs, order = _on_link(plan, profile)
    iteration_s = iteration_seconds(passes, jobs, order, plan.in_flight, barrier=plan.barrier, seen=seen)
    events: list[Event] = []
    now_s = 0.0
    for index, layer in enumerate(profile.layers):
        events.append(Event("forward", index, layer.name, 0, now_s, now_s + layer.forward_s))
        now_s += layer.forward_s
    now_s += passes.between_s
    for iteration in range(num_iterations):
        events += [_shifted(event, iteration, now_s + iteration * iteration_s) for event in period]
    return Timeline(iteration_s, num_iterations, tuple(sorted(events, key=lambda event: event.start_s)))


def _on_link(plan: CommPlan, profile: NetProfile) -> tuple[list[Job], list[Piece]]:
    """The plan's units and sends as they are played."""
    model = CostModel(plan.cluster, plan.wire, plan.pattern)
    params = {param.name: param for param in profile.params}
    places: dict[str, int] = {}
    for index, layer in enumerate(profile.layers):
        for name in layer.params:
            places.setdefault(name, index)
    travelling = [unit for unit in plan.units if unit.scheme is not Scheme.LOCAL]
    costs = []
    for unit in travelling:
        costs.append(model.cost(unit.scheme, load_of(unit, params)))
    counts = Counter(send.unit for send in plan.order)
    jobs = [
        Job(min(places[name] for name in unit.params), cost.apply_s + counts[unit.index] * model.send_s(unit.scheme))
        for unit, cost in zip(travelling, costs, strict=True)
    ]
    pieces = []
    for send in plan.order:
        num_elems = plan.units[send.unit].num_elems
        pieces.append(piece_of(send, num_elems, costs[send.unit], in_two=in_two_legs(plan.pattern, plan.barrier)))
    return jobs, pieces


def _shifted(event: Event, iteration: int, by_s: float) -> Event:
    return replace(event, iteration=event.iteration + iteration, start_s=event.start_s + by_s, end_s=event.end_s + by_s)
