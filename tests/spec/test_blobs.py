"""Blobs and records as arrays, against Caffe's recorded parameters and plain protobuf."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from poseidon.errors import SpecError
from poseidon.spec import (
    array_to_blob,
    array_to_datum,
    blob_shape,
    blob_to_array,
    blobs,
    datum_to_array,
    has_legacy_shape,
    parse,
    read_weights_proto,
    shape_equals,
)
from poseidon.spec.caffe_pb2 import BlobProto, Datum

LEGACY = Path(__file__).parents[1] / "golden" / "formats" / "legacy_models"
FLOATS = st.sampled_from([np.float32, np.float64])


@pytest.mark.parametrize("folder", sorted(LEGACY.iterdir()), ids=lambda folder: folder.name)
def test_caffes_parameters(folder: Path) -> None:
    record = np.load(folder / "record.npz")
    net = read_weights_proto(folder / "model.caffemodel")
    found = {f"param/{layer.name}/{i}": blob for layer in net.layer for i, blob in enumerate(layer.blobs)}
    assert set(found) == {name for name in record.files if name.startswith("param/")}
    for name, blob in found.items():
        assert shape_equals(blob, record[name].shape)
        assert has_legacy_shape(blob) == (folder.name == "v1_binary_4d_blobs")
        np.testing.assert_array_equal(blob_to_array(blob).reshape(record[name].shape), record[name])


@given(FLOATS.flatmap(lambda kind: hnp.arrays(kind, hnp.array_shapes(min_dims=0, max_dims=5, min_side=0, max_side=4))))
@settings(max_examples=100, deadline=None)
def test_arrays_round_trip(array: np.ndarray) -> None:
    blob = array_to_blob(array)
    assert list(blob.shape.dim) == list(array.shape)
    assert blob.HasField("shape")
    values = blob.double_data if array.dtype == np.float64 else blob.data
    np.testing.assert_array_equal(np.array(values, array.dtype), array.ravel())
    back = blob_to_array(blob)
    # no values: nothing says which precision they would have had
    assert back.dtype == (array.dtype if array.size else np.float32)
    assert back.flags.writeable
    np.testing.assert_array_equal(back, array)


def test_strided_and_other_types() -> None:
    array = np.arange(12, dtype=np.int64).reshape(3, 4)
    blob = array_to_blob(array.T)
    assert list(blob.data) == array.T.ravel().tolist()
    assert blob_to_array(blob).dtype == np.float32
    assert list(array_to_blob(array.astype(np.float16)).data) == array.ravel().tolist()
    assert list(array_to_blob(array.astype(">f4")).data) == array.ravel().tolist()
    assert list(array_to_blob([1, 2]).data) == [1, 2]


def test_diffs() -> None:
    data = np.arange(6, dtype=np.float32).reshape(2, 3)
    blob = array_to_blob(data, diff=data + 1)
    np.testing.assert_array_equal(blob_to_array(blob, diff=True), data + 1)
    assert list(blob.diff) == [1, 2, 3, 4, 5, 6]
    double = array_to_blob(data.astype(np.float64), diff=data)
    assert list(double.double_diff) == [0, 1, 2, 3, 4, 5]
    with pytest.raises(SpecError, match=r"found diff of shape \(3,\), expected \(2, 3\)"):
        array_to_blob(data, diff=np.zeros(3))
    with pytest.raises(SpecError, match="w: found 0 values, expected 6"):
        blob_to_array(array_to_blob(data), "w", diff=True)


@pytest.mark.parametrize(
    ("text", "shape"),
    [
        ("", ()),
        ("shape { }", ()),
        ("shape { dim: [2, 3] }", (2, 3)),
        ("num: 1 channels: 2 height: 3 width: 4", (1, 2, 3, 4)),
        ("num: 5", (5, 0, 0, 0)),
        ("num: 1 channels: 1 height: 1 width: 4 shape { dim: 9 }", (1, 1, 1, 4)),  # the old extents count, as in Caffe
    ],
)
def test_shapes(text: str, shape: tuple[int, ...]) -> None:
    assert blob_shape(parse(text, BlobProto())) == shape


@pytest.mark.parametrize(
    ("text", "shape", "equal"),
    [
        ("num: 1 channels: 1 height: 3 width: 4", (3, 4), True),
        ("num: 1 channels: 1 height: 1 width: 4", (4,), True),
        ("num: 1 channels: 1 height: 1 width: 1", (), True),
        ("num: 1 channels: 1 height: 3 width: 4", (1, 1, 3, 4), True),
        ("num: 1 channels: 1 height: 3 width: 4", (4, 3), False),
        ("num: 1 channels: 1 height: 3 width: 4", (3, 4, 1, 1), False),
        ("num: 1 channels: 1 height: 3 width: 4", (1, 1, 1, 3, 4), False),
        ("shape { dim: [1, 1, 3, 4] }", (3, 4), False),
        ("shape { dim: [3, 4] }", (3, 4), True),
        ("shape { dim: [3, 4] }", (1, 3, 4), False),
        ("shape { }", (), True),
        ("shape { }", (1,), False),
    ],
)
def test_shape_equals(text: str, shape: tuple[int, ...], equal: bool) -> None:
    assert shape_equals(parse(text, BlobProto()), shape) is equal


def test_a_scalar() -> None:
    assert blob_to_array(BlobProto(data=[2.5])).shape == ()
    assert blob_to_array(BlobProto(data=[2.5])) == 2.5


def test_a_namesake_among_unknown_fields_is_not_read() -> None:
    group = b"\xa3\x01" + b"\x2a\x02zz" + b"\xa4\x01"  # an unknown group with a field 5 in it
    blob = BlobProto.FromString(group + b"\x2a\x04\x00\x00\x80\x3f" + group)
    assert blob_to_array(blob) == 1.0


def test_double_data_wins() -> None:
    blob = parse("shape { dim: 1 } data: 1 double_data: 0.1", BlobProto())
    assert blob_to_array(blob)[0] == 0.1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("shape { dim: [2, 3] } data: 1", "w: found 1 values, expected 6 for shape 2 x 3; the file is damaged"),
        ("shape { dim: 4611686018427387904 dim: 4 } data: 1", "w: found 1 values, expected 18446744073709551616"),
        ("data: [1, 2]", r"w: found 2 values, expected 1 for shape \(\)"),
        ("num: 2 data: 1", "w: found 1 values, expected 0 for shape 2 x 0 x 0 x 0"),
        ("shape { dim: [-1, -1] } data: 1", "w: found shape -1 x -1, expected at most 32 extents, none negative"),
        ("shape { dim: [" + ",".join("1" * 33) + "] } data: 1", "expected at most 32 extents"),
        ("shape { dim: [0, 4611686018427387904, 4611686018427387904] }", "w: found shape 0 x 46"),
    ],
    ids=["few", "many", "scalar", "legacy", "negative", "axes", "empty"],
)
def test_values_that_do_not_fit_their_shape(text: str, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        blob_to_array(parse(text, BlobProto()), "w")


def test_blobs_beyond_protobufs_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blobs, "MAX_BINARY_BYTES", 8)
    assert len(array_to_blob(np.zeros(2, np.float32)).data) == 2
    with pytest.raises(SpecError, match="found 12 bytes of values, expected at most 8, protobuf's limit; use HDF5"):
        array_to_blob(np.zeros(3, np.float32))


def test_datums_of_bytes() -> None:
    array = np.arange(24, dtype=np.uint8).reshape(2, 3, 4)
    datum = array_to_datum(array, label=-7)
    assert (datum.channels, datum.height, datum.width, datum.label) == (2, 3, 4, -7)
    assert datum.data == bytes(range(24))
    back = datum_to_array(datum)
    assert back.dtype == np.uint8
    np.testing.assert_array_equal(back, array)


def test_datums_of_floats() -> None:
    array = np.linspace(-1, 1, 6, dtype=np.float32).reshape(1, 2, 3)
    datum = array_to_datum(array)
    assert not datum.HasField("label")
    np.testing.assert_array_equal(np.array(datum.float_data, np.float32), array.ravel())
    back = datum_to_array(datum)
    assert back.dtype == np.float32
    np.testing.assert_array_equal(back, array)


@pytest.mark.parametrize(
    ("datum", "message"),
    [
        (Datum(channels=1, height=2, width=3, data=b"12345"), "r: found 5 values, expected 1 x 2 x 3"),
        (Datum(channels=-1, height=-2, width=3, data=b"123456"), "r: found 6 values, expected -1 x -2 x 3"),
        (
            Datum(channels=1, height=1, width=1, data=b"x", encoded=True),
            "r: found an encoded image, expected raw values",
        ),
    ],
)
def test_datums_that_cannot_be_read(datum: Datum, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        datum_to_array(datum, "r")


def test_datums_have_three_axes() -> None:
    with pytest.raises(SpecError, match=r"found an array of shape \(4,\), expected channels x height x width"):
        array_to_datum(np.zeros(4))
