"""The mean image of a mean_file: a binary BlobProto of shape (1,) C × H × W, as compute_image_mean writes it."""

from __future__ import annotations

import math

import numpy as np
from google.protobuf.message import DecodeError

from poseidon.errors import DataError
from poseidon.spec import caffe_pb2


def read_mean(path: str) -> np.ndarray:
    """The mean as float32 of shape (channels, height, width)."""
    try:
        with open(path, "rb") as file:
            blob = caffe_pb2.BlobProto.FromString(file.read())
    except OSError as problem:
        raise DataError(f"{path}: the mean file cannot be read ({problem.strerror})") from None
    except DecodeError:
        raise DataError(
            f"{path}: not a mean file; expected a binary BlobProto, as compute_image_mean writes it"
        ) from None
    shape = list(blob.shape.dim) if blob.HasField("shape") else [blob.num, blob.channels, blob.height, blob.width]
    while len(shape) > 3 and shape[0] == 1:
        shape.pop(0)
    if len(shape) != 3 or min(shape) <= 0:
        raise DataError(f"{path}: expected one mean image, channels x height x width, got shape {shape}")
    values = np.array(blob.double_data or blob.data, np.float32)
    if values.size != math.prod(shape):
        raise DataError(f"{path}: expected {math.prod(shape)} values for shape {shape}, got {values.size}; damaged?")
    return values.reshape(shape)
