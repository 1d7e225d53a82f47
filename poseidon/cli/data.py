"""data: `poseidon data mnist DIR [--from FOLDER]` makes a well-known data set's LMDBs."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

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


class Bars:
    """One bar per thing that is done, on a terminal; silence elsewhere."""

    def __init__(self) -> None:
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.percentage:>3.0f}%"),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            disable=not sys.stderr.isatty(),
        )
        self._tasks: dict[str, TaskID] = {}

    def __enter__(self) -> Bars:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def report(self, what: str, done: int, total: int) -> None:
        if what not in self._tasks:
            self._tasks[what] = self._progress.add_task(what, total=total)
        self._progress.update(self._tasks[what], completed=done)


COMMAND = Command(declare, run)
