"""Originals: the files of a data set as their authors publish them, gzipped or not, found by what they are called.

Whether a file is gzipped is told by its first bytes: browsers and archives unpack files and leave the name as it was.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, cast

from poseidon.errors import DataError

_GZIP_MAGIC = b"\x1f\x8b"
_CHUNK_BYTES = 1 << 20


def candidates(sources: Iterable[Path], inner_folder: str = "") -> Iterator[Path]:
    """The named files; of a folder all files in it, and those in its `inner_folder`."""
    for source in sources:
        if source.is_dir():
            for folder in dict.fromkeys((source, source / inner_folder)):
                if folder.is_dir():
                    yield from sorted(path for path in folder.iterdir() if path.is_file())
        elif source.exists():
            yield source
        else:
            raise DataError(f"{source}: no such file or folder; expected the original files of the data set")


def pick(sources: Sequence[Path], wanted: str, paths: Iterable[Path], is_it: Callable[[str], bool]) -> Path:
    """The first of `paths` whose name fits; `wanted` says in an error what was looked for in `sources`."""
    for path in paths:
        if is_it(path.name):
            return path
    raise DataError(f"{', '.join(map(str, sources))}: has no {wanted} (gzipped or not); expected the original files")


@contextmanager
def opened(path: Path) -> Iterator[IO[bytes]]:
    """The contents, unpacked. Whatever is wrong with the file becomes a DataError that names it."""
    try:
        with path.open("rb") as file:
            packed = file.read(len(_GZIP_MAGIC)) == _GZIP_MAGIC
            file.seek(0)
            if packed:
                with gzip.GzipFile(fileobj=file) as contents:
                    yield cast(IO[bytes], contents)
            else:
                yield file
    except EOFError:
        raise DataError(f"{path}: ends in the middle of its gzip data; download or copy the file again") from None
    except (gzip.BadGzipFile, zlib.error) as problem:
        raise DataError(f"{path}: damaged gzip data ({problem}); download or copy the file again") from None
    except OSError as problem:
        raise DataError(f"{path}: cannot be read ({problem.strerror or problem})") from None


def read_at_most(file: IO[bytes], num_bytes: int) -> bytes:
    """Up to this many bytes. Memory grows with what comes, not with what a damaged header promises."""
    chunks = []
    while num_bytes > 0:
        chunk = file.read(min(num_bytes, _CHUNK_BYTES))
        if not chunk:
            break
        chunks.append(chunk)
        num_bytes -= len(chunk)
    return b"".join(chunks)
