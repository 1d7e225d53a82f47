"""Contents: what was found in a file, whatever its format.

    facts      name and value, for the file as a whole
    parts      layers, nodes, groups: each with its arrays, which are read when asked for
    records    the first ones of a database or data set

An array can be read while the file is open, that is inside `with open_contents(path) as contents`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from poseidon.inspect.recognise import recognise

Fact = tuple[str, str | int | float]


@dataclass(frozen=True, slots=True)
class Array:
    """Numbers in a file, of known shape and not read yet. `read` None: the values are not there (yet)."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    num_bytes: int
    read: Callable[[], np.ndarray] | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Part:
    """A layer or what corresponds to it. `flow` is what it reads and gives; `options` all that is set, as text."""

    name: str
    kind: str
    flow: str
    arrays: tuple[Array, ...]
    options: str = ""


@dataclass(frozen=True, slots=True)
class Record:
    """One labelled entry; `note` says what else is known of it."""

    key: str
    label: int | float | None
    shape: tuple[int, ...]
    dtype: str
    num_bytes: int
    note: str = ""


@dataclass(frozen=True, slots=True)
class Contents:
    path: str
    kind: str
    num_bytes: int
    facts: tuple[Fact, ...] = ()
    parts: tuple[Part, ...] = ()
    records: tuple[Record, ...] = ()


@dataclass(frozen=True, slots=True)
class Findings:
    """What a reader of one format gives."""

    facts: tuple[Fact, ...] = ()
    parts: tuple[Part, ...] = ()
    records: tuple[Record, ...] = ()
    kind: str | None = None


@contextmanager
def open_contents(path: str | os.PathLike[str], num_records: int = 5) -> Iterator[Contents]:
    """The contents of a file or folder, which stays open meanwhile."""
    from poseidon.inspect.readers import READERS  # they are made of these classes

    name, kind = os.fspath(path), recognise(path)
    with ExitStack() as stack:
        found = READERS[kind](name, num_records, stack)
        yield Contents(name, found.kind or kind.value, _size(Path(name)), found.facts, found.parts, found.records)


def _size(path: Path) -> int:
    if path.is_dir():
        return sum(entry.stat().st_size for entry in path.iterdir() if entry.is_file())
    return path.stat().st_size
