"""ROWS: the gradient of an embedding table is zero but for the rows a batch has read; only those travel.

Each worker gathers (row numbers, rows) of all, in rank order, and adds them into one dense gradient. How many there are
is known only at run time: there is room for about as many as the last time, and what is beyond it follows. Workers of
one node have theirs added up there: a row that several of them have read leaves the node once. For whoever can make use
of it (`gives_rows`) the sum comes as a sparse tensor instead, each row once.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from poseidon.comm.exchange import Gathering, Wiring
from poseidon.comm.part import Member, Part, flat
from poseidon.plan import Send
from poseidon.transport.cargo import Room, Table
from poseidon.transport.collectives import Gathered, gather_tables
from poseidon.transport.completion import Completion


class Rows(Gathering):
    """Member 0 is the table; row numbers travel as 32-bit integers."""

    gives_rows = False

    def __init__(self, wiring: Wiring) -> None:
        super().__init__(wiring)
        self._grad: Tensor | None = None
        self._room = Room()

    def offer(self, member: Member, grad: Tensor | None) -> None:
        shape = member.parameter.shape
        if grad is None:
            grad = torch.sparse_coo_tensor(
                torch.empty(1, 0, dtype=torch.long), member.value.new_empty(0, shape[1]), shape
            )
        self._grad = (grad if grad.is_sparse else grad.to_sparse(1)).coalesce()

    def begin(self, send: Send) -> Gathered:
        assert self._grad is not None, "the table is offered before its unit begins"
        own = Table((self._grad.indices()[0].to(torch.int32), self._grad.values().contiguous()))
        return gather_tables(self.transport, own, _added_up, tag=self.tag(send), room=self._room)

    def arrival(self, token: Gathered) -> Completion:
        return token.work

    def reduced(self, send: Send, token: Gathered) -> list[Part]:
        (table,) = self.members
        if self.gives_rows:
            numbers, rows = _added_up(token.tables).columns
            where, shape = numbers.long().view(1, -1), table.parameter.shape
            # Each row is there once, in order: nothing is left to coalesce, or to check.
            total = torch.sparse_coo_tensor(where, rows, shape, check_invariants=False, is_coalesced=True)
            return [Part(table, table.whole, total)]
        grad = torch.zeros_like(table.value)
        for found in token.tables:
            numbers, rows = found.columns
            grad.index_add_(0, numbers, rows)
        return [Part(table, table.whole, flat(grad))]

    def drop(self) -> None:
        self._grad = None


def _added_up(tables: Sequence[Table]) -> Table:
    """The rows of several workers, each row once, in the order of their numbers; sums in the order of workers."""
    numbers = torch.cat([table.columns[0] for table in tables])
    rows = torch.cat([table.columns[1] for table in tables])
    distinct, places = numbers.unique(return_inverse=True)
    total = rows.new_zeros(len(distinct), rows.shape[1]).index_add_(0, places, rows)
    return Table((distinct, total))
