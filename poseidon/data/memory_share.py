"""MemoryShare: a data set spread over the workers' memory; any worker gets any record by a one-sided read.

Every worker reads its part of the source once, and keeps it in segments that the others can read while it computes:

    one source for all       worker r keeps records r, r + P, …; record i has the number it has in the source
    a part for each worker   worker r keeps its own part; parts follow one another in rank order

So no file system need be shared, and every order is as cheap as any other: shuffling is over the whole set. Records
are kept as the layer gets them, images decoded. Everybody knows where each lies (`RecordTable`, 64 bytes per record).
`announce` starts the reads of a batch, `get` waits for them: a batch costs one round trip, not one per record.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from poseidon.data.source import Record, RecordSource
from poseidon.errors import DataError
from poseidon.transport import Work
from poseidon.transport.onesided import Endpoint, Spot

CHUNK_BYTES = 64 << 20
MOST_CHUNKS = 1 << 16
READ_S = 600.0
DTYPES = (np.dtype(np.uint8), np.dtype(np.float32), np.dtype(np.float64))

# What everybody knows of a record: chunk, offset, label, planar, type, and its three extents.
_COLUMNS = 8

Gather = Callable[[Tensor], Tensor]


@dataclass(frozen=True, slots=True)
class Owner:
    """Where a record is kept: the worker, and the record's place among those it keeps."""

    rank: int
    place: int


class RecordTable:
    """Where every record lies. `rows`: of each worker's records; `is_dealt`: numbers go in turns, not in runs."""

    def __init__(self, rows: Sequence[np.ndarray], *, is_dealt: bool) -> None:
        self._rows, self._is_dealt = rows, is_dealt
        self._ends = np.cumsum([len(part) for part in rows])

    def __len__(self) -> int:
        return int(self._ends[-1])

    def owner(self, index: int) -> Owner:
        if self._is_dealt:
            return Owner(index % len(self._rows), index // len(self._rows))
        rank = int(np.searchsorted(self._ends, index, side="right"))
        return Owner(rank, index - (int(self._ends[rank - 1]) if rank else 0))

    def row(self, owner: Owner) -> np.ndarray:
        return self._rows[owner.rank][owner.place]


class MemoryShare:
    """A RecordSource over all workers' memory. Made by `spread`."""

    def __init__(self, path: str, endpoint: Endpoint, first_segment: int, table: RecordTable) -> None:
        self.path = path
        self._endpoint, self._first_segment, self._table = endpoint, first_segment, table
        self._lock = threading.Lock()
        self._coming: dict[int, tuple[Work, np.ndarray]] = {}

    def __len__(self) -> int:
        return len(self._table)

    def announce(self, indices: Iterable[int]) -> None:
        """Starts to fetch records that will be asked for."""
        for index in indices:
            with self._lock:
                if index not in self._coming:
                    self._coming[index] = self._fetch(index)

    def get(self, index: int) -> Record:
        with self._lock:
            coming = self._coming.pop(index, None)
        work, pixels = self._fetch(index) if coming is None else coming
        work.wait(READ_S)
        owner = self._table.owner(index)
        row = self._table.row(owner)
        where = f"{self.path}: record {index}, kept by rank {owner.rank}"
        return Record(where, int(row[2]), pixels, bool(row[3]))

    def close(self) -> None:
        """The memory is the endpoint's, and stays until that is closed: others may still read."""

    def _fetch(self, index: int) -> tuple[Work, np.ndarray]:
        owner = self._table.owner(index)
        chunk, offset, _, _, kind, *extents = self._table.row(owner).tolist()
        pixels = np.empty(extents, DTYPES[kind])
        into = torch.from_numpy(pixels.reshape(-1).view(np.uint8))
        return self._endpoint.read(into, Spot(owner.rank, self._first_segment + chunk, offset)), pixels


def spread(source: RecordSource, endpoint: Endpoint, gather: Gather, *, number: int, is_part: bool) -> MemoryShare:
    """Keeps this worker's part of `source` and tells the others where; all workers call it together.

    `number` tells several data sets of one job apart. `gather` gives every worker's tensor of one shape, stacked.
    """
    first_segment = number * MOST_CHUNKS
    keeper = _Keeper(endpoint, first_segment)
    own = range(len(source)) if is_part else range(endpoint.rank, len(source), endpoint.size)
    rows = np.array([keeper.keep(source.get(index)) for index in own], np.int64).reshape(-1, _COLUMNS)
    counts = gather(torch.tensor(len(rows))).tolist()
    padded = torch.zeros(max(counts), _COLUMNS, dtype=torch.int64)
    padded[: len(rows)] = torch.from_numpy(rows)
    tables = [part[:count].numpy() for part, count in zip(gather(padded), counts, strict=True)]
    return MemoryShare(source.path, endpoint, first_segment, RecordTable(tables, is_dealt=not is_part))


class _Keeper:
    """Puts records into segments, one behind the other."""

    def __init__(self, endpoint: Endpoint, first_segment: int) -> None:
        self._endpoint, self._first_segment = endpoint, first_segment
        self._chunks: list[Tensor] = []
        self._end = 0

    def keep(self, record: Record) -> list[int]:
        """The record's row of the table."""
        pixels = np.ascontiguousarray(record.pixels)
        if pixels.dtype not in DTYPES:
            raise DataError(f"{record.where}: records kept in memory are bytes or floats, got {pixels.dtype}")
        if not self._chunks or self._end + pixels.nbytes > len(self._chunks[-1]):
            segment = self._first_segment + len(self._chunks)
            self._chunks.append(self._endpoint.allocate(segment, max(CHUNK_BYTES, pixels.nbytes)))
            self._end = 0
        start, self._end = self._end, self._end + pixels.nbytes
        self._chunks[-1].numpy()[start : self._end] = pixels.reshape(-1).view(np.uint8)
        kind = DTYPES.index(pixels.dtype)
        return [len(self._chunks) - 1, start, record.label, int(record.planar), kind, *pixels.shape]
