"""Caches: a worker's copies of tables. Whoever uses one holds the hub's lock.

    Cache        values as servers send them, and the version of each part
    OwnUpdates   for tables that add: what this worker has added and servers do not know of yet is on top, so that a
                 worker always reads its own writes

    values = what the server sent + own deltas that were not in there + what waits for the clock

A server tells with values how many of this worker's deltas of the part are in them (`Message.number`). Deltas beyond
that are added again to what it sent; so each is in exactly once, at every moment.
"""

from __future__ import annotations

from collections import deque

import numpy as np
import torch
from torch import Tensor

from poseidon.comm.stale.forms import ChosenRows, add_update, dense_of, pairs_payload, rows_of, rows_payload
from poseidon.comm.stale.layout import TableSpec
from poseidon.comm.stale.message import Form, Kind, Message, as_bytes

UNKNOWN = -1  # the version of a row that was never read


class Cache:
    """Values are zeros at version 0 until servers send others. Of a table read by rows, no row is known at first."""

    def __init__(self, spec: TableSpec) -> None:
        self.spec = spec
        self.values = torch.zeros(spec.num_rows, spec.width, dtype=spec.torch_dtype)
        self.versions = np.zeros(len(spec.spans), dtype=np.int64)
        self.row_versions = np.full(spec.num_rows if spec.by_rows else 0, UNKNOWN, dtype=np.int64)
        self.num_received = 0  # messages with values

    @torch.no_grad()
    def receive(self, message: Message) -> None:
        """Values that a server sent."""
        span = self.spec.spans[message.part]
        self.num_received += 1
        self.entered(message.part, message.number)
        if message.form is Form.DENSE:
            mine = self.values[span.first : span.last]
            mine.copy_(dense_of(message, (span.num_rows, self.spec.width), mine.dtype))
            self.overlay(message.part, mine, None)
            self.versions[message.part] = message.clock
            self.row_versions[span.first : span.last] = message.clock
            return
        numbers, rows = rows_of(message, self.spec.width, self.values.dtype)
        self.overlay(message.part, rows, numbers)
        self.values[span.first + numbers.long()] = rows
        known = self.row_versions[span.first : span.last]
        if message.ends:
            known[known != UNKNOWN] = message.clock
            self.versions[message.part] = message.clock
        known[numbers.numpy()] = message.clock

    def seed(self, values: Tensor, version: int) -> None:
        """Begins anew from these values."""
        self.values.copy_(values.view_as(self.values))
        self.versions[:] = version

    def entered(self, part: int, number: int) -> None:
        """So many of this worker's deltas of a part are in what a server sends from now on."""

    def overlay(self, part: int, values: Tensor, rows: Tensor | None) -> None:
        """Adds own deltas that a server did not have yet to what it sent: all rows of the part, or some."""


class OwnUpdates(Cache):
    """The cache of a table that adds."""

    def __init__(self, spec: TableSpec) -> None:
        super().__init__(spec)
        self.unsent = torch.zeros_like(self.values)
        self._touched = np.zeros(spec.num_rows, dtype=bool)
        self._numbers = [0] * len(spec.spans)
        self._sent: list[deque[Message]] = [deque() for _ in spec.spans]  # deltas that no server has confirmed

    @torch.no_grad()
    def add(self, rows: Tensor, delta: Tensor) -> None:
        self.unsent.index_add_(0, rows, delta)
        self.values.index_add_(0, rows, delta)
        self._touch(rows.numpy())

    @torch.no_grad()
    def add_all(self, delta: Tensor) -> None:
        self.unsent += delta
        self.values += delta
        self._touch(slice(None))

    def _touch(self, rows: np.ndarray | slice) -> None:
        self._touched[rows] = True

    def entered(self, part: int, number: int) -> None:
        sent = self._sent[part]
        while sent and sent[0].number <= number:
            sent.popleft()

    def overlay(self, part: int, values: Tensor, rows: Tensor | None) -> None:
        span = self.spec.spans[part]
        waiting = self.unsent[span.first : span.last]
        if rows is None:
            for message in self._sent[part]:
                add_update(values, message)
            values += waiting
            return
        if self._sent[part]:
            chosen = ChosenRows(rows, values, span.num_rows)
            for message in self._sent[part]:
                chosen.add(message)
        values += waiting[rows.long()]

    # -- deltas -----------------------------------------------------------------------------------------------------
    @torch.no_grad()
    def delta(self, part: int, clock: int) -> Message:
        """The rest of what was added to a part: the last delta of this clock."""
        span = self.spec.spans[part]
        rows = np.flatnonzero(self._touched[span.first : span.last])
        form, count, payload = self._written(part, rows)
        if form is not Form.NOTHING:
            self.unsent[span.first : span.last][torch.from_numpy(rows)] = 0
            self._touched[span.first + rows] = False
        return self._numbered(part, clock, form, count, payload, ends=True)

    def _written(self, part: int, rows: np.ndarray) -> tuple[Form, int, Tensor]:
        """Touched rows in the shortest form."""
        span, width = self.spec.spans[part], self.spec.width
        if len(rows) == 0:
            return Form.NOTHING, 0, torch.empty(0, dtype=torch.uint8)
        delta = self.unsent[span.first : span.last]
        element_bytes = delta.element_size()
        chosen = delta if len(rows) == span.num_rows else delta[torch.from_numpy(rows)]
        num_pairs = int(torch.count_nonzero(chosen))
        sizes = {
            Form.DENSE: span.num_rows * width * element_bytes,
            Form.ROWS: len(rows) * (4 + width * element_bytes),
            Form.PAIRS: num_pairs * (8 + element_bytes),
        }
        form = min(sizes, key=lambda form: sizes[form])
        if form is Form.DENSE:
            return form, 0, as_bytes(delta.clone())
        if form is Form.ROWS:
            return form, len(rows), rows_payload(torch.from_numpy(rows), chosen)
        places, columns = chosen.nonzero(as_tuple=True)
        where = torch.from_numpy(rows)[places] * width + columns
        return form, num_pairs, pairs_payload(where, chosen[places, columns])

    def _numbered(self, part: int, clock: int, form: Form, count: int, payload: Tensor, *, ends: bool) -> Message:
        self._numbers[part] += 1
        number = self._numbers[part]
        message = Message(Kind.DELTA, self.spec.index, part, clock, number, form, count, ends, payload=payload)
        self._sent[part].append(message)
        return message
