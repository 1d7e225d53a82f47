"""LmdbStore: the (key, value) pairs of an LMDB, in the order of its keys.

A cursor walks: reaching record i from record j costs |i − j| steps of about 0.2 µs, or i from the beginning, whichever
is less. Data are read in order, so this is as fast as the disk, and nothing is scanned when the database is opened
(its number of records is stored in it).

The file is opened read-only and without LMDB's lock file, so a folder on read-only media or of another user works;
it must not be written to meanwhile. A truncated file is refused; of damage inside it, liblmdb notices some (an error
here), trusts some (the Datum is checked), and ends the process on some (an assertion of its own).
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable

import lmdb

from poseidon.data.source import Buffer, T
from poseidon.errors import DataError


class _Environment:
    """One open database file, and how many stores read it."""

    def __init__(self, path: str) -> None:
        self.num_users = 0
        try:
            self.handle = lmdb.open(path, readonly=True, lock=False, readahead=True, subdir=os.path.isdir(path))
            self.num_records = self.handle.stat()["entries"]
            num_bytes = (self.handle.info()["last_pgno"] + 1) * self.handle.stat()["psize"]
        except lmdb.Error as problem:
            raise DataError(f"{path}: not a readable LMDB ({_reason(path, problem)})") from None
        # Touching a page that a truncated file lacks would end the process with SIGBUS.
        size = os.path.getsize(os.path.join(path, "data.mdb") if os.path.isdir(path) else path)
        if size < num_bytes:
            self.handle.close()
            raise DataError(f"{path}: the LMDB is truncated; expected at least {num_bytes} bytes, got {size}")


# LMDB must not be opened twice in one process (its file locks and maps would collide), but a train net and a test net,
# or several workers on threads, may well read the same one. Reentrant, since a store may be collected, and so released,
# while another is being opened.
_OPEN: dict[str, _Environment] = {}
_OPEN_LOCK = threading.RLock()


def _acquire(path: str) -> tuple[str, _Environment]:
    real_path = os.path.realpath(path)
    with _OPEN_LOCK:
        environment = _OPEN.get(real_path)
        if environment is None:
            environment = _OPEN[real_path] = _Environment(path)
        environment.num_users += 1
        return real_path, environment


def _release(real_path: str) -> None:
    with _OPEN_LOCK:
        environment = _OPEN[real_path]
        environment.num_users -= 1
        if not environment.num_users:
            del _OPEN[real_path]
            environment.handle.close()


class LmdbStore:
    """See the module's docstring. Every thread that reads has its own cursor."""

    def __init__(self, path: str) -> None:
        self.path = path
        check_database_path(path, "LMDB", "data.mdb", other=("CURRENT", "LEVELDB"))
        real_path, environment = _acquire(path)
        self._handle = environment.handle
        self._num_records = environment.num_records
        self._cursors = threading.local()
        self._release = weakref.finalize(self, _release, real_path)
        self._release.atexit = False

    def __len__(self) -> int:
        return self._num_records

    def read(self, index: int, use: Callable[[bytes, Buffer], T]) -> T:
        if not 0 <= index < self._num_records:
            raise IndexError(f"record {index} of {self._num_records}")
        if not self._release.alive:
            raise DataError(f"{self.path}: read after it was closed")
        walk = getattr(self._cursors, "walk", None)
        if walk is None:
            walk = self._cursors.walk = _Walk(self._handle, self._num_records)
        try:
            key, value = walk.to(index)
        except lmdb.Error as problem:
            raise DataError(f"{self.path}: record {index} cannot be read ({problem}); the LMDB is damaged") from None
        return use(key, value)

    def close(self) -> None:
        """When no thread reads any more."""
        self._cursors = threading.local()
        self._release()


class _Walk:
    """A cursor that knows which record it stands on."""

    def __init__(self, handle: lmdb.Environment, num_records: int) -> None:
        self._cursor = handle.begin(buffers=True).cursor()
        self._last = num_records - 1
        self._index = num_records  # past the end: the first step goes to an end

    def to(self, index: int) -> tuple[bytes, memoryview]:
        cursor = self._cursor
        steps = index - self._index
        found = True
        if index < abs(steps):
            found, steps = cursor.first(), index
        elif self._last - index < abs(steps):
            found, steps = cursor.last(), index - self._last
        step = cursor.next if steps > 0 else cursor.prev
        for _ in range(abs(steps)):
            found = found and step()
        if not found:
            self._index = self._last + 1
            raise lmdb.CorruptedError("fewer records than the database promises")
        self._index = index
        return bytes(cursor.key()), cursor.value()


def check_database_path(path: str, kind: str, file_name: str, other: tuple[str, str]) -> None:
    """A missing folder, or a database of the other kind, is told before its library says something obscure."""
    if not os.path.exists(path):
        raise DataError(f"{path}: no such {kind}; expected a folder that holds {file_name}")
    if os.path.isdir(path) and not os.path.exists(os.path.join(path, file_name)):
        other_file, other_kind = other
        if os.path.exists(os.path.join(path, other_file)):
            raise DataError(f"{path}: expected {kind}, got {other_kind}; set `backend: {other_kind}` in data_param")
        raise DataError(f"{path}: not a {kind}; expected {file_name} in this folder")


def _reason(path: str, problem: lmdb.Error) -> str:
    return str(problem).removeprefix(f"{path}: ")
