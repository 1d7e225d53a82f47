"""In-process endpoint: one-sided communication between threads, for tests; and a network that plays tricks, by a seed.

    fabric = Fabric(peers)                                   puts arrive at once, in the thread that makes them
    fabric = Fabric(peers, Tricks(seed=7))                   puts arrive late and out of order, notifications twice

With tricks a thread delivers puts in an order drawn from the seed, whoever sent them, to whatever id: worse than any
real network. Kept is only what every endpoint promises: a put's bytes are there before its notification. Bytes are
copied when they are *delivered*, so that a sender who writes to its memory too early is found out; and a late copy of a
notification may come at any time.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Collection
from dataclasses import dataclass

import torch
from torch import Tensor

from poseidon.errors import PeerLost, TransportError
from poseidon.transport.base import Peer, Work
from poseidon.transport.completion import finished
from poseidon.transport.onesided.base import Note, Spot, check_local, check_note, check_range, check_rank
from poseidon.transport.onesided.board import Board
from poseidon.transport.onesided.segments import bytes_of


@dataclass(frozen=True, slots=True)
class Tricks:
    """`keep`: so many puts are held back, if there are as many; `repeats`: the share of repeated notifications."""

    seed: int
    keep: int = 6
    repeats: float = 0.3


@dataclass(frozen=True, slots=True)
class _Put:
    source: int
    data: Tensor | None
    spot: Spot
    note: Note | None
    queue: int


class Fabric:
    """Where the endpoints of one process meet."""

    def __init__(self, peers: tuple[Peer, ...], tricks: Tricks | None = None) -> None:
        self.peers, self._tricks = peers, tricks
        self.endpoints = [InprocEndpoint(self, rank) for rank in range(len(peers))]
        self._random = random.Random(None if tricks is None else tricks.seed)
        self._held: list[_Put] = []
        self._under_way: _Put | None = None
        self._changed = threading.Condition()
        self._num_open = len(peers)
        if tricks is not None:
            threading.Thread(target=self._play, name="tricky-network", daemon=True).start()

    def put(self, put: _Put) -> None:
        if self._tricks is None:
            self._deliver(put)
            return
        with self._changed:
            self._held.append(put)
            self._changed.notify_all()

    def outstanding(self, source: int, queue: int) -> bool:
        held = self._all_held()
        return any(put.source == source and put.queue == queue and put.data is not None for put in held)

    def _all_held(self) -> list[_Put]:
        return self._held if self._under_way is None else [*self._held, self._under_way]

    def lose(self, rank: int, reason: str) -> None:
        for endpoint in self.endpoints:
            endpoint.board.fail(PeerLost(f"{self.peers[rank]} gave up: {reason}", (rank,)))

    def flush(self, rank: int) -> None:
        """Waits until everything that a worker has put has arrived."""
        with self._changed:
            self._changed.wait_for(lambda: all(put.source != rank for put in self._all_held()))

    def leave(self, rank: int) -> None:
        for endpoint in self.endpoints:
            if endpoint.rank != rank:
                endpoint.board.leave()
        with self._changed:
            self._num_open -= 1
            self._changed.notify_all()

    def _deliver(self, put: _Put) -> None:
        target = self.endpoints[put.spot.rank]
        if put.data is not None:
            target.memory_at(put.spot, len(put.data)).copy_(put.data)
        if put.note is not None:
            target.board.post(*put.note)

    def _play(self) -> None:
        """Delivers one of those held back, any; the rest wait until there are more, or until nobody sends any more."""
        assert self._tricks is not None
        while True:
            with self._changed:
                if not self._held:
                    self._changed.wait_for(lambda: self._held or self._num_open == 0)
                if self._num_open == 0:
                    return
                if len(self._held) < self._tricks.keep:
                    # Whoever waits for what is held must get it some time; more may come until then.
                    self._changed.wait(self._random.uniform(0, 0.0005))
                put = self._under_way = self._held.pop(self._random.randrange(len(self._held)))
                if put.note is not None and self._random.random() < self._tricks.repeats:
                    self._held.append(_Put(put.source, None, put.spot, put.note, put.queue))
            self._deliver(put)
            with self._changed:
                self._under_way = None
                self._changed.notify_all()
            self.endpoints[put.source].board.change()


class InprocEndpoint:
    kind = "inproc"

    def __init__(self, fabric: Fabric, rank: int) -> None:
        self._fabric = fabric
        self.rank, self.size, self.peers = rank, len(fabric.peers), fabric.peers
        self.board = Board()
        self.bytes_sent = 0
        self._segments: dict[int, Tensor] = {}
        self._left = False

    @property
    def links(self) -> tuple[str, ...]:
        return tuple("self" if rank == self.rank else "inproc" for rank in range(self.size))

    def allocate(self, segment: int, num_bytes: int) -> Tensor:
        if segment in self._segments:
            raise TransportError(f"segment {segment} is there already; take another number")
        self._segments[segment] = torch.zeros(num_bytes, dtype=torch.uint8)
        return self._segments[segment]

    def memory_at(self, spot: Spot, num_bytes: int) -> Tensor:
        """A place in this worker's memory."""
        if spot.segment not in self._segments:
            raise TransportError(f"rank {self.rank} has no segment {spot.segment}")
        segment = self._segments[spot.segment]
        check_range(spot, num_bytes, len(segment))
        return segment[spot.offset : spot.offset + num_bytes]

    def write_notify(self, local: Tensor, spot: Spot, note: Note | None, queue: int = 0) -> None:
        check_local(local)
        check_note(note, queue)
        check_rank(spot.rank, self.size)
        self.board.check()
        data = bytes_of(local)
        self._fabric.endpoints[spot.rank].memory_at(spot, len(data))
        self.bytes_sent += len(data) if spot.rank != self.rank else 0
        self._fabric.put(_Put(self.rank, data, spot, note, queue))

    def begin_round(self) -> None:
        """Nothing waits here for something more urgent."""

    def notify(self, rank: int, note: Note, queue: int = 0) -> None:
        check_note(note, queue)
        check_rank(rank, self.size)
        self.board.check()
        if rank == self.rank:
            self.board.post(*note)
        else:
            self._fabric.put(_Put(self.rank, None, Spot(rank, 0), note, queue))

    def read(self, local: Tensor, spot: Spot) -> Work:
        check_local(local)
        check_rank(spot.rank, self.size)
        self.board.check()
        data = bytes_of(local)
        data.copy_(self._fabric.endpoints[spot.rank].memory_at(spot, len(data)))
        self._fabric.endpoints[spot.rank].bytes_sent += len(data) if spot.rank != self.rank else 0
        return finished(f"reading from {self.peers[spot.rank]}")

    def waitsome(self, ids: Collection[int], timeout_s: float) -> int:
        return self.board.waitsome(ids, timeout_s)

    def reset(self, id: int) -> int:
        return self.board.reset(id)

    def take(self, ids: Collection[int], timeout_s: float) -> list[Note]:
        return self.board.take(ids, timeout_s)

    def wait(self, queue: int, timeout_s: float) -> None:
        def look() -> bool | None:
            return None if self._fabric.outstanding(self.rank, queue) else True

        self.board.wait_for(look, timeout_s, f"room for what was put into queue {queue}")

    def health(self) -> tuple[bool, ...]:
        return tuple(not endpoint.has_left for endpoint in self._fabric.endpoints)

    @property
    def has_left(self) -> bool:
        return self._left

    def abort(self, reason: str) -> None:
        self._fabric.lose(self.rank, reason)

    def close(self) -> None:
        if not self._left:
            self._fabric.flush(self.rank)
            self._left = True
            self._fabric.leave(self.rank)
