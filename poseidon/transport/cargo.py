"""What collectives carry besides plain tensors: shards that cross the network narrowed, tables of unknown length."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


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


Combine = Callable[[Sequence[Table]], Table]
"""One table of several; what it gives must not depend on anything else."""
