"""Datum: the record format of Caffe's databases.

    channels, height, width, label
    data         C × H × W bytes, or with `encoded` a whole image file
    float_data   C × H × W floats, read when `data` is empty

Caffe believes the sizes it reads and runs past the end of a short record; here every record is checked.
"""

from __future__ import annotations

import numpy as np
from google.protobuf.message import DecodeError

from poseidon.data.decode import decode
from poseidon.data.source import KeyValueStore, Record, checked_label
from poseidon.errors import DataError
from poseidon.spec import caffe_pb2

_IMAGE_MAGIC = (b"\xff\xd8\xff", b"\x89PNG", b"BM", b"GIF8", b"RIFF")


def parse_datum(value: bytes, color: bool | None, where: str) -> Record:
    """The record in a serialised Datum; `color` is how an encoded one is decoded (see decode.py)."""
    try:
        datum = caffe_pb2.Datum.FromString(value)
    except DecodeError:
        raise DataError(
            f"{where}: not a Datum ({len(value)} bytes); the record is damaged or of another kind"
        ) from None
    label = checked_label(datum.label, where)
    if datum.encoded:
        return Record(where, label, decode(datum.data, color, where), planar=False)
    return Record(where, label, _array(datum, where), planar=True)


def _array(datum: caffe_pb2.Datum, where: str) -> np.ndarray:
    shape = (datum.channels, datum.height, datum.width)
    if min(shape) <= 0:
        raise DataError(f"{where}: expected a positive size, got {_text(shape)} (channels x height x width)")
    data = datum.data
    stored = np.frombuffer(data, np.uint8) if data else np.array(datum.float_data, np.float32)
    if stored.size != shape[0] * shape[1] * shape[2]:
        hint = "; it looks like an image file: set `encoded`" if data.startswith(_IMAGE_MAGIC) else ""
        raise DataError(
            f"{where}: expected {shape[0] * shape[1] * shape[2]} values ({_text(shape)}), "
            f"got {stored.size} {'bytes' if data else 'floats'}{hint}"
        )
    return stored.reshape(shape)


def _text(shape: tuple[int, ...]) -> str:
    return " x ".join(map(str, shape))


class DatumSource:
    """The Datums of a database, in the order of its keys."""

    def __init__(self, store: KeyValueStore, color: bool | None = None) -> None:
        self.path = store.path
        self._store = store
        self._color = color
        if len(store) == 0:
            raise DataError(f"{self.path}: the database is empty; expected at least one Datum")

    def __len__(self) -> int:
        return len(self._store)

    def get(self, index: int) -> Record:
        key, value = self._store.get(index)
        return parse_datum(value, self._color, f"{self.path}: key '{key.decode('utf-8', 'backslashreplace')}'")

    def close(self) -> None:
        self._store.close()
