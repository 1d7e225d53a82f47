"""Collectives written on send and receive: all-gather, reduction to shards, exchange of slices.

P members, member i's block of n_i bytes. Payload bytes sent by member r:

    all_gather        Σ n_i over i ≠ r+1    equal blocks: (P−1)·n      ring of neighbours
      of small blocks (P−1)·n_r                                        straight to everybody: one step, not P−1
    reduce_shards     Σ n_i over i ≠ r      equal shards: N·(P−1)/P    each owner hears from everybody
    exchange_slices   Σ of the slices for others                       the same pattern, nothing summed

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

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from poseidon.errors import TransportError
from poseidon.transport.base import Transport, Work, check_message, members_of, size_text
from poseidon.transport.completion import finished

# Measured on shaped 1 Gbit/s links, 4 and 8 hosts: two pieces per block already hide the wake-ups; more and smaller
# pieces cost processor time (each is a message with its own wake-up), which the lab's hosts lack most. Blocks up to
# DIRECT_BYTES cost latency only: one step to everybody instead of P−1 steps around the ring.
PIECES_PER_BLOCK = 2
MIN_PIECE_BYTES = 256 << 10
MAX_PIECE_BYTES = 4 << 20
MAX_PART_BYTES = 1 << 20  # of an exchange: P−1 pieces of each open round lie in memory
DIRECT_BYTES = 32 << 10
OPEN_PIECES = 32
OPEN_ROUNDS = 4


@dataclass(frozen=True, slots=True)
class _Ring:
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


def all_gather(
    transport: Transport, blocks: Sequence[Tensor], *, group: Sequence[int] | None = None, tag: int = 0
) -> Work:
    """Fills `blocks` on every member: block i comes from member i; each has put its own in place beforehand."""
    ring = _ring(transport, group, tag, blocks)
    what = f"gathering {size_text(sum(block.nbytes for block in blocks))} from {ring.size} workers, tag {tag}"
    if ring.size == 1:
        return finished(what)
    is_small = max(block.nbytes for block in blocks) <= DIRECT_BYTES

    def run() -> None:
        if is_small:
            _exchange(ring, [blocks[ring.place]] * ring.size, blocks)
        else:
            _pass_around(ring, blocks)

    return transport.engine.submit((transport, tag), run, what, _others(ring))


def reduce_shards(
    transport: Transport, shards: Sequence[Tensor], *, group: Sequence[int] | None = None, tag: int = 0
) -> Work:
    """Sums shard i over all members, in place at member i, in the order of the group; other shards stay as they are."""
    ring = _ring(transport, group, tag, shards)
    what = f"reducing {size_text(sum(shard.nbytes for shard in shards))} over {ring.size} workers, tag {tag}"
    if ring.size == 1:
        return finished(what)
    return transport.engine.submit((transport, tag), lambda: _reduce(ring, shards), what, _others(ring))


def exchange_slices(
    transport: Transport,
    outgoing: Sequence[Tensor],
    incoming: Sequence[Tensor],
    *,
    group: Sequence[int] | None = None,
    tag: int = 0,
) -> Work:
    """`outgoing[i]` of this member becomes `incoming[this member]` of member i; one's own slice is copied."""
    ring = _ring(transport, group, tag, outgoing)
    _ring(transport, group, tag, incoming)
    what = f"exchanging {size_text(sum(part.nbytes for part in outgoing))} with {ring.size} workers, tag {tag}"

    def run() -> None:
        incoming[ring.place].copy_(outgoing[ring.place])
        _exchange(ring, outgoing, incoming)

    return transport.engine.submit((transport, tag), run, what, _others(ring))


def shards_of(tensor: Tensor, num_shards: int) -> list[Tensor]:
    """The tensor as `num_shards` views, one after another, whose lengths differ by one element at most."""
    return list(tensor.tensor_split(num_shards))


def _ring(transport: Transport, group: Sequence[int] | None, tag: int, blocks: Sequence[Tensor]) -> _Ring:
    ranks = members_of(group, transport.size, transport.rank)
    if len(blocks) != len(ranks):
        raise TransportError(f"a group of {len(ranks)} workers needs {len(ranks)} blocks, got {len(blocks)}")
    for block in blocks:
        check_message(block)
    return _Ring(transport, ranks, ranks.index(transport.rank), tag)


def _others(ring: _Ring) -> tuple[int, ...]:
    return tuple(ring.transport.peers[rank].rank for rank in ring.ranks if rank != ring.transport.rank)


def _pieces(block: Tensor, most_bytes: int) -> Sequence[Tensor]:
    """The block in pieces, as both ends cut it; none if it is empty."""
    if block.numel() == 0:
        return ()
    wanted = -(-block.nbytes // PIECES_PER_BLOCK)
    num_bytes = min(max(wanted, MIN_PIECE_BYTES), most_bytes)
    return block.split(max(1, num_bytes // block.element_size()))


def _parts(block: Tensor) -> Sequence[Tensor]:
    return _pieces(block, MAX_PART_BYTES)


def _pass_around(ring: _Ring, blocks: Sequence[Tensor]) -> None:
    """In step s a member sends block r−s to its right and receives block r−s−1 from its left."""
    arriving = [
        (piece, step < ring.size - 1)
        for step in range(1, ring.size)
        for piece in _pieces(blocks[(ring.place - step) % ring.size], MAX_PIECE_BYTES)
    ]
    posted = [ring.recv(piece, ring.place - 1) for piece, _ in arriving[:OPEN_PIECES]]
    sends = [ring.send(piece, ring.place + 1) for piece in _pieces(blocks[ring.place], MAX_PIECE_BYTES)]
    for position, (piece, goes_on) in enumerate(arriving):
        posted[position].wait()
        if goes_on:
            sends.append(ring.send(piece, ring.place + 1))
        if position + OPEN_PIECES < len(arriving):
            posted.append(ring.recv(arriving[position + OPEN_PIECES][0], ring.place - 1))
    for work in sends:
        work.wait()


def _exchange(ring: _Ring, outgoing: Sequence[Tensor], incoming: Sequence[Tensor]) -> None:
    for _ in _rounds(ring, [_parts(part) for part in outgoing], [_parts(part) for part in incoming]):
        pass


def _reduce(ring: _Ring, shards: Sequence[Tensor]) -> None:
    own = _parts(shards[ring.place])
    others = [place for place in range(ring.size) if place != ring.place]
    memory = {place: [torch.empty_like(piece) for piece in own[:OPEN_ROUNDS]] for place in others}
    arriving: list[list[Tensor]] = [[] for _ in shards]
    for place in others:
        arriving[place] = [memory[place][number % OPEN_ROUNDS][: len(piece)] for number, piece in enumerate(own)]
    for number in _rounds(ring, [_parts(shard) for shard in shards], arriving):
        if number < len(own):
            parts = [own[number] if place == ring.place else arriving[place][number] for place in range(ring.size)]
            for part in parts[1:-1]:
                parts[0] += part
            torch.add(parts[0], parts[-1], out=own[number])


def _rounds(ring: _Ring, leaving: Sequence[Sequence[Tensor]], arriving: Sequence[Sequence[Tensor]]) -> Iterator[int]:
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
