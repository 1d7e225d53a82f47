"""ROWS: the gradient of an embedding table is zero but for the rows a batch has read; only those travel.

Each worker gathers (row numbers, rows) of all, in rank order, and adds them into one dense gradient: how many there are
is known only at run time, so their numbers go first.
"""

from __future__ import annotations

import torch
from torch import Tensor

from poseidon.comm.exchange import Exchange, Wiring
from poseidon.comm.part import Member, Part, flat
from poseidon.plan import Send
from poseidon.transport import Work
from poseidon.transport.collectives import all_gather

_COUNTS, _NUMBERS, _ROWS = 0, 1, 2


class Rows(Exchange):
    """Member 0 is the table; row numbers travel as 32-bit integers."""

    def __init__(self, wiring: Wiring) -> None:
        super().__init__(wiring)
        self._grad: Tensor | None = None

    def offer(self, member: Member, grad: Tensor | None) -> None:
        shape = member.parameter.shape
        if grad is None:
            grad = torch.sparse_coo_tensor(
                torch.empty(1, 0, dtype=torch.long), member.value.new_empty(0, shape[1]), shape
            )
        self._grad = (grad if grad.is_sparse else grad.to_sparse(1)).coalesce()

    def begin(self, send: Send) -> tuple[list[Tensor], Work]:
        assert self._grad is not None, "the table is offered before its unit begins"
        counts = [torch.zeros(1, dtype=torch.long) for _ in range(self.transport.size)]
        counts[self.transport.rank][0] = self._grad.indices().shape[1]
        return counts, all_gather(self.transport, counts, tag=self.tag(send, _COUNTS))

    def reduced(self, send: Send, token: tuple[list[Tensor], Work]) -> list[Part]:
        counts, work = token
        work.wait()
        assert self._grad is not None
        (table,) = self.members
        width = table.parameter.shape[1]
        numbers = [torch.empty(int(count), dtype=torch.int32) for count in counts]
        rows = [table.value.new_empty(int(count) * width) for count in counts]
        numbers[self.transport.rank] = self._grad.indices()[0].to(torch.int32)
        rows[self.transport.rank] = self._grad.values().reshape(-1)
        works = [
            all_gather(self.transport, numbers, tag=self.tag(send, _NUMBERS)),
            all_gather(self.transport, rows, tag=self.tag(send, _ROWS)),
        ]
        for gathering in works:
            gathering.wait()
        grad = torch.zeros_like(table.value)
        for where, what in zip(numbers, rows, strict=True):
            grad.index_add_(0, where, what.view(-1, width))
        return [Part(table, table.whole, flat(grad))]

    def drop(self) -> None:
        self._grad = None
