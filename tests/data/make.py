"""Small databases and images for the data tests."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import cv2
import lmdb
import numpy as np

from poseidon.errors import DataError
from poseidon.spec import caffe_pb2

T = TypeVar("T")


def datum(pixels: np.ndarray, label: int = 0) -> caffe_pb2.Datum:
    """A raw Datum of channels × height × width, bytes or floats."""
    channels, height, width = pixels.shape
    made = caffe_pb2.Datum(channels=channels, height=height, width=width, label=label)
    if pixels.dtype == np.uint8:
        made.data = pixels.tobytes()
    else:
        made.float_data.extend(pixels.ravel().tolist())
    return made


def encoded_datum(image: np.ndarray, label: int = 0) -> caffe_pb2.Datum:
    """A Datum that holds a PNG of a height × width × channels image."""
    return caffe_pb2.Datum(data=png(image), encoded=True, label=label)


def png(image: np.ndarray) -> bytes:
    return cv2.imencode(".png", image)[1].tobytes()


def write_lmdb(path: Path, values: list[bytes | caffe_pb2.Datum], key: str = "{:08d}") -> str:
    with lmdb.open(str(path), map_size=1 << 26) as environment, environment.begin(write=True) as transaction:
        for number, value in enumerate(values):
            stored = value if isinstance(value, bytes) else value.SerializeToString()
            transaction.put(key.format(number).encode(), stored)
    return str(path)


def write_leveldb(path: Path, values: list[bytes | caffe_pb2.Datum]) -> str:
    import plyvel

    with plyvel.DB(str(path), create_if_missing=True) as database:
        for number, value in enumerate(values):
            database.put(f"{number:08d}".encode(), value if isinstance(value, bytes) else value.SerializeToString())
    return str(path)


def numbered(count: int) -> list[caffe_pb2.Datum]:
    """Datums of one pixel whose label is their number."""
    return [datum(np.full((1, 1, 1), number % 256, np.uint8), number) for number in range(count)]


def result_or_error(read: Callable[[], T]) -> tuple[T | None, str]:
    """What `read` returns, or the text of its DataError; any other exception is a failure."""
    try:
        return read(), ""
    except DataError as problem:
        return None, str(problem)
