"""Lazy tables, the workers' side: in managed mode a clock's update may leave later than its clock, row by row, but
never too late. (`lazy_shard.py` is the servers' side.)

What is added to a row waits, and adds up, until it leaves: early, when the budget allows (`managed.py`), or because it
is due. When a worker ends clock c with staleness s, every row that was touched in clock c − s or before and has not
left since must go now; with s = 0 that is all of them, at their clock. A clock has *ended* for the server once all its
rows have left, early or late; the server is told then.

Nobody waits in vain: a worker at clock c needs everybody's updates up to c − s − 1, and each that has come to clock c
has sent those. The slowest worker therefore never waits for another one's rows.

A row that left as float16 leaves a rest behind, what rounding has lost. It counts as an update of the clock that was
over last: it goes along when the row is touched anew, or when that clock is due, or when everything is drained. Before
that nothing is to be gained by sending it.

Everything that was added arrives exactly once (tests: sum of what was applied = sum of what was produced).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from poseidon.comm.stale.cache import UNKNOWN, OwnUpdates
from poseidon.comm.stale.forms import rows_of, rows_payload
from poseidon.comm.stale.hub import Hub
from poseidon.comm.stale.layout import TableSpec
from poseidon.comm.stale.message import Form, Message
from poseidon.comm.stale.outgoing import Letter, Waiting, empty_waiting


class LazyUpdates(OwnUpdates):
    """A worker's copy of a table, with what it has added and not sent. Whoever uses it holds the hub's lock."""

    def __init__(self, spec: TableSpec) -> None:
        super().__init__(spec)
        self.clock = 0
        self._num_touches = 0
        self._since = np.zeros(spec.num_rows, dtype=np.int64)  # the touch from which on a row has waited
        self._is_rest = np.zeros(spec.num_rows, dtype=bool)  # nothing waits but what rounding has left
        self._marks: list[int] = []  # by clock, from `_first_mark` on: touches there had been when it was over
        self._first_mark = 0
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
        if self.spec.by_rows:
            known = self.row_versions[span.first : span.last]
            known[known != UNKNOWN] = message.clock
            known[numbers.numpy()] = message.clock

    def _touch(self, rows: np.ndarray | slice) -> None:
        is_new = ~self._touched[rows]
        self._num_touches += 1
        self._since[rows] = np.where(is_new, self._num_touches, self._since[rows])
        self._is_rest[rows] = False
        super()._touch(rows)

    def finish_clock(self) -> None:
        """What was added so far belongs to this clock or an earlier one."""
        self._marks.append(self._num_touches)
        self.clock += 1

    # -- what has to go ---------------------------------------------------------------------------------------------
    def due(self, part: int, staleness: int) -> list[Message]:
        """What has to leave of a part, now that so many clocks are over."""
        clock = self.clock - 1 - staleness
        messages: list[Message] = []
        if clock >= self._ended[part]:
            span = self.spec.spans[part]
            here = slice(span.first, span.last)
            touched = self._touched[here]
            rows = np.flatnonzero(touched & (self._since[here] <= self._mark_of(clock)))
            if len(rows) and len(rows) == int(touched.sum()):
                messages.append(self._all(part))
            elif len(rows):
                messages.append(self.some(part, rows, half=False))
        return messages + self.ends(part)

    def ends(self, part: int) -> list[Message]:
        """The news of clocks of which nothing waits any more."""
        span = self.spec.spans[part]
        since = self._since[span.first : span.last][self._touched[span.first : span.last]]
        oldest = int(since.min()) if len(since) else self._num_touches + 1
        messages = []
        while self._ended[part] < self.clock and self._mark_of(self._ended[part]) < oldest:
            clock = self._ended[part]
            self._ended[part] += 1
            messages.append(self._numbered(part, clock, Form.NOTHING, 0, torch.empty(0, dtype=torch.uint8), ends=True))
        self._forget_marks()
        return messages

    def _mark_of(self, clock: int) -> int:
        return self._marks[clock - self._first_mark]

    def _forget_marks(self) -> None:
        """Of clocks that have ended everywhere; the last one stays, to which rests are counted."""
        past = min(*self._ended, self.clock - 1) - self._first_mark if self._marks else 0
        if past > 0:
            del self._marks[:past]
            self._first_mark += past

    def _clock_of(self, part: int, rows: np.ndarray) -> int:
        """The clock in which one of these rows was touched first."""
        since = int(self._since[self.spec.spans[part].first + rows].min())
        return self._first_mark + bisect_left(self._marks, since)

    @torch.no_grad()
    def _all(self, part: int) -> Message:
        """Everything that waits, in the shortest form."""
        span = self.spec.spans[part]
        rows = np.flatnonzero(self._touched[span.first : span.last])
        form, count, payload = self._written(part, rows)
        clock = self._clock_of(part, rows)
        self.unsent[span.first : span.last] = 0
        self._touched[span.first : span.last] = False
        return self._numbered(part, clock, form, count, payload, ends=False)

    # -- what may go ------------------------------------------------------------------------------------------------
    @torch.no_grad()
    def some(self, part: int, rows: np.ndarray, *, half: bool) -> Message:
        """What waits of some rows of a part (counted from its first). Its clock is the oldest of which something is in
        it."""
        clock = self._clock_of(part, rows)
        places = self.spec.spans[part].first + rows
        wire = self.unsent[torch.from_numpy(places)]
        if half:
            wire = self._narrowed(places, wire)
        else:
            self.unsent[torch.from_numpy(places)] = 0
            self._touched[places] = False
        payload = rows_payload(torch.from_numpy(rows), wire)
        return self._numbered(part, clock, Form.HALF if half else Form.ROWS, len(rows), payload, ends=False)

    def _narrowed(self, places: np.ndarray, delta: Tensor) -> Tensor:
        """These rows' deltas as float16, never beyond what that holds; the rest waits."""
        most = torch.finfo(torch.float16).max
        wire = delta.clamp(-most, most).to(torch.float16)
        rest = delta - wire.to(delta.dtype)
        self.unsent[torch.from_numpy(places)] = rest
        self._touched[places] = self._is_rest[places] = (rest != 0).any(1).numpy()
        if self._marks:  # not older than that, and not counted to a clock that has ended already
            self._since[places] = np.maximum(self._since[places], self._marks[-1])
        return wire

    def may_go(self, rows: np.ndarray) -> np.ndarray:
        """Those of these rows of the table that may leave early."""
        found: np.ndarray = rows[self._touched[rows] & ~self._is_rest[rows]]
        return found

    def num_waiting(self) -> int:
        return int((self._touched & ~self._is_rest).sum())

    def waiting(self, without: int) -> Waiting:
        """Rows with deltas that may leave early, but those of one server (this rank's own)."""
        spec = self.spec
        row_bytes = 4 + spec.row_bytes
        rows = np.flatnonzero(self._touched & ~self._is_rest)
        if len(rows) == 0:
            return empty_waiting(row_bytes)
        firsts = np.array([span.first for span in spec.spans])
        owners = np.array([span.owner for span in spec.spans])[np.searchsorted(firsts, rows, side="right") - 1]
        rows, owners = rows[owners != without], owners[owners != without]
        magnitudes, weights = _norms(self.unsent, rows), _norms(self.values, rows)
        return Waiting(rows, owners, magnitudes, weights, self._since[rows], row_bytes)


def _norms(table: Tensor, rows: np.ndarray) -> np.ndarray:
    """Of some rows. Those of all are sooner there than a copy of many of them would be."""
    many = 4 * len(rows) >= len(table)
    norms: np.ndarray = torch.linalg.vector_norm(table if many else table[torch.from_numpy(rows)], dim=1).numpy()
    return norms[rows] if many else norms


class LazyTable:
    """A worker's end of a lazy table; a DeltaSource (`outgoing.py`).

    Only the hub's thread makes messages of it, so that their numbers are in the order in which they leave.
    """

    def __init__(self, hub: Hub, cache: LazyUpdates) -> None:
        self.table = cache.spec.index
        self._hub, self._cache = hub, cache
        self._firsts = np.array([span.first for span in cache.spec.spans])
        hub.call(lambda: hub.outgoing.register(self))

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
                own = self._cache.may_go(chosen[parts == part]) - span.first
                messages = [self._cache.some(int(part), own, half=half)] if len(own) else []
                messages += self._cache.ends(int(part))
                for message in messages:
                    # Not less urgent than what the table sends later: that must not overtake.
                    found += self._hub.mailbox.letters(message, [span.owner], spec.priority, is_early=True)
        return found
