"""Event files, as TensorBoard reads them: records of protobuf messages, written here by hand, so that a training run
needs no TensorFlow and no TensorBoard.

    record      length (uint64), its checksum (uint32), data, its checksum; all little-endian. The checksum is CRC-32C,
                turned right by 15 bits, plus 0xa282ead8
    Event       1 wall_time (double)  2 step (int64)  3 file_version (string, in the first record)  5 summary
    Summary     1 value, repeated:  1 tag  2 simple_value (float)  5 histo  8 tensor  9 metadata
    histo       1 min  2 max  3 num  4 sum  5 sum_squares (doubles)  6 bucket_limit  7 bucket (packed doubles)
    text        metadata: 1 plugin_data { 1 plugin_name = "text" };
                tensor: 1 dtype = 7 (string)  2 tensor_shape { 2 dim { 1 size = 1 } }  8 string_val

The tests read such files with TensorBoard's own reader.
"""

from __future__ import annotations

import os
import platform
import struct
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from poseidon.errors import RecordError
from poseidon.record.writing import unwritable

_VERSION = "brain.Event:2"
_DT_STRING = 7


@dataclass(frozen=True, slots=True)
class Histogram:
    """`limits` are the upper ends of the buckets, `counts` how many values lie in each."""

    least: float
    most: float
    count: float
    total: float
    squares: float
    limits: Sequence[float]
    counts: Sequence[float]


class EventFile:
    """A new file in a folder, which is made if needed."""

    def __init__(self, folder: str | Path) -> None:
        name = f"events.out.tfevents.{time.time():.6f}.{platform.node()}.{os.getpid()}"
        self._path = Path(folder) / name
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._file = self._path.open("wb")
        except OSError as problem:
            raise unwritable(self._path, problem) from None
        self._append(_double(1, time.time()) + _text(3, _VERSION))

    def scalars(self, values: Mapping[str, float], step: int) -> None:
        self._summary([_text(1, tag) + _float(2, value) for tag, value in values.items()], step)

    def histograms(self, values: Mapping[str, Histogram], step: int) -> None:
        self._summary([_text(1, tag) + _message(5, _histogram(found)) for tag, found in values.items()], step)

    def text(self, tag: str, text: str) -> None:
        """Markdown."""
        metadata = _message(1, _text(1, "text"))
        tensor = _number(1, _DT_STRING) + _message(2, _message(2, _number(1, 1))) + _text(8, text)
        self._summary([_text(1, tag) + _message(8, tensor) + _message(9, metadata)], 0)

    def close(self) -> None:
        self._file.close()

    def _summary(self, values: Sequence[bytes], step: int) -> None:
        summary = b"".join(_message(1, value) for value in values)
        self._append(_double(1, time.time()) + _number(2, step) + _message(5, summary))

    def _append(self, data: bytes) -> None:
        length = struct.pack("<Q", len(data))
        try:
            self._file.write(length + _checksum(length) + data + _checksum(data))
            self._file.flush()
        except OSError as problem:
            raise unwritable(self._path, problem) from None
        except ValueError:
            raise RecordError(f"{self._path}: is closed already") from None


def _histogram(found: Histogram) -> bytes:
    figures = (found.least, found.most, found.count, found.total, found.squares)
    parts = [_double(place, value) for place, value in enumerate(figures, start=1)]
    packed = [struct.pack(f"<{len(values)}d", *values) for values in (found.limits, found.counts)]
    return b"".join([*parts, _message(6, packed[0]), _message(7, packed[1])])


# -- protobuf ---------------------------------------------------------------------------------------------------------
def _varint(value: int) -> bytes:
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*found, value])


def _number(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(value)


def _double(field: int, value: float) -> bytes:
    return _varint(field << 3 | 1) + struct.pack("<d", value)


def _float(field: int, value: float) -> bytes:
    try:
        packed = struct.pack("<f", value)
    except OverflowError:  # beyond what 32 bits hold
        packed = struct.pack("<f", float("inf") if value > 0 else float("-inf"))
    return _varint(field << 3 | 5) + packed


def _message(field: int, data: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(data)) + data


def _text(field: int, text: str) -> bytes:
    return _message(field, text.encode(errors="replace"))


# -- checksums --------------------------------------------------------------------------------------------------------
def _crc_table() -> list[int]:
    table = []
    for byte in range(256):
        for _ in range(8):
            byte = byte >> 1 ^ (0x82F63B78 if byte & 1 else 0)
        table.append(byte)
    return table


_TABLE = _crc_table()


def _checksum(data: bytes) -> bytes:
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _TABLE[(crc ^ byte) & 0xFF] ^ crc >> 8
    crc ^= 0xFFFFFFFF
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)
