"""Staging: a hidden folder beside the results, in which everything is made; finished results move out by renaming.

A run that fails or is interrupted takes its folder with it. One that is killed leaves it, and the next run empties it:
a lock on the folder, which the system gives up with the process, tells a dead run from one still at work.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from poseidon.errors import DataError


@contextmanager
def staging(folder: Path, name: str) -> Iterator[Path]:
    """The folder to work in; `name` is what is being made."""
    place = folder / f".{name}.partial"
    place.mkdir(parents=True, exist_ok=True)
    handle = os.open(place, os.O_RDONLY | os.O_DIRECTORY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise DataError(
                f"{folder}: another run is making {name} here; wait for it, or use another folder"
            ) from None
        _empty(place)
        try:
            yield place
        finally:
            shutil.rmtree(place, ignore_errors=True)
    finally:
        os.close(handle)


def publish(place: Path, folder: Path, names: Sequence[str]) -> None:
    """Moves finished results out; what has the same name goes into the staging folder, and away with it."""
    replaced = place / "replaced"
    replaced.mkdir()
    for name in names:
        with suppress(FileNotFoundError):
            os.rename(folder / name, replaced / name)
        os.rename(place / name, folder / name)


def check_targets(folder: Path, names: Sequence[str], overwrite: bool) -> None:
    """Nothing is replaced unasked, and never anything but what this command makes."""
    for name in names:
        target = folder / name
        if not os.path.lexists(target):
            continue
        if not overwrite:
            raise DataError(f"{target}: exists already; give --overwrite to make it anew, or another folder")
        if not _is_ours(target):
            raise DataError(f"{target}: exists and is not a database or a mean file; remove it yourself")


def _is_ours(target: Path) -> bool:
    if target.is_dir() and not target.is_symlink():
        return {entry.name for entry in target.iterdir()} <= {"data.mdb", "lock.mdb"}
    return target.suffix == ".binaryproto" and target.is_file()


def _empty(place: Path) -> None:
    for entry in place.iterdir():
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        else:
            entry.unlink()
