"""What collectives carry besides plain tensors: shards that cross the network narrowed, tables of unknown length."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

_COUNT_BYTES = 8  # of a table's number of rows; columns lie at multiples of it
_SPARE = 32  # one row of so many is room that may stay empty


@dataclass(frozen=True, slots=True)
class Narrowing:
    """How shards cross the network: `narrowed(i, shard)` is shard i as it travels, of type `dtype`."""

    dtype: torch.dtype
    narrowed: Callable[[int, Tensor], Tensor]


@dataclass(frozen=True, slots=True)
class Table:
    """Columns of the same number of rows each: tensors whose first axes agree, each in one piece."""

    columns: tuple[Tensor, ...]

    @property
    def num_rows(self) -> int:
        return self.columns[0].shape[0]

    def like(self, num_rows: int) -> Table:
        """Room for as many rows as somebody else has."""
        return Table(tuple(column.new_empty(num_rows, *column.shape[1:]) for column in self.columns))

    def messages(self) -> list[Tensor]:
        return [column.view(-1) for column in self.columns]

    def rows(self, first: int, last: int) -> Table:
        return Table(tuple(column[first:last] for column in self.columns))

    def above(self, other: Table) -> Table:
        """The rows of both, one table below the other."""
        pairs = zip(self.columns, other.columns, strict=True)
        return Table(tuple(torch.cat(pair) for pair in pairs))

    # -- as one message ---------------------------------------------------------------------------------------------
    def room_for(self, num_rows: int) -> Tensor:
        """A message for so many rows like these, and for their number."""
        return self.columns[0].new_empty(self._places(num_rows)[-1], dtype=torch.uint8)

    def packed(self, num_rows: int) -> Tensor:
        """This table's number of rows, and as many of them as there is room for."""
        message = self.room_for(num_rows)
        message[:_COUNT_BYTES].view(torch.int64)[0] = self.num_rows
        for column, place in zip(self.columns, self._in(message, num_rows), strict=True):
            place[: self.num_rows].copy_(column[:num_rows])
        return message

    def unpacked(self, message: Tensor, num_rows: int) -> tuple[int, Table]:
        """How many rows somebody has who packed a table like this one, and those that there was room for."""
        count = int(message[:_COUNT_BYTES].view(torch.int64)[0])
        return count, Table(tuple(column[:count] for column in self._in(message, num_rows)))

    def _in(self, message: Tensor, num_rows: int) -> Iterator[Tensor]:
        for column, first in zip(self.columns, self._places(num_rows), strict=False):
            num_bytes = num_rows * math.prod(column.shape[1:]) * column.element_size()
            yield message[first : first + num_bytes].view(column.dtype).view(num_rows, *column.shape[1:])

    def _places(self, num_rows: int) -> list[int]:
        """Where columns begin in a message, and its end: at whole multiples of what the widest elements need."""
        places = [_COUNT_BYTES]
        for column in self.columns:
            row_bytes = math.prod(column.shape[1:]) * column.element_size()
            places.append(places[-1] + -(-num_rows * row_bytes // _COUNT_BYTES) * _COUNT_BYTES)
        return places


class Room:
    """How many rows each member's table may have without anybody asking first: as many as it had the last time, and a
    few more. All members see the same tables, so that all have the same room."""

    def __init__(self) -> None:
        self._num_rows: list[int] = []

    def of(self, place: int) -> int:
        return self._num_rows[place] if self._num_rows else 0

    def learn(self, counts: Sequence[int]) -> None:
        """Room that was too little, or much too much, is changed."""
        before = self._num_rows or [0] * len(counts)
        wanted = [count + count // _SPARE for count in counts]
        self._num_rows = [
            want if count > had or 4 * want < 3 * had else had
            for count, want, had in zip(counts, wanted, before, strict=True)
        ]


Combine = Callable[[Sequence[Table]], Table]
"""One table of several; what it gives must not depend on anything else."""
