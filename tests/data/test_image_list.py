"""Lists of images: how lines are read, what resizing gives, and every way a list can be wrong."""

from __future__ import annotations

import cv2
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from poseidon.data.image_list import ImageList, ImageOptions
from poseidon.errors import DataError
from tests.data.make import png, result_or_error

RNG = np.random.RandomState(3)
IMAGE = RNG.randint(0, 256, (6, 9, 3), np.uint8)


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def write_list(text: str) -> str:
    with open("list.txt", "w", newline="", encoding="utf-8", errors="surrogateescape") as file:
        file.write(text)
    return "list.txt"


def listed(text: str) -> list[tuple[str, int]]:
    return ImageList(write_list(text), ImageOptions())._lines


def test_the_last_space_separates():
    assert listed("a.png 3\nmy dog.png -1\n b  c.png +07\n") == [("a.png", 3), ("my dog.png", -1), (" b  c.png", 7)]


def test_blank_lines_at_the_end_and_carriage_returns():
    assert listed("a.png 3\r\nb.png 4\r\n\r\n \n") == [("a.png", 3), ("b.png", 4)]


def test_names_that_are_not_utf8(tmp_path):
    name = b"caf\xe9.png"
    (tmp_path / "list.txt").write_bytes(name + b" 5\n")
    with open(name, "wb") as file:
        file.write(png(IMAGE))
    assert np.array_equal(ImageList("list.txt", ImageOptions()).get(0).pixels, IMAGE)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "list.txt: the list is empty; expected lines of the form `path label`"),
        ("\n\n", "list.txt: the list is empty"),
        ("a.png 1\n\nb.png 2\n", "list.txt:2: expected `path label` with an integer label, got ''"),
        ("a.png 1\nb.png\n", "list.txt:2: expected `path label` with an integer label, got 'b.png'"),
        ("a.png 1.5\n", "list.txt:1: expected `path label` with an integer label, got 'a.png 1.5'"),
        ("a.png 1 \n", "list.txt:1: expected `path label`"),
        ("a.png\t1\n", "list.txt:1: expected `path label`"),
        (" 1\n", "list.txt:1: expected `path label`"),
        ("a.png 99999999999\n", "list.txt:1: label 99999999999 is out of range"),
    ],
)
def test_wrong_lists(text, message):
    with pytest.raises(DataError) as raised:
        listed(text)
    assert str(raised.value).startswith(message)


def test_missing_list():
    with pytest.raises(DataError, match=r"none.txt: cannot be read \(No such file or directory\)"):
        ImageList("none.txt", ImageOptions())


def test_missing_and_damaged_images(tmp_path):
    (tmp_path / "junk.png").write_bytes(b"junk")
    (tmp_path / "folder.png").mkdir()
    images = ImageList(write_list("gone.png 0\njunk.png 1\nfolder.png 2\nnull\0.png 3\n"), ImageOptions("./"))
    with pytest.raises(DataError, match=r"list.txt:1: ./gone.png: cannot be read \(No such file.*joined as they are"):
        images.get(0)
    with pytest.raises(DataError, match=r"list.txt:2: ./junk.png: not an image OpenCV can decode \(4 bytes"):
        images.get(1)
    with pytest.raises(DataError, match=r"list.txt:3: ./folder.png: cannot be read \(Is a directory\)$"):
        images.get(2)
    with pytest.raises(DataError, match=r"list.txt:4: .*not a path, it holds a null character"):
        images.get(3)


def test_root_folder_is_put_in_front_as_it_is(tmp_path):
    (tmp_path / "pre_a.png").write_bytes(png(IMAGE))
    assert ImageList(write_list("a.png 1\n"), ImageOptions("pre_")).get(0).label == 1


def test_color_gray_and_size(tmp_path):
    (tmp_path / "a.png").write_bytes(png(IMAGE))
    path = write_list("a.png 1\n")
    assert np.array_equal(ImageList(path, ImageOptions()).get(0).pixels, IMAGE)
    gray = ImageList(path, ImageOptions(color=False)).get(0)
    assert gray.pixels.shape == (6, 9, 1)
    same = ImageList(path, ImageOptions(new_size=(6, 9))).get(0)
    assert np.array_equal(same.pixels, IMAGE)
    small = ImageList(path, ImageOptions(color=False, new_size=(4, 5))).get(0)
    assert small.shape == (1, 4, 5)


def bilinear(image: np.ndarray, height: int, width: int) -> np.ndarray:
    """The definition: pixel centres at halves, edges held."""
    out = np.empty((height, width, image.shape[2]))
    for y in range(height):
        for x in range(width):
            v = np.clip((y + 0.5) * image.shape[0] / height - 0.5, 0, image.shape[0] - 1)
            u = np.clip((x + 0.5) * image.shape[1] / width - 0.5, 0, image.shape[1] - 1)
            top, left = int(v), int(u)
            bottom, right = min(top + 1, image.shape[0] - 1), min(left + 1, image.shape[1] - 1)
            a, b = v - top, u - left
            upper = image[top, left] * (1 - b) + image[top, right] * b
            lower = image[bottom, left] * (1 - b) + image[bottom, right] * b
            out[y, x] = upper * (1 - a) + lower * a
    return out


@pytest.mark.parametrize(("height", "width"), [(12, 5), (3, 20), (1, 1), (7, 9)])
def test_resizing_is_bilinear(tmp_path, height, width):
    (tmp_path / "a.png").write_bytes(png(IMAGE))
    got = ImageList(write_list("a.png 1\n"), ImageOptions(new_size=(height, width))).get(0).pixels
    assert abs(got.astype(float) - bilinear(IMAGE, height, width)).max() <= 1


@given(st.text(st.characters(codec="utf-8"), max_size=60))
def test_any_text_is_a_list_or_our_error(text):
    lines, error = result_or_error(lambda: listed(text))
    if lines is None:
        assert error.startswith("list.txt")
    else:
        assert lines
        assert all(name and isinstance(label, int) for name, label in lines)


def test_pixels_are_in_opencvs_order(tmp_path):
    blue = np.zeros((2, 2, 3), np.uint8)
    blue[..., 0] = 255
    cv2.imwrite(str(tmp_path / "blue.png"), blue)
    assert ImageList(write_list("blue.png 0\n"), ImageOptions()).get(0).pixels[0, 0].tolist() == [255, 0, 0]


def test_devices_are_not_read():
    images = ImageList(write_list("/dev/zero 3\n"), ImageOptions())
    with pytest.raises(DataError, match="/dev/zero: a device, which may be read for ever; expected an image file"):
        images.get(0)
