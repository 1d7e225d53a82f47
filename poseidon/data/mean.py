"""The mean image of a mean_file: a binary BlobProto of shape (1,) C × H × W, as compute_image_mean writes it."""

from __future__ import annotations

import numpy as np

from poseidon.errors import DataError, SpecError
from poseidon.spec import blob_to_array, caffe_pb2, read_binary


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
