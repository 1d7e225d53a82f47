"""partition: the records of a database dealt round-robin into DB_0 … DB_{n-1}, each for one worker of a job without a
common file system (`shared_file_system: false`).

Record i goes to part i mod n, with its key and value as they are. All parts appear together, or none.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass

from poseidon.data.database import check_new, new_database, open_database
from poseidon.data.source import Buffer
from poseidon.errors import DataError, UsageError
from poseidon.tools.teller import Teller

_SOURCE = "partition_data.cpp"
_TOLD_EVERY = 1000
# Each part has its own buffers, and a LevelDB up to a hundred open files.
_MOST_PARTS = 1024


@dataclass(frozen=True, slots=True)
class Part:
    path: str
    num_records: int


def partition_data(database: str, backend: str, num_parts: int, tell: Teller) -> list[Part]:
    """Deals the records of `database` into `num_parts` databases beside it."""
    if not 1 <= num_parts <= _MOST_PARTS:
        raise UsageError(f"--num_partitions: expected 1 to {_MOST_PARTS} parts, got {num_parts}")
    name = database.rstrip("/") or database
    paths = [f"{name}_{part}" for part in range(num_parts)]
    for path in paths:
        check_new(path)
    tell.say(f"{_SOURCE}:45", f"Opening {backend} {database}")
    store = open_database(database, backend)
    try:
        if len(store) < num_parts:
            raise DataError(
                f"{database}: has {len(store)} records, fewer than {num_parts} parts; each worker needs one at least"
            )
        with ExitStack() as stack:
            parts = [stack.enter_context(new_database(path, backend)) for path in paths]
            for path in paths:
                tell.say(f"{_SOURCE}:60", f"New DB path={path}")
            for index in range(len(store)):
                parts[index % num_parts].put(*store.read(index, _copied))
                tell.progress("dealing", index + 1, len(store))
                if (index + 1) % (_TOLD_EVERY * num_parts) == 0:
                    tell.say(f"{_SOURCE}:85", f"Processed {index + 1} files.")
            for part in parts:
                part.flush()  # all that can still go wrong does so before the first part is seen
    finally:
        store.close()
    if len(store) % (_TOLD_EVERY * num_parts):
        tell.say(f"{_SOURCE}:88", f"Processed {len(store)} files.")
    return [Part(path, part.num_records) for path, part in zip(paths, parts, strict=True)]


def _copied(key: bytes, value: Buffer) -> tuple[bytes, bytes]:
    return key, bytes(value)
