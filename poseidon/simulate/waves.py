"""Waves: a collective as the messages it really consists of.

N nodes. A *wave* is one message of every node, or of some: node r sends to `hop.to(r)`. A node sends the messages of a
wave when it has got all messages of the waves of group `after` that are meant for it (None: when it starts); a
collective is over at a node when all messages for it are in and its own are out.

    summed_around     all-reduce of B bytes. 2 (N − 1) steps around the ring, of B / N each, in m pieces that follow one
                      another: while a piece is summed, the next is on its way, and no more than these two. m = 2, more
                      if pieces grow beyond 1 MB: gloo's ring
    passed_around     gather: every node's block, in pieces, goes round; N − 1 steps. What has come is passed on
    pushed            everybody to everybody, in turns r → r + t, t = 1 … N − 1, and in rounds of a piece each, of which
                      a few are open at a time
    summed_in_pairs   all-reduce in log2 N rounds of partners r, r ⊕ d; nodes beyond a power of two hand theirs to a
                      partner before, and get the sum after

How blocks are cut, what goes straight instead of round and how many rounds are open is the runtime's
(`transport/cutting.py`).

With many nodes several steps are taken as one (`stride`): as many bytes, as many latencies, and a node that is late
holds up as many others. Where all nodes are alike, that changes nothing but how finely collectives under way together
take turns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from poseidon.transport.cutting import (
    MAX_PART_BYTES,
    MAX_PIECE_BYTES,
    OPEN_ROUNDS,
    goes_straight,
    piece_elems,
)

SUM_PIECES = 2
MAX_SUM_PIECE_BYTES = 1 << 20  # gloo's segments


@dataclass(frozen=True, slots=True)
class Shift:
    """To the node `by` places on. `width` > 1: so many steps, or messages to so many nodes from there on, as one."""

    by: int
    width: int = 1

    def to(self, node: int, num_nodes: int) -> int | None:
        return (node + self.by) % num_nodes


@dataclass(frozen=True, slots=True)
class Flip:
    """To the partner whose number differs in one bit, among the first `num_even` nodes."""

    bit: int
    num_even: int

    def to(self, node: int, num_nodes: int) -> int | None:
        return node ^ self.bit if node < self.num_even else None


@dataclass(frozen=True, slots=True)
class Cross:
    """From nodes `num_even` and on to as many at the beginning, or (`is_back`) the other way."""

    num_even: int
    is_back: bool

    def to(self, node: int, num_nodes: int) -> int | None:
        if self.is_back:
            return node + self.num_even if node + self.num_even < num_nodes else None
        return node - self.num_even if node >= self.num_even else None


Hop = Shift | Flip | Cross
Sizes = float | tuple[float, ...]
"""Bytes of a wave's messages: all alike, or by sender."""


@dataclass(frozen=True, slots=True)
class Wave:
    """One message of every node that has one."""

    hop: Hop
    num_bytes: Sizes
    group: int
    after: int | None

    @property
    def width(self) -> int:
        return self.hop.width if isinstance(self.hop, Shift) else 1

    def bytes_of(self, node: int) -> float:
        return self.num_bytes[node] if isinstance(self.num_bytes, tuple) else self.num_bytes

    def to(self, node: int, num_nodes: int) -> int | None:
        """Where the node's message goes; None if it has none: nothing is no message."""
        return self.hop.to(node, num_nodes) if self.bytes_of(node) else None


@dataclass(frozen=True)
class Collective:
    """Its waves, in the order in which a node hands over what it may send at the same time.

    `is_own`: one of our own collectives, else an all-reduce of the engine below. `share`: which part of the work for a
    message one of these messages is. The pieces of a step wake a host up about as often as the step in one would:
    measured, 14 steps of 2 pieces take as long as 14 of 1. `in_order`: a node looks at a group's messages only when
    those of all groups before are in.
    """

    num_nodes: int
    waves: tuple[Wave, ...]
    is_own: bool
    share: float = 1.0
    in_order: bool = False

    @cached_property
    def released(self) -> dict[int | None, tuple[int, ...]]:
        """By group (None: the start), the waves that may be sent when it is in."""
        found: dict[int | None, list[int]] = {}
        for index, wave in enumerate(self.waves):
            found.setdefault(wave.after, []).append(index)
        return {group: tuple(indices) for group, indices in found.items()}

    @cached_property
    def num_groups(self) -> int:
        return 1 + max((wave.group for wave in self.waves), default=-1)

    @cached_property
    def is_uniform(self) -> bool:
        """Whether every node does the same: then one can stand for all."""
        uneven = any(isinstance(wave.hop, Cross) or isinstance(wave.num_bytes, tuple) for wave in self.waves)
        return not uneven and all(
            not isinstance(wave.hop, Flip) or wave.hop.num_even == self.num_nodes for wave in self.waves
        )

    @cached_property
    def expected(self) -> tuple[tuple[int, ...], ...]:
        """By group and node, how many messages come."""
        if all(isinstance(wave.hop, Shift) and not isinstance(wave.num_bytes, tuple) for wave in self.waves):
            counts = [0] * self.num_groups
            for wave in self.waves:
                counts[wave.group] += 1
            return tuple((count,) * self.num_nodes for count in counts)
        table = [[0] * self.num_nodes for _ in range(self.num_groups)]
        for wave in self.waves:
            for node in range(self.num_nodes):
                to = wave.to(node, self.num_nodes)
                if to is not None:
                    table[wave.group][to] += 1
        return tuple(map(tuple, table))

    def num_messages(self, node: int) -> int:
        """Those that it gets and those that it sends."""
        sent = sum(wave.to(node, self.num_nodes) is not None for wave in self.waves)
        return sent + sum(counts[node] for counts in self.expected)

    def bytes_sent(self, node: int) -> float:
        return sum(wave.bytes_of(node) for wave in self.waves if wave.to(node, self.num_nodes) is not None)


def summed_around(num_nodes: int, num_bytes: float, *, num_pieces: int | None = None, stride: int = 1) -> Collective:
    """An all-reduce of so many bytes."""
    if num_pieces is None:
        num_pieces = max(SUM_PIECES, -int(-num_bytes / num_nodes // MAX_SUM_PIECE_BYTES))
    size = num_bytes / num_nodes / num_pieces
    waves = _around(2 * (num_nodes - 1), [size] * num_pieces, stride, num_open=SUM_PIECES)
    return Collective(num_nodes, waves, is_own=False, share=1 / SUM_PIECES if num_pieces > 1 else 1.0)


def _around(num_steps: int, sizes: Sequence[float], stride: int, num_open: int | None = None) -> tuple[Wave, ...]:
    """Pieces of these sizes from neighbour to neighbour; so many of them on their way at a time, or (None) all."""
    waves: list[Wave] = []
    distance = len(sizes) if num_open is None else min(num_open, len(sizes))
    while num_steps > 0:
        width = min(stride, num_steps)
        for size in sizes:
            number = len(waves)
            waves.append(Wave(Shift(1, width), size * width, number, number - distance if number >= distance else None))
        num_steps -= width
    return tuple(waves)


def gathered(blocks: Sequence[float], elem_bytes: int, *, stride: int = 1) -> Collective:
    """Every node's block of bytes at every node: straight if they are small, else around the ring."""
    num_nodes = len(blocks)
    is_even = len(set(blocks)) == 1
    if goes_straight(max(blocks)):
        if is_even:
            return pushed_evenly(num_nodes, blocks[0], elem_bytes, stride=stride)
        return pushed([[block] * num_nodes for block in blocks], elem_bytes)
    if is_even:
        own = _pieces(blocks[0], elem_bytes, MAX_PIECE_BYTES)
        return Collective(num_nodes, _around(num_nodes - 1, own, stride), is_own=True)
    pieces = [_pieces(block, elem_bytes, MAX_PIECE_BYTES) for block in blocks]
    most = max(map(len, pieces))
    padded = [piece + [0.0] * (most - len(piece)) for piece in pieces]
    waves: list[Wave] = []
    for step in range(num_nodes - 1):
        for place in range(most):
            sizes = tuple(padded[(node - step) % num_nodes][place] for node in range(num_nodes))
            waves.append(Wave(Shift(1), sizes, len(waves), len(waves) - most if step else None))
    return Collective(num_nodes, tuple(waves), is_own=True)


def pushed(blocks: Sequence[Sequence[float]], elem_bytes: int) -> Collective:
    """`blocks[r][q]` bytes from node r to node q."""
    num_nodes = len(blocks)
    if len({blocks[node][to] for node in range(num_nodes) for to in range(num_nodes) if to != node}) == 1:
        return pushed_evenly(num_nodes, blocks[0][1], elem_bytes)
    cut = [[_pieces(block, elem_bytes, MAX_PART_BYTES) for block in row] for row in blocks]
    num_rounds = max(len(cut[r][q]) for r in range(num_nodes) for q in range(num_nodes) if r != q)
    waves: list[Wave] = []
    for number in range(num_rounds):
        for turn in range(1, num_nodes):
            sizes = []
            for node in range(num_nodes):
                pieces = cut[node][(node + turn) % num_nodes]
                sizes.append(pieces[number] if number < len(pieces) else 0.0)
            after = number - OPEN_ROUNDS if number >= OPEN_ROUNDS else None
            waves.append(Wave(Shift(turn), tuple(sizes), number, after))
    return Collective(num_nodes, tuple(waves), is_own=True)


def pushed_evenly(num_nodes: int, num_bytes: float, elem_bytes: int, *, stride: int = 1) -> Collective:
    """So many bytes from every node to every other."""
    waves = []
    for number, size in enumerate(_pieces(num_bytes, elem_bytes, MAX_PART_BYTES)):
        after = number - OPEN_ROUNDS if number >= OPEN_ROUNDS else None
        for turn in range(1, num_nodes, stride):
            width = min(stride, num_nodes - turn)
            waves.append(Wave(Shift(turn, width), size * width, number, after))
    return Collective(num_nodes, tuple(waves), is_own=True)


def summed_in_pairs(num_nodes: int, num_bytes: float) -> Collective:
    """An all-reduce of so many bytes, whole in every round."""
    num_even = 1 << (num_nodes.bit_length() - 1)
    waves = []
    if num_even < num_nodes:
        waves.append(Wave(Cross(num_even, is_back=False), num_bytes, 0, None))
    bit = 1
    while bit < num_even:
        waves.append(Wave(Flip(bit, num_even), num_bytes, len(waves), len(waves) - 1 if waves else None))
        bit *= 2
    if num_even < num_nodes:
        waves.append(Wave(Cross(num_even, is_back=True), num_bytes, len(waves), len(waves) - 1))
    return Collective(num_nodes, tuple(waves), is_own=True, in_order=True)


def _pieces(num_bytes: float, elem_bytes: int, most_bytes: int) -> list[float]:
    """A block as the runtime cuts it; bytes may be fractions, as shards here are all of one length."""
    num_elems = -(-num_bytes // elem_bytes)
    if num_elems == 0:
        return []
    each = piece_elems(int(num_elems), elem_bytes, most_bytes) * elem_bytes
    number = int(-(-num_bytes // each))
    return [float(each)] * (number - 1) + [num_bytes - each * (number - 1)]
