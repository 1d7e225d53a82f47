"""Files that appear whole or not at all, in a given order, whatever happens in between.

    create    written under a temporary name and on the disk before anybody sees it
    publish   takes its real name; what was there under that name is replaced in one step
    settle    names published so far survive a power cut

Temporary names tell host and process, so that what a killed process left can be told from what another is writing.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path

_MARK = ".partial-"


class Disk:
    """The three operations. Tests put one here that dies in the middle."""

    def create(self, path: Path, fill: Callable[[Path], None]) -> None:
        """`fill` writes the file at the path it is given."""
        fill(path)
        _sync(path)

    def publish(self, temporary: Path, path: Path) -> None:
        os.replace(temporary, path)

    def settle(self, folder: Path) -> None:
        _sync(folder)


def temporary_name(path: Path) -> Path:
    """A name beside `path`, with the same ending, that only this process uses."""
    return path.with_name(f"{path.name}{_MARK}{_owner()}-{os.getpid()}{path.suffix}")


def remove_leftovers(folder: Path, start: str) -> list[Path]:
    """Removes temporary files of names that begin with `start` whose process is gone, and tells which."""
    removed = []
    for path in sorted(_entries(folder)):
        # A writer may put its own dot and ending around the temporary name.
        name = path.name.removeprefix(".")
        if name.startswith(start) and _MARK in name and not _is_being_written(name):
            path.unlink(missing_ok=True)
            removed.append(path)
    return removed


def _entries(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except OSError:
        return []


def _is_being_written(name: str) -> bool:
    """False only if it can be told that the process is gone: it ran on this host, and no other process has its id."""
    owner, _, rest = name.rpartition(_MARK)[2].partition("-")
    pid = rest.partition(".")[0]
    if owner != _owner() or not pid.isdecimal():
        return True
    if int(pid) == os.getpid():
        return False
    try:
        os.kill(int(pid), 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    return True


def _owner() -> str:
    """The host, in letters that need no escaping in a file name and do not contain the separators."""
    return "".join(c if c.isalnum() else "_" for c in socket.gethostname()) or "host"


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
