"""The mean image of a mean_file: a binary BlobProto of shape (1,) C × H × W, as compute_image_mean writes it."""

from __future__ import annotations

import os

import numpy as np

from poseidon.errors import DataError, SpecError
from poseidon.spec import array_to_blob, blob_to_array, caffe_pb2, read_binary, write_binary


def read_mean(path: str) -> np.ndarray:
    """The mean as float32 of shape (channels, height, width)."""
    try:
        mean = blob_to_array(read_binary(path, caffe_pb2.BlobProto), path)
    except SpecError as problem:
        raise DataError(f"{problem} (mean_file)") from None
    while mean.ndim > 3 and mean.shape[0] == 1:
        mean = mean[0]
    if mean.ndim != 3 or mean.size == 0:
        shape = " x ".join(map(str, mean.shape)) or "()"
        raise DataError(f"{path}: expected one mean image, channels x height x width, got {shape} (mean_file)")
    return mean.astype(np.float32, copy=False)


def write_mean(image: np.ndarray, path: str | os.PathLike[str]) -> None:
    """A mean image (channels × height × width), with its shape in the fields of old, which every Caffe reads."""
    channels, height, width = image.shape
    blob = array_to_blob(image.astype(np.float32, copy=False))
    blob.ClearField("shape")
    blob.num, blob.channels, blob.height, blob.width = 1, channels, height, width
    write_binary(blob, path)
