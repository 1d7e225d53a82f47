"""Blobs of a .caffemodel read straight off the wire format, without protobuf: an oracle for the real reader."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

LAYER, V1_LAYER = 100, 2
# Field numbers of name and blobs, in current layers and in those before 2015.
NAME_AND_BLOBS = {LAYER: (1, 7), V1_LAYER: (4, 6)}
DATA, DIFF, SHAPE, DOUBLE_DATA, DOUBLE_DIFF = 5, 6, 7, 8, 9


def fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    position = 0

    def varint() -> int:
        nonlocal position
        value = shift = 0
        while True:
            byte = data[position]
            position += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    while position < len(data):
        number, kind = divmod(varint(), 8)
        if kind == 0:
            yield number, varint()
        else:
            length = varint() if kind == 2 else {1: 8, 5: 4}[kind]
            yield number, data[position : position + length]
            position += length


def packed(data: bytes, number: int, dtype: str) -> np.ndarray:
    parts = [value for found, value in fields(data) if found == number]
    return np.frombuffer(b"".join(parts), dtype)


def varints(data: bytes) -> list[int]:
    values, value, shift = [], 0, 0
    for byte in data:
        value |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            values.append(value)
            value = shift = 0
    return values


def blob_arrays(data: bytes) -> dict[str, np.ndarray]:
    """`data` and, where there is one, `diff` of a BlobProto, in its shape."""
    shape = [
        dim for number, value in fields(data) if number == SHAPE for _, dims in fields(value) for dim in varints(dims)
    ]
    legacy = [value for number, value in fields(data) if number <= 4]
    arrays = {}
    for name, single, double in (("data", DATA, DOUBLE_DATA), ("diff", DIFF, DOUBLE_DIFF)):
        values = packed(data, double, "<f8")
        values = values if len(values) else packed(data, single, "<f4")
        if len(values):
            arrays[name] = values.reshape(shape or legacy or ())
    return arrays


def read_blobs(path: Path) -> dict[str, list[dict[str, np.ndarray]]]:
    """Layer name -> blobs, for layers that have any."""
    found = {}
    for number, layer in fields(path.read_bytes()):
        if number not in NAME_AND_BLOBS:
            continue
        name_field, blobs_field = NAME_AND_BLOBS[number]
        name = next(value.decode() for inner, value in fields(layer) if inner == name_field)
        blobs = [blob_arrays(value) for inner, value in fields(layer) if inner == blobs_field]
        if blobs:
            found[name] = blobs
    return found
