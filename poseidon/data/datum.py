"""Datum: the record format of Caffe's databases.

    channels, height, width, label
    data         C × H × W bytes, or with `encoded` a whole image file
    float_data   C × H × W floats, read when `data` is empty

Caffe believes the sizes it reads and runs past the end of a short record; here every record is checked.

`data` is nearly all of a record. It is taken from where it lies, and protobuf parses the few bytes around it: parsed
with the rest it would be copied twice, which takes as long as the whole transformation of a raw image.
"""

from __future__ import annotations

import math

import numpy as np
from google.protobuf.message import DecodeError

from poseidon.data.decode import decode
from poseidon.data.source import Buffer, KeyValueStore, Record, checked_label
from poseidon.errors import DataError
from poseidon.spec import caffe_pb2

_IMAGE_MAGIC = (b"\xff\xd8\xff", b"\x89PNG", b"BM", b"GIF8", b"RIFF")
# Tags of the fields Caffe writes in front of `data` (channels, height, width: varints), and of `data` itself.
_TAGS_IN_FRONT = (0x08, 0x10, 0x18)
_TAG_OF_DATA = 0x22
_TAG_OF_FLOAT = 0x35
_ONE_FLOAT = np.dtype([("tag", "u1"), ("value", "<f4")])


def parse_datum(value: Buffer, color: bool | None, where: str) -> Record:
    """The record in a serialised Datum; `color` is how an encoded one is decoded (see decode.py).

    Nothing of `value` is kept.
    """
    datum, data = _parse(value, where)
    label = checked_label(datum.label, where)
    if datum.encoded:
        return Record(where, label, decode(data, color, where), planar=False)
    return Record(where, label, _array(datum, data, where), planar=True)


def _parse(value: Buffer, where: str) -> tuple[caffe_pb2.Datum, Buffer]:
    """The message without its `data`, and `data`."""
    try:
        start, end, tag = _find_data(value)
        if end:
            datum = caffe_pb2.Datum.FromString(bytes(value[:tag]) + bytes(value[end:]))
            if not datum.data:
                return datum, memoryview(value)[start:end]
        # Fields in another order, no `data`, or more than one of it: whatever protobuf makes of that.
        datum = caffe_pb2.Datum.FromString(bytes(value))
    except DecodeError:
        raise DataError(
            f"{where}: not a Datum ({len(value)} bytes); the record is damaged or of another kind"
        ) from None
    return datum, datum.data


def _find_data(value: Buffer) -> tuple[int, int, int]:
    """Where `data` begins and ends, and where its tag is; zeros if it is not where Caffe puts it."""
    at = 0
    try:
        while value[at] in _TAGS_IN_FRONT:
            at += 2
            while value[at - 1] & 0x80:
                at += 1
        if value[at] != _TAG_OF_DATA:
            return 0, 0, 0
        tag = at
        length = 0
        for shift in range(0, 70, 7):
            at += 1
            length |= (value[at] & 0x7F) << shift
            if value[at] < 0x80:
                break
    except IndexError:
        return 0, 0, 0
    start = at + 1
    return (start, start + length, tag) if start + length <= len(value) else (0, 0, 0)


def _array(datum: caffe_pb2.Datum, data: Buffer, where: str) -> np.ndarray:
    shape = (datum.channels, datum.height, datum.width)
    if min(shape) <= 0:
        raise DataError(f"{where}: expected a positive size, got {_text(shape)} (channels x height x width)")
    num_values = len(data) or len(datum.float_data)
    if num_values != math.prod(shape):
        hint = "; it looks like an image file: set `encoded`" if bytes(data[:8]).startswith(_IMAGE_MAGIC) else ""
        raise DataError(
            f"{where}: expected {math.prod(shape)} values ({_text(shape)}), "
            f"got {num_values} {'bytes' if data else 'floats'}{hint}"
        )
    if data:
        return np.frombuffer(bytes(data), np.uint8).reshape(shape)
    # On the wire a float is a tag and four bytes; reading the container would make a Python object of each.
    floats = caffe_pb2.Datum()
    floats.float_data.MergeFrom(datum.float_data)
    return np.frombuffer(floats.SerializeToString(), _ONE_FLOAT)["value"].reshape(shape)


def float_datum(values: np.ndarray) -> bytes:
    """A serialised Datum of floats, channels × height × width; not encoded, without a label."""
    channels, height, width = values.shape
    floats = np.empty(values.size, _ONE_FLOAT)
    floats["tag"] = _TAG_OF_FLOAT
    floats["value"] = values.ravel()
    return caffe_pb2.Datum(channels=channels, height=height, width=width).SerializeToString() + floats.tobytes()


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
        return self._store.read(index, self._parse)

    def _parse(self, key: bytes, value: Buffer) -> Record:
        return parse_datum(value, self._color, f"{self.path}: key '{key.decode('utf-8', 'backslashreplace')}'")

    def close(self) -> None:
        self._store.close()
