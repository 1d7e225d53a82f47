"""data: `poseidon data mnist DIR [--from FOLDER]` makes a well-known data set's LMDBs."""

from __future__ import annotations

import argparse
from pathlib import Path

from poseidon.cli.bars import Bars
from poseidon.cli.command import Command, Flags
from poseidon.data.datasets import DATASETS, make_dataset
from poseidon.errors import UsageError


def declare(flags: Flags) -> None:
    flags.add_argument("name", nargs="?", metavar="NAME", help=", ".join(DATASETS))
    flags.add_argument("folder", nargs="?", metavar="DIR", help="where NAME_train_lmdb and NAME_test_lmdb are made")
    flags.flag(
        "from",
        nargs="+",
        action="extend",
        default=[],
        metavar="PATH",
        help="take the original files from this folder, or these files (gzipped or not), instead of downloading them",
    )
    flags.flag("overwrite", action="store_true", help="replace what was made before")


def run(found: argparse.Namespace) -> int:
    if found.name is None or found.folder is None:
        raise UsageError(
            "say which data set, and the folder to make it in, before --from: `poseidon data mnist data`; "
            f"data sets: {', '.join(DATASETS)}"
        )
    sources = [Path(path) for path in vars(found)["from"]]
    with Bars() as bars:
        made = make_dataset(found.name, Path(found.folder), sources, found.overwrite, bars.report)
    shape = " x ".join(map(str, made.shape))
    print(f"{found.name} ({made.source}): {made.num_train} images to train with, {made.num_test} to test, {shape}")
    for path in made.paths:
        print(f"  {path}")
    return 0


COMMAND = Command(declare, run)
