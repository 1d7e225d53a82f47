"""Arrays of numbers in messages: BlobProto (weights, means, solver history) and Datum (database records).

A BlobProto's extents are `shape`, or in old files num, channels, height and width: always four axes, so that a bias
of 2013 is 1x1x1xN. When any of the four is set they count, as in Caffe. Values are `data` (float32) or `double_data`
(float64).

Millions of floats pass through the wire format, which holds them as one run of bytes; protobuf's own containers would
make a Python object of each.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from poseidon.errors import SpecError
from poseidon.spec.caffe_pb2 import BlobProto, Datum
from poseidon.spec.limits import MAX_BINARY_BYTES
from poseidon.spec.wire import BYTES, encode_varint, wire_fields

_LEGACY_EXTENTS = ("num", "channels", "height", "width")
_MAX_AXES = 32

FloatArray = npt.NDArray[np.float32] | npt.NDArray[np.float64]


def blob_shape(blob: BlobProto) -> tuple[int, ...]:
    """The extents as the message states them."""
    if has_legacy_shape(blob):
        return tuple(getattr(blob, name) for name in _LEGACY_EXTENTS)
    return tuple(blob.shape.dim)


def has_legacy_shape(blob: BlobProto) -> bool:
    return any(blob.HasField(name) for name in _LEGACY_EXTENTS)


def shape_equals(blob: BlobProto, shape: Sequence[int]) -> bool:
    """Whether the blob fits an array of this shape. Four old extents fit any shape of up to four axes that, with ones
    put in front, is the same."""
    expected = tuple(shape)
    if has_legacy_shape(blob) and len(expected) <= len(_LEGACY_EXTENTS):
        expected = (1,) * (len(_LEGACY_EXTENTS) - len(expected)) + expected
    return blob_shape(blob) == expected


def blob_to_array(blob: BlobProto, what: str = "blob", diff: bool = False) -> FloatArray:
    """The values (or with `diff` the gradients) as a new array; `what` names the blob in errors."""
    shape = blob_shape(blob)
    if len(shape) > _MAX_AXES or any(extent < 0 for extent in shape):
        raise SpecError(f"{what}: found shape {_shown(shape)}, expected at most {_MAX_AXES} extents, none negative")
    single, double = ("diff", "double_diff") if diff else ("data", "double_data")
    name = double if len(getattr(blob, double)) else single
    count, expected = len(getattr(blob, name)), math.prod(shape)
    if count != expected:
        raise SpecError(
            f"{what}: found {count} values, expected {expected} for shape {_shown(shape)}; the file is damaged"
        )
    array = _unpacked(blob, name, count)
    try:
        return array.reshape(shape)
    except ValueError as error:  # no values, but extents whose product has no 64-bit number
        raise SpecError(f"{what}: found shape {_shown(shape)}: {error}") from None


def array_to_blob(array: npt.ArrayLike, diff: npt.ArrayLike | None = None) -> BlobProto:
    """A BlobProto of the array's shape: `double_data` for float64, `data` for everything else; gradients likewise."""
    values = np.asarray(array)
    precision = "double_" if values.dtype == np.float64 else ""
    blob = BlobProto()
    blob.shape.dim.extend(values.shape)
    # An array without axes has a shape without extents, which is not the same as no shape.
    blob.shape.SetInParent()
    blob.MergeFromString(_packed(values, f"{precision}data"))
    if diff is not None:
        gradients = np.asarray(diff)
        if gradients.shape != values.shape:
            raise SpecError(f"blob: found diff of shape {gradients.shape}, expected {values.shape}, that of the data")
        blob.MergeFromString(_packed(gradients, f"{precision}diff"))
    return blob


def datum_to_array(datum: Datum, what: str = "datum") -> npt.NDArray[np.uint8] | npt.NDArray[np.float32]:
    """The record as channels x height x width: uint8 from `data`, or float32 from `float_data`."""
    if datum.encoded:
        raise SpecError(f"{what}: found an encoded image, expected raw values; decode it first")
    shape = (datum.channels, datum.height, datum.width)
    count = len(datum.data) or len(datum.float_data)
    if min(shape) < 0 or count != math.prod(shape):
        raise SpecError(f"{what}: found {count} values, expected {shape[0]} x {shape[1]} x {shape[2]}")
    if datum.data:
        return np.array(np.frombuffer(datum.data, np.uint8).reshape(shape))
    return np.fromiter(datum.float_data, np.float32, count).reshape(shape)


def array_to_datum(array: npt.ArrayLike, label: int | None = None) -> Datum:
    """A record of a channels x height x width array: `data` for uint8, `float_data` for everything else."""
    values = np.asarray(array)
    if values.ndim != 3:
        raise SpecError(f"datum: found an array of shape {values.shape}, expected channels x height x width")
    datum = Datum(channels=values.shape[0], height=values.shape[1], width=values.shape[2], label=label)
    if values.dtype == np.uint8:
        datum.data = values.tobytes()
    else:
        datum.float_data.extend(values.ravel().tolist())
    return datum


def _packed(values: npt.NDArray[np.generic], name: str) -> bytes:
    """The wire format of a BlobProto with nothing but this packed field."""
    payload = values.astype("<f8" if name.startswith("double_") else "<f4", copy=False).tobytes()
    if len(payload) > MAX_BINARY_BYTES:
        raise SpecError(
            f"blob: found {len(payload)} bytes of values, expected at most {MAX_BINARY_BYTES}, protobuf's limit; "
            "use HDF5"
        )
    tag = BlobProto.DESCRIPTOR.fields_by_name[name].number << 3 | BYTES
    return encode_varint(tag) + encode_varint(len(payload)) + payload


def _unpacked(blob: BlobProto, name: str, count: int) -> FloatArray:
    """The values of a packed field, in an array of their own."""
    dtype = np.dtype("<f8" if name.startswith("double_") else "<f4")
    array = np.empty(count, dtype.newbyteorder("="))
    number = BlobProto.DESCRIPTOR.fields_by_name[name].number
    wire = blob.SerializeToString()
    for field in wire_fields(wire, 0, len(wire)):
        # The size tells it from a namesake among the unknown fields that a strange file may carry.
        if (field.number, field.wire_type, field.end - field.start) == (number, BYTES, array.nbytes):
            array[:] = np.frombuffer(wire, dtype, count, field.start)
            break
    return array


def _shown(shape: tuple[int, ...]) -> str:
    return "()" if not shape else " x ".join(map(str, shape[:_MAX_AXES])) + (" x ..." if len(shape) > _MAX_AXES else "")
