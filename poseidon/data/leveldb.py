"""LevelDbStore: the (key, value) pairs of a LevelDB, in the order of its keys.

LevelDB locks its folder for one process and rewrites its log whenever it is opened, even to read. So it is opened in a
temporary folder of symbolic links: the tables are read where they are, whatever LevelDB writes goes to the temporary
folder, several workers can read one database, and the original is left untouched.

LevelDB does not know how many records it has: they are counted once, when it is opened, which reads through all of it.
(LMDB has neither weakness.) Every 256th key is kept on the way, so that any record is at most 255 steps away.

Checksums are verified: a damaged block is an error, where LevelDB's default would leave it out without a word.
"""

from __future__ import annotations

import os
import tempfile
import threading
from collections.abc import Callable
from types import ModuleType
from typing import Any

from poseidon.data.lmdb import check_database_path
from poseidon.data.source import Buffer, T
from poseidon.errors import DataError, UsageError

_KEY_EVERY = 256
_PER_PROCESS_FILES = {"LOCK", "LOG", "LOG.old"}


def plyvel_package() -> ModuleType:
    """LevelDB's library, which is installed on request."""
    try:
        import plyvel
    except ImportError:
        raise UsageError(
            'LevelDB needs the package plyvel: pip install "poseidon-dl[leveldb]" (LMDB does not)'
        ) from None
    return plyvel


class LevelDbStore:
    """See the module's docstring. Every thread that reads has its own iterator."""

    def __init__(self, path: str) -> None:
        self.path = path
        check_database_path(path, "LEVELDB", "CURRENT", other=("data.mdb", "LMDB"))
        plyvel = plyvel_package()
        self._plyvel_error = plyvel.Error
        self._mirror = tempfile.TemporaryDirectory(prefix="poseidon-leveldb-")
        for entry in os.scandir(path):
            if entry.name not in _PER_PROCESS_FILES:
                os.symlink(os.path.realpath(entry.path), os.path.join(self._mirror.name, entry.name))
        self._iterators = threading.local()
        try:
            self._database: Any = plyvel.DB(self._mirror.name, paranoid_checks=True, max_open_files=100)
            self._keys, self._num_records = self._count()
        except plyvel.Error as problem:
            self._mirror.cleanup()
            raise DataError(f"{path}: not a readable LevelDB ({self._told(problem)})") from None

    def __len__(self) -> int:
        return self._num_records

    def read(self, index: int, use: Callable[[bytes, Buffer], T]) -> T:
        if not 0 <= index < self._num_records:
            raise IndexError(f"record {index} of {self._num_records}")
        if self._database.closed:
            raise DataError(f"{self.path}: read after it was closed")
        walk = getattr(self._iterators, "walk", None)
        if walk is None:
            walk = self._iterators.walk = _Walk(self._database, self._keys)
        try:
            key, value = walk.to(index)
        except self._plyvel_error as problem:
            raise DataError(
                f"{self.path}: record {index} cannot be read ({self._told(problem)}); the LevelDB is damaged"
            ) from None
        return use(key, value)

    def close(self) -> None:
        self._iterators = threading.local()
        self._database.close()
        self._mirror.cleanup()

    def _count(self) -> tuple[list[bytes], int]:
        keys: list[bytes] = []
        count = 0
        # Not plyvel's plain iterator: that one takes a damaged first block for the end of the database.
        iterator = self._database.raw_iterator(verify_checksums=True, fill_cache=False)
        iterator.seek_to_first()
        while iterator.valid():
            if count % _KEY_EVERY == 0:
                keys.append(iterator.key())
            count += 1
            iterator.next()
        return keys, count

    def _told(self, problem: Exception) -> str:
        text = problem.args[0] if problem.args else problem
        text = text.decode("utf-8", "replace") if isinstance(text, bytes) else str(text)
        return text.replace(self._mirror.name, self.path)


class _Walk:
    """An iterator that knows which record it stands on."""

    def __init__(self, database: Any, keys: list[bytes]) -> None:
        self._iterator = database.raw_iterator(verify_checksums=True)
        self._keys = keys
        self._index = -1  # nowhere yet

    def to(self, index: int) -> tuple[bytes, bytes]:
        known = index - index % _KEY_EVERY
        if not 0 <= self._index <= index or self._index < known:
            self._index = -1
            self._iterator.seek(self._keys[index // _KEY_EVERY])
            self._index = known
        while self._index < index:
            self._iterator.next()
            self._index += 1
        return self._iterator.key(), self._iterator.value()
