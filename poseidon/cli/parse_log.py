"""parse-log: `poseidon parse-log LOG [FOLDER]` writes a training log's figures as CSV files."""

from __future__ import annotations

import argparse

from poseidon.cli.command import Command, Flags, Operand
from poseidon.errors import UsageError


def declare(flags: Flags) -> None:
    flags.operands(
        Operand("LOG", "what training has written to standard error"),
        Operand("FOLDER", "where LOG.train.csv and LOG.test.csv go (here)", required=False),
    )
    flags.switch("verbose", help="name the files that are written")
    flags.flag("delimiter", default=",", metavar="CHARACTER", help="between columns (,)")
    flags.switch("tables", help="LOG.train and LOG.test as well, the tables of Caffe's parse_log.sh")


def run(found: argparse.Namespace) -> int:
    from poseidon.tools.log_tables import write_csv_files, write_tables
    from poseidon.tools.training_log import read_log

    delimiter = "\t" if found.delimiter == "\\t" else found.delimiter
    if len(delimiter) != 1 or delimiter in '"\r\n':
        raise UsageError(f"--delimiter is one character, got {found.delimiter!r}")
    log = read_log(found.log)
    folder = found.folder or "."
    paths = write_csv_files(log, folder, delimiter)
    if found.tables:
        paths += write_tables(log, folder)
    if found.verbose:
        for path in paths:
            print(f"Wrote {path}")
        for kind, rows in (("train", log.train), ("test", log.test)):
            if not rows:
                print(f"Not writing {found.log}.{kind}.csv; no lines to write")
    return 0


COMMAND = Command(declare, run)
