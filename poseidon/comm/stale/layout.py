"""TableSpec: what a table is, and which of its rows are whose. The same on all ranks.

Rows are dealt out over the servers in order, each an even share, so that no server is a hot spot. A server's share is
cut into *parts*, which are updated, versioned and sent by themselves: small ones, so that what is complete leaves while
the rest is still coming. A table that is small as a whole is one part, on servers in turn.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property

import torch

from poseidon.comm.server import owned
from poseidon.comm.stale.protocol import Entry, Mode
from poseidon.errors import UsageError

PART_BYTES = 240 << 10  # with its head it fits into one letter
SMALL_BYTES = 32 << 10
DTYPES = {"float32": torch.float32, "float64": torch.float64}


@dataclass(frozen=True, slots=True)
class Span:
    """Rows [first, last) of a table, on server `owner` (a rank)."""

    owner: int
    first: int
    last: int

    @property
    def num_rows(self) -> int:
        return self.last - self.first


@dataclass(frozen=True)
class TableSpec:
    """
    index       number of the table in its job
    num_rows    of `width` elements each
    dtype       of the elements, by name
    staleness   by how many clocks readers may be behind
    mode        how values come to workers;   entry   when updates enter
    owners      the ranks that serve it;   num_workers   ranks 0 … num_workers − 1 read and write it
    is_whole    a server's share is one part (rows travel by themselves, or updates come as factors)
    by_rows     workers read and write some rows, not all of them
    adds        an update is what is added to the values; else the server makes something of it (a solver's rule)
    priority    of its messages; lower goes first
    """

    index: int
    name: str
    num_rows: int
    width: int
    num_workers: int
    owners: tuple[int, ...]
    dtype: str = "float32"
    staleness: int = 0
    mode: Mode = Mode.PUSH
    entry: Entry = Entry.WHOLE_CLOCKS
    is_whole: bool = False
    by_rows: bool = False
    adds: bool = True
    priority: int = 100

    def __post_init__(self) -> None:
        if self.num_rows < 1 or self.width < 1:
            raise UsageError(f"table {self.name!r} needs rows and columns, got {self.num_rows} × {self.width}")
        if self.staleness < 0:
            raise UsageError(f"the staleness of table {self.name!r} is 0 or more clocks, got {self.staleness}")
        if self.dtype not in DTYPES:
            raise UsageError(f"the elements of table {self.name!r} are {' or '.join(DTYPES)}, got {self.dtype}")

    @property
    def torch_dtype(self) -> torch.dtype:
        return DTYPES[self.dtype]

    @property
    def row_bytes(self) -> int:
        return self.width * self.torch_dtype.itemsize

    @cached_property
    def spans(self) -> tuple[Span, ...]:
        """The parts, in the order of rows."""
        if not self.by_rows and self.num_rows * self.row_bytes <= SMALL_BYTES:
            return (Span(self.owners[self.index % len(self.owners)], 0, self.num_rows),)
        found: list[Span] = []
        for place, owner in enumerate(self.owners):
            first, last = owned(0, self.num_rows, place, len(self.owners))
            step = self.num_rows if self.is_whole or self.by_rows else max(1, PART_BYTES // self.row_bytes)
            found += [Span(owner, start, min(start + step, last)) for start in range(first, last, step)]
        return tuple(found)

    def parts_of(self, owner: int) -> list[int]:
        return [part for part, span in enumerate(self.spans) if span.owner == owner]

    # -- between ranks ----------------------------------------------------------------------------------------------
    def to_json(self) -> str:
        plain = asdict(self) | {"mode": self.mode.value, "entry": self.entry.value}
        return json.dumps(plain)

    @classmethod
    def from_json(cls, text: str) -> TableSpec:
        found = json.loads(text)
        found |= {"mode": Mode(found["mode"]), "entry": Entry(found["entry"]), "owners": tuple(found["owners"])}
        return cls(**found)


def starts_of(spans: Sequence[Span]) -> torch.Tensor:
    """First rows of the parts, for looking up a row's part by `searchsorted`."""
    return torch.tensor([span.first for span in spans])
