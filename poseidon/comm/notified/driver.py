"""NotifiedScheduler: carries out a plan by notified puts. What the net's taps and the solver's updates see is the same
as of `comm/scheduler.py` (`comm/conductor.py`); inside nothing is started together with other workers.

    compute thread    `ready`: puts a unit's gradient into its reducers' memory at once, and goes on
    progress thread   waits for notifications; sums what is complete, most urgent unit first, applies the rule at roots,
                      puts values into the children's parameters

What may be done when is decided by `protocol.py`, where things lie by `memory.py`. A unit that the next forward pass
needs sooner goes before others, in jobs and on the wire: its queue has a lower number. But not before the values of the
iteration before, of whatever unit: without them somebody else cannot even begin to compute what this one waits for.
"""

from __future__ import annotations

import contextlib
import heapq
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from poseidon.comm.conductor import Conductor, Progress
from poseidon.comm.events import CommListener, SendApplied, SendReduced, SendStarted, UnitDone, UnitReady
from poseidon.comm.exchange import Exchange
from poseidon.comm.notified import protocol
from poseidon.comm.notified.exchanges import FlowExchange, PutFactors
from poseidon.comm.notified.layout import WAKE_ID
from poseidon.comm.notified.memory import Memory, Route
from poseidon.comm.notified.protocol import Act, Gathering, Node, Stage
from poseidon.comm.part import Apply, Part
from poseidon.errors import PeerLost, TransportError, TransportTimeout
from poseidon.plan import CommPlan, Flow, Send
from poseidon.transport.onesided import Note
from poseidon.transport.onesided.base import LAST_VALUE, NUM_QUEUES

LOOK_S = 60.0  # how long the progress thread waits before it waits again
FIRST_VERSION = LAST_VALUE  # the next one is 1

_GATHER = -1  # in the place of a flow's number: the unit's gathering


@dataclass(slots=True)
class _Unit(Progress):
    """How far a unit's flows are, or its gathering. Held is what was reduced at this worker, by flow."""

    flows: list[Flow] = field(default_factory=list)
    queue: int = 0
    left: dict[Send, int] = field(default_factory=dict)  # flows and gatherings of each Send that are not over
    puts: dict[Send, list[int]] = field(default_factory=dict)  # bytes of each that goes over a network, noted before it


class NotifiedScheduler(Conductor[_Unit]):
    """Puts gradients and values, and does what notifications allow."""

    def __init__(
        self,
        plan: CommPlan,
        exchanges: Sequence[Exchange],
        apply: Apply,
        memory: Memory,
        listener: CommListener | None = None,
    ) -> None:
        self._memory = memory
        self._rank, self._endpoint, self._ids = memory.rank, memory.endpoint, memory.ids
        self._routes = memory.routes
        units = {exchange.unit.index: self._unit(exchange, len(exchanges)) for exchange in exchanges}
        super().__init__(plan, units, apply, listener)
        self._nodes = [Node(flow.parent(self._rank), flow.children(self._rank), FIRST_VERSION) for flow in memory.flows]
        others = frozenset(range(memory.size)) - {self._rank}
        self._gatherings = {
            index: Gathering(others, FIRST_VERSION)
            for index, unit in self._units.items()
            if isinstance(unit.exchange, PutFactors)
        }
        self._jobs: list[tuple[int, int, bool]] = []  # unit, flow, whether it is to be applied only
        self._iteration = 0
        self._has_leavers = False
        self._thread = threading.Thread(target=self._run, name="poseidon-notified", daemon=True)
        self._thread.start()

    def _unit(self, exchange: Exchange, num_units: int) -> _Unit:
        flows = exchange.flows if isinstance(exchange, FlowExchange) else []
        # Each worker begins with another owner: nobody is aimed at by all at once.
        turns = sorted(flows, key=lambda flow: (flow.send.start, (flow.root - self._rank) % self._memory.size))
        queue = min(NUM_QUEUES - 1, exchange.unit.index * NUM_QUEUES // num_units)
        return _Unit(exchange, flows=turns, queue=queue)

    # -- compute thread ---------------------------------------------------------------------------------------------
    def ready(self, unit: int, context: Any) -> None:
        entry = self._units[unit]
        assert entry.is_over, f"unit {unit} is ready again before it was done"
        self._tell(UnitReady(unit))
        with self._changed:
            entry.context = context
            entry.iteration += 1
            if entry.iteration > self._iteration:
                # All values of the last one have come, so all that others are to get from here have been put.
                self._iteration = entry.iteration
                self._endpoint.begin_round()
            entry.left = dict.fromkeys(entry.exchange.sends, 0)
            entry.puts = {send: [] for send in entry.left}
            for flow in entry.flows:
                entry.left[flow.send] += 1
            if not entry.flows:
                entry.left[entry.exchange.sends[0]] = 1
        for send in entry.left:
            self._tell(SendStarted(unit, send))
        try:
            has_jobs = self._offer_block(unit, entry) if unit in self._gatherings else self._offer_flows(unit, entry)
            if has_jobs:
                self._endpoint.notify(self._rank, Note(WAKE_ID, 1))
            if self._has_leavers:
                self._check_left()
        except BaseException as problem:  # whoever waits elsewhere has to hear of it too
            self._fail(problem, entry.exchange)
            self._raise_failure()  # the first one: this may follow from it
            raise

    def _offer_flows(self, unit: int, entry: _Unit) -> bool:
        """Puts what can be put; true if the progress thread has something to do."""
        leaving, has_jobs = [], False
        with self._changed:
            for flow in entry.flows:
                node, act = protocol.offered(self._nodes[flow.index])
                if act is Act.SUM:
                    if node.parent is not None and not node.children:
                        leaving.append((self._routes[flow.index], node.coming))
                        node = protocol.summed(node)
                    else:
                        heapq.heappush(self._jobs, (unit, flow.index, False))
                        has_jobs = True
                self._nodes[flow.index] = node
        for route, version in leaving:
            self._put_up(route, entry, version)
        return has_jobs

    def _offer_block(self, unit: int, entry: _Unit) -> bool:
        assert isinstance(entry.exchange, PutFactors)
        block = entry.exchange.begin(entry.exchange.sends[0])
        others = [(self._rank + step) % self._memory.size for step in range(1, self._memory.size)]
        num_far = sum(rank not in self._memory.near for rank in others)
        entry.puts[entry.exchange.sends[0]].append(block.nbytes * num_far)
        with self._changed:
            gathering = self._gatherings[unit] = protocol.own_block(self._gatherings[unit])
            if gathering.is_complete:
                heapq.heappush(self._jobs, (unit, _GATHER, False))
        note = Note(self._ids.block(unit, gathering.turn, self._rank), gathering.coming)
        for to in others:
            self._endpoint.write_notify(block, self._memory.spot_of_block(unit, to, gathering.turn), note, entry.queue)
        return gathering.is_complete

    def release(self) -> None:
        with self._changed:
            for unit, entry in self._units.items():
                for key in entry.held:
                    heapq.heappush(self._jobs, (unit, key, True))
        self._endpoint.notify(self._rank, Note(WAKE_ID, 1))

    def _is_reduced(self, entry: _Unit) -> bool:
        roots = [flow for flow in entry.flows if flow.root == self._rank]
        expected = len(roots) if entry.flows else 1
        return entry.is_over or len(entry.held) == expected

    def _held(self) -> list[Part]:
        return [part for entry in self._units.values() for key in sorted(entry.held) for part in entry.held[key]]

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._jobs.clear()
            self._tell_end()
        with contextlib.suppress(TransportError):  # somebody is lost: the progress thread has ended by itself
            self._endpoint.notify(self._rank, Note(WAKE_ID, 1))
        self._thread.join()
        self._endpoint.close()

    # -- progress thread --------------------------------------------------------------------------------------------
    def _run(self) -> None:
        with torch.no_grad():
            while not self._has_ended:
                try:
                    self._step()
                except TransportTimeout:
                    continue  # nothing has happened for long: a long test, a slow worker
                except BaseException as problem:  # raised again to whoever waits
                    self._fail(problem, self._under_way())

    def _step(self) -> None:
        with self._changed:
            job = heapq.heappop(self._jobs) if self._jobs else None
        notes = self._endpoint.take(self._ids.all, 0 if job is not None else LOOK_S)
        for note in notes:
            if note.id != WAKE_ID:
                self._take(note)
        if not notes and job is None:
            self._check_left()
        if job is not None:
            if notes:
                with self._changed:  # something more urgent may have become complete
                    job = heapq.heappushpop(self._jobs, job)
            self._carry_out(*job)

    def _take(self, note: Note) -> None:
        place, sender = self._ids.meaning(note.id)
        if place >= self._ids.num_flows:
            self._take_block(place - self._ids.num_flows, sender, note.value)
            return
        route = self._routes[place]
        unit, send = route.flow.send.unit, route.flow.send
        with self._changed:
            node = self._nodes[place]
            if sender == node.parent:
                node, act = protocol.values_arrived(node, note.value)
            else:
                node, act = protocol.sum_arrived(node, sender, note.value)
            self._nodes[place] = node
            if act is Act.SUM:
                heapq.heappush(self._jobs, (unit, place, False))
        if act is Act.PASS_ON:
            self._put_down(route, self._units[unit], node.version)
            self._end_part(unit, send)

    def _take_block(self, unit: int, sender: int, version: int) -> None:
        with self._changed:
            was_complete = self._gatherings[unit].is_complete
            gathering = protocol.block_arrived(self._gatherings[unit], sender, version)
            self._gatherings[unit] = gathering
            if gathering.is_complete and not was_complete:
                heapq.heappush(self._jobs, (unit, _GATHER, False))

    def _carry_out(self, unit: int, flow: int, is_summed: bool) -> None:
        entry = self._units[unit]
        try:
            if is_summed:
                self._apply_parts(unit, flow, entry.held.pop(flow))
            elif flow == _GATHER:
                self._use_blocks(unit, entry)
            else:
                self._sum(self._routes[flow], entry)
        except BaseException as problem:  # raised again to whoever waits
            self._fail(problem, entry.exchange)

    def _sum(self, route: Route, entry: _Unit) -> None:
        assert isinstance(entry.exchange, FlowExchange)
        flow = route.flow
        gradient = entry.exchange.gradient(flow)
        for slot in route.slots:
            gradient += slot
        with self._changed:
            node = self._nodes[flow.index] = protocol.summed(self._nodes[flow.index])
        if node.parent is not None:
            self._put_up(route, entry, node.coming)
        else:
            self._reduced(flow.send.unit, flow.index, entry.exchange.reduced(flow.send, flow))

    def _use_blocks(self, unit: int, entry: _Unit) -> None:
        exchange = entry.exchange
        assert isinstance(exchange, PutFactors)
        own = exchange.begin(exchange.sends[0])
        turn = self._gatherings[unit].turn
        blocks = [
            own if rank == self._rank else self._memory.block_of(unit, rank, turn, own)
            for rank in range(self._memory.size)
        ]
        parts = exchange.reduced(exchange.sends[0], blocks)
        with self._changed:
            self._gatherings[unit] = protocol.block_read(self._gatherings[unit])
        self._reduced(unit, _GATHER, parts)

    def _reduced(self, unit: int, flow: int, parts: list[Part]) -> None:
        if not self.plan.barrier:
            self._apply_parts(unit, flow, parts)
            return
        with self._changed:
            self._units[unit].held[flow] = parts
            self._arrived.notify_all()

    def _apply_parts(self, unit: int, key: int, parts: list[Part]) -> None:
        entry = self._units[unit]
        self._apply(parts, entry.context)
        if key == _GATHER:
            self._end_part(unit, entry.exchange.sends[0])
            return
        route = self._routes[key]
        with self._changed:
            node = self._nodes[key] = protocol.applied(self._nodes[key])
        self._put_down(route, entry, node.version)
        self._end_part(unit, route.flow.send)

    # -- puts -------------------------------------------------------------------------------------------------------
    # Bytes are noted before they are put, so that none are missing when the Send is over.
    def _put_up(self, route: Route, entry: _Unit, version: int) -> None:
        assert isinstance(entry.exchange, FlowExchange)
        assert route.up is not None
        entry.puts[route.flow.send].append(route.bytes_up)
        gradient = entry.exchange.gradient(route.flow)
        self._endpoint.write_notify(gradient, route.up, Note(route.id, version), entry.queue)

    def _put_down(self, route: Route, entry: _Unit, version: int) -> None:
        entry.puts[route.flow.send].append(route.bytes_down)
        note = Note(route.id, version)
        for spot in route.down:
            self._endpoint.write_notify(route.values, spot, note, entry.queue)

    # -- ends -------------------------------------------------------------------------------------------------------
    def _end_part(self, unit: int, send: Send) -> None:
        """One of the unit's flows, or its gathering, is over on this worker."""
        entry = self._units[unit]
        with self._changed:
            entry.left[send] -= 1
            is_send_over = entry.left[send] == 0
            is_over = not any(entry.left.values())
        if is_send_over:
            self._tell(SendReduced(unit, send))
            self._tell(SendApplied(unit, send, sum(entry.puts[send])))
        if is_over:
            entry.exchange.drop()
            self._tell(UnitDone(unit))
            with self._changed:
                entry.done = entry.iteration
                if self._awaited == unit:
                    self._arrived.notify_all()

    def _check_left(self) -> None:
        """A peer has left in peace. That is a loss if something is still expected from it."""
        gone = {rank for rank, is_there in enumerate(self._endpoint.health()) if not is_there}
        self._has_leavers = bool(gone)
        with self._changed:
            late = [entry for unit, entry in self._units.items() if not entry.is_over and self._expects(unit, gone)]
        if late:
            ranks = tuple(sorted(gone))
            names = ", ".join(str(self._endpoint.peers[rank]) for rank in ranks)
            raise PeerLost(f"{names} left the job before that was over; while exchanging {late[0].exchange}", ranks)

    def _expects(self, unit: int, ranks: set[int]) -> bool:
        if unit in self._gatherings:
            gathering = self._gatherings[unit]
            return gathering.has_own and bool(ranks & (gathering.others - gathering.arrived))
        nodes = [self._nodes[flow.index] for flow in self._units[unit].flows]
        return any(
            node.parent in ranks if node.stage is Stage.WAITING else bool(ranks & (set(node.children) - node.arrived))
            for node in nodes
            if node.stage is Stage.WAITING or node.has_own
        )

    def _under_way(self) -> Exchange:
        """What to name if something failed that belongs to no unit."""
        with self._changed:
            entries = list(self._units.values())
            return next((entry.exchange for entry in entries if not entry.is_over), entries[0].exchange)

    def _abort(self, exchange: Exchange, reason: str) -> None:
        self._endpoint.abort(reason)
        exchange.transport.abort(reason)
