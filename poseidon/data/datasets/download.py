"""Downloads: a published file, known by its size and SHA-256, from the first of its addresses that delivers it."""

from __future__ import annotations

import hashlib
import http.client
import urllib.error
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from poseidon.data.report import Report
from poseidon.errors import DataError

_TIMEOUT_S = 30.0
_CHUNK_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class PublishedFile:
    name: str
    num_bytes: int
    sha256: str


def download(file: PublishedFile, mirrors: Sequence[str], folder: Path, report: Report) -> Path:
    """Puts the file into `folder`; each mirror is the address of the folder it is published in."""
    assert mirrors
    target = folder / file.name
    reasons = []
    for mirror in mirrors:
        address = f"{mirror.rstrip('/')}/{file.name}"
        try:
            _fetch(address, file, target, report)
            return target
        except _UnusableError as problem:
            reasons.append(f"{address}: {problem}")
    raise DataError(
        f"{file.name}: cannot be downloaded ({'; '.join(reasons)}); check the connection, "
        f"or get the original files another way and name their folder with --from"
    )


class _UnusableError(Exception):
    """This address did not deliver the file."""


def _fetch(address: str, file: PublishedFile, target: Path, report: Report) -> None:
    request = urllib.request.Request(address, headers={"User-Agent": "poseidon"})
    digest, num_bytes = hashlib.sha256(), 0
    with target.open("wb") as out:
        try:
            with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as answer:
                # One byte more than expected is enough to know that it is another file.
                while num_bytes <= file.num_bytes and (chunk := answer.read(_CHUNK_BYTES)):
                    out.write(chunk)
                    digest.update(chunk)
                    num_bytes += len(chunk)
                    report(f"download {file.name}", min(num_bytes, file.num_bytes), file.num_bytes)
        except urllib.error.HTTPError as problem:
            raise _UnusableError(f"the server answers {problem.code} {problem.reason}") from None
        except urllib.error.URLError as problem:
            raise _UnusableError(f"no connection, {problem.reason}") from None
        except (TimeoutError, ConnectionError, http.client.HTTPException) as problem:
            raise _UnusableError(f"the connection broke off, {problem or type(problem).__name__}") from None
    if num_bytes != file.num_bytes:
        got = f"only {num_bytes}" if num_bytes < file.num_bytes else "more"
        raise _UnusableError(f"expected {file.num_bytes} bytes, got {got}")
    if digest.hexdigest() != file.sha256:
        raise _UnusableError(f"checksum mismatch, expected SHA-256 {file.sha256}, got {digest.hexdigest()}")
