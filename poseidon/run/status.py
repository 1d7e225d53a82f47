"""Status: what running jobs tell about themselves, in a folder of this host that only its user can read.

    $XDG_RUNTIME_DIR/poseidon/NAME-PID.json     or /tmp/poseidon-UID/…; written anew about once a second by rank 0

A file is always whole (it is replaced in one step), and removed when its job ends. One whose process is gone, or whose
number another process has got since, was left by a job that was killed: it is removed by whoever finds it.
"""

from __future__ import annotations

import contextlib
import json
import os
import stat
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_MAX_BYTES = 1 << 22


def status_folder(environ: Mapping[str, str]) -> Path | None:
    """The folder, made if needed; None if there is none that only we can write to."""
    base = environ.get("XDG_RUNTIME_DIR")
    folder = Path(base) / "poseidon" if base else Path(tempfile.gettempdir()) / f"poseidon-{os.getuid()}"
    with contextlib.suppress(OSError):
        folder.mkdir(mode=0o700, exist_ok=True)
        found = folder.lstat()
        # In /tmp anybody could have made it.
        if stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o077:
            return folder
    return None


class StatusFile:
    """This process's file. A folder that cannot be written to is no reason to stop training: nobody sees the status."""

    def __init__(self, folder: Path | None, name: str) -> None:
        clean = "".join(letter if letter.isalnum() else "_" for letter in name)[:60] or "job"
        self._path = None if folder is None else folder / f"{clean}-{os.getpid()}.json"

    def write(self, facts: Mapping[str, Any]) -> None:
        if self._path is None:
            return
        beside = self._path.with_suffix(".part")
        with contextlib.suppress(OSError):
            beside.write_text(json.dumps({**facts, "pid": os.getpid(), "started": started_at(os.getpid())}))
            os.replace(beside, self._path)

    def remove(self) -> None:
        if self._path is not None:
            with contextlib.suppress(OSError):
                self._path.unlink(missing_ok=True)


def started_at(pid: int) -> int:
    """When a process was started, in ticks since the host was; 0 if there is none of this number."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
    except (OSError, IndexError):
        return 0


def read_statuses(folder: Path | None) -> list[dict[str, Any]]:
    """What the running jobs of this host tell; files of dead ones are removed."""
    found = []
    for path in sorted(folder.glob("*.json")) if folder is not None else []:
        with contextlib.suppress(OSError, ValueError):
            if path.stat().st_size > _MAX_BYTES:
                continue
            facts = json.loads(path.read_text())
            if not isinstance(facts, dict) or not isinstance(facts.get("pid"), int):
                continue
            started = started_at(facts["pid"])
            if started and started == facts.get("started", started):  # an older version does not say
                found.append(facts)
            else:
                path.unlink(missing_ok=True)
    return found
