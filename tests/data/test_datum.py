"""Datums: the records Caffe's own tool wrote, and whatever else a database may hold."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from poseidon.data.datum import DatumSource, parse_datum
from poseidon.data.lmdb import LmdbStore
from poseidon.errors import DataError
from poseidon.spec import caffe_pb2
from tests.data.make import datum, encoded_datum, result_or_error, write_lmdb

FORMATS = Path(__file__).resolve().parent.parent / "golden" / "formats" / "data"
LMDBS = sorted(path.parent.name for path in FORMATS.glob("lmdb_*/db"))


@pytest.mark.parametrize("name", LMDBS)
def test_records_of_caffes_tool(name):
    wanted = np.load(FORMATS / name / "datums.npz")
    source = DatumSource(LmdbStore(str(FORMATS / name / "db")))
    assert len(source) == sum(name.endswith("/key") for name in wanted.files)
    for index in range(len(source)):
        key, label, shape, encoded, data = (
            wanted[f"{index:02d}/{field}"] for field in ("key", "label", "shape", "encoded", "data")
        )
        record = source.get(index)
        assert record.where.endswith(f"key '{key}'")
        assert record.label == label
        assert record.planar != bool(encoded)
        if encoded:
            assert np.array_equal(record.pixels, cv2.imdecode(data, cv2.IMREAD_UNCHANGED))
        else:
            assert record.pixels.tobytes() == data.tobytes()
            assert record.pixels.shape == tuple(shape)
    source.close()


def test_float_data():
    pixels = np.linspace(-3, 9, 24, dtype=np.float32).reshape(2, 3, 4)
    record = parse_datum(datum(pixels, 7).SerializeToString(), None, "here")
    assert record.label == 7
    assert record.shape == (2, 3, 4)
    assert np.array_equal(record.pixels, pixels)


def test_bytes_win_over_floats():
    made = datum(np.arange(6, dtype=np.uint8).reshape(1, 2, 3))
    made.float_data.extend([9.0] * 6)
    assert parse_datum(made.SerializeToString(), None, "here").pixels.ravel().tolist() == [0, 1, 2, 3, 4, 5]


def test_encoded_in_color_in_gray_and_as_stored():
    image = np.random.RandomState(1).randint(0, 256, (4, 5, 3), np.uint8)
    value = encoded_datum(image).SerializeToString()
    assert np.array_equal(parse_datum(value, None, "x").pixels, image)
    assert np.array_equal(parse_datum(value, True, "x").pixels, image)
    gray = parse_datum(value, False, "x").pixels
    assert gray.shape == (4, 5, 1)
    luma = image @ np.array([0.114, 0.587, 0.299])
    assert abs(gray[:, :, 0] - luma).max() <= 1
    stored_gray = encoded_datum(image[:, :, 0]).SerializeToString()
    assert parse_datum(stored_gray, None, "x").pixels.shape == (4, 5, 1)
    in_color = parse_datum(stored_gray, True, "x").pixels
    assert all(np.array_equal(in_color[:, :, c], image[:, :, 0]) for c in range(3))


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (b"\xff\xff\xff", r"here: not a Datum \(3 bytes\); the record is damaged"),
        (b"", r"here: expected a positive size, got 0 x 0 x 0"),
        (caffe_pb2.Datum(channels=1, height=2, width=2, data=b"abc"), r"expected 4 values \(1 x 2 x 2\), got 3 bytes$"),
        (caffe_pb2.Datum(channels=1, height=2, width=2), r"expected 4 values \(1 x 2 x 2\), got 0 floats"),
        (caffe_pb2.Datum(channels=1, height=2, width=2, float_data=[1]), r"expected 4 values .*, got 1 floats"),
        (caffe_pb2.Datum(channels=-1, height=2, width=-2, data=b"ab"), r"positive size, got -1 x 2 x -2"),
        (
            caffe_pb2.Datum(channels=3, height=9, width=9, data=b"\xff\xd8\xff\xe0"),
            r"looks like an image file: set `enc",
        ),
        (caffe_pb2.Datum(encoded=True), r"here: not an image OpenCV can decode \(0 bytes\)"),
        (
            caffe_pb2.Datum(encoded=True, data=b"hello"),
            r"\(5 bytes, beginning with 68 65 6c 6c 6f\); the file is damaged",
        ),
        (caffe_pb2.Datum(channels=1, height=1, width=1, data=b"a", label=1 << 25), r"label 33554432 is out of range"),
    ],
)
def test_damaged(value, message):
    with pytest.raises(DataError, match=message):
        parse_datum(value if isinstance(value, bytes) else value.SerializeToString(), None, "here")


def test_sixteen_bits_are_refused():
    value = encoded_datum(np.full((2, 2), 4000, np.uint16)).SerializeToString()
    with pytest.raises(DataError, match="here: expected 8 bits per channel, got uint16"):
        parse_datum(value, None, "here")


def test_truncated_images_are_refused():
    image = np.random.RandomState(0).randint(0, 256, (40, 40, 3), np.uint8)
    for extension in (".png", ".jpg"):
        whole = cv2.imencode(extension, image)[1].tobytes()
        value = caffe_pb2.Datum(encoded=True, data=whole[: len(whole) * 3 // 4]).SerializeToString()
        with pytest.raises(DataError, match="here: not an image OpenCV can decode"):
            parse_datum(value, True, "here")


def check_any(value: bytes) -> None:
    """A record as protobuf itself reads it, or an error."""
    record, error = result_or_error(lambda: parse_datum(memoryview(value), None, "here"))
    if record is None:
        assert error.startswith("here: ")
        return
    whole = caffe_pb2.Datum.FromString(value)
    assert record.label == whole.label
    if not whole.encoded:
        assert record.shape == (whole.channels, whole.height, whole.width)
        if whole.data:
            assert record.pixels.tobytes() == whole.data
        else:
            np.testing.assert_array_equal(record.pixels.ravel(), np.array(whole.float_data, np.float32))


@given(st.permutations([caffe_pb2.Datum(channels=1), caffe_pb2.Datum(height=2), caffe_pb2.Datum(width=300),
                        caffe_pb2.Datum(data=b"?" * 5), caffe_pb2.Datum(data=b"x" * 600), caffe_pb2.Datum(label=9)]),
       st.integers(3, 6))  # fmt: skip
def test_fields_in_any_order_and_several_times(parts, count):
    """On the wire, messages one behind the other are one message; of a field that comes twice the last counts."""
    check_any(b"".join(part.SerializeToString() for part in parts[:count]))


@given(st.binary(max_size=200))
def test_any_bytes_are_a_record_or_our_error(value):
    check_any(value)


@given(
    st.builds(
        caffe_pb2.Datum,
        channels=st.integers(-(2**31), 2**31 - 1) | st.integers(1, 2),
        height=st.integers(-(2**31), 2**31 - 1) | st.integers(1, 3),
        width=st.integers(-(2**31), 2**31 - 1) | st.integers(1, 3),
        data=st.binary(max_size=9),
        label=st.integers(-(2**31), 2**31 - 1),
        float_data=st.lists(st.floats(width=32), max_size=9),
        encoded=st.booleans(),
    ),
    st.integers(0, 100),
    st.integers(0, 255),
)
def test_any_datum_also_with_one_byte_changed(made, at, byte):
    value = bytearray(made.SerializeToString())
    for damaged in (False, True):
        if damaged and value:
            value[at % len(value)] = byte
        check_any(bytes(value))


def test_an_empty_database(tmp_path):
    with pytest.raises(DataError, match="the database is empty; expected at least one Datum"):
        DatumSource(LmdbStore(write_lmdb(tmp_path / "db", [])))


def test_a_bad_record_is_named_by_its_key(tmp_path):
    path = write_lmdb(tmp_path / "db", [datum(np.zeros((1, 1, 1), np.uint8)), b"\xff"], key="{:03d}_cat.jpg")
    source = DatumSource(LmdbStore(path))
    source.get(0)
    with pytest.raises(DataError, match=r"db: key '001_cat.jpg': not a Datum"):
        source.get(1)
