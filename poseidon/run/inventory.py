"""Inventory: what a host has that all hosts of a job must have alike: versions, Poseidon's own files, a job's files.

A file is known by its SHA-256, one of more than 64 MB by its size, a folder (an LMDB, say) by the names and sizes of
what is in it. Nothing here needs torch, which takes seconds to load: its version stands in its metadata.
"""

from __future__ import annotations

import hashlib
import platform
import socket
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import poseidon
from poseidon.errors import UsageError

_WHOLE_BYTES = 64 << 20
MISSING = "missing"


@dataclass(frozen=True, slots=True)
class Inventory:
    """`package` tells one state of Poseidon's own files from another; `files` by path, as they are named in the job."""

    host: str
    python: str
    poseidon: str
    package: str
    torch: str
    files: dict[str, str]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, entry: object) -> Inventory:
        if not isinstance(entry, Mapping):
            raise UsageError(f"expected the inventory of a host, got {str(entry)[:80]!r}")
        try:
            return cls(
                host=str(entry["host"]),
                python=str(entry["python"]),
                poseidon=str(entry["poseidon"]),
                package=str(entry["package"]),
                torch=str(entry["torch"]),
                files={str(path): str(mark) for path, mark in entry["files"].items()},
            )
        except (KeyError, AttributeError) as problem:
            raise UsageError(f"the inventory of a host lacks {problem}") from None


def take_inventory(paths: Iterable[str]) -> Inventory:
    """This host's. Relative paths start at the current folder."""
    return Inventory(
        socket.gethostname(),
        platform.python_version(),
        poseidon.__version__,
        _package_mark(),
        _version("torch"),
        {path: mark_of(Path(path)) for path in paths},
    )


def differences(here: Inventory, there: Inventory) -> list[str]:
    """What another host has otherwise than this one, each as words that follow the host's name."""
    found = []
    if there.poseidon != here.poseidon:
        found.append(f"has Poseidon {there.poseidon}, here is {here.poseidon}; install the same version")
    elif there.package != here.package:
        found.append(f"has other files of Poseidon {there.poseidon} than are here; install the same ones")
    if there.torch != here.torch:
        found.append(f"has PyTorch {there.torch}, here is {here.torch}; install the same version")
    if there.python.split(".")[:2] != here.python.split(".")[:2]:
        found.append(f"has Python {there.python}, here is {here.python}; install the same version")
    return found + file_differences(here.files, there.files)


def file_differences(here: Mapping[str, str], there: Mapping[str, str]) -> list[str]:
    found = []
    for path, mark in here.items():
        other = there.get(path, MISSING)
        if other == MISSING and mark != MISSING:
            found.append(f"has no {path}; copy it there, or use a folder that all hosts share")
        elif other != mark:
            found.append(f"has another {path} than is here ({other}, here {mark}); copy it there")
    return found


def mark_of(path: Path) -> str:
    """What tells a file or folder from another version of it, short enough to be shown."""
    try:
        if path.is_dir():
            entries = sorted(f"{entry.name} {entry.stat().st_size}" for entry in path.iterdir() if _counts(entry))
            return f"folder {_digest(chr(10).join(entries).encode())}"
        size = path.stat().st_size
        if size > _WHOLE_BYTES:
            return f"{size} bytes"
        return f"sha256 {_digest(path.read_bytes())}"
    except FileNotFoundError:
        return MISSING
    except OSError as problem:
        return f"unreadable: {problem.strerror}"


def _counts(entry: Path) -> bool:
    """Lock files change with every reader."""
    return entry.is_file() and entry.name.lower() not in ("lock.mdb", "lock", "log", "log.old")


def _package_mark() -> str:
    root = Path(poseidon.__file__).parent
    digest = hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        digest.update(f"{path.relative_to(root)}\0".encode() + path.read_bytes())
    return digest.hexdigest()[:12]


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:12]
