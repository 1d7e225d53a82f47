"""RecordSource: labelled records in a fixed order, reached by their number.

    source = open_lmdb(path, ...)      a file handle or a memory map; nothing is ever written
    len(source)                        how many records an epoch has
    source.get(index)                  one Record, from any thread
    source.close()

The pixels of a record are as they were stored: bytes or floats, interleaved (an image as OpenCV decodes it,
height × width × channels, blue first) or planar (an array, channels × height × width). Nothing is copied or converted
here; the transformer writes them straight into the batch.

Two workers, or two nets of one process, may open the same source: it is only read. A source does not travel to
another process; the other process opens the path itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol, TypeVar, runtime_checkable

import numpy as np

from poseidon.errors import DataError

T = TypeVar("T")
Buffer = bytes | memoryview

# A label becomes a float in the label blob; above this, neighbouring labels would become equal.
LARGEST_LABEL = 2**24


@dataclass(frozen=True, slots=True)
class Record:
    """One labelled array. `where` names it for people: the source and its key or line."""

    where: str
    label: int
    pixels: np.ndarray
    planar: bool

    @property
    def shape(self) -> tuple[int, int, int]:
        """(channels, height, width)."""
        if self.planar:
            channels, height, width = self.pixels.shape
        else:
            height, width, channels = self.pixels.shape
        return channels, height, width


class RecordSource(Protocol):
    """Records by number; see the module's docstring."""

    path: str

    def __len__(self) -> int: ...

    def get(self, index: int) -> Record: ...

    def close(self) -> None: ...


@runtime_checkable
class Fetching(Protocol):
    """A source whose records come from elsewhere: told beforehand, it fetches several at a time."""

    def announce(self, indices: Iterable[int]) -> None: ...


class KeyValueStore(Protocol):
    """A database of (key, value) pairs in the order of its cursor.

    `read` hands key and value of a record to `use` and returns what that returns. The value may lie in the database's
    own memory: it is not to be kept.
    """

    path: str

    def __len__(self) -> int: ...

    def read(self, index: int, use: Callable[[bytes, Buffer], T]) -> T: ...

    def close(self) -> None: ...


def checked_label(label: int, where: str) -> int:
    if not -LARGEST_LABEL <= label <= LARGEST_LABEL:
        raise DataError(
            f"{where}: label {label} is out of range; a label blob holds floats, which count exactly "
            f"from {-LARGEST_LABEL} to {LARGEST_LABEL}"
        )
    return label
