"""Shard: what a server holds of one table. The hub's thread tells it what has come, and sends what it answers.

Every part goes its own way (`protocol.py`). With WHOLE_CLOCKS updates wait until everybody's of that clock are there;
they are summed in the order of workers, and `Update` makes a new version of that. ON_ARRIVAL each is added at once.

Of a table that workers read by rows, a server sends to each worker the rows that it has asked for before (it
subscribes to them by reading), and of these the ones that have changed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from poseidon.comm.stale import protocol
from poseidon.comm.stale.forms import Product, add_update, outer, rows_of, rows_payload, sum_updates
from poseidon.comm.stale.layout import Span, TableSpec
from poseidon.comm.stale.message import Form, Kind, Message, as_bytes
from poseidon.comm.stale.protocol import Entry, Mode
from poseidon.errors import TransportError


@dataclass(frozen=True, slots=True)
class Total:
    """The sum of all workers' updates of one clock; its memory may be used up. With `number` and `rate` they came."""

    part: int
    clock: int
    number: int
    rate: float
    sum: Tensor


class Update(Protocol):
    """What becomes of values when a clock is complete."""

    def apply(self, values: Tensor, total: Total) -> None: ...

    def histories(self, part: int) -> Sequence[Tensor]:
        """What it remembers of a part, each shaped like its values; may be written to when nothing is pending."""


class Addition:
    """w ← w + Σ updates."""

    def apply(self, values: Tensor, total: Total) -> None:
        values.add_(total.sum)

    def histories(self, part: int) -> Sequence[Tensor]:
        return ()


@dataclass(frozen=True, slots=True)
class Reply:
    """A message for some workers."""

    to: tuple[int, ...]
    message: Message


@dataclass(slots=True)
class _Held:
    """A part: its values, the updates that are not in them yet, by clock and worker, and who has seen what.

    `entered`: of each worker, how many of its deltas are in. By rows: `subscribed` (workers × rows) and `news`, rows
    that have changed since they were last sent to a worker.
    """

    span: Span
    state: protocol.Part
    values: Tensor
    updates: dict[int, dict[int, list[Message]]] = field(default_factory=lambda: defaultdict(dict))
    entered: list[int] = field(default_factory=list)
    asked: dict[int, list[Message]] = field(default_factory=lambda: defaultdict(list))
    subscribed: Tensor | None = None
    news: Tensor | None = None


class Shard:
    """`rank` is the server's. Parts begin as zeros, at version 0; see `seed`."""

    def __init__(self, spec: TableSpec, rank: int, update: Update, product: Product = outer) -> None:
        self.spec, self._update, self._product = spec, update, product
        self._parts = {part: self._new(spec.spans[part]) for part in spec.parts_of(rank)}
        self._left: set[int] = set()

    def _new(self, span: Span) -> _Held:
        spec = self.spec
        values = torch.zeros(span.num_rows, spec.width, dtype=spec.torch_dtype)
        held = _Held(span, protocol.new_part(spec.num_workers), values, entered=[0] * spec.num_workers)
        if spec.by_rows:
            held.subscribed = torch.zeros(spec.num_workers, span.num_rows, dtype=torch.bool)
            held.news = torch.zeros(spec.num_workers, span.num_rows, dtype=torch.bool)
        return held

    def versions(self) -> dict[int, int]:
        return {part: held.state.version for part, held in self._parts.items()}

    def values(self, part: int) -> Tensor:
        return self._parts[part].values

    def histories(self, part: int) -> Sequence[Tensor]:
        return self._update.histories(part)

    @torch.no_grad()
    def seed(self, part: int, number: int, tensor: Tensor, version: int) -> None:
        """Starts anew from these values (`number` 0) or histories (1, 2 …), at a version. Nothing is on its way."""
        held = self._parts[part]
        if number:
            self.histories(part)[number - 1].copy_(tensor.view_as(held.values))
            return
        assert not any(held.updates.values()), "a table is seeded when nothing is pending"
        held.values.copy_(tensor.view_as(held.values))
        held.state = protocol.new_part(self.spec.num_workers, version)

    # -- what comes -------------------------------------------------------------------------------------------------
    @torch.no_grad()
    def receive(self, worker: int, message: Message) -> list[Reply]:
        """Takes a message; what is to be sent because of it."""
        if message.kind is Kind.LEAVE:
            return self._leave(worker)
        held = self._parts.get(message.part)
        if held is None:
            raise TransportError(f"{message} is for a part of table {self.spec.name!r} that is not here", (worker,))
        if message.kind is Kind.DELTA:
            return self._take(held, worker, message)
        if message.kind is Kind.READ:
            return self._read(held, worker, message)
        if message.kind is Kind.SEED:
            self.seed(message.part, message.number, message.payload.clone().view(held.values.dtype), message.clock)
            return []
        assert message.kind is Kind.RECALL, f"{message} is no message to a server"
        kept = held.values if message.number == 0 else self.histories(message.part)[message.number - 1]
        return [Reply((worker,), self._message(Kind.RECALLED, message.part, message.number, as_bytes(kept.clone())))]

    def _message(self, kind: Kind, part: int, number: int, payload: Tensor) -> Message:
        version = self._parts[part].state.version
        return Message(kind, self.spec.index, part, version, number, Form.DENSE, payload=payload)

    # -- updates ----------------------------------------------------------------------------------------------------
    def _take(self, held: _Held, worker: int, message: Message) -> list[Reply]:
        if self.spec.entry is Entry.ON_ARRIVAL:
            add_update(held.values, message)
            self._mark(held, [message])
            held.entered[worker] = message.number
        else:
            held.updates[message.clock].setdefault(worker, []).append(message)
        if message.ends:
            held.state = protocol.update_arrived(held.state, worker, message.clock)
        return self._advance(message.part, held)

    def _advance(self, part: int, held: _Held) -> list[Reply]:
        """Makes all versions that can be made."""
        replies: list[Reply] = []
        while held.state.is_behind:
            if self.spec.entry is Entry.WHOLE_CLOCKS:
                self._make(part, held)
            held.state, waiting = protocol.version_made(held.state)
            replies += self._tell(part, held, waiting)
        return replies

    def _tell(self, part: int, held: _Held, waiting: Sequence[int]) -> list[Reply]:
        """What is sent because of a new version, for which some workers have been waiting."""
        return self._answer(part, held, waiting) if self.spec.mode is Mode.PULL else self._spread(part, held)

    def _make(self, part: int, held: _Held) -> None:
        clock = held.state.version
        found = held.updates.pop(clock)
        updates = [update for worker in sorted(found) for update in found[worker]]
        total = sum_updates(updates, (held.span.num_rows, self.spec.width), held.values.dtype, self._product)
        self._update.apply(held.values, Total(part, clock, updates[0].number, updates[0].rate, total))
        self._mark(held, updates)
        for worker, own in found.items():
            held.entered[worker] = own[-1].number

    def _mark(self, held: _Held, updates: Sequence[Message]) -> None:
        """By rows: remembers which have changed, for whoever subscribes to them."""
        if held.news is None:
            return
        for update in updates:
            if update.form in (Form.ROWS, Form.HALF):
                numbers, _ = rows_of(update, self.spec.width, held.values.dtype)
                held.news[:, numbers.long()] = True
            elif update.form is Form.PAIRS:
                places = update.payload[: 8 * update.count].clone().view(torch.int64)
                held.news[:, places // self.spec.width] = True
            elif update.form is not Form.NOTHING:
                held.news[:] = True

    # -- values -----------------------------------------------------------------------------------------------------
    def _read(self, held: _Held, worker: int, message: Message) -> list[Reply]:
        held.asked[worker].append(message)
        held.state, at_once = protocol.pulled(held.state, worker, message.clock)
        return self._answer(message.part, held, (worker,)) if at_once else []

    def _answer(self, part: int, held: _Held, workers: Sequence[int]) -> list[Reply]:
        """Answers those reads of these workers that can be."""
        replies = []
        for worker in dict.fromkeys(workers):
            due = [read for read in held.asked[worker] if read.clock <= held.state.version]
            held.asked[worker] = [read for read in held.asked[worker] if read.clock > held.state.version]
            for read in due:
                if read.form is Form.ROWS:
                    numbers = read.payload.clone().view(torch.int32).long()
                    replies.append(self._rows(part, held, worker, numbers, answers=True))
                else:
                    replies.append(self._whole(part, held, (worker,), held.entered[worker]))
        return replies

    def _spread(self, part: int, held: _Held) -> list[Reply]:
        """A new version goes to everybody who has not left."""
        workers = [worker for worker in range(self.spec.num_workers) if worker not in self._left]
        if held.news is not None and held.subscribed is not None:
            answers = self._answer(part, held, workers)
            wanted = held.news & held.subscribed
            held.news[:] = False
            return answers + [self._rows(part, held, worker, wanted[worker].nonzero()[:, 0]) for worker in workers]
        for worker, reads in held.asked.items():  # who asked, because it waits, has its answer with this
            held.asked[worker] = [read for read in reads if read.clock > held.state.version]
        if not self.spec.adds:
            return [self._whole(part, held, tuple(workers), 0)]
        return [self._whole(part, held, (worker,), held.entered[worker]) for worker in workers]

    def _whole(self, part: int, held: _Held, workers: tuple[int, ...], number: int) -> Reply:
        return Reply(workers, self._message(Kind.VALUES, part, number, as_bytes(held.values.clone())))

    def _rows(self, part: int, held: _Held, worker: int, numbers: Tensor, *, answers: bool = False) -> Reply:
        """Rows for a worker. `ends`: it has all its rows of this version now; an answer brings some rows only."""
        if held.subscribed is not None and self.spec.mode is not Mode.PULL:
            held.subscribed[worker, numbers] = True
        message = Message(
            Kind.VALUES,
            self.spec.index,
            part,
            held.state.version,
            held.entered[worker],
            Form.ROWS,
            len(numbers),
            ends=not answers,
            payload=rows_payload(numbers, held.values[numbers]),
        )
        return Reply((worker,), message)

    # -- ends -------------------------------------------------------------------------------------------------------
    def _leave(self, worker: int) -> list[Reply]:
        self._left.add(worker)
        replies: list[Reply] = []
        for part, held in self._parts.items():
            held.state = protocol.worker_left(held.state, worker)
            replies += self._advance(part, held)
        return [*replies, Reply((worker,), Message(Kind.LEFT, self.spec.index))]
