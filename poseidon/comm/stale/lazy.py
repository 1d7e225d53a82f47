"""Lazy tables: in managed mode a clock's update may leave later than its clock, row by row, but never too late.

Worker: what is added to a row waits, and adds up, until it leaves: early, when the budget allows (`managed.py`), or
because it is due. When a worker ends clock c with staleness s, every row that was touched in clock c − s or before and
has not left since must go now; with s = 0 that is all of them, at their clock. A clock has *ended* for the server once
all its rows have left, early or late; the server is told then.

Nobody waits in vain: a worker at clock c needs everybody's updates up to c − s − 1, and each that has come to clock c
has sent those. The slowest worker therefore never waits for another one's rows.

Server: a new version is noted for every worker, and sent when the budget allows, or at once to who asks for it: what
a worker gets is the newest, however many versions were made meanwhile, and of that the rows that have changed since it
was last sent something.

With s = 0 updates enter by whole clocks, and nobody sees more than is due; else when they arrive.

Everything that was added arrives exactly once (tests: sum of what was applied = sum of what was produced).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
import torch

from poseidon.comm.stale import protocol
from poseidon.comm.stale.cache import OwnUpdates
from poseidon.comm.stale.forms import rows_of, rows_payload
from poseidon.comm.stale.hub import Hub
from poseidon.comm.stale.layout import TableSpec
from poseidon.comm.stale.message import Form, Kind, Message
from poseidon.comm.stale.outgoing import Letter, Waiting
from poseidon.comm.stale.protocol import Entry
from poseidon.comm.stale.shard import Reply, Shard, Update, _Held


class LazyUpdates(OwnUpdates):
    """A worker's copy of a table, with what it has added and not sent. Whoever uses it holds the hub's lock."""

    def __init__(self, spec: TableSpec) -> None:
        super().__init__(spec)
        self.clock = 0
        self._marks: list[int] = []  # by clock: how many touches there had been when it was over
        self._ended = [0] * len(spec.spans)  # by part: so many clocks have left completely

    @torch.no_grad()
    def receive(self, message: Message) -> None:
        """Values that a server sent: all rows of a part, or those that have changed."""
        if message.form is Form.DENSE:
            super().receive(message)
            return
        span = self.spec.spans[message.part]
        self.num_received += 1
        self.entered(message.part, message.number)
        numbers, rows = rows_of(message, self.spec.width, self.values.dtype)
        self.overlay(message.part, rows, numbers)
        self.values[span.first + numbers.long()] = rows
        self.versions[message.part] = message.clock

    def finish_clock(self) -> None:
        """What was added so far belongs to this clock or an earlier one."""
        self._marks.append(self._num_touches)
        self.clock += 1

    def due(self, part: int, staleness: int) -> list[Message]:
        """What has to leave of a part, now that so many clocks are over."""
        clock = self.clock - 1 - staleness
        messages: list[Message] = []
        if clock >= 0:
            span = self.spec.spans[part]
            here = slice(span.first, span.last)
            touched = self._touched[here]
            rows = np.flatnonzero(touched & (self._since[here] <= self._marks[clock]))
            if len(rows) and len(rows) == int(touched.sum()):
                messages.append(self._all(part))
            elif len(rows):
                messages.append(self.some(part, rows, half=False))
        return messages + self.ends(part)

    def some(self, part: int, rows: np.ndarray, *, half: bool) -> Message:
        """What waits of some rows of a part. It counts for the oldest clock of which something may wait: with s = 0
        there is no other."""
        return self.early(part, self._ended[part], rows, half=half)

    def still_waiting(self, rows: np.ndarray) -> np.ndarray:
        found: np.ndarray = rows[self._touched[rows]]
        return found

    def ends(self, part: int) -> list[Message]:
        """The news of clocks of which nothing waits any more."""
        span = self.spec.spans[part]
        since = self._since[span.first : span.last][self._touched[span.first : span.last]]
        oldest = int(since.min()) if len(since) else self._num_touches + 1
        messages = []
        while self._ended[part] < self.clock and self._marks[self._ended[part]] < oldest:
            clock = self._ended[part]
            self._ended[part] += 1
            messages.append(self._numbered(part, clock, Form.NOTHING, 0, torch.empty(0, dtype=torch.uint8), ends=True))
        return messages

    @torch.no_grad()
    def _all(self, part: int) -> Message:
        """Everything that waits, in the shortest form."""
        span = self.spec.spans[part]
        rows = np.flatnonzero(self._touched[span.first : span.last])
        form, count, payload = self._written(part, rows)
        self.unsent[span.first : span.last] = 0
        self._touched[span.first : span.last] = False
        return self._numbered(part, self._ended[part], form, count, payload, ends=False)


class LazyTable:
    """A worker's end of a lazy table; a DeltaSource (`outgoing.py`).

    Only the hub's thread makes messages of it, so that their numbers are in the order in which they leave.
    """

    def __init__(self, hub: Hub, cache: LazyUpdates) -> None:
        self.table = cache.spec.index
        self._hub, self._cache = hub, cache
        self._firsts = np.array([span.first for span in cache.spec.spans])

    def flush(self, staleness: int) -> None:
        """Sends what is due; all of what this rank serves itself, which costs no network. On the hub's thread."""
        spec, rank = self._cache.spec, self._hub.rank
        with self._hub.lock:
            messages = [
                message
                for part, span in enumerate(spec.spans)
                for message in self._cache.due(part, 0 if span.owner == rank else staleness)
            ]
        for message in messages:
            self._hub.send((spec.spans[message.part].owner,), message)

    def num_waiting(self) -> int:
        with self._hub.lock:
            return self._cache.num_waiting()

    def waiting(self) -> Waiting:
        with self._hub.lock:
            return self._cache.waiting(without=self._hub.rank)

    def letters(self, rows: Sequence[int] | np.ndarray, *, half: bool = False) -> list[Letter]:
        chosen = np.unique(np.asarray(rows, dtype=np.int64))
        spec, found = self._cache.spec, []
        parts = np.searchsorted(self._firsts, chosen, side="right") - 1
        with self._hub.lock:
            for part in np.unique(parts):
                span = spec.spans[part]
                own = self._cache.still_waiting(chosen[parts == part]) - span.first
                messages = [self._cache.some(int(part), own, half=half)] if len(own) else []
                messages += self._cache.ends(int(part))
                for message in messages:
                    # Not less urgent than what the table sends later: that must not overtake.
                    found += self._hub.mailbox.letters(message, [span.owner], spec.priority, is_early=True)
        return found


class LazyShard(Shard):
    """A server's part of a lazy table; a ValueSource (`managed.py`). The hub's thread uses it."""

    def __init__(self, hub: Hub, spec: TableSpec, update: Update) -> None:
        super().__init__(spec, hub.rank, update)
        self._hub = hub
        self._pending: dict[tuple[int, int], None] = {}  # (worker, part), in the order in which they became old
        for held in self._parts.values():
            held.news = torch.zeros(spec.num_workers, held.span.num_rows, dtype=torch.bool)

    def _advance(self, part: int, held: _Held) -> list[Reply]:
        replies: list[Reply] = []
        while held.state.is_behind:
            if self.spec.entry is Entry.WHOLE_CLOCKS:
                self._make(part, held)
            held.state, answered = protocol.version_made(held.state)
            others = [w for w in range(self.spec.num_workers) if w not in (*answered, self._hub.rank, *self._left)]
            for worker in others:
                self._pending.setdefault((worker, part))
            replies += self._answer(part, held, answered)
            if self._hub.rank < self.spec.num_workers and self._hub.rank not in answered:  # nothing travels
                replies.append(self._whole(part, held, (self._hub.rank,), held.entered[self._hub.rank]))
        return replies

    def _whole(self, part: int, held: _Held, workers: tuple[int, ...], number: int) -> Reply:
        """What one worker lacks of the newest values."""
        (worker,) = workers
        assert held.news is not None
        rows = held.news[worker].nonzero()[:, 0]
        held.news[worker] = False
        row_bytes = self.spec.row_bytes
        if len(rows) * (4 + row_bytes) >= held.span.num_rows * row_bytes:
            return super()._whole(part, held, workers, number)
        payload = rows_payload(rows, held.values[rows])
        message = Message(
            Kind.VALUES, self.spec.index, part, held.state.version, number, Form.ROWS, len(rows), True, payload=payload
        )
        return Reply(workers, message)

    def num_pending(self) -> int:
        return len(self._pending)

    def letters_to(self, ready: Collection[int]) -> list[Letter]:
        for worker, part in self._pending:
            if worker in ready:
                del self._pending[worker, part]
                if worker in self._left:
                    return self.letters_to(ready)
                held = self._parts[part]
                message = self._whole(part, held, (worker,), held.entered[worker]).message
                return self._hub.mailbox.letters(message, [worker], self.spec.priority)
        return []

    def _answer(self, part: int, held: _Held, workers: Sequence[int]) -> list[Reply]:
        replies = super()._answer(part, held, workers)
        for reply in replies:
            for worker in reply.to:
                self._pending.pop((worker, part), None)
        return replies
