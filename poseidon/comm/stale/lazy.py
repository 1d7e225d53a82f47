"""Lazy tables: in managed mode a clock's update may leave later than its clock, row by row, but never too late.

Worker: what is added to a row waits, and adds up, until it leaves: early, when the budget allows (`managed.py`), or
because it is due. When a worker ends clock c with staleness s, every row that was touched in clock c − s or before and
has not left since must go now; with s = 0 that is all of them, at their clock. A clock has *ended* for the server once
all its rows have left, early or late; the server is told then.

Nobody waits in vain: a worker at clock c needs everybody's updates up to c − s − 1, and each that has come to clock c
has sent those. The slowest worker therefore never waits for another one's rows.

Server: a new version is noted for every worker, and sent when the budget allows, or at once to who asks for it: what
a worker gets is the newest, however many versions were made meanwhile, and of that the rows that it lacks for the
version it asks for.

With s = 0 updates enter by whole clocks, and nobody sees more than is due; else when they arrive.

Everything that was added arrives exactly once (tests: sum of what was applied = sum of what was produced).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
import torch
from torch import Tensor

from poseidon.comm.stale import protocol
from poseidon.comm.stale.cache import OwnUpdates
from poseidon.comm.stale.forms import rows_of, rows_payload
from poseidon.comm.stale.hub import Hub
from poseidon.comm.stale.layout import TableSpec
from poseidon.comm.stale.managed import LETTER_BYTES
from poseidon.comm.stale.message import Form, Kind, Message
from poseidon.comm.stale.outgoing import Letter, Waiting
from poseidon.comm.stale.protocol import Entry
from poseidon.comm.stale.shard import Reply, Shard, Update, _Held

_LACKS_NOTHING = 2**62  # the tag of a row that a worker has as it is


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
        """What waits of some rows of a part. Its clock is the oldest of which something is in it."""
        return self.early(part, self._oldest(part, rows), rows, half=half)

    def _oldest(self, part: int, rows: np.ndarray) -> int:
        """The clock in which one of these rows was touched first."""
        since = self._since[self.spec.spans[part].first + rows].min()
        return int(np.searchsorted(self._marks, since))

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
        clock = self._oldest(part, rows)
        self.unsent[span.first : span.last] = 0
        self._touched[span.first : span.last] = False
        return self._numbered(part, clock, form, count, payload, ends=False)


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
    """A server's part of a lazy table; a ValueSource (`managed.py`). The hub's thread uses it.

    Of every row and worker it knows the oldest clock whose update has come since that worker was last sent the row (its
    *tag*). A worker has version v as soon as it lacks no row with a tag below v; nobody need be sent more than that.
    """

    def __init__(self, hub: Hub, spec: TableSpec, update: Update) -> None:
        super().__init__(spec, hub.rank, update)
        self._hub = hub
        self._pending: dict[tuple[int, int], None] = {}  # (worker, part), in the order in which they became old
        self._tags = {
            held.span: torch.full((spec.num_workers, held.span.num_rows), _LACKS_NOTHING)
            for held in self._parts.values()
        }

    def _mark(self, held: _Held, updates: Sequence[Message]) -> None:
        tags = self._tags[held.span]
        for update in updates:
            rows: Tensor | slice = slice(None)
            if update.form is Form.NOTHING:
                continue
            if update.form in (Form.ROWS, Form.HALF):
                rows = rows_of(update, self.spec.width, held.values.dtype)[0].long()
            elif update.form is Form.PAIRS:
                rows = update.payload[: 8 * update.count].clone().view(torch.int64) // self.spec.width
            tags[:, rows] = tags[:, rows].clamp(max=update.clock)

    def _advance(self, part: int, held: _Held) -> list[Reply]:
        replies: list[Reply] = []
        while held.state.is_behind:
            if self.spec.entry is Entry.WHOLE_CLOCKS:
                self._make(part, held)
            held.state, answered = protocol.version_made(held.state)
            for worker in range(self.spec.num_workers):
                if worker != self._hub.rank and worker not in self._left:
                    self._pending.setdefault((worker, part))
            replies += self._answer(part, held, answered)
            if self._hub.rank < self.spec.num_workers:  # nothing travels
                replies.append(self._rows_below(part, held, self._hub.rank, _LACKS_NOTHING))
        return replies

    def _answer(self, part: int, held: _Held, workers: Sequence[int]) -> list[Reply]:
        """To who waits for a version: the rows that it lacks for that."""
        replies = []
        for worker in dict.fromkeys(workers):
            reads = held.asked[worker]
            held.asked[worker] = [read for read in reads if read.clock > held.state.version]
            due = [read.clock for read in reads if read.clock <= held.state.version]
            if due:
                replies.append(self._rows_below(part, held, worker, max(due)))
        return replies

    def num_pending(self) -> int:
        return len(self._pending)

    def letters_to(self, ready: Collection[int]) -> list[Letter]:
        """The rows that some worker has lacked longest, as many as one letter holds."""
        for worker, part in list(self._pending):
            held = self._parts[part]
            tags = self._tags[held.span][worker]
            num_lacking = int((tags != _LACKS_NOTHING).sum())
            if worker in self._left or (num_lacking == 0 and worker in ready):
                del self._pending[worker, part]
            if worker in self._left or worker not in ready:
                continue
            count = max(1, LETTER_BYTES // (4 + self.spec.row_bytes))
            below = _LACKS_NOTHING if num_lacking <= count else int(tags.kthvalue(count).values) + 1
            reply = self._rows_below(part, held, worker, below)
            return self._hub.mailbox.letters(reply.message, [worker], self.spec.priority)
        return []

    def _rows_below(self, part: int, held: _Held, worker: int, below: int) -> Reply:
        """The rows with tags below a version; all, if that is no longer. `clock` is the version that it has then."""
        tags = self._tags[held.span][worker]
        rows = (tags < below).nonzero()[:, 0]
        row_bytes = self.spec.row_bytes
        if len(rows) * (4 + row_bytes) >= held.span.num_rows * row_bytes:
            tags[:] = _LACKS_NOTHING
            return self._whole(part, held, (worker,), held.entered[worker])
        tags[rows] = _LACKS_NOTHING
        message = Message(
            Kind.VALUES,
            self.spec.index,
            part,
            min(int(tags.min()), held.state.version),
            held.entered[worker],
            Form.ROWS,
            len(rows),
            payload=rows_payload(rows, held.values[rows]),
        )
        return Reply((worker,), message)
