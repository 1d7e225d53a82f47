"""LMDB and LevelDB: how many records, and what the first ones are."""

from __future__ import annotations

import os
from contextlib import ExitStack

import numpy as np

from poseidon.data.datum import parse_datum
from poseidon.data.leveldb import LevelDbStore
from poseidon.data.lmdb import LmdbStore
from poseidon.data.source import Buffer, KeyValueStore
from poseidon.errors import DataError
from poseidon.inspect.contents import Fact, Findings, Record

_MAX_KEY_CHARS = 60


def read_lmdb(path: str, num_records: int, stack: ExitStack) -> Findings:
    folder = os.path.dirname(path) if os.path.basename(path) == "data.mdb" else path
    return _read(LmdbStore(folder or "."), num_records, stack)


def read_leveldb(path: str, num_records: int, stack: ExitStack) -> Findings:
    return _read(LevelDbStore(path), num_records, stack)


def _read(store: KeyValueStore, num_records: int, stack: ExitStack) -> Findings:
    stack.callback(store.close)
    records = tuple(store.read(index, _record) for index in range(min(num_records, len(store))))
    facts: tuple[Fact, ...] = (("records", len(store)),)
    return Findings(facts, (), records)


def _record(key: bytes, value: Buffer) -> Record:
    """A record, Datum or not."""
    shown = key.decode("utf-8", "backslashreplace")[:_MAX_KEY_CHARS]
    try:
        found = parse_datum(value, None, shown)
    except DataError as problem:
        return Record(shown, None, (), "", len(value), str(problem).removeprefix(f"{shown}: "))
    pixels: np.ndarray = found.pixels
    stored = "raw" if found.planar else "encoded image"
    spread = f"{pixels.min():g} to {pixels.max():g}, mean {pixels.mean():.4g}" if pixels.size else "empty"
    return Record(shown, found.label, found.shape, str(pixels.dtype), len(value), f"{stored}, {spread}")
