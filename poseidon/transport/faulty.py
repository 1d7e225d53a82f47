"""Faulty transport: wraps any transport and makes it misbehave in ways a network may, the same way for the same seed.

    faulty = FaultyTransport(transport, Faults(seed=7, max_delay_s=0.002, drop=Drop(rank=1, operation=40)))

Delays: each operation starts late and ends late, by times drawn from (seed, rank, number of the operation). Only what
has an order keeps it: messages of one sender, receiver and tag; collectives of one group. Everything else overtakes.

Drop: when rank `rank` starts its operation number `operation` (counted from 0, subgroups included), its connections
are gone: it gets PeerLost, and so do the others, who name it.
"""

from __future__ import annotations

import itertools
import random
import threading
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass

from torch import Tensor

from poseidon.errors import PeerLost, TransportError
from poseidon.transport.base import Levels, Transport, Work
from poseidon.transport.onesided.base import Endpoint
from poseidon.transport.pacing import Pace


@dataclass(frozen=True, slots=True)
class Drop:
    rank: int
    operation: int


@dataclass(frozen=True, slots=True)
class Faults:
    seed: int
    max_delay_s: float = 0.002
    drop: Drop | None = None


class FaultyTransport:
    """Counts, sizes and peers are those of the transport inside."""

    def __init__(self, inner: Transport, faults: Faults, numbers: itertools.count[int] | None = None) -> None:
        self._inner, self._faults = inner, faults
        self._numbers = itertools.count() if numbers is None else numbers
        self._origin = inner.peers[inner.rank].rank
        self._closed = threading.Event()
        self.rank, self.size, self.peers = inner.rank, inner.size, inner.peers
        self.kind = f"faulty {inner.kind}"
        self.engine = inner.engine
        self.levels: Levels | None = None

    @property
    def bytes_sent(self) -> int:
        return self._inner.bytes_sent

    @property
    def bytes_received(self) -> int:
        return self._inner.bytes_received

    def sent_with(self, tags: Iterable[int]) -> int:
        return self._inner.sent_with(tags)

    def send(self, tensor: Tensor, to: int, tag: int) -> Work:
        return self._late(("send", to, tag), lambda: self._inner.send(tensor, to, tag), f"a send to rank {to}")

    def recv(self, tensor: Tensor, source: int, tag: int) -> Work:
        what = f"a receive from rank {source}"
        return self._late(("recv", source, tag), lambda: self._inner.recv(tensor, source, tag), what)

    def all_reduce(self, tensor: Tensor, group: Sequence[int] | None = None, *, tag: int | None = None) -> Work:
        return self._late(_group_key(group), lambda: self._inner.all_reduce(tensor, group, tag=tag), "an all-reduce")

    def broadcast(self, tensor: Tensor, root: int, group: Sequence[int] | None = None) -> Work:
        return self._late(_group_key(group), lambda: self._inner.broadcast(tensor, root, group), "a broadcast")

    def barrier(self, timeout_s: float) -> None:
        self._inner.barrier(timeout_s)

    def subgroup(self, ranks: Sequence[int]) -> FaultyTransport | None:
        inner = self._inner.subgroup(ranks)
        return None if inner is None else FaultyTransport(inner, self._faults, self._numbers)

    def loss(self, doing: str, ranks: Sequence[int] = ()) -> TransportError | None:
        return self._inner.loss(doing, ranks)

    def one_sided(self, pace: Pace | None = None) -> Endpoint:
        return self._inner.one_sided(pace)

    def abort(self, reason: str) -> None:
        self._inner.abort(reason)

    def close(self) -> None:
        self._closed.set()
        self._inner.close()

    def _late(self, key: Hashable, start: Callable[[], Work], what: str) -> Work:
        number = next(self._numbers)
        if self._faults.drop == Drop(self._origin, number):
            reason = f"connection dropped on purpose at its operation {number}"
            self._inner.abort(reason)
            raise PeerLost(f"{self.peers[self.rank]} is lost: {reason}; while starting {what}", (self._origin,))
        draw = random.Random(f"{self._faults.seed} {self._origin} {number}")
        before_s, after_s = draw.uniform(0, self._faults.max_delay_s), draw.uniform(0, self._faults.max_delay_s)

        def run() -> None:
            self._closed.wait(before_s)
            start().wait()
            self._closed.wait(after_s)

        return self.engine.submit(("faulty", id(self), key), run, f"{what}, delayed on purpose")


def _group_key(group: Sequence[int] | None) -> Hashable:
    return ("group", None if group is None else tuple(group))
