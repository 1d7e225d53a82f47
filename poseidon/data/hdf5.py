"""HDF5 files as a source of rows, and as a place to put arrays.

A list file names HDF5 files, one per word, relative to the current folder. Every file holds the same datasets; row r
of a batch is row r of each of them. Files follow each other in the listed order, rows in theirs, round and round;
a batch may span files. With a shuffle seed, each round has its own order of files and each file its own order of rows,
both functions of (seed, round) alone. One file is in memory at a time.

Rows are numbered through all rounds, and dealt out over workers by their numbers (shard.py). The position of a whole
job is one number, the row at which its next batch starts, the same on every worker.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from poseidon.data.shard import Share
from poseidon.errors import DataError


@dataclass(frozen=True, slots=True)
class ListedFile:
    """One file of a list, and where the list names it."""

    path: str
    where: str


def read_list(source: str | Path) -> list[ListedFile]:
    """The files a list names, in order."""
    try:
        text = Path(source).read_text()
    except (OSError, UnicodeDecodeError) as problem:
        raise DataError(f"{source}: cannot read the list of HDF5 files: {problem}") from problem
    files = [
        ListedFile(word, f"{source}:{number}")
        for number, line in enumerate(text.splitlines(), start=1)
        for word in line.split()
    ]
    if not files:
        raise DataError(f"{source}: the list of HDF5 files is empty; it needs at least one file name")
    return files


class Hdf5Rows:
    """An endless sequence of rows of the named datasets.

    names         the datasets to read, in the order they are returned
    shuffle_seed  None: in file order
    dtype         of the arrays returned; what is stored may be any real number type
    """

    def __init__(
        self,
        source: str | Path,
        names: Sequence[str],
        *,
        shuffle_seed: int | None = None,
        dtype: Any = np.float32,
    ) -> None:
        self._files = read_list(source)
        self._names = tuple(names)
        self._seed = shuffle_seed
        self._dtype = np.dtype(dtype)
        self.share = Share()
        self.position = 0
        self._round = 0
        self._turn = 0  # position in this round's order of files
        self._first = 0  # number of the loaded file's first row, in this turn
        self._loaded: int | None = None
        self._arrays: list[np.ndarray] = []
        self._open_turn()
        self.row_shapes = [array.shape[1:] for array in self._arrays]

    def shard(self, rank: int, num_workers: int, *, whole_batches: bool = False, counts: tuple[int, ...] = ()) -> None:
        """From now on, give only this worker's share."""
        self.share = Share(rank, num_workers, whole_batches, counts)

    def seek(self, position: int, shuffle_seed: int | None) -> None:
        """Goes on from the row where a job with this shuffle seed stood."""
        self._seed, self.position = shuffle_seed, position
        lengths = [self._length(file) for file in self._files]
        self._round = position // sum(lengths)
        self._first = self._round * sum(lengths)
        order = self._permutation(len(self._files), "files")
        numbers = range(len(self._files)) if order is None else order.tolist()
        self._turn = 0
        while position >= self._first + lengths[numbers[self._turn]]:
            self._first += lengths[numbers[self._turn]]
            self._turn += 1
        self._open_turn()

    def take(self, batch_size: int) -> list[np.ndarray]:
        """This worker's rows of the next batch, one array per dataset."""
        numbers = self.share.samples(self.position, batch_size)
        num_rows = len(numbers)
        batch = [np.empty((num_rows, *shape), self._dtype) for shape in self.row_shapes]
        filled = 0
        while filled < num_rows:
            self._reach(numbers[filled])
            begin = numbers[filled] - self._first
            picked = range(begin, len(self._arrays[0]), numbers.step)[: num_rows - filled]
            in_order = slice(picked.start, picked.stop, picked.step)
            rows = in_order if self._order is None else self._order[in_order]
            for out, array in zip(batch, self._arrays, strict=True):
                out[filled : filled + len(picked)] = array[rows]
            filled += len(picked)
        self.position += batch_size * self.share.num_workers
        return batch

    def _reach(self, number: int) -> None:
        """Loads the file that holds the row of this number; files behind it are passed over."""
        while number >= self._first + len(self._arrays[0]):
            self._first += len(self._arrays[0])
            self._turn += 1
            if self._turn == len(self._files):
                self._turn = 0
                self._round += 1
            self._open_turn()

    def _open_turn(self) -> None:
        order = self._permutation(len(self._files), "files")
        number = self._turn if order is None else int(order[self._turn])
        if number != self._loaded:
            self._arrays = self._load(self._files[number])
            self._loaded = number
        self._order = self._permutation(len(self._arrays[0]), f"rows {number}")

    def _permutation(self, count: int, of_what: str) -> np.ndarray | None:
        """This round's order of files or rows; None: as they come."""
        if self._seed is None:
            return None
        key = [self._seed & 0xFFFFFFFF, self._seed >> 32, self._round, *of_what.encode()]
        # RandomState's stream is frozen for good; that of default_rng may change between NumPy versions.
        return np.random.RandomState(key).permutation(count)

    def _load(self, file: ListedFile) -> list[np.ndarray]:
        with _opened(file) as opened:
            arrays = [
                np.ascontiguousarray(self._dataset(opened, name, file)[...], dtype=self._dtype) for name in self._names
            ]
        self._check_rows(arrays, file)
        return arrays

    def _length(self, file: ListedFile) -> int:
        with _opened(file) as opened:
            return len(self._dataset(opened, self._names[0], file))

    def _dataset(self, opened: h5py.File, name: str, file: ListedFile) -> h5py.Dataset:
        found = opened.get(name)
        if not isinstance(found, h5py.Dataset):
            present = ", ".join(sorted(key for key in opened if isinstance(opened[key], h5py.Dataset))) or "none"
            raise DataError(f"{file.path} ({file.where}): has no dataset {name!r} (datasets: {present})")
        if found.dtype.kind not in "fiub":
            raise DataError(f"{file.path} ({file.where}): dataset {name!r} must hold numbers, got type {found.dtype}")
        if found.ndim == 0:
            raise DataError(f"{file.path} ({file.where}): dataset {name!r} needs at least one axis, got a scalar")
        return found

    def _check_rows(self, arrays: list[np.ndarray], file: ListedFile) -> None:
        counts = {name: len(array) for name, array in zip(self._names, arrays, strict=True)}
        if len(set(counts.values())) > 1:
            listed = ", ".join(f"{name} {count}" for name, count in counts.items())
            raise DataError(f"{file.path} ({file.where}): datasets need the same number of rows, got {listed}")
        if not len(arrays[0]):
            raise DataError(f"{file.path} ({file.where}): has no rows")
        if self._loaded is None:
            return
        for name, array, expected in zip(self._names, arrays, self.row_shapes, strict=True):
            if array.shape[1:] != expected:
                raise DataError(
                    f"{file.path} ({file.where}): rows of {name!r} must have shape {expected} "
                    f"as in the first file, got {array.shape[1:]}"
                )


@contextmanager
def _opened(file: ListedFile) -> Iterator[h5py.File]:
    try:
        with h5py.File(file.path, "r") as opened:
            yield opened
    except OSError as problem:
        raise DataError(
            f"{file.where}: cannot open HDF5 file {file.path!r}: {problem}; "
            "names in the list are relative to the current folder"
        ) from problem


def write_arrays(path: str | Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Writes a new HDF5 file with one dataset per array; a file of that name is replaced."""
    try:
        with h5py.File(path, "w") as opened:
            for name, array in arrays.items():
                opened.create_dataset(name, data=array)
    except OSError as problem:
        raise DataError(f"{path}: cannot write the HDF5 file: {problem}") from problem
