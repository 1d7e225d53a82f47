"""Databases of (key, value) pairs, by the name of their kind: `lmdb` or `leveldb`, as Caffe's tools take it.

    store = open_database(path, "lmdb")                     to read (KeyValueStore)
    with new_database(path, "lmdb") as database:            to write: all of it, or nothing
        database.put(b"00000000_cat.jpg", value)

A new database is made in a hidden folder beside its place and moved there when it is complete: a run that is
interrupted leaves nothing behind that looks like a database (poseidon/data/staging.py).

Files come out byte for byte as Caffe writes them: 1000 records at a time are written together (fewer when they are
huge), LMDB starts with a map of 1 MB and doubles it whenever it is full, LevelDB has blocks of 64 KB and a buffer of
256 MB. An LMDB's key has at most 511 bytes.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import lmdb

from poseidon.data.leveldb import LevelDbStore, plyvel_package
from poseidon.data.lmdb import LmdbStore
from poseidon.data.source import KeyValueStore
from poseidon.data.staging import staging
from poseidon.errors import DataError, UsageError
from poseidon.spec import nearest

_FILE_OF = {"lmdb": "data.mdb", "leveldb": "CURRENT"}
BACKENDS = tuple(_FILE_OF)

_MOST_RECORDS = 1000
_MOST_BYTES = 512 << 20
_FIRST_MAP_BYTES = 1 << 20
_LONGEST_LMDB_KEY = 511


def check_backend(backend: str) -> None:
    if backend not in _FILE_OF:
        raise UsageError(
            f"unknown database backend {backend!r}{nearest(backend, BACKENDS)}; expected one of {', '.join(BACKENDS)}"
        )


def open_database(path: str, backend: str) -> KeyValueStore:
    """A database to read, in the order of its keys."""
    check_backend(backend)
    for other, file_name in _FILE_OF.items():
        is_other = os.path.exists(os.path.join(path, file_name))
        if other != backend and is_other and not os.path.exists(os.path.join(path, _FILE_OF[backend])):
            raise DataError(f"{path}: expected {backend}, found {other}; give --backend={other}")
    return LmdbStore(path) if backend == "lmdb" else LevelDbStore(path)


class _Writer(Protocol):
    """What the two kinds have in common: a new, empty database in a folder."""

    def __init__(self, folder: Path) -> None: ...

    def write(self, records: list[tuple[bytes, bytes]]) -> None: ...

    def close(self) -> None: ...


class NewDatabase:
    """A database being written. `num_records` counts what was put; of equal keys the last one stays."""

    def __init__(self, path: str, writer: _Writer) -> None:
        self.path = path
        self.num_records = 0
        self._writer = writer
        self._waiting: list[tuple[bytes, bytes]] = []
        self._num_bytes = 0

    def put(self, key: bytes, value: bytes) -> None:
        self._waiting.append((key, value))
        self._num_bytes += len(key) + len(value)
        self.num_records += 1
        if len(self._waiting) >= _MOST_RECORDS or self._num_bytes >= _MOST_BYTES:
            self.flush()

    def flush(self) -> None:
        """Writes what has been put."""
        if not self._waiting:
            return
        try:
            self._writer.write(self._waiting)
        except OSError as problem:
            raise DataError(f"{self.path}: cannot be written ({problem.strerror or problem})") from None
        self._waiting, self._num_bytes = [], 0


@contextmanager
def new_database(path: str, backend: str) -> Iterator[NewDatabase]:
    """A database to write. It is at `path` when the block ends, and nowhere if that ends with an exception."""
    check_backend(backend)
    target = check_new(path)
    make: Callable[[Path], _Writer] = _LmdbWriter if backend == "lmdb" else _LevelDbWriter
    with staging(target.parent, target.name) as place:
        made = place / "database"
        writer = make(made)
        try:
            database = NewDatabase(path, writer)
            yield database
            database.flush()
        finally:
            writer.close()
        check_new(path)  # somebody else may have been there meanwhile
        os.rename(made, target)


def check_new(path: str) -> Path:
    """Where a database is to be made; raises if something is there, or its folder is not."""
    target = Path(os.path.abspath(path))
    if os.path.lexists(target):
        raise DataError(f"{path}: exists already; remove it, or give another name")
    if not target.parent.is_dir():
        raise DataError(f"{path}: cannot be made, there is no folder {str(target.parent)!r}; make it first")
    if not os.access(target.parent, os.W_OK | os.X_OK):
        raise DataError(f"{path}: cannot be made, the folder {str(target.parent)!r} is not writable")
    return target


class _LmdbWriter:
    def __init__(self, folder: Path) -> None:
        self._map_bytes = _FIRST_MAP_BYTES
        self._environment = lmdb.open(str(folder), map_size=self._map_bytes, lock=False)

    def write(self, records: list[tuple[bytes, bytes]]) -> None:
        for key, _ in records:
            if not 0 < len(key) <= _LONGEST_LMDB_KEY:
                raise DataError(
                    f"key {key[:60]!r}…: {len(key)} bytes, LMDB takes 1 to {_LONGEST_LMDB_KEY}; shorten the file name, "
                    "or use leveldb"
                )
        while True:
            try:
                with self._environment.begin(write=True) as transaction:
                    for key, value in records:
                        transaction.put(key, value)
                return
            except lmdb.MapFullError:
                self._map_bytes *= 2
                self._environment.set_mapsize(self._map_bytes)
            except lmdb.Error as problem:
                raise DataError(f"the LMDB cannot be written ({problem}); is the disk full?") from None

    def close(self) -> None:
        self._environment.close()


class _LevelDbWriter:
    def __init__(self, folder: Path) -> None:
        plyvel = plyvel_package()
        self._error = plyvel.Error
        self._database: Any = plyvel.DB(
            str(folder),
            create_if_missing=True,
            error_if_exists=True,
            write_buffer_size=256 << 20,
            max_open_files=100,
            block_size=64 << 10,
        )

    def write(self, records: list[tuple[bytes, bytes]]) -> None:
        try:
            with self._database.write_batch() as batch:
                for key, value in records:
                    batch.put(key, value)
        except self._error as problem:
            raise DataError(f"the LevelDB cannot be written ({problem}); is the disk full?") from None

    def close(self) -> None:
        self._database.close()
