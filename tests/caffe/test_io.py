"""caffe.io: messages, images, the Transformer."""

from __future__ import annotations

import cv2
import numpy as np
import pytest

import caffe
from caffe.proto import caffe_pb2
from poseidon.errors import DataError, UsageError
from tests.net.harness import GOLDEN

RNG = np.random.default_rng(4)


# -- messages -------------------------------------------------------------------------------------------------------
def test_blobs_of_both_ages():
    values = np.arange(6.0)
    old = caffe_pb2.BlobProto(data=values, num=1, channels=2, height=1, width=3)
    assert caffe.io.blobproto_to_array(old).tolist() == values.reshape(1, 2, 1, 3).tolist()
    new = caffe_pb2.BlobProto(data=values, diff=values * 2)
    new.shape.dim.extend([3, 2])
    assert caffe.io.blobproto_to_array(new).tolist() == values.reshape(3, 2).tolist()
    assert caffe.io.blobproto_to_array(new, return_diff=True).tolist() == (2 * values).reshape(3, 2).tolist()
    double = caffe_pb2.BlobProto(double_data=[0.1])
    assert caffe.io.blobproto_to_array(double) == 0.1


def test_blobs_without_a_shape():
    assert caffe.io.blobproto_to_array(caffe_pb2.BlobProto(data=[123])) == 123
    with pytest.raises(ValueError, match="reshape"):
        caffe.io.blobproto_to_array(caffe_pb2.BlobProto(data=np.zeros(100)))


def test_arrays_there_and_back():
    array, diff = RNG.random((2, 3, 4)).astype("f4"), RNG.random((2, 3, 4)).astype("f4")
    blob = caffe.io.array_to_blobproto(array, diff)
    np.testing.assert_array_equal(caffe.io.blobproto_to_array(blob), array)
    np.testing.assert_array_equal(caffe.io.blobproto_to_array(blob, True), diff)
    text = caffe.io.arraylist_to_blobprotovecor_str([array, diff[0]])
    first, second = caffe.io.blobprotovector_str_to_arraylist(text)
    np.testing.assert_array_equal(first, array)
    np.testing.assert_array_equal(second, diff[0])
    assert caffe.io.array_to_blobproto(np.float32(3)).SerializeToString() != b""


def test_the_mean_caffe_wrote():
    blob = caffe.io.caffe_pb2.BlobProto()
    path = next(GOLDEN.glob("formats/data/*/mean.binaryproto"))
    blob.ParseFromString(path.read_bytes())
    mean = caffe.io.blobproto_to_array(blob)
    assert mean.shape[0] == 1
    assert 0 < mean.mean() < 255
    assert caffe.io.blobproto_to_array(blob)[0].mean(1).mean(1).shape == mean.shape[1:2]


def test_data_there_and_back():
    pixels = RNG.integers(0, 255, (3, 4, 5), np.uint8)
    datum = caffe.io.array_to_datum(pixels, 7)
    assert (datum.channels, datum.height, datum.width, datum.label, len(datum.data)) == (3, 4, 5, 7, 60)
    back = caffe.io.datum_to_array(datum)
    np.testing.assert_array_equal(back, pixels)
    back[...] = 0  # an array of its own
    floats = caffe.io.array_to_datum(pixels / 3.0)
    assert not floats.HasField("label")
    np.testing.assert_allclose(caffe.io.datum_to_array(floats), pixels / 3.0, rtol=1e-6)
    assert len(caffe.io.array_to_datum(pixels, 1).SerializeToString()) > len(
        caffe.io.array_to_datum(pixels).SerializeToString()
    )
    with pytest.raises(ValueError, match="channels x height x width, got shape \\(4, 5\\)"):
        caffe.io.array_to_datum(pixels[0])
    with pytest.raises(ValueError, match="encoded image"):
        caffe.io.datum_to_array(caffe_pb2.Datum(encoded=True, data=b"x"))


# -- images ---------------------------------------------------------------------------------------------------------
def test_images_are_rgb_between_0_and_1(tmp_path):
    bgr = RNG.integers(0, 255, (4, 5, 3), np.uint8)
    path = str(tmp_path / "color.png")
    cv2.imwrite(path, bgr)
    image = caffe.io.load_image(path)
    assert image.dtype == np.float32
    np.testing.assert_allclose(image, bgr[:, :, ::-1] / 255, rtol=1e-6)
    gray = caffe.io.load_image(path, color=False)
    np.testing.assert_allclose(gray[:, :, 0], bgr @ [0.0721, 0.7154, 0.2125] / 255, rtol=1e-5)


def test_images_of_other_kinds(tmp_path):
    gray = RNG.integers(0, 255, (4, 5), np.uint8)
    cv2.imwrite(str(tmp_path / "gray.png"), gray)
    assert caffe.io.load_image(str(tmp_path / "gray.png"), False).shape == (4, 5, 1)
    image = caffe.io.load_image(str(tmp_path / "gray.png"))
    np.testing.assert_allclose(image, np.dstack([gray] * 3) / 255, rtol=1e-6)
    deep = RNG.integers(0, 65535, (4, 5), np.uint16)
    cv2.imwrite(str(tmp_path / "deep.png"), deep)
    np.testing.assert_allclose(caffe.io.load_image(str(tmp_path / "deep.png"), False)[:, :, 0], deep / 65535, rtol=1e-5)
    alpha = RNG.integers(0, 255, (4, 5, 4), np.uint8)
    cv2.imwrite(str(tmp_path / "alpha.png"), alpha)
    np.testing.assert_allclose(caffe.io.load_image(str(tmp_path / "alpha.png")), alpha[:, :, 2::-1] / 255, rtol=1e-6)
    with pytest.raises(FileNotFoundError, match="nothing"):
        caffe.io.load_image(str(tmp_path / "nothing.png"))
    (tmp_path / "text.png").write_text("no image")
    with pytest.raises(DataError, match="not an image"):
        caffe.io.load_image(str(tmp_path / "text.png"))


def by_hand(image, size):
    """Bilinear interpolation between pixel centres, one pixel at a time."""
    height, width = size
    made = np.zeros((height, width, image.shape[2]))
    for i in range(height):
        for j in range(width):
            y = min(max((i + 0.5) * image.shape[0] / height - 0.5, 0), image.shape[0] - 1)
            x = min(max((j + 0.5) * image.shape[1] / width - 0.5, 0), image.shape[1] - 1)
            y0, x0 = int(y), int(x)
            y1, x1 = min(y0 + 1, image.shape[0] - 1), min(x0 + 1, image.shape[1] - 1)
            upper = image[y0, x0] * (1 - x + x0) + image[y0, x1] * (x - x0)
            lower = image[y1, x0] * (1 - x + x0) + image[y1, x1] * (x - x0)
            made[i, j] = upper * (1 - y + y0) + lower * (y - y0)
    return made


@pytest.mark.parametrize("size", [(3, 4), (12, 9), (6, 5), (1, 1), (13, 2)])
@pytest.mark.parametrize("channels", [1, 3])
def test_resizing_interpolates_between_pixel_centres(size, channels):
    image = RNG.random((6, 5, channels)).astype("f4") * 300 - 40
    made = caffe.io.resize_image(image, size)
    assert made.dtype == np.float32
    np.testing.assert_allclose(made, by_hand(image, size), rtol=1e-4, atol=1e-3)


def test_resizing_other_numbers_of_channels_keeps_the_corners():
    image = RNG.random((6, 5, 2))
    made = caffe.io.resize_image(image, (11, 9))
    np.testing.assert_allclose(made[::2, ::2], image, rtol=1e-5)
    np.testing.assert_allclose(made[1, 0], (image[0, 0] + image[1, 0]) / 2, rtol=1e-5)
    assert caffe.io.resize_image(image, (1, 1))[0, 0].tolist() == image[0, 0].astype("f4").tolist()


def test_resizing_with_another_order():
    image = np.arange(12.0).reshape(2, 2, 3)
    assert (caffe.io.resize_image(image, (4, 4), 0)[:2, :2] == image[0, 0]).all()
    cubic = caffe.io.resize_image(RNG.random((8, 8, 3)), np.array([4.0, 5.0]), interp_order=3)
    assert cubic.shape == (4, 5, 3)


def test_ten_crops():
    images = RNG.random((2, 5, 7, 3)).astype("f4")
    crops = caffe.io.oversample(images, (2, 4))
    assert crops.shape == (20, 2, 4, 3)
    corners = [(0, 0), (0, 3), (3, 0), (3, 3), (1, 1)]
    for n, image in enumerate(images):
        for k, (y, x) in enumerate(corners):
            want = image[y : y + 2, x : x + 4]
            np.testing.assert_array_equal(crops[10 * n + k], want)
            np.testing.assert_array_equal(crops[10 * n + 5 + k], want[:, ::-1])


# -- Transformer ----------------------------------------------------------------------------------------------------
@pytest.fixture
def transformer():
    made = caffe.io.Transformer({"data": (10, 3, 4, 6)})
    made.set_transpose("data", (2, 0, 1))
    made.set_channel_swap("data", (2, 1, 0))
    made.set_raw_scale("data", 255)
    made.set_mean("data", np.array([104.0, 117.0, 123.0]))
    made.set_input_scale("data", 0.5)
    return made


def test_preprocess_and_back(transformer):
    image = RNG.random((4, 6, 3)).astype("f4")
    before = image.copy()
    made = transformer.preprocess("data", image)
    want = (image[:, :, ::-1].transpose(2, 0, 1) * 255 - np.array([104, 117, 123]).reshape(3, 1, 1)) * 0.5
    np.testing.assert_allclose(made, want, rtol=1e-5, atol=1e-4)
    assert made.dtype == np.float32
    np.testing.assert_array_equal(image, before)
    np.testing.assert_allclose(transformer.deprocess("data", made), image, atol=1e-5)
    np.testing.assert_allclose(transformer.deprocess("data", made[np.newaxis]), image, atol=1e-5)


def test_an_odd_swap_and_transpose_are_undone():
    made = caffe.io.Transformer({"x": (1, 3, 4, 6)})
    made.set_transpose("x", (2, 0, 1))
    made.set_channel_swap("x", (1, 2, 0))
    image = RNG.random((4, 6, 3)).astype("f4")
    np.testing.assert_array_equal(made.preprocess("x", image)[0], image[:, :, 1])
    np.testing.assert_array_equal(made.deprocess("x", made.preprocess("x", image)), image)


def test_an_image_of_another_size_is_resized(transformer):
    image = RNG.random((9, 5, 3)).astype("f4")
    made = transformer.preprocess("data", image)
    same = transformer.preprocess("data", caffe.io.resize_image(image, (4, 6)))
    np.testing.assert_array_equal(made, same)


def test_mean_images(transformer):
    mean = RNG.random((3, 4, 6))
    transformer.set_mean("data", mean)
    np.testing.assert_array_equal(transformer.mean["data"], mean)
    transformer.set_mean("data", np.full((3, 8, 8), 9.0))
    assert transformer.mean["data"].shape == (3, 4, 6)
    assert (transformer.mean["data"] == 9).all()
    with pytest.raises(ValueError, match="Mean channels incompatible with input"):
        transformer.set_mean("data", np.zeros(4))
    with pytest.raises(ValueError, match="Mean shape invalid"):
        transformer.set_mean("data", np.zeros((1, 3, 4, 6)))


def test_wrong_settings(transformer):
    with pytest.raises(UsageError, match="label is not one of the net inputs: data"):
        transformer.preprocess("label", np.zeros((4, 6, 3)))
    with pytest.raises(UsageError, match="one entry per axis of an image \\(3\\)"):
        transformer.set_transpose("data", (1, 0))
    with pytest.raises(UsageError, match="one entry per channel of 'data' \\(3\\)"):
        transformer.set_channel_swap("data", (1, 0))
