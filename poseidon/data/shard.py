"""Which record each worker reads, and when: pure arithmetic, no files.

All workers together read one endless sequence of samples, numbered 0, 1, 2, ... Sample s is record

    epoch, index = divmod(s + skip, length)          record index, or permutation(epoch)[index] when shuffled

so an epoch is every record exactly once, whatever the number of workers and however unevenly it divides: the next
epoch simply begins where the last one ended, on whichever worker that falls. From sample `start` on, worker r of P
takes

    start + r, start + r + P, start + r + 2P, ...

that is, a batch of B on each of P workers holds the same samples as one batch of B·P on a single worker. Where whole
batches are dealt out instead (tests: a score is the mean of what batches give), worker r of P takes batch r of every P:

    start + r·B, start + r·B + 1, ... start + r·B + B - 1

Where workers are not equally fast, a batch of B·P is dealt out in parts n_0, n_1, … that add up to it (--balance):
worker r takes the n_r samples that follow those of the workers before it. The batch holds the same samples.

The position of a whole job is one number, the sample at which the next batch starts; it is the same on every worker,
and means the same with another number of workers.

Workers without a common file system each have a part of the data, `source_0`, `source_1`, ...: worker r cycles through
its own part, and sample s is its record number s // P.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

from poseidon.data.source import Fetching, Record, RecordSource
from poseidon.errors import DataError, UsageError


@dataclass(frozen=True, slots=True)
class Share:
    """The samples of worker `rank` of `num_workers`: every P-th one, or whole batches, or, with `counts`, as many as
    its count says, one behind the other. `batch_size` is what is written in the net: the mean of all counts."""

    rank: int = 0
    num_workers: int = 1
    whole_batches: bool = False
    counts: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.num_workers:
            raise UsageError(f"expected a rank from 0 to {self.num_workers - 1}, got {self.rank}")
        if self.counts and (len(self.counts) != self.num_workers or min(self.counts) < 1):
            raise UsageError(f"expected {self.num_workers} counts of 1 or more samples, got {self.counts}")

    def num_samples(self, batch_size: int) -> int:
        """How many samples of a batch are this worker's."""
        if not self.counts:
            return batch_size
        assert sum(self.counts) == batch_size * self.num_workers, f"{self.counts} deal out another batch"
        return self.counts[self.rank]

    def samples(self, start: int, batch_size: int) -> range:
        """The numbers of this worker's next samples, when all workers together stand at `start`."""
        if self.whole_batches or self.counts:
            first = self.begin(start, batch_size) + sum(self.counts[: self.rank])
            return range(first, first + self.num_samples(batch_size))
        first = start + self.rank
        return range(first, first + batch_size * self.num_workers, self.num_workers)

    def begin(self, start: int, batch_size: int) -> int:
        """The first sample of the batch that these samples are a part of, or all of."""
        return start + self.rank * batch_size if self.whole_batches else start

    def batch_extent(self, batch_size: int) -> int:
        """How many samples that batch has."""
        return batch_size if self.whole_batches else batch_size * self.num_workers


class Order:
    """The order of the records of a source: round and round, each round shuffled anew if there is a key for it.

    `shuffle_key` gives a 63-bit key for an epoch. The permutation is a function of it and of the length alone, so it is
    the same on every worker and in every version of NumPy.
    """

    def __init__(self, length: int, skip: int = 0, shuffle_key: Callable[[int], int] | None = None) -> None:
        assert length > 0
        self.length = length
        self.skip = skip
        self._shuffle_key = shuffle_key
        self._permutations: dict[int, np.ndarray] = {}
        self._lock = threading.Lock()  # batches are made on several threads

    def place(self, position: int) -> tuple[int, int]:
        """(epoch, index within it)."""
        return divmod(position + self.skip, self.length)

    def record(self, position: int) -> int:
        """The number of the record."""
        epoch, index = self.place(position)
        return index if self._shuffle_key is None else int(self._permutation(epoch)[index])

    def _permutation(self, epoch: int) -> np.ndarray:
        assert self._shuffle_key is not None
        with self._lock:
            found = self._permutations.get(epoch)
            if found is None:
                key = self._shuffle_key(epoch)
                # RandomState's stream is frozen for good; that of default_rng may change between NumPy versions.
                found = np.random.RandomState([key & 0xFFFFFFFF, key >> 32]).permutation(self.length)
                # Batches are made a little ahead: at the border of two epochs both are in use.
                while len(self._permutations) >= 2:
                    del self._permutations[min(self._permutations)]
                self._permutations[epoch] = found
            return found


class Stream:
    """Sample number → record. `num_parts` > 1: the source is this worker's own part, one of so many."""

    def __init__(self, source: RecordSource, order: Order, num_parts: int = 1) -> None:
        self.source = source
        self.order = order
        self._num_parts = num_parts

    def record(self, sample: int) -> Record:
        return self.source.get(self.order.record(sample // self._num_parts))

    def announce(self, samples: Iterable[int]) -> None:
        """Tells a source that fetches records from elsewhere what will be asked for."""
        if isinstance(self.source, Fetching):
            self.source.announce([self.order.record(sample // self._num_parts) for sample in samples])


@dataclass(frozen=True, slots=True)
class SourceChoice:
    """What a worker opens, and whether that is a part of its own."""

    path: str
    is_part: bool


def choose_source(source: str, shared: bool | None, share: Share) -> SourceChoice:
    """The source of one worker.

    `shared` is the net's shared_file_system: True, all read `source`; False, worker k reads `source_k`; None (not
    said), `source` if it is there and else `source_k`. A worker that is alone reads everything: `source` if it is
    there.
    """
    part = f"{source}_{share.rank}"
    if shared or (os.path.exists(source) and (shared is None or share.num_workers == 1)):
        return SourceChoice(source, is_part=False)
    if os.path.exists(part):
        return SourceChoice(part, is_part=True)
    if shared is None:
        raise DataError(f"{source}: no such file or folder, and no part of it for this worker ({part})")
    raise DataError(
        f"{part}: no such file or folder; with shared_file_system: false worker {share.rank} reads its own part. "
        f"Deal the records into {source}_0 to {source}_{share.num_workers - 1}, or set shared_file_system: true"
    )
