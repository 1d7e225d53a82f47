"""The transformer against a plain loop over pixels, for every combination of layout, size and option."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from poseidon.data.mean import read_mean
from poseidon.data.source import Record
from poseidon.data.transformer import Cut, Transformer, TransformOptions
from poseidon.errors import DataError
from poseidon.spec import caffe_pb2

RNG = np.random.RandomState(5)


def record_of(pixels: np.ndarray, planar: bool) -> Record:
    """A record of channels × height × width pixels, in either layout."""
    return Record("here", 1, pixels if planar else np.ascontiguousarray(pixels.transpose(1, 2, 0)), planar)


def by_hand(pixels: np.ndarray, cut: Cut, options: TransformOptions, dtype) -> np.ndarray:
    channels = len(pixels)
    out = np.empty((channels, cut.height, cut.width), dtype)
    for c, y, x in itertools.product(range(channels), range(cut.height), range(cut.width)):
        value = dtype(pixels[c, cut.top + y, cut.left + x])
        if options.mean is not None:
            value = value - dtype(options.mean[c, cut.top + y, cut.left + x])
        elif options.mean_values:
            value = value - dtype(options.mean_values[c % len(options.mean_values)])
        out[c, y, cut.width - 1 - x if cut.mirrored else x] = value * dtype(options.scale)
    return out


@given(st.data())
def test_against_a_plain_loop(data):
    channels = data.draw(st.sampled_from([1, 2, 3, 4, 6]))
    height, width = data.draw(st.integers(1, 6)), data.draw(st.integers(1, 6))
    planar = channels in (2, 6) or data.draw(st.booleans())
    as_floats = planar and data.draw(st.booleans())
    pixels = RNG.randint(0, 256, (channels, height, width)).astype(np.float32 if as_floats else np.uint8)
    means = data.draw(st.sampled_from(["none", "one", "each", "file"]))
    options = TransformOptions(
        crop_size=data.draw(st.integers(0, min(height, width))),
        random_crop=data.draw(st.booleans()),
        mirror=data.draw(st.booleans()),
        scale=data.draw(st.sampled_from([1.0, 0.00390625, -0.3])),
        mean=RNG.rand(channels, height, width).astype(np.float32) * 200 if means == "file" else None,
        mean_values=tuple(RNG.rand({"one": 1, "each": channels}.get(means, 0)).astype(np.float32).tolist()),
    )
    transformer = Transformer(options)
    record = record_of(pixels, planar)
    key = data.draw(st.integers(0, 2**63 - 1))
    dtype = data.draw(st.sampled_from([np.float32, np.float64]))
    for _ in range(2):  # the second time in scratch memory that is already in use
        batch = np.full((2, *transformer.shape(record)), np.nan, dtype)
        transformer.write(record, key, batch[1])
        wanted = by_hand(pixels, transformer.cut(record, key), options, dtype)
        assert batch.shape[1:] == wanted.shape
        np.testing.assert_array_equal(batch[1], wanted)
        assert np.isnan(batch[0]).all()


def test_the_centre_in_test_phase():
    transformer = Transformer(TransformOptions(crop_size=3))
    cut = transformer.cut(record_of(np.zeros((1, 6, 9), np.uint8), True), 12345)
    assert (cut.top, cut.left, cut.mirrored) == (1, 3, False)


def test_crops_and_mirrors_are_uniform():
    transformer = Transformer(TransformOptions(crop_size=3, random_crop=True, mirror=True))
    record = record_of(np.zeros((1, 5, 6), np.uint8), True)
    keys = np.random.RandomState(0).randint(0, 2**62, 24000, dtype=np.int64)
    counts: dict[Cut, int] = {}
    for key in keys.tolist():
        cut = transformer.cut(record, key)
        counts[cut] = counts.get(cut, 0) + 1
    assert {(cut.top, cut.left) for cut in counts} == {(y, x) for y in range(3) for x in range(4)}
    assert len(counts) == 24  # 3 × 4 places, mirrored or not: 1000 of each, ± 5 standard deviations
    assert all(abs(count - 1000) < 155 for count in counts.values())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (TransformOptions(crop_size=5), "here: crop_size 5 needs at least 5 x 5 pixels, got 4 x 6"),
        (
            TransformOptions(mean=np.zeros((3, 4, 5), np.float32)),
            "here: expected 3 x 4 x 5 .* as the mean_file has, got 3",
        ),
        (TransformOptions(mean_values=(1.0, 2.0)), "here: has 3 channels, but transform_param has 2 mean_value; give"),
    ],
)
def test_what_does_not_fit(options, message):
    with pytest.raises(DataError, match=message):
        Transformer(options).shape(record_of(np.zeros((3, 4, 6), np.uint8), True))


def test_another_shape_than_the_first_of_the_batch():
    transformer = Transformer(TransformOptions())
    with pytest.raises(
        DataError, match=r"here: expected 3 x 4 x 6 .* as the first record of its batch, got 1 x 4 x 6;"
    ):
        transformer.write(record_of(np.zeros((1, 4, 6), np.uint8), False), 0, np.empty((3, 4, 6), np.float32))


class TestMeanFile:
    VALUES = np.arange(24, dtype=np.float32)

    def write(self, tmp_path, blob) -> str:
        path = tmp_path / "mean.binaryproto"
        path.write_bytes(blob if isinstance(blob, bytes) else blob.SerializeToString())
        return str(path)

    @pytest.mark.parametrize(
        "shape",
        [
            {"num": 1, "channels": 2, "height": 3, "width": 4},
            {"shape": caffe_pb2.BlobShape(dim=[2, 3, 4])},
            {"shape": caffe_pb2.BlobShape(dim=[1, 2, 3, 4])},
        ],
    )
    @pytest.mark.parametrize("field", ["data", "double_data"])
    def test_shapes(self, tmp_path, shape, field):
        mean = read_mean(self.write(tmp_path, caffe_pb2.BlobProto(**shape, **{field: self.VALUES})))
        assert mean.dtype == np.float32
        assert np.array_equal(mean, self.VALUES.reshape(2, 3, 4))

    @pytest.mark.parametrize(
        ("blob", "message"),
        [
            (b"\xff\xff", r"mean.binaryproto: not a BlobProto.* \(mean_file\)"),
            (b"", r"mean.binaryproto: .* \(mean_file\)"),
            (caffe_pb2.BlobProto(num=2, channels=3, height=2, width=2, data=[0] * 24), r"image, .* got 2 x 3 x 2 x 2 "),
            (caffe_pb2.BlobProto(num=1, channels=3, height=2, width=2, data=[0] * 5), r"found 5 values, expected 12 "),
            (caffe_pb2.BlobProto(num=1, channels=0, height=2, width=2), r"expected one mean image, .* got 0 x 2 x 2 "),
            (caffe_pb2.BlobProto(num=1, channels=1 << 30, height=1 << 30, width=1 << 30), r"found 0 values, expected"),
        ],
    )
    def test_damaged(self, tmp_path, blob, message):
        with pytest.raises(DataError, match=message):
            read_mean(self.write(tmp_path, blob))

    def test_missing(self):
        with pytest.raises(DataError, match=r"nowhere: .*\(mean_file\)"):
            read_mean("nowhere")
