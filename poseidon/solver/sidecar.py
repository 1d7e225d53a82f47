"""The sidecar of a snapshot, PREFIX_iter_N.poseidon.json: what Caffe's own two files do not hold.

    version       of this format
    iteration     N
    files         for the weights and the state: size and SHA-256, so that damage is recognised
    continuation  data positions, random draws, the loss window and whatever else has to go on as if never interrupted
    checksum      SHA-256 of all of the above, so that damage to the sidecar itself is recognised

Without a sidecar a snapshot is one of Caffe's: it restores weights, history and iteration; data begins anew.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from poseidon.errors import SnapshotError

VERSION = 1
ENDING = ".poseidon.json"
_BLOCK_BYTES = 1 << 20
_MAX_BYTES = 1 << 30


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """What tells a file from a damaged copy of it."""

    num_bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Sidecar:
    iteration: int
    files: dict[str, Fingerprint]
    continuation: dict[str, Any]


def fingerprint_of(path: Path) -> Fingerprint:
    digest, num_bytes = hashlib.sha256(), 0
    with path.open("rb") as file:
        while block := file.read(_BLOCK_BYTES):
            digest.update(block)
            num_bytes += len(block)
    return Fingerprint(num_bytes, digest.hexdigest())


def find_damage(path: Path, expected: Fingerprint) -> str | None:
    """What is wrong with a file, in words, or None."""
    try:
        num_bytes = path.stat().st_size
        if num_bytes != expected.num_bytes:
            return f"{path} has {num_bytes} bytes, expected {expected.num_bytes}"
        if fingerprint_of(path) != expected:
            return f"{path} has other contents than were written (its SHA-256 differs)"
    except FileNotFoundError:
        return f"{path} is missing"
    except OSError as problem:
        return f"{path} cannot be read: {problem}"
    return None


def write_sidecar(sidecar: Sidecar, path: Path) -> None:
    body = {
        "version": VERSION,
        "iteration": sidecar.iteration,
        "files": {name: {"bytes": print_.num_bytes, "sha256": print_.sha256} for name, print_ in sidecar.files.items()},
        "continuation": sidecar.continuation,
    }
    path.write_text(json.dumps({**body, "checksum": _checksum(body)}, indent=1) + "\n")


def read_sidecar(path: Path) -> Sidecar | None:
    """The sidecar, or None if there is none. A damaged one raises."""
    try:
        if path.stat().st_size > _MAX_BYTES:
            raise SnapshotError(f"{path} has more than {_MAX_BYTES} bytes, expected the sidecar of a snapshot")
        body = json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError) as problem:
        raise SnapshotError(f"{path} is damaged: {problem}") from None
    if not isinstance(body, dict) or body.pop("checksum", None) != _checksum(body):
        raise SnapshotError(f"{path} is damaged: its checksum differs from its contents")
    if body.get("version") != VERSION:
        raise SnapshotError(
            f"{path} has version {body.get('version')!r}, expected {VERSION}; it was written by another Poseidon"
        )
    try:
        files = {str(name): Fingerprint(entry["bytes"], entry["sha256"]) for name, entry in body["files"].items()}
        return Sidecar(int(body["iteration"]), files, dict(body["continuation"]))
    except (KeyError, TypeError, ValueError, AttributeError) as problem:
        raise SnapshotError(f"{path} is damaged: {type(problem).__name__} {problem}") from None


def _checksum(body: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
