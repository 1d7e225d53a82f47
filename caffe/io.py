"""caffe.io: arrays from and to Caffe's messages, and, from their own files, images and the Transformer."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from caffe.images import load_image, oversample, resize_image
from caffe.proto import caffe_pb2
from caffe.transformer import Transformer

__all__ = [
    "Transformer",
    "array_to_blobproto",
    "array_to_datum",
    "arraylist_to_blobprotovecor_str",
    "arraylist_to_blobprotovector_str",
    "blobproto_to_array",
    "blobprotovector_str_to_arraylist",
    "caffe_pb2",
    "datum_to_array",
    "load_image",
    "oversample",
    "resize_image",
]


def blobproto_to_array(blob: caffe_pb2.BlobProto, return_diff: bool = False) -> np.ndarray:
    """The values (or gradients) of a BlobProto in its shape; without one, a single value."""
    single, double = (blob.diff, blob.double_diff) if return_diff else (blob.data, blob.double_data)
    values = np.array(double if len(double) else single)
    if any(blob.HasField(name) for name in ("num", "channels", "height", "width")):
        return values.reshape(blob.num, blob.channels, blob.height, blob.width)
    return values.reshape(tuple(blob.shape.dim))


def array_to_blobproto(arr: npt.ArrayLike, diff: npt.ArrayLike | None = None) -> caffe_pb2.BlobProto:
    values = np.asarray(arr)
    blob = caffe_pb2.BlobProto(data=values.astype(float).ravel())
    blob.shape.dim.extend(values.shape)
    if diff is not None:
        blob.diff.extend(np.asarray(diff).astype(float).ravel())
    return blob


def arraylist_to_blobprotovector_str(arraylist: Iterable[npt.ArrayLike]) -> bytes:
    """Several arrays as one serialized message."""
    return caffe_pb2.BlobProtoVector(blobs=[array_to_blobproto(arr) for arr in arraylist]).SerializeToString()


arraylist_to_blobprotovecor_str = arraylist_to_blobprotovector_str  # so spelled in Caffe


def blobprotovector_str_to_arraylist(text: bytes) -> list[np.ndarray]:
    vector = caffe_pb2.BlobProtoVector()
    vector.ParseFromString(text)
    return [blobproto_to_array(blob) for blob in vector.blobs]


def array_to_datum(arr: np.ndarray, label: int | None = None) -> caffe_pb2.Datum:
    """A record of a channels × height × width array: bytes for uint8, floats for everything else."""
    if arr.ndim != 3:
        raise ValueError(f"a datum needs an array of channels x height x width, got shape {arr.shape}")
    datum = caffe_pb2.Datum(channels=arr.shape[0], height=arr.shape[1], width=arr.shape[2])
    if arr.dtype == np.uint8:
        datum.data = arr.tobytes()
    else:
        datum.float_data.extend(arr.astype(float).ravel())
    if label is not None:
        datum.label = int(label)
    return datum


def datum_to_array(datum: caffe_pb2.Datum) -> np.ndarray:
    """The values of a record; its label is `datum.label`."""
    shape = (datum.channels, datum.height, datum.width)
    if datum.encoded:
        raise ValueError("the datum holds an encoded image, expected raw values; decode datum.data with OpenCV first")
    if len(datum.data):
        return np.frombuffer(datum.data, np.uint8).reshape(shape).copy()
    return np.array(datum.float_data).astype(float).reshape(shape)
