"""Collectives written on send and receive: all-gather, reduction to shards, exchange of slices.

P members, member i's block of n_i bytes. Payload bytes sent by member r:

    all_gather        Σ n_i over i ≠ r+1    equal blocks: (P−1)·n      ring of neighbours
      of small blocks (P−1)·n_r                                        straight to everybody: one step, not P−1
    reduce_shards     Σ n_i over i ≠ r      equal shards: N·(P−1)/P    each owner hears from everybody
    exchange_slices   Σ of the slices for others                       the same pattern, nothing summed
    sum_in_pairs      N·log2 P                                         log2 P rounds, each with one partner
    gather_tables     as all_gather, and 8 bytes for the length        tables whose lengths only their owners know

Where workers share nodes (`levels.py`) each of these goes through a node's memory first, and one copy crosses the
network: P and n_i are then the nodes and their blocks.

All start at once and go on while the caller computes (the transport's engine carries them). The members of a group call
the same collectives with the same tag in the same order; collectives with one tag run one after another, with different
tags side by side. Everybody knows the sizes of all blocks; empty ones cost no message.

Ring: blocks are cut into pieces. While a member still sends its own block, the first pieces of its neighbour's have
arrived and can be passed on, so the link never waits for a thread to wake up: what makes whole blocks slow.

Exchange: everybody hears from everybody, in turns that differ by rank, so that no two members aim at one receiver as
long as all keep pace; a bounded number of rounds is open at a time, which bounds memory and what piles up in a switch.
Sums are taken in the order of the group, never in order of arrival: the bits do not depend on timing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from poseidon.errors import TransportError
from poseidon.transport.base import Transport, Work, check_message, members_of, size_text
from poseidon.transport.cargo import Combine, Narrowing, Room, Table
from poseidon.transport.completion import Completion, finished
from poseidon.transport.cutting import (
    MAX_PART_BYTES,
    MAX_PIECE_BYTES,
    OPEN_PIECES,
    OPEN_ROUNDS,
    goes_straight,
    piece_elems,
)
from poseidon.transport.node import sum_in_order


@dataclass(frozen=True, slots=True)
class Ring:
    """A group seen from one member: who it is, what it uses to reach the others."""

    transport: Transport
    ranks: tuple[int, ...]
    place: int
    tag: int

    @property
    def size(self) -> int:
        return len(self.ranks)

    def send(self, tensor: Tensor, place: int) -> Work:
        return self.transport.send(tensor, self.ranks[place % self.size], self.tag)

    def recv(self, tensor: Tensor, place: int) -> Work:
        return self.transport.recv(tensor, self.ranks[place % self.size], self.tag)


@dataclass(slots=True)
class Gathered:
    """Tables that are being gathered: those of each node, once `work` is over."""

    work: Completion = field(init=False)
    tables: list[Table] = field(default_factory=list)


def all_gather(
    transport: Transport, blocks: Sequence[Tensor], *, group: Sequence[int] | None = None, tag: int = 0
) -> Completion:
    """Fills `blocks` on every member: block i comes from member i; each has put its own in place beforehand."""
    ring = ring_of(transport, group, tag, blocks)
    what = f"gathering {size_text(sum(block.nbytes for block in blocks))} from {ring.size} workers, tag {tag}"
    if ring.size == 1:
        return finished(what)
    levels = transport.levels
    if levels is not None and group is None:
        return _submit(ring, lambda: levels.gather(blocks, tag), what)
    return _submit(ring, lambda: gather_lists(ring, [[block] for block in blocks]), what)


def reduce_shards(
    transport: Transport,
    shards: Sequence[Tensor],
    *,
    group: Sequence[int] | None = None,
    tag: int = 0,
    narrowing: Narrowing | None = None,
) -> Work:
    """Sums shard i over all members, in place at member i, in the order of the group; other shards may be used up.

    With `narrowing` shards travel so; a member's own counts in full width.
    """
    ring = ring_of(transport, group, tag, shards)
    what = f"reducing {size_text(sum(shard.nbytes for shard in shards))} over {ring.size} workers, tag {tag}"
    if ring.size == 1:
        return finished(what)
    levels = transport.levels
    if levels is not None and group is None:
        return _submit(ring, lambda: levels.reduce_shards(shards, narrowing, tag), what)
    lists = [[(place, shard)] for place, shard in enumerate(shards)]
    return _submit(ring, lambda: reduce_lists(ring, lists, narrowing), what)


def exchange_slices(
    transport: Transport,
    outgoing: Sequence[Tensor],
    incoming: Sequence[Tensor],
    *,
    group: Sequence[int] | None = None,
    tag: int = 0,
) -> Work:
    """`outgoing[i]` of this member becomes `incoming[this member]` of member i; one's own slice is copied."""
    ring = ring_of(transport, group, tag, outgoing)
    ring_of(transport, group, tag, incoming)
    what = f"exchanging {size_text(sum(part.nbytes for part in outgoing))} with {ring.size} workers, tag {tag}"
    levels = transport.levels

    def run() -> None:
        incoming[ring.place].copy_(outgoing[ring.place])
        if levels is not None and group is None:
            levels.exchange_slices(outgoing, incoming, tag)
        else:
            exchange_lists(ring, [[part] for part in outgoing], [[part] for part in incoming])

    return _submit(ring, run, what)


def sum_in_pairs(transport: Transport, tensor: Tensor, *, group: Sequence[int] | None = None, tag: int = 0) -> Work:
    """Sums the tensor over all members, in place, to the same bits everywhere; for small ones.

    P beyond a power of two: those members hand theirs to a partner first, and get the sum from it in the end.
    """
    ring = ring_of(transport, group, tag)
    check_message(tensor)
    what = f"summing {size_text(tensor.nbytes)} over {ring.size} workers in pairs, tag {tag}"
    if ring.size == 1 or tensor.numel() == 0:
        return finished(what)
    return _submit(ring, lambda: _double(ring, tensor), what)


def gather_tables(
    transport: Transport, own: Table, combine: Combine, *, tag: int = 0, room: Room | None = None
) -> Gathered:
    """Everybody's tables, in rank order; the workers of a node have theirs combined into one first. `room`, kept from
    one time to the next, spares asking for lengths that hardly change."""
    ring = ring_of(transport, None, tag)
    gathered, levels, kept = Gathered(), transport.levels, room or Room()

    def run() -> None:
        if levels is not None:
            gathered.tables = levels.gather_tables(own, combine, tag, kept)
        else:
            gathered.tables = gather_unsized(ring, own, kept)

    gathered.work = _submit(ring, run, f"gathering tables from {ring.size} workers, tag {tag}")
    return gathered


def shards_of(tensor: Tensor, num_shards: int) -> list[Tensor]:
    """The tensor as `num_shards` views, one after another, whose lengths differ by one element at most."""
    return list(tensor.tensor_split(num_shards))


def ring_of(
    transport: Transport, group: Sequence[int] | None, tag: int, blocks: Sequence[Tensor] | None = None
) -> Ring:
    """A group as this worker sees it; `blocks`, one per member, are checked."""
    ranks = members_of(group, transport.size, transport.rank)
    if blocks is not None and len(blocks) != len(ranks):
        raise TransportError(f"a group of {len(ranks)} workers needs {len(ranks)} blocks, got {len(blocks)}")
    for block in blocks or ():
        check_message(block)
    return Ring(transport, ranks, ranks.index(transport.rank), tag)


def _submit(ring: Ring, run: Callable[[], None], what: str) -> Completion:
    others = tuple(ring.transport.peers[rank].rank for rank in ring.ranks if rank != ring.transport.rank)
    return ring.transport.engine.submit((ring.transport, ring.tag), run, what, others)


def _pieces(block: Tensor, most_bytes: int) -> Sequence[Tensor]:
    """The block in pieces, as both ends cut it; none if it is empty."""
    if block.numel() == 0:
        return ()
    return block.split(piece_elems(block.numel(), block.element_size(), most_bytes))


def _parts(blocks: Sequence[Tensor]) -> list[Tensor]:
    return [part for block in blocks for part in _pieces(block, MAX_PART_BYTES)]


# -- carried out by the calling thread, one of the engine's -----------------------------------------------------------
def gather_lists(ring: Ring, lists: Sequence[Sequence[Tensor]]) -> None:
    """Fills all lists: list i comes from member i."""
    if goes_straight(max((block.nbytes for blocks in lists for block in blocks), default=0)):
        exchange_lists(ring, [lists[ring.place]] * ring.size, lists)
    else:
        _pass_around(ring, lists)


def exchange_lists(ring: Ring, outgoing: Sequence[Sequence[Tensor]], incoming: Sequence[Sequence[Tensor]]) -> None:
    """`outgoing[i]` of this member becomes `incoming[this member]` of member i."""
    for _ in _rounds(ring, [_parts(blocks) for blocks in outgoing], [_parts(blocks) for blocks in incoming]):
        pass


def gather_unsized(ring: Ring, own: Table, room: Room) -> list[Table]:
    """Every member's tables. Their lengths go first, with all the rows there is room for, and then the rest."""
    places, rooms = range(ring.size), [room.of(place) for place in range(ring.size)]
    first = [own.packed(rooms[at]) if at == ring.place else own.room_for(rooms[at]) for at in places]
    gather_lists(ring, [[message] for message in first])
    found = [own.unpacked(message, rooms[at]) for at, message in enumerate(first)]
    counts = [count for count, _ in found]
    rest = [own.like(max(0, count - rooms[at])) for at, count in enumerate(counts)]
    rest[ring.place] = own.rows(rooms[ring.place], own.num_rows)
    if any(table.num_rows for table in rest):
        gather_lists(ring, [table.messages() for table in rest])
    room.learn(counts)
    tables = [table.above(rest[at]) if rest[at].num_rows else table for at, (_, table) in enumerate(found)]
    tables[ring.place] = own
    return tables


def reduce_lists(ring: Ring, lists: Sequence[Sequence[tuple[int, Tensor]]], narrowing: Narrowing | None) -> None:
    """Sums list i, of numbered shards, over all members, in place at member i."""
    shards = [[shard for _, shard in numbered] for numbered in lists]
    own = _parts(shards[ring.place])
    leaving = [_parts(blocks) for blocks in shards]
    if narrowing is not None:
        narrow = [
            [narrowing.narrowed(*entry) for entry in numbered] if place != ring.place else []
            for place, numbered in enumerate(lists)
        ]
        # Cut like the wide ones: both ends must count the same pieces.
        leaving = [
            [part for thin, wide in zip(*pair, strict=True) for part in _cut_alike(thin, wide)] if pair[0] else []
            for pair in zip(narrow, shards, strict=True)
        ]
    others = [place for place in range(ring.size) if place != ring.place]
    longest = max(map(len, own), default=0)
    dtype = narrowing.dtype if narrowing is not None else None
    room = {
        place: [torch.empty(longest, dtype=dtype or own[0].dtype, device=own[0].device) for _ in own[:OPEN_ROUNDS]]
        for place in others
    }
    arriving: list[list[Tensor]] = [[] for _ in lists]
    for place in others:
        arriving[place] = [room[place][number % OPEN_ROUNDS][: len(piece)] for number, piece in enumerate(own)]
    for number in _rounds(ring, leaving, arriving):
        if number < len(own):
            mine = own[number]
            sum_in_order([mine if at == ring.place else arriving[at][number] for at in range(ring.size)], mine)


def _cut_alike(thin: Tensor, wide: Tensor) -> Sequence[Tensor]:
    parts = _parts([wide])
    return thin.split([len(part) for part in parts]) if parts else ()


def _double(ring: Ring, tensor: Tensor) -> None:
    """In each round partners have sums of as many members; a + b and b + a are the same bits."""
    num_even = 1 << (ring.size.bit_length() - 1)
    if ring.place >= num_even:
        ring.send(tensor, ring.place - num_even).wait()
        ring.recv(tensor, ring.place - num_even).wait()
        return
    guest = ring.place + num_even
    other = torch.empty_like(tensor)
    if guest < ring.size:
        ring.recv(other, guest).wait()
        tensor += other
    distance = 1
    while distance < num_even:
        arrival = ring.recv(other, ring.place ^ distance)
        departure = ring.send(tensor, ring.place ^ distance)
        arrival.wait()
        departure.wait()
        tensor += other
        distance *= 2
    if guest < ring.size:
        ring.send(tensor, guest).wait()


def _pass_around(ring: Ring, lists: Sequence[Sequence[Tensor]]) -> None:
    """In step s a member sends list r−s to its right and receives list r−s−1 from its left."""
    pieces = [[piece for block in blocks for piece in _pieces(block, MAX_PIECE_BYTES)] for blocks in lists]
    arriving = [
        (piece, step < ring.size - 1)
        for step in range(1, ring.size)
        for piece in pieces[(ring.place - step) % ring.size]
    ]
    # Room for what the neighbour has at once; the rest is posted when one's own is on its way, not before.
    num_first = min(len(pieces[(ring.place - 1) % ring.size]), OPEN_PIECES)
    posted = [ring.recv(piece, ring.place - 1) for piece, _ in arriving[:num_first]]
    sends = [ring.send(piece, ring.place + 1) for piece in pieces[ring.place]]
    posted += [ring.recv(piece, ring.place - 1) for piece, _ in arriving[num_first:OPEN_PIECES]]
    for position, (piece, goes_on) in enumerate(arriving):
        posted[position].wait()
        if goes_on:
            sends.append(ring.send(piece, ring.place + 1))
        if position + OPEN_PIECES < len(arriving):
            posted.append(ring.recv(arriving[position + OPEN_PIECES][0], ring.place - 1))
    for work in sends:
        work.wait()


def _rounds(ring: Ring, leaving: Sequence[Sequence[Tensor]], arriving: Sequence[Sequence[Tensor]]) -> Iterator[int]:
    """Exchanges lists of pieces: round k is the k-th piece to and from each of the others, where there is one.

    Yields a round's number when its pieces have arrived. OPEN_ROUNDS are under way at a time: the memory of a piece may
    serve again OPEN_ROUNDS later.
    """
    targets = [(ring.place + turn) % ring.size for turn in range(1, ring.size)]
    sources = [(ring.place - turn) % ring.size for turn in range(1, ring.size)]
    receives: list[list[Work]] = []
    sends: list[Work] = []

    def start(number: int) -> None:
        # All receives before all sends: a peer's data then never waits for our own to be handed over.
        receives.append([ring.recv(arriving[at][number], at) for at in sources if number < len(arriving[at])])
        sends.extend(ring.send(leaving[at][number], at) for at in targets if number < len(leaving[at]))

    num_rounds = max((max(len(leaving[at]), len(arriving[at])) for at in targets), default=0)
    for number in range(min(OPEN_ROUNDS, num_rounds)):
        start(number)
    for number in range(num_rounds):
        for work in receives[number]:
            work.wait()
        yield number
        if number + OPEN_ROUNDS < num_rounds:
            start(number + OPEN_ROUNDS)
    for work in sends:
        work.wait()
