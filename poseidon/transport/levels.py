"""Levels: workers that share a node's memory combine there first, and one copy crosses the network.

    transport = share_nodes(transport, nodes=[0, 0, 1, 1, 1]).transport      nodes: where each rank runs

N nodes of any numbers of workers; the first worker of a node is its leader. Through a node's memory (`node.py`), then
among leaders over the network, then through memory again:

    all_reduce        sum at the leader          leaders' all-reduce                  the sum to all
    gather            blocks to all              each node's blocks around the ring   other nodes' blocks to all
    reduce_shards     sums at the leader         shards to their owners' leaders,     shards to their owners
                                                 who sum in the order of nodes
    exchange_slices   slices to their takers     slices straight from worker to worker
    gather_tables     tables to the leader,      each node's table around the ring    all tables to all
                      who combines them

On a single node everything goes through memory, and each worker sums a part. Messages, broadcasts, barriers and groups
of some ranks only are the network's own. Payload is counted where it crosses between nodes.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from poseidon.errors import TransportError
from poseidon.transport.base import OWN_TAGS, Levels, Transport, Work, check_message, members_of, size_text
from poseidon.transport.cargo import Combine, Narrowing, Room, Table
from poseidon.transport.collectives import (
    all_gather,
    exchange_lists,
    gather_lists,
    gather_unsized,
    reduce_lists,
    ring_of,
    shards_of,
)
from poseidon.transport.completion import finished
from poseidon.transport.node import LOOK_S, Layout, Node, Session
from poseidon.transport.onesided.base import Endpoint
from poseidon.transport.pacing import Pace
from poseidon.transport.shared_memory import Counter, Segment, fetch
from poseidon.transport.tally import Tally

SHARE_TAG = OWN_TAGS + 3
SHARE_S = 20.0
_MOST_PROBLEM_BYTES = 240


@dataclass(frozen=True, slots=True)
class Sharing:
    """The transport to use; if it is the one given, `problem` says why memory cannot be shared (empty: no need)."""

    transport: Transport
    problem: str = ""


def share_nodes(wire: Transport, nodes: Sequence[int]) -> Sharing:
    """All workers call it together, with the same `nodes`; all get the same answer."""
    if len(set(nodes)) == len(nodes):
        return Sharing(wire)
    members = [rank for rank in range(wire.size) if nodes[rank] == nodes[wire.rank]]
    segment, problem = None, ""
    try:
        segment = _segment(wire, members) if len(members) > 1 else None
    except TransportError as error:
        problem = str(error)
    problems = _shared_texts(wire, problem)
    if any(problems):
        rank = next(rank for rank, text in enumerate(problems) if text)
        return Sharing(wire, f"{wire.peers[rank]}: {problems[rank]}")
    return Sharing(LevelTransport(wire, nodes, segment))


def _segment(wire: Transport, members: Sequence[int]) -> Segment:
    """A node's memory: the leader makes it and hands it to the others, whom it tells over the network how to ask."""
    leader, *others = members
    word = torch.zeros(32, dtype=torch.uint8)
    if wire.rank != leader:
        wire.recv(word, leader, SHARE_TAG).wait()
        if not word.any():
            raise TransportError(f"{wire.peers[leader]} has no shared memory to offer")
        return fetch(bytes(word.tolist()).decode(), SHARE_S)
    try:
        counter = Counter()
    except TransportError:
        for send in [wire.send(word, other, SHARE_TAG) for other in others]:  # no word: there is nothing to fetch
            send.wait()
        raise
    word.copy_(torch.frombuffer(bytearray(counter.word.encode()), dtype=torch.uint8))
    sends = [wire.send(word, other, SHARE_TAG) for other in others]
    layout = Layout(len(members))
    with Segment.create(layout.num_bytes) as (segment, descriptor):
        layout.prepare(segment)
        counter.hand_out(descriptor, layout.num_bytes, len(others), SHARE_S)
    for send in sends:
        send.wait()
    return segment


def _shared_texts(wire: Transport, text: str) -> list[str]:
    data = text.encode()[:_MOST_PROBLEM_BYTES]
    cells = [torch.zeros(_MOST_PROBLEM_BYTES, dtype=torch.uint8) for _ in range(wire.size)]
    cells[wire.rank][: len(data)] = torch.tensor(list(data), dtype=torch.uint8)
    all_gather(wire, cells, tag=SHARE_TAG).wait()
    return [bytes(cell.tolist()).rstrip(b"\0").decode(errors="replace") for cell in cells]


class LevelTransport:
    """One worker's end. `segment` is its node's memory; None where it is alone on its node."""

    def __init__(self, wire: Transport, nodes: Sequence[int], segment: Segment | None) -> None:
        self._wire = wire
        self.rank, self.size, self.peers, self.engine = wire.rank, wire.size, wire.peers, wire.engine
        self.kind = f"{wire.kind}, shared memory on each node"
        numbers = list(dict.fromkeys(nodes))
        self._members = [[rank for rank in range(wire.size) if nodes[rank] == number] for number in numbers]
        self._own = numbers.index(nodes[wire.rank])
        self._local = self._members[self._own]
        self._node = None if segment is None else Node(segment, self._place, len(self._local), self._check)
        leaders = [members[0] for members in self._members]
        self._leaders = wire.subgroup(leaders) if len(leaders) > 1 else None
        self._tally = Tally()
        self._sums = itertools.count()
        self._turns = _Turns(self._check)

    @property
    def levels(self) -> Levels:
        return self

    @property
    def node_workers(self) -> tuple[int, ...]:
        return tuple(map(len, self._members))

    @property
    def _is_one_node(self) -> bool:
        return len(self._members) == 1

    @property
    def bytes_sent(self) -> int:
        return self._tally.sent + (0 if self._leaders is None else self._leaders.bytes_sent)

    @property
    def bytes_received(self) -> int:
        return self._tally.received + (0 if self._leaders is None else self._leaders.bytes_received)

    def sent_with(self, tags: Iterable[int]) -> int:
        tags = tuple(tags)
        return self._tally.sent_with(tags) + (0 if self._leaders is None else self._leaders.sent_with(tags))

    # -- the network's own ------------------------------------------------------------------------------------------
    def send(self, tensor: Tensor, to: int, tag: int) -> Work:
        work = self._wire.send(tensor, to, tag)
        self._tally.add(sent=0 if to in self._local else tensor.nbytes, tag=tag)
        return work

    def recv(self, tensor: Tensor, source: int, tag: int) -> Work:
        work = self._wire.recv(tensor, source, tag)
        self._tally.add(received=0 if source in self._local else tensor.nbytes)
        return work

    def broadcast(self, tensor: Tensor, root: int, group: Sequence[int] | None = None) -> Work:
        return self._wire.broadcast(tensor, root, group)

    def barrier(self, timeout_s: float) -> None:
        self._wire.barrier(timeout_s)

    def subgroup(self, ranks: Sequence[int]) -> Transport | None:
        return self._wire.subgroup(ranks)

    def loss(self, doing: str, ranks: Sequence[int] = ()) -> TransportError | None:
        return self._wire.loss(doing, ranks)

    def one_sided(self, pace: Pace | None = None) -> Endpoint:
        return self._wire.one_sided(pace)

    def abort(self, reason: str) -> None:
        self._wire.abort(reason)

    def close(self) -> None:
        self._wire.close()

    # -- on all levels ----------------------------------------------------------------------------------------------
    def all_reduce(self, tensor: Tensor, group: Sequence[int] | None = None, *, tag: int | None = None) -> Work:
        check_message(tensor)
        if group is not None and members_of(group, self.size, self.rank) != tuple(range(self.size)):
            return self._wire.all_reduce(tensor, group, tag=tag)
        what = f"in the all-reduce of {size_text(tensor.nbytes)}"
        if tensor.numel() == 0:
            return finished(what)
        problem = self.loss(what)
        if problem is not None:
            raise problem
        turn = next(self._sums)
        others = tuple(peer.rank for peer in self.peers if peer.rank != self.peers[self.rank].rank)
        return self.engine.submit(object(), lambda: self._sum(tensor, turn, tag), what, others)

    def _sum(self, tensor: Tensor, turn: int, tag: int | None) -> None:
        if self._node is None:
            self._sum_at_leaders(tensor, turn, tag)
            return
        with self._node.session(-1 - turn) as session:
            shards = shards_of(tensor, len(self._local))
            if self._is_one_node:
                _sum_for_all(session, shards)
                return
            session.reduce(shards)
            self._sum_at_leaders(tensor, turn, tag)
            session.broadcast([tensor])

    def _sum_at_leaders(self, tensor: Tensor, turn: int, tag: int | None) -> None:
        """All-reduces of a group must begin in the same order on all its members: in that of the calls."""
        if self._leaders is not None:
            with self._turns.at(turn):
                work = self._leaders.all_reduce(tensor, tag=tag)
            work.wait()

    def sum_on_node(self, tensor: Tensor, tag: int) -> None:
        if self._node is not None:
            with self._node.session(tag) as session:
                _sum_for_all(session, shards_of(tensor, len(self._local)))

    def gather(self, blocks: Sequence[Tensor], tag: int) -> None:
        """Fills blocks[i] with worker i's, on the calling thread, one of the engine's."""
        if self._node is None:
            self._gather_at_leaders(blocks, tag)
            return
        with self._node.session(tag) as session:
            session.gather([[blocks[rank]] for rank in self._local])
            if not self._is_one_node:
                self._gather_at_leaders(blocks, tag)
                session.broadcast([block for rank, block in enumerate(blocks) if rank not in self._local])

    def _gather_at_leaders(self, blocks: Sequence[Tensor], tag: int) -> None:
        if self._leaders is not None:
            ring = ring_of(self._leaders, None, tag)
            gather_lists(ring, [[blocks[rank] for rank in members] for members in self._members])

    def reduce_shards(self, shards: Sequence[Tensor], narrowing: Narrowing | None, tag: int) -> None:
        """Sums shard i in place at worker i; only what crosses between nodes is narrowed."""
        if self._node is None:
            self._reduce_at_leaders(shards, narrowing, tag)
            return
        with self._node.session(tag) as session:
            if self._is_one_node:
                session.reduce_shards(shards)
                return
            self._reduce_to_leader(session, shards)
            self._reduce_at_leaders(shards, narrowing, tag)
            session.broadcast([shards[rank] for rank in self._local], wanted=(self._place,))

    def _reduce_to_leader(self, session: Session, shards: Sequence[Tensor]) -> None:
        """Whatever the shards are, their sums are shared out evenly: each local worker sums its part of every one."""
        for shard in shards:
            session.reduce(shards_of(shard, len(self._local)))

    def _reduce_at_leaders(self, shards: Sequence[Tensor], narrowing: Narrowing | None, tag: int) -> None:
        if self._leaders is not None:
            lists = [[(rank, shards[rank]) for rank in members] for members in self._members]
            reduce_lists(ring_of(self._leaders, None, tag), lists, narrowing)

    def exchange_slices(self, outgoing: Sequence[Tensor], incoming: Sequence[Tensor], tag: int) -> None:
        """`outgoing[i]` becomes `incoming[this worker]` of worker i; one's own is not touched."""
        if self._node is not None:
            with self._node.session(tag) as session:
                session.exchange([outgoing[rank] for rank in self._local], [incoming[rank] for rank in self._local])
        if not self._is_one_node:
            leaving, arriving = (
                [[] if rank in self._local else [part] for rank, part in enumerate(parts)]
                for parts in (outgoing, incoming)
            )
            exchange_lists(ring_of(self, None, tag), leaving, arriving)

    def gather_tables(self, own: Table, combine: Combine, tag: int, room: Room) -> list[Table]:
        """Every node's table, in the order of nodes."""
        if self._node is None:
            return gather_unsized(ring_of(self._leaders or self._wire, None, tag), own, room)
        with self._node.session(tag) as session:
            tables = self._gather_local(session, own)
            combined = combine(tables) if self._place == 0 or self._is_one_node else tables[0]
            if self._is_one_node:
                return [combined]
            leaders = self._leaders
            found = [] if leaders is None else gather_unsized(ring_of(leaders, None, tag), combined, room)
            counts = torch.tensor([table.num_rows for table in found] or [0] * len(self._members))
            session.broadcast([counts])
            found = found or [own.like(count) for count in counts.tolist()]
            session.broadcast([message for table in found for message in table.messages()])
        return found

    def _gather_local(self, session: Session, own: Table) -> list[Table]:
        """The tables of a node's workers; on several nodes only the leader's are filled."""
        counts = torch.zeros(len(self._local), dtype=torch.int64)
        counts[self._place] = own.num_rows
        session.gather([[count.view(1)] for count in counts])
        numbers = counts.tolist()
        tables = [own if place == self._place else own.like(number) for place, number in enumerate(numbers)]
        is_taker = self._place == 0 or self._is_one_node
        session.gather([table.messages() for table in tables], None if is_taker else ())
        return tables

    @property
    def _place(self) -> int:
        return self._local.index(self.rank)

    def _check(self, place: int | None = None) -> None:
        doing = "exchanging through shared memory"
        problem = self._wire.loss(doing, () if place is None else [self._local[place]])
        if problem is not None:
            raise problem


def _sum_for_all(session: Session, shards: Sequence[Tensor]) -> None:
    """The sum over the workers of a node; each sums one shard."""
    session.reduce_shards(shards)
    session.gather([[shard] for shard in shards])


class _Turns:
    """Lets threads through in the order of their numbers, counted from 0 without gaps."""

    def __init__(self, check: Callable[[], None]) -> None:
        self._check = check
        self._changed = threading.Condition()
        self._next = 0

    @contextmanager
    def at(self, number: int) -> Iterator[None]:
        with self._changed:
            while not self._changed.wait_for(lambda: self._next == number, LOOK_S):
                self._check()
        yield
        with self._changed:
            self._next += 1
            self._changed.notify_all()
