"""LazyShard: a server's part of a lazy table (`lazy.py`).

A new version is noted for every worker, and sent when the budget allows, or at once to who asks for it: what a worker
gets is the newest, however many versions were made meanwhile, and of that the rows that it lacks for the version it
asks for.

With s = 0 updates enter by whole clocks, and nobody sees more than is due; else when they arrive.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch
from torch import Tensor

from poseidon.comm.stale.forms import rows_of, rows_payload
from poseidon.comm.stale.hub import Hub
from poseidon.comm.stale.layout import TableSpec
from poseidon.comm.stale.message import Form, Kind, Message
from poseidon.comm.stale.outgoing import Letter
from poseidon.comm.stale.protocol import Mode
from poseidon.comm.stale.shard import Reply, Shard, Update, _Held

_LACKS_NOTHING = 2**62  # the tag of a row that a worker has as it is, or has never asked for
_NEVER_SENT = -1


class LazyShard(Shard):
    """A ValueSource (`outgoing.py`). The hub's thread uses it.

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
            older = tags[:, rows].clamp(max=update.clock)
            if held.subscribed is not None:
                older = torch.where(held.subscribed[:, rows], older, _LACKS_NOTHING)
            tags[:, rows] = older

    def _tell(self, part: int, held: _Held, waiting: Sequence[int]) -> list[Reply]:
        for worker in range(self.spec.num_workers):
            if worker != self._hub.rank and worker not in self._left:
                self._pending.setdefault((worker, part))
        replies = self._answer(part, held, waiting)
        if self._hub.rank < self.spec.num_workers:  # nothing travels
            replies.append(self._rows_below(part, held, self._hub.rank, _LACKS_NOTHING))
        return replies

    def _answer(self, part: int, held: _Held, workers: Sequence[int]) -> list[Reply]:
        """To who waits for a version: the rows that it lacks for that."""
        replies = []
        for worker in dict.fromkeys(workers):
            reads = held.asked[worker]
            held.asked[worker] = [read for read in reads if read.clock > held.state.version]
            due = [read for read in reads if read.clock <= held.state.version]
            if due:
                self._subscribe(held, worker, due)
                replies.append(self._rows_below(part, held, worker, max(read.clock for read in due)))
        return replies

    def _subscribe(self, held: _Held, worker: int, reads: Sequence[Message]) -> None:
        """By rows: those that are asked for come from now on; those that were not known there are lacked."""
        if held.subscribed is None:
            return
        for read in reads:
            rows = read.payload.clone().view(torch.int32).long()
            new = rows[~held.subscribed[worker, rows]]
            held.subscribed[worker, new] = True
            self._tags[held.span][worker, new] = _NEVER_SENT

    # -- when there is room -----------------------------------------------------------------------------------------
    def num_pending(self) -> int:
        return len(self._pending)

    def letters_to(self, ready: Collection[int], letter_bytes: int) -> list[Letter]:
        """The rows that some worker has lacked longest, as many as one letter holds."""
        for worker, part in list(self._pending):
            if worker in self._left:
                del self._pending[worker, part]
                continue
            if worker not in ready:
                continue
            held = self._parts[part]
            tags = self._tags[held.span][worker]
            num_lacking = int((tags != _LACKS_NOTHING).sum())
            if num_lacking == 0:
                del self._pending[worker, part]
            count = max(1, letter_bytes // (4 + self.spec.row_bytes))
            if num_lacking <= count:
                reply = self._rows_below(part, held, worker, _LACKS_NOTHING)
            else:
                oldest = tags.topk(count, largest=False).indices.sort().values
                reply = self._these_rows(part, held, worker, oldest)
            return self._hub.mailbox.letters(reply.message, [worker], self.spec.priority)
        return []

    def _rows_below(self, part: int, held: _Held, worker: int, below: int) -> Reply:
        """The rows with tags below a version; all, if that is no longer."""
        tags = self._tags[held.span][worker]
        rows = (tags < below).nonzero()[:, 0]
        row_bytes = self.spec.row_bytes
        if not self.spec.by_rows and len(rows) * (4 + row_bytes) >= held.span.num_rows * row_bytes:
            tags[:] = _LACKS_NOTHING
            return self._whole(part, held, (worker,), held.entered[worker])
        return self._these_rows(part, held, worker, rows)

    def _these_rows(self, part: int, held: _Held, worker: int, rows: Tensor) -> Reply:
        """`clock` is the version that the worker has with them."""
        tags = self._tags[held.span][worker]
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


def shard_of(hub: Hub, spec: TableSpec, update: Update) -> Shard:
    """What this rank serves of a table. On the hub's thread."""
    if spec.mode is not Mode.MANAGED:
        return Shard(spec, hub.rank, update)
    shard = LazyShard(hub, spec, update)
    hub.outgoing.register_values(shard)
    return shard
