"""Stale synchronous parallel, tried in every order on small instances.

The world here is a model: workers that read, update and clock; servers, one for each part; channels that keep the order
of one sender's messages to one receiver, and nothing else. Values are the *set* of updates they contain, so it is seen

    on every read      every update up to c − s − 1 is in, of everybody (never staler than s); with whole clocks nothing
                       but whole clocks is in
    on every update    none enters twice
    at the end         nobody is stuck, every update of everybody is in every part, and has reached every worker
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import pytest

from poseidon.comm.stale import protocol
from poseidon.comm.stale.protocol import Entry, Mode, Part
from poseidon.errors import TransportError

Updates = frozenset[tuple[int, int, int]]  # worker, clock, which message of it


@dataclass(frozen=True)
class Worker:
    """`known`: by part the version and contents of its copy; `asked`: by part the version asked for; `phase`: what it
    does next at its clock: read (0), send the messages of its update (1 …), then the clock goes on."""

    clock: int
    phase: int
    known: tuple[tuple[int, Updates], ...]
    asked: tuple[int, ...]
    has_left: bool = False


@dataclass(frozen=True)
class Server:
    state: Part
    contents: Updates
    pending: Updates


@dataclass(frozen=True)
class World:
    workers: tuple[Worker, ...]
    servers: tuple[Server, ...]
    channels: tuple[tuple[tuple[str, int, int], tuple], ...]  # (direction, worker, part) → messages, in order

    def queue(self, key) -> tuple:
        return dict(self.channels).get(key, ())

    def with_queue(self, key, messages: tuple) -> World:
        kept = {k: m for k, m in self.channels if k != key}
        if messages:
            kept[key] = messages
        return replace(self, channels=tuple(sorted(kept.items())))

    def sent(self, key, message) -> World:
        return self.with_queue(key, (*self.queue(key), message))


@dataclass(frozen=True)
class Model:
    """`clocks`: how many each worker does; `paused`: a worker that does nothing from its clock `paused[1]` on."""

    clocks: tuple[int, ...]
    num_parts: int
    staleness: int
    mode: Mode = Mode.PUSH
    entry: Entry = Entry.WHOLE_CLOCKS
    paused: tuple[int, int] | None = None

    @property
    def num_messages(self) -> int:
        """An update that may enter before the clock comes in two."""
        return 1 if self.entry is Entry.WHOLE_CLOCKS else 2

    def start(self) -> World:
        size, parts = len(self.clocks), range(self.num_parts)
        worker = Worker(0, 0, tuple((0, frozenset()) for _ in parts), tuple(-1 for _ in parts))
        server = Server(protocol.new_part(size), frozenset(), frozenset())
        return World((worker,) * size, (server,) * self.num_parts, ())

    def steps(self, world: World) -> Iterator[World]:
        for rank, worker in enumerate(world.workers):
            if self.paused != (rank, worker.clock) and not worker.has_left:
                yield from self._act(world, rank, worker)
        for key, messages in world.channels:
            rest = world.with_queue(key, messages[1:])
            yield self._served(rest, key, messages[0]) if key[0] == "up" else self._learnt(rest, key, messages[0])

    # -- workers ----------------------------------------------------------------------------------------------------
    def _act(self, world: World, rank: int, worker: Worker) -> Iterator[World]:
        """At the end a worker reads everything once more, if all do as many clocks, and leaves."""
        is_last = worker.clock == self.clocks[rank]
        drains = is_last and len(set(self.clocks)) == 1
        if worker.phase == 0:
            need = worker.clock if drains else protocol.version_needed(worker.clock, self.staleness)
            if is_last and not drains:
                yield self._leave(world, rank, worker)
            elif all(version >= need for version, _ in worker.known):
                self._check_read(worker, 0 if drains else self.staleness)
                moved = replace(worker, phase=1)
                yield self._leave(world, rank, moved) if is_last else _with(world, rank, moved)
            elif self.mode is Mode.PULL:
                for part, (version, _) in enumerate(worker.known):
                    if version < need and worker.asked[part] < need:
                        asked = replace(worker, asked=_set(worker.asked, part, need))
                        yield _with(world, rank, asked).sent(("up", rank, part), ("read", need, 0))
            return
        ends = worker.phase == self.num_messages
        for part in range(self.num_parts):
            world = world.sent(("up", rank, part), ("update", worker.clock, worker.phase, ends))
        moved = replace(worker, clock=worker.clock + ends, phase=0 if ends else worker.phase + 1)
        yield _with(world, rank, moved)

    def _check_read(self, worker: Worker, staleness: int) -> None:
        for version, contents in worker.known:
            bound = worker.clock - staleness
            missing = {
                (rank, clock, message)
                for rank, num_clocks in enumerate(self.clocks)
                for clock in range(min(bound, num_clocks))
                for message in range(1, self.num_messages + 1)
            } - contents
            assert not missing, f"a read at clock {worker.clock} lacks {missing}"
            if self.entry is Entry.WHOLE_CLOCKS:
                assert {(rank, clock) for rank, clock, _ in contents} == {
                    (rank, clock) for rank, count in enumerate(self.clocks) for clock in range(min(version, count))
                }, "a version is made of whole clocks"

    def _leave(self, world: World, rank: int, worker: Worker) -> World:
        for part in range(self.num_parts):
            world = world.sent(("up", rank, part), ("leave", 0, 0))
        return _with(world, rank, replace(worker, has_left=True))

    def _learnt(self, world: World, key, message) -> World:
        _, rank, part = key
        worker = world.workers[rank]
        return _with(world, rank, replace(worker, known=_set(worker.known, part, message)))

    # -- servers ----------------------------------------------------------------------------------------------------
    def _served(self, world: World, key, message) -> World:
        _, rank, part = key
        server, kind = world.servers[part], message[0]
        answered: tuple[int, ...] = ()
        if kind == "read":
            state, at_once = protocol.pulled(server.state, rank, message[1])
            server, answered = replace(server, state=state), (rank,) if at_once else ()
        elif kind == "leave":
            server = replace(server, state=protocol.worker_left(server.state, rank))
        else:
            server = self._updated(server, rank, *message[1:])
        world = replace(world, servers=_set(world.servers, part, server))
        return self._advanced(self._sent_values(world, part, answered), part)

    def _updated(self, server: Server, rank: int, clock: int, number: int, ends: bool) -> Server:
        update = (rank, clock, number)
        assert update not in server.contents | server.pending, "an update came twice"
        if self.entry is Entry.ON_ARRIVAL:
            server = replace(server, contents=server.contents | {update})
        else:
            server = replace(server, pending=server.pending | {update})
        if ends:
            server = replace(server, state=protocol.update_arrived(server.state, rank, clock))
        return server

    def _advanced(self, world: World, part: int) -> World:
        while world.servers[part].state.is_behind:
            server = world.servers[part]
            due = frozenset(update for update in server.pending if update[1] == server.state.version)
            state, answered = protocol.version_made(server.state)
            server = Server(state, server.contents | due, server.pending - due)
            world = replace(world, servers=_set(world.servers, part, server))
            if self.mode is not Mode.PULL:
                answered = tuple(rank for rank in range(len(self.clocks)) if rank not in state.gone)
            world = self._sent_values(world, part, answered)
        return world

    def _sent_values(self, world: World, part: int, ranks: tuple[int, ...]) -> World:
        server = world.servers[part]
        for rank in ranks:
            world = world.sent(("down", rank, part), (server.state.version, server.contents))
        return world

    # -- ends -------------------------------------------------------------------------------------------------------
    def check_end(self, world: World) -> None:
        """Nothing can happen any more."""
        everything = {
            (rank, clock, message)
            for rank, count in enumerate(self.clocks)
            for clock in range(count)
            for message in range(1, self.num_messages + 1)
        }
        assert all(worker.has_left for worker in world.workers), "somebody is stuck"
        for server in world.servers:
            assert server.contents == everything, "the sum of what entered is the sum of what was made"
            assert not server.pending
        if len(set(self.clocks)) == 1:
            assert all(contents == everything for worker in world.workers for _, contents in worker.known)


def _set(values: tuple, index: int, value) -> tuple:
    return (*values[:index], value, *values[index + 1 :])


def _with(world: World, rank: int, worker: Worker) -> World:
    return replace(world, workers=_set(world.workers, rank, worker))


def explore(model: Model) -> list[World]:
    """Visits every world that can be reached; those in which nothing can happen any more."""
    start = model.start()
    seen, todo, ends = {start}, [start], []
    while todo:
        world = todo.pop()
        following = list(model.steps(world))
        if not following:
            ends.append(world)
        for step in following:
            if step not in seen:
                seen.add(step)
                todo.append(step)
    return ends


INSTANCES = [
    Model((2, 2), 2, 0),
    Model((2, 2), 1, 1),
    Model((3, 3), 1, 1),
    Model((2, 2, 2), 1, 0),
    Model((2, 2, 2), 1, 1),
    Model((3, 3, 3), 1, 1),
    Model((2, 2, 2), 2, 0),
    Model((2, 2), 1, 0, Mode.PULL),
    Model((3, 3), 1, 1, Mode.PULL),
    Model((2, 2), 2, 1, Mode.PULL),
    Model((2, 2, 2), 1, 1, Mode.PULL),
    Model((2, 2), 1, 1, Mode.MANAGED, Entry.ON_ARRIVAL),
    Model((2, 2), 1, 0, Mode.MANAGED, Entry.ON_ARRIVAL),
    Model((1, 3), 1, 0),  # a worker that finishes early
    Model((1, 2, 2), 1, 0, Mode.PULL),
    Model((0, 2), 1, 1, Mode.PULL),
]


@pytest.mark.parametrize("model", INSTANCES, ids=str)
def test_every_order_keeps_the_bound_and_loses_nothing(model):
    check(model)


def check(model: Model) -> None:
    ends = explore(model)
    assert ends
    for world in ends:
        model.check_end(world)


@pytest.mark.parametrize("mode", [Mode.PULL, Mode.PUSH])
@pytest.mark.parametrize("staleness", [0, 1, 2])
def test_with_one_worker_paused_the_others_stop_exactly_at_the_bound(staleness, mode):
    paused_at = 1
    model = Model((9, 9), 1, staleness, mode, paused=(0, paused_at))
    for world in explore(model):
        assert world.workers[0].clock == paused_at
        assert world.workers[1].clock == paused_at + staleness + 1


@pytest.mark.parametrize("name", ["version_needed", "version_made", "pulled"])
def test_the_search_finds_mistakes(monkeypatch, name):
    """One clock too lax, a version made of an incomplete clock's successor, an answer too early: each is found."""
    right = getattr(protocol, name)
    wrong = {
        "version_needed": lambda clock, staleness: right(clock, staleness + 1),
        "version_made": lambda part: (replace(right(part)[0], version=part.reachable), right(part)[1]),
        "pulled": lambda part, worker, need: (part, True),
    }[name]
    monkeypatch.setattr(protocol, name, wrong)
    model = Model((3, 3), 1, 0, Mode.PULL if name == "pulled" else Mode.PUSH)
    if name == "version_made":
        model = Model((1, 3), 1, 2)  # an early finisher lets several versions fall due at once
    with pytest.raises(AssertionError):
        check(model)


def test_updates_come_in_order_and_once():
    part = protocol.update_arrived(protocol.new_part(2), 1, 0)
    with pytest.raises(TransportError, match=r"worker 1's update of clock 0 came where that of clock 1 was due"):
        protocol.update_arrived(part, 1, 0)
    with pytest.raises(TransportError, match="after it had left"):
        protocol.update_arrived(protocol.worker_left(part, 1), 1, 1)
