"""partition-data: `partition_data [FLAGS] DB_PATH` deals a database's records into DB_PATH_0, DB_PATH_1, …"""

from __future__ import annotations

import argparse

from poseidon.cli.command import Command, Flags, Operand, one_of, positive_number
from poseidon.cli.telling import telling, tool_flags
from poseidon.cli.terminal import has_display
from poseidon.data.database import BACKENDS


def declare(flags: Flags) -> None:
    flags.operands(Operand("DB_PATH", "an LMDB or LevelDB; it stays as it is"))
    flags.flag("backend", type=one_of(BACKENDS), default="lmdb", metavar="KIND", help="lmdb|leveldb (lmdb)")
    flags.flag("num-partitions", type=positive_number, default=2, metavar="N", help="how many parts (2)")
    tool_flags(flags)


def run(found: argparse.Namespace) -> int:
    from poseidon.tools.partition import partition_data

    with telling(found) as tell:
        parts = partition_data(found.db_path, found.backend, found.num_partitions, tell)
    if has_display(found):
        for part in parts:
            print(f"{part.path}: {part.num_records} records")
    return 0


COMMAND = Command(declare, run)
