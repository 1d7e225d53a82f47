"""Files read whole with a clear error when they cannot be, and written so that a reader never meets half a file."""

from __future__ import annotations

import os
import secrets
import stat
from pathlib import Path

from poseidon.errors import SpecError
from poseidon.spec.limits import MAX_TEXT_BYTES

_HDF5_MAGIC = b"\x89HDF\r\n\x1a\n"


def read_bytes(path: str | os.PathLike[str], max_bytes: int, advice: str) -> bytes:
    """The contents of a file of at most `max_bytes`; `advice` ends the error for a larger one."""
    name = os.fspath(path)
    try:
        status = os.stat(path)
        if stat.S_ISDIR(status.st_mode):
            raise SpecError(f"{name}: found a folder, expected a file")
        if not (stat.S_ISREG(status.st_mode) or stat.S_ISFIFO(status.st_mode)):
            raise SpecError(f"{name}: found a device or socket, expected a file")
        if status.st_size > max_bytes:
            raise SpecError(f"{name}: found {status.st_size} bytes, expected at most {max_bytes}; {advice}")
        with open(path, "rb") as file:
            # A pipe has no size; asking for more than a file holds would reserve the memory for it.
            data = file.read(status.st_size if stat.S_ISREG(status.st_mode) else max_bytes + 1)
    except FileNotFoundError:
        raise SpecError(
            f"{name}: no such file; check the path (a relative one starts where the command runs)"
        ) from None
    except (OSError, ValueError) as error:
        raise SpecError(f"{name}: cannot be read: {error}") from None
    if len(data) > max_bytes:
        raise SpecError(f"{name}: found more than {max_bytes} bytes, expected at most that; {advice}")
    if data.startswith(_HDF5_MAGIC):
        raise SpecError(
            f"{name}: found an HDF5 file, expected a Caffe protobuf file; give HDF5 weights and states the ending .h5"
        )
    return data


def read_text(path: str | os.PathLike[str]) -> str:
    """The text of a prototxt. Bytes that are not UTF-8 become lone surrogates: comments may hold them, fields may
    not."""
    return read_bytes(path, MAX_TEXT_BYTES, "is this a prototxt?").decode("utf-8", "surrogateescape")


def write_atomically(data: bytes, path: str | os.PathLike[str]) -> None:
    """Write beside the target, then rename: after a crash there is the old file or the new one, whole."""
    target = Path(os.path.realpath(path))
    temporary = target.parent / f".{secrets.token_hex(8)}.tmp"
    try:
        if target.exists() and not (target.is_file() or target.is_dir()):
            target.write_bytes(data)  # a pipe or device has nothing to keep whole, and /dev/null must stay what it is
            return
        with open(temporary, "xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, target)
    except (OSError, ValueError) as error:
        raise SpecError(f"{os.fspath(path)}: cannot be written: {error}") from None
    finally:
        temporary.unlink(missing_ok=True)
