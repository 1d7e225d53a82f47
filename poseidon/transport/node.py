"""Node: what the workers of one host do for each other through memory that they share.

    with node.session(tag) as session:           as every worker of the node does, for the same tag
        session.reduce_shards(shards)
        session.gather(lists)

A session runs in a lane: some slots of memory for each worker, which it alone writes, and semaphores. A worker fills a
slot and says so to all others; each of them reads it, or not, and gives it back; SLOTS may be full at a time. So large
tensors stream through little memory, which stays in the processor's cache, and nobody ever spins.

Sessions of different tags run side by side, and workers may come to them in any order. Which lane a session gets is
decided by the node's first worker, the leader, and announced to the others; those of one lane follow one another in the
leader's order. Sums are taken in the order of workers: bits do not depend on timing.
"""

from __future__ import annotations

import threading
from collections import defaultdict, deque
from collections.abc import Callable, Container, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from poseidon.transport.shared_memory import PAGE_BYTES, SEMAPHORE_BYTES, Segment, Semaphore

NUM_LANES = 64
SLOTS = 4
SLOT_BYTES = 1 << 20
HEADER_BYTES = 64  # of a slot, before what is traded
NUM_NEWS = 256  # announcements on their way to a worker
NEWS_BYTES = 32  # tag, lane, turn
LOOK_S = 0.2  # between looks at who is lost, while waiting
ALIGN_BYTES = 64

Check = Callable[[int], None]
"""Raises if this worker of the node is lost."""


@dataclass(frozen=True, slots=True)
class Layout:
    """Where things stand in a node's memory: news for each worker, then semaphores of lanes, then slots."""

    num_workers: int

    @property
    def news_bytes(self) -> int:
        return _rounded(2 * SEMAPHORE_BYTES + NUM_NEWS * NEWS_BYTES, ALIGN_BYTES)

    @property
    def pairs_start(self) -> int:
        return self.num_workers * self.news_bytes

    @property
    def slots_start(self) -> int:
        pairs = NUM_LANES * self.num_workers**2 * 2 * SEMAPHORE_BYTES
        return _rounded(self.pairs_start + pairs, PAGE_BYTES)

    @property
    def num_bytes(self) -> int:
        return self.slots_start + NUM_LANES * self.num_workers * SLOTS * SLOT_BYTES

    def pair(self, lane: int, writer: int, reader: int) -> int:
        """The two semaphores of a writer and a reader: `filled`, then `free`."""
        number = (lane * self.num_workers + writer) * self.num_workers + reader
        return self.pairs_start + number * 2 * SEMAPHORE_BYTES

    def slot(self, lane: int, writer: int, number: int) -> int:
        return self.slots_start + ((lane * self.num_workers + writer) * SLOTS + number) * SLOT_BYTES

    def prepare(self, segment: Segment) -> None:
        """Makes all semaphores; nobody else uses the segment yet."""
        for worker in range(self.num_workers):
            segment.semaphore(worker * self.news_bytes).prepare(0)
            segment.semaphore(worker * self.news_bytes + SEMAPHORE_BYTES).prepare(NUM_NEWS)
        for lane in range(NUM_LANES):
            for writer in range(self.num_workers):
                for reader in range(self.num_workers):
                    at = self.pair(lane, writer, reader)
                    segment.semaphore(at).prepare(0)
                    segment.semaphore(at + SEMAPHORE_BYTES).prepare(SLOTS)


class Node:
    """One worker's end; it is number `place` of `size`."""

    def __init__(self, segment: Segment, place: int, size: int, check: Check) -> None:
        self.place, self.size = place, size
        self.others = [other for other in range(size) if other != place]
        self._check = check
        self._layout = Layout(size)
        self._segment = segment
        self._lanes = [_Lane(self, segment, number) for number in range(NUM_LANES)]
        self._changed = threading.Condition()
        self._free = list(range(NUM_LANES))  # leader: lanes that nobody uses
        self._news = [self._news_of(worker) for worker in range(size)]
        self._announced: dict[int, deque[tuple[int, int]]] = defaultdict(deque)  # by tag: lane and turn
        self._is_reading = False

    @contextmanager
    def session(self, tag: int) -> Iterator[Session]:
        """All workers of the node open the same sessions of a tag, in the same order."""
        number, turn = self._assign(tag) if self.place == 0 else self._await_news(tag)
        lane = self._lanes[number]
        with self._changed:
            while not self._changed.wait_for(lambda: lane.turn == turn, LOOK_S):
                self._check(0)
        yield Session(self, lane)
        with self._changed:
            lane.turn += 1
            if self.place == 0:
                self._free.append(number)
                self._free.sort(reverse=True)  # the lowest is taken next: its slots are warm
            self._changed.notify_all()

    def wait(self, semaphore: Semaphore, other: int) -> None:
        """Waits for what another worker posts."""
        while not semaphore.wait(LOOK_S):
            self._check(other)

    # -- who gets which lane ----------------------------------------------------------------------------------------
    def _assign(self, tag: int) -> tuple[int, int]:
        with self._changed:
            while not self._changed.wait_for(lambda: self._free, LOOK_S):
                self._check(0)
            number = self._free.pop()
            turn = self._lanes[number].turn
            # Announced before anybody else can announce: the order of turns is the order of news.
            for other in self.others:
                self.wait(self._news[other].room, other)
                self._news[other].put(tag, number, turn)
        return number, turn

    def _await_news(self, tag: int) -> tuple[int, int]:
        """The first thread that waits reads the news for all of them."""
        mine = self._news[self.place]
        with self._changed:
            while True:
                if self._announced[tag]:
                    found = self._announced[tag].popleft()
                    if not self._announced[tag]:
                        del self._announced[tag]
                    self._changed.notify_all()
                    return found
                if not self._is_reading:
                    break
                if not self._changed.wait(LOOK_S):
                    self._check(0)
            self._is_reading = True
        try:
            while True:
                self.wait(mine.filled, 0)
                news, lane, turn = mine.take()
                if news == tag:
                    return lane, turn
                with self._changed:
                    self._announced[news].append((lane, turn))
                    self._changed.notify_all()
        finally:
            with self._changed:
                self._is_reading = False
                self._changed.notify_all()

    def _news_of(self, worker: int) -> _News:
        return _News(self._segment, worker * self._layout.news_bytes)

    @property
    def layout(self) -> Layout:
        return self._layout


class _News:
    """Announcements for one worker, written by the leader and read by it, each in order."""

    def __init__(self, segment: Segment, start: int) -> None:
        self.filled = segment.semaphore(start)
        self.room = segment.semaphore(start + SEMAPHORE_BYTES)
        first = start + 2 * SEMAPHORE_BYTES
        entries = segment.memory[first : first + NUM_NEWS * NEWS_BYTES]
        self._entries = entries.view(torch.int64).view(NUM_NEWS, NEWS_BYTES // 8).numpy()
        self._next = 0

    def put(self, tag: int, lane: int, turn: int) -> None:
        self._entries[self._next, :3] = (tag, lane, turn)
        self._next = (self._next + 1) % NUM_NEWS
        self.filled.post()

    def take(self) -> tuple[int, int, int]:
        tag, lane, turn = self._entries[self._next, :3].tolist()
        self._next = (self._next + 1) % NUM_NEWS
        self.room.post()
        return tag, lane, turn


class _Lane:
    """One lane as one worker sees it. `turn` counts the sessions it has been through here."""

    def __init__(self, node: Node, segment: Segment, number: int) -> None:
        self._node, self._segment, self._number = node, segment, number
        self.turn = 0
        self._rounds = [0] * node.size  # by writer: how many slots it has filled
        place = node.place
        self._filled = {other: self._pair(other, place)[0] for other in node.others}
        self._returned = {other: self._pair(other, place)[1] for other in node.others}
        self._full = {other: self._pair(place, other)[0] for other in node.others}
        self._room = {other: self._pair(place, other)[1] for other in node.others}

    def empty_slot(self) -> Tensor:
        """This worker's next slot, which all others have given back."""
        for other, room in self._room.items():
            self._node.wait(room, other)
        return self._slot(self._node.place)

    def publish(self) -> None:
        self._rounds[self._node.place] += 1
        for full in self._full.values():
            full.post()

    def filled_slot(self, writer: int) -> Tensor:
        """Another worker's next slot, full."""
        self._node.wait(self._filled[writer], writer)
        return self._slot(writer)

    def give_back(self, writer: int) -> None:
        self._rounds[writer] += 1
        self._returned[writer].post()

    def _slot(self, writer: int) -> Tensor:
        start = self._node.layout.slot(self._number, writer, self._rounds[writer] % SLOTS)
        return self._segment.memory[start : start + SLOT_BYTES]

    def _pair(self, writer: int, reader: int) -> tuple[Semaphore, Semaphore]:
        at = self._node.layout.pair(self._number, writer, reader)
        return self._segment.semaphore(at), self._segment.semaphore(at + SEMAPHORE_BYTES)


class Session:
    """A lane in use. Workers of the node call the same methods in the same order, with tensors of the same sizes."""

    def __init__(self, node: Node, lane: _Lane) -> None:
        self._node, self._lane = node, lane

    def gather(self, lists: Sequence[Sequence[Tensor]], wanted: Container[int] | None = None) -> None:
        """Everybody gets everybody's tensors: `lists[i]` come from worker i, who has put them in place.

        `wanted`: of each list only these are taken here.
        """
        place = self._node.place
        rounds = [_packed(tensors) for tensors in lists]
        for number in range(max(map(len, rounds))):
            if number < len(rounds[place]):
                slot = self._lane.empty_slot()
                for part in rounds[place][number]:
                    part.within(slot).copy_(part.piece)
                self._lane.publish()
            for writer in self._node.others:
                if number < len(rounds[writer]):
                    slot = self._lane.filled_slot(writer)
                    for part in rounds[writer][number]:
                        if wanted is None or part.tensor in wanted:
                            part.piece.copy_(part.within(slot))
                    self._lane.give_back(writer)

    def broadcast(self, tensors: Sequence[Tensor], wanted: Container[int] | None = None) -> None:
        """Everybody gets the leader's."""
        self.gather([tensors, *([()] * (self._node.size - 1))], wanted)

    def exchange(self, outgoing: Sequence[Tensor], incoming: Sequence[Tensor]) -> None:
        """`outgoing[i]` of this worker becomes `incoming[this worker]` of worker i."""
        places = [_bytes(tensor).split(self._part_bytes) for tensor in incoming]
        for number, arrived in self._trade(outgoing):
            for writer, part in arrived.items():
                if number < len(places[writer]):
                    target = places[writer][number]
                    target.copy_(part[: len(target)])

    def reduce_shards(self, shards: Sequence[Tensor]) -> None:
        """Sums shard i over all workers, in place at worker i."""
        own = shards[self._node.place]
        pieces = own.split(self._part_bytes // own.element_size()) if own.numel() else ()
        for number, arrived in self._trade(shards):
            if number < len(pieces):
                target = pieces[number]
                parts = {writer: part[: target.nbytes].view(own.dtype) for writer, part in arrived.items()}
                sum_in_order([target if i == self._node.place else parts[i] for i in range(self._node.size)], target)

    def reduce(self, shards: Sequence[Tensor]) -> None:
        """Sums all shards over all workers, in place at the leader; one shard per worker, who sums it."""
        self.reduce_shards(shards)
        self.gather([[shard] for shard in shards], None if self._node.place == 0 else ())

    @property
    def _part_bytes(self) -> int:
        """What one worker can send to each of the others in one slot."""
        return (SLOT_BYTES - HEADER_BYTES) // self._node.size // ALIGN_BYTES * ALIGN_BYTES

    def _trade(self, outgoing: Sequence[Tensor]) -> Iterator[tuple[int, dict[int, Tensor]]]:
        """Yields, round by round, what others have in their slots for this worker; a slot says how many there are."""
        node, lane, part_bytes = self._node, self._lane, self._part_bytes
        leaving = [() if i == node.place else _bytes(t).split(part_bytes) for i, t in enumerate(outgoing)]
        num_rounds = {node.place: max(1, *map(len, leaving))}
        start, number = HEADER_BYTES + node.place * part_bytes, 0
        while number < max(num_rounds.values()):
            if number < num_rounds[node.place]:
                slot = lane.empty_slot()
                slot[:8].view(torch.int64)[0] = num_rounds[node.place]
                for reader in node.others:
                    if number < len(leaving[reader]):
                        part, at = leaving[reader][number], HEADER_BYTES + reader * part_bytes
                        slot[at : at + len(part)].copy_(part)
                lane.publish()
            arrived = {}
            for writer in node.others:
                if number < num_rounds.get(writer, 1):
                    slot = lane.filled_slot(writer)
                    num_rounds[writer] = int(slot[:8].view(torch.int64)[0])
                    arrived[writer] = slot[start : start + part_bytes]
            yield number, arrived
            for writer in arrived:
                lane.give_back(writer)
            number += 1


@dataclass(frozen=True, slots=True)
class _Packed:
    """A piece of a list's tensor number `tensor`, and where it stands in a slot."""

    tensor: int
    piece: Tensor
    start: int

    def within(self, slot: Tensor) -> Tensor:
        return slot[self.start : self.start + len(self.piece)]


def _packed(tensors: Sequence[Tensor]) -> list[list[_Packed]]:
    """Tensors cut to fill slots, one slot after the other; small ones share a slot."""
    rounds: list[list[_Packed]] = []
    start = SLOT_BYTES
    for index, tensor in enumerate(tensors):
        left = _bytes(tensor)
        while len(left):
            if start >= SLOT_BYTES:
                rounds.append([])
                start = 0
            piece, left = left[: SLOT_BYTES - start], left[SLOT_BYTES - start :]
            rounds[-1].append(_Packed(index, piece, start))
            start += _rounded(len(piece), ALIGN_BYTES)
    return rounds


def sum_in_order(parts: Sequence[Tensor], own: Tensor) -> None:
    """The sum of the parts, from the first to the last, into `own`, which is one of them; in own's width."""
    at = next(i for i, part in enumerate(parts) if part is own)
    if at > 0:
        total = parts[0].to(own.dtype)
        for part in parts[1:at]:
            total = total + part
        torch.add(total, own, out=own)
    for part in parts[at + 1 :]:
        own += part


def _bytes(tensor: Tensor) -> Tensor:
    return tensor.detach().view(torch.uint8)


def _rounded(number: int, unit: int) -> int:
    return -(-number // unit) * unit
