"""compute_image_mean: Caffe's files bit for bit, floats, encoded records, bad input."""

from __future__ import annotations

import struct

import numpy as np
import pytest

from poseidon.errors import DataError
from poseidon.spec import caffe_pb2
from poseidon.tools.image_mean import compute_image_mean
from tests.tools.kit import DATA, DATA_CASES, Told, golden_case, write_lmdb


@pytest.mark.parametrize("name", DATA_CASES)
def test_the_file_and_the_lines_are_caffes(name, tmp_path):
    meta = golden_case(name, tmp_path)
    told = Told()
    compute_image_mean(str(tmp_path / "db"), meta["backend"], str(tmp_path / "mean"), told)
    assert (tmp_path / "mean").read_bytes() == (DATA / name / "mean.binaryproto").read_bytes()
    assert [line for line in told.lines if "mean_value" in line] == [f"I {line}" for line in meta["mean_value_lines"]]
    assert "I Processed 20 files." in told.lines


def float_record(number: int, values: list[float], shape: tuple[int, int, int]) -> tuple[bytes, bytes]:
    channels, height, width = shape
    datum = caffe_pb2.Datum(channels=channels, height=height, width=width, float_data=values)
    return b"%08d" % number, datum.SerializeToString()


def test_floats_are_added_in_single_precision(tmp_path):
    values = [[1e8, 0.1], [1.0, 0.2], [1.0, 0.3]]
    write_lmdb(tmp_path / "db", [float_record(n, row, (1, 1, 2)) for n, row in enumerate(values)])
    mean = compute_image_mean(str(tmp_path / "db"), "lmdb", None, Told())

    def single(x: float) -> float:
        return struct.unpack("f", struct.pack("f", x))[0]

    expected = []
    for column in range(2):
        total = 0.0
        for row in values:
            total = single(total + single(row[column]))
        expected.append(single(total / 3))
    assert mean.image.ravel().tolist() == expected
    assert expected[0] == single(1e8 / 3)  # the ones are lost, as in Caffe
    assert not (tmp_path / "mean").exists()


def test_records_of_other_sizes(tmp_path):
    write_lmdb(tmp_path / "db", [float_record(0, [1, 2], (1, 1, 2)), float_record(1, [1, 2], (1, 2, 1))])
    with pytest.raises(DataError, match="Incorrect data field size: 1 x 2 x 1, expected 1 x 1 x 2"):
        compute_image_mean(str(tmp_path / "db"), "lmdb", str(tmp_path / "mean"), Told())
    assert not (tmp_path / "mean").exists()


def test_bad_databases(tmp_path):
    write_lmdb(tmp_path / "empty", [])
    write_lmdb(tmp_path / "other", [(b"0", b"\xff\xff\xff")])
    for path, backend, expected in (
        ("nowhere", "lmdb", "nowhere: no such LMDB"),
        ("empty", "lmdb", "the database is empty"),
        ("other", "lmdb", "not a Datum"),
        ("empty", "leveldb", r"empty: expected leveldb, found lmdb; give --backend=lmdb"),
    ):
        with pytest.raises(DataError, match=expected):
            compute_image_mean(str(tmp_path / path), backend, None, Told())


def test_means_of_channels(tmp_path):
    pixels = np.random.RandomState(1).randint(0, 256, (4, 3, 5, 6)).astype(np.uint8)
    records = [
        (b"%08d" % n, caffe_pb2.Datum(channels=3, height=5, width=6, data=image.tobytes()).SerializeToString())
        for n, image in enumerate(pixels)
    ]
    write_lmdb(tmp_path / "db", records)
    mean = compute_image_mean(str(tmp_path / "db"), "lmdb", None, Told())
    assert mean.num_records == 4
    assert np.allclose(mean.channels, pixels.mean((0, 2, 3)), rtol=1e-6)
