"""ImageList: image files named by the lines of a text file, `path label`.

The last space of a line separates the label, so a path may hold spaces. The path of an image is `root_folder` followed
by the text in the line, with nothing in between: a folder ends with a slash. Blank lines at the end are no records; a
blank line elsewhere, or a label that is not an integer, is an error (Caffe takes them for label 0).
"""

from __future__ import annotations

import os
import re
import stat
from dataclasses import dataclass

from poseidon.data.decode import decode, resize
from poseidon.data.source import Record, checked_label
from poseidon.errors import DataError

_INTEGER = re.compile(r"[+-]?[0-9]+")


@dataclass(frozen=True, slots=True)
class ImageOptions:
    """How images are read: `new_size` is (height, width), None as they are."""

    root_folder: str = ""
    color: bool = True
    new_size: tuple[int, int] | None = None


class ImageList:
    """The records of a list file, in its order."""

    def __init__(self, path: str, options: ImageOptions) -> None:
        self.path = path
        self._options = options
        self._lines = read_list(path)
        for number, (_, label) in enumerate(self._lines, start=1):
            checked_label(label, f"{path}:{number}")

    def __len__(self) -> int:
        return len(self._lines)

    def get(self, index: int) -> Record:
        name, label = self._lines[index]
        path = self._options.root_folder + name
        where = f"{self.path}:{index + 1}: {path}"
        pixels = decode(read_bytes(path, where), self._options.color, where)
        if self._options.new_size:
            pixels = resize(pixels, *self._options.new_size)
        return Record(where, label, pixels, planar=False)

    def close(self) -> None:
        """Nothing is kept open."""


def read_list(path: str) -> list[tuple[str, int]]:
    """The paths and labels of a list file; at least one."""
    lines = [_split(line, f"{path}:{number}") for number, line in enumerate(read_lines(path), start=1)]
    if not lines:
        raise DataError(f"{path}: the list is empty; expected lines of the form `path label`")
    return lines


def read_lines(path: str) -> list[str]:
    """The lines of a text file, without the blank ones at its end."""
    try:
        # File names need not be valid UTF-8; they must come back as the same bytes.
        with open(path, encoding="utf-8", errors="surrogateescape") as file:
            lines = file.read().split("\n")
    except OSError as problem:
        raise DataError(f"{path}: cannot be read ({problem.strerror})") from None
    while lines and not lines[-1].strip():
        lines.pop()
    return lines


def read_bytes(path: str, where: str) -> bytes:
    """A whole file that a list names."""
    try:
        if stat.S_ISCHR(os.stat(path).st_mode):
            raise DataError(f"{where}: a device, which may be read for ever; expected an image file")
        with open(path, "rb") as file:
            return file.read()
    except OSError as problem:
        hint = "" if os.path.exists(path) else "; a path is root_folder and the text in the list, joined as they are"
        raise DataError(f"{where}: cannot be read ({problem.strerror}){hint}") from None
    except ValueError:
        raise DataError(f"{where}: not a path, it holds a null character") from None


def _split(line: str, where: str) -> tuple[str, int]:
    name, space, label = line.rpartition(" ")
    if not space or not name or not _INTEGER.fullmatch(label):
        raise DataError(f"{where}: expected `path label` with an integer label, got {line!r}")
    return name, int(label)
