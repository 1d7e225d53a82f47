"""Outgoing: which of the letters that wait leaves next, and when. The seam where communication is managed.

A *letter* is a message, or a fragment of one, as it goes over the wire: at most a mailbox's slot long (256 kB), so
that an urgent one never waits for long. Everything a worker sends to others passes through one `MessageScheduler`,
deltas on the way to servers and values on the way to workers alike; only what stays inside a process does not.

How a scheduler is plugged in
-----------------------------
    Hub(transport, HubOptions(outgoing=MyScheduler(...)))

The hub's thread owns it and calls

    put(letter)             a letter is to be sent. Letters to one rank with the same `stream` must stay in order
    take(ready, now_s)      the letter to send now, to one of the `ready` ranks (other mailboxes are full), or None
    due_s(now_s)            seconds after which `take` may have one although nothing was put and no mailbox emptied
                            meanwhile; None: not by itself
    register(source)        a table in managed mode: deltas that need not wait for the clock (below)
    register_values(source) a server's part of one: values that somebody has older ones of
    sent(letter, now_s)     it has been handed to the transport
    know(neighbours)        once, before all else: the ranks that are reached without the network

from one thread, so it needs no locks; `now_s` is a monotonic clock's, so that tests can play it. A scheduler that
limits bandwidth counts `letter.num_bytes` in `sent`, lets `take` return None, and `due_s` say for how long; what goes
to neighbours costs nothing and is held up by nothing. It must let every letter go at last. `InOrder` is the plain one:
older clocks first, in a clock what is more urgent, else first come, first served. (Were a later clock's most urgent
letters to overtake what an earlier one still lacks, somebody would wait for that while others run on to the bound.)

Early deltas
------------
A table in managed mode (`Mode.MANAGED`) collects what is added to its rows, and sends it at the clock. Before that a
scheduler may take rows from it whenever the wire has nothing better to do:

    source.waiting()                     a snapshot of what waits: rows, |Δ|, |w|, when first touched
    source.letters(rows, half=False)     makes the letters of these rows' deltas; they wait no longer. They go through
                                         `put` like all others, or may be returned by `take` at once

What is not taken leaves with the clock. Each element of a delta leaves exactly once, whoever asks for it first. A table
is one stream: letters it gave early must not be overtaken by those that its clock puts later.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

ORDINARY = 100


@dataclass(frozen=True, slots=True)
class Letter:
    """`data`: the bytes to be put. `clock`: of the updates that it brings, or whose outcome; older ones go first.
    `priority`: of one clock, lower goes first. `stream`: whose order among themselves must stay.

    `is_early`: carries deltas that need not go before the clock.
    """

    to: int
    data: Tensor = field(repr=False)
    priority: int = ORDINARY
    stream: int = 0
    is_early: bool = False
    clock: int = 0

    @property
    def num_bytes(self) -> int:
        return len(self.data)


@dataclass(frozen=True, slots=True)
class Waiting:
    """Rows of one table with deltas that have not been sent, as arrays of one length.

    rows          numbers of rows in the table
    owners        ranks that they go to
    magnitudes    |Δ|, the Euclidean norm of what waits
    weights       |w|, of the row as this worker has it
    since         a count that grows with every touch: where a row was touched first since it was last sent
    row_bytes     what one row takes on the wire
    """

    rows: np.ndarray
    owners: np.ndarray
    magnitudes: np.ndarray
    weights: np.ndarray
    since: np.ndarray
    row_bytes: int


class DeltaSource(Protocol):
    """A table whose deltas may leave early."""

    table: int

    def num_waiting(self) -> int:
        """Rows with deltas that wait; cheap."""

    def waiting(self) -> Waiting: ...

    def letters(self, rows: Sequence[int] | np.ndarray, *, half: bool = False) -> list[Letter]:
        """Letters with the deltas of these rows, which wait no longer. `half`: rows go as float16, and what that loses
        stays behind to go later."""


class ValueSource(Protocol):
    """A server's part of a table whose values may leave when there is room for them."""

    def num_pending(self) -> int: ...

    def letters_to(self, ready: Collection[int], letter_bytes: int) -> list[Letter]:
        """Newer values for one of these workers that has older ones, a letter of them; none: nobody has."""


class MessageScheduler(Protocol):
    """See the module's docstring."""

    def put(self, letter: Letter) -> None: ...

    def take(self, ready: Collection[int], now_s: float) -> Letter | None: ...

    def due_s(self, now_s: float) -> float | None: ...

    def sent(self, letter: Letter, now_s: float) -> None: ...

    def register(self, source: DeltaSource) -> None: ...

    def register_values(self, source: ValueSource) -> None: ...

    def know(self, neighbours: Collection[int]) -> None: ...

    @property
    def num_waiting(self) -> int:
        """Letters put and not taken."""


class InOrder:
    """Older clocks first, then more urgent letters, then first come, first served; deltas wait for their clock."""

    def __init__(self) -> None:
        self._queues: dict[int, list[tuple[int, int, int, Letter]]] = {}
        self._count = 0
        self.num_waiting = 0

    def put(self, letter: Letter) -> None:
        heapq.heappush(self._queues.setdefault(letter.to, []), (letter.clock, letter.priority, self._count, letter))
        self._count += 1
        self.num_waiting += 1

    def take(self, ready: Collection[int], now_s: float) -> Letter | None:
        heads = [(queue[0][:3], to) for to, queue in self._queues.items() if queue and to in ready]
        if not heads:
            return None
        letter = heapq.heappop(self._queues[min(heads)[1]])[3]
        self.num_waiting -= 1
        return letter

    def due_s(self, now_s: float) -> float | None:
        return None

    def sent(self, letter: Letter, now_s: float) -> None:
        """Nothing is counted."""

    def register(self, source: DeltaSource) -> None:
        """Nothing leaves early."""

    def register_values(self, source: ValueSource) -> None:
        """Values leave when they are asked for."""

    def know(self, neighbours: Collection[int]) -> None:
        """All are alike."""


def empty_waiting(row_bytes: int) -> Waiting:
    none = np.empty(0, dtype=np.int64)
    return Waiting(none, none, np.empty(0), np.empty(0), none, row_bytes)


def joined(head: bytes, payload: Tensor) -> Tensor:
    """A head and a payload in one piece."""
    data = np.empty(len(head) + len(payload), dtype=np.uint8)
    data[: len(head)] = np.frombuffer(head, dtype=np.uint8)
    data[len(head) :] = payload.numpy()
    return torch.from_numpy(data)
