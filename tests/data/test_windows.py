"""WindowData's parts: the file format, the warp against a direct transcription of its definition, the draws."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from poseidon.data.batch import BatchMemory
from poseidon.data.shard import Share
from poseidon.data.warp import WarpOptions, warp_of
from poseidon.data.window_file import WindowFile, WindowFileOptions
from poseidon.data.windows import WindowBatches, WindowOptions
from poseidon.errors import DataError
from tests.data.make import png, result_or_error

RNG = np.random.RandomState(8)
IMAGE = RNG.randint(0, 256, (12, 16, 3), np.uint8)
ALONE = Share()
HEADER = "# 0\npic.png\n3\n12\n16\n"
TWO = HEADER + "3\n4 0.9 2 1 6 5\n5 0.1 7 6 11 10\n6 0.55 0 0 1 1\n"


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pic.png").write_bytes(png(IMAGE))


def window_file(text: str, **options) -> WindowFile:
    with open("windows.txt", "w") as file:
        file.write(text)
    return WindowFile("windows.txt", WindowFileOptions(**options))


def test_foreground_background_and_neither():
    windows = window_file(TWO + "\n# 7\nother.png\n3\n5\n5\n1\n2 0.5 0 1 2 3\n", fg_threshold=0.6, bg_threshold=0.5)
    assert windows.foreground.tolist() == [[0, 4, 2, 1, 6, 5]]
    assert windows.background.tolist() == [[0, 0, 7, 6, 11, 10]]
    assert [image.path for image in windows.images] == ["pic.png", "other.png"]


def test_root_folder_and_cache(tmp_path):
    (tmp_path / "sub").mkdir()
    (tmp_path / "pic.png").rename(tmp_path / "sub" / "pic.png")
    windows = window_file(TWO, root_folder="sub/", cache_images=True)
    (tmp_path / "sub" / "pic.png").unlink()
    assert np.array_equal(windows.pixels(0), IMAGE)
    with pytest.raises(DataError, match=r"windows.txt:2: sub/pic.png: cannot be read \(No such file"):
        window_file(TWO, root_folder="sub/", cache_images=True)
    with pytest.raises(DataError, match=r"windows.txt:2: sub/pic.png: cannot be read \(No such file"):
        window_file(TWO, root_folder="sub/").pixels(0)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "windows.txt: the window file is empty"),
        ("\n \n", "windows.txt: the window file is empty"),
        ("0\n", "windows.txt:1: expected `# image_index`, got '0'"),
        ("# 0\n", "windows.txt:2: expected the path of an image, got 'the end of the file'"),
        ("# 0\n\n", "windows.txt:2: expected the path of an image, got 'a blank line'"),
        ("# 0\na\n1\n", "windows.txt:3: expected 3 channels (images are read in color), got '1'"),
        ("# 0\na\n3\n-5\n", "windows.txt:4: expected the height of the image, got '-5'"),
        (HEADER + "2\n1 0.5 0 0 1 1\n", "windows.txt:7: expected 2 windows, got 1; the file is truncated"),
        (HEADER + "9" * 40 + "\n", "windows.txt:6: expected 9999"),
        (HEADER + "2\n1 0.5 0 0 1 1\n1 0.5 0 0 1\n", "windows.txt:8: expected `label overlap x1 y1 x2 y2`, integers"),
        (HEADER + "1\n1 0.5 0 0 1 1 7\n", "windows.txt:7: expected `label overlap x1 y1 x2 y2`"),
        (HEADER + "1\n1 0.5 0 0 1.5 1\n", "windows.txt:7: expected `label overlap x1 y1 x2 y2`"),
        (HEADER + "1\n1 nan 0 0 1 1\n", "windows.txt:7: expected `label overlap x1 y1 x2 y2`"),
        (HEADER + "1\n1 0.5 0 0 x 1\n", "windows.txt:7: expected `label overlap x1 y1 x2 y2`"),
        (HEADER + "1\n1 0.5 0 0 1e20 1\n", "windows.txt:7: expected `label overlap x1 y1 x2 y2`"),
        (HEADER + "1\n99999999 0.5 0 0 1 1\n", "windows.txt:7: label 99999999 is out of range"),
        (HEADER + "1\n0 0.5 0 0 1 1\n", "windows.txt:2: a foreground window needs a label above 0"),
    ],
)
def test_wrong_files(text, message):
    with pytest.raises(DataError) as raised:
        window_file(text)
    assert str(raised.value).startswith(message)


@given(st.text(st.sampled_from("# 01.e-x\n"), max_size=40), st.integers(0, 70))
def test_any_text_is_a_window_file_or_our_error(text, cut):
    for damaged in (text, TWO[:cut] + text):
        windows, error = result_or_error(lambda text=damaged: window_file(text))
        if windows is None:
            assert error.startswith("windows.txt")
        else:
            assert windows.images


def square_by_definition(box, mirrored, options: WarpOptions, image: np.ndarray) -> np.ndarray | None:
    """For each pixel of the crop, whether it is covered. Written from the definition, in single precision."""
    f = np.float32
    x1, y1, x2, y2 = box
    crop = options.crop_size
    factor = f(crop) / f(crop - 2 * options.context_pad)
    half = [f((x2 - x1 + 1) / 2), f((y2 - y1 + 1) / 2)]
    middle = [f(x1) + half[0], f(y1) + half[1]]
    if options.square:
        half = [max(half), max(half)]
    covered = []
    for axis, extent in ((0, image.shape[1]), (1, image.shape[0])):
        away = lambda x: int(np.sign(x)) * int(abs(float(x)) + 0.5)  # noqa: E731
        low, high = away(middle[axis] - half[axis] * factor), away(middle[axis] + half[axis] * factor)
        scale = f(crop) / f(high - low + 1)
        before, after = max(0, -low), max(0, high - extent + 1)
        if low + before > high - after:
            return None
        visible = away(f(high - after - low - before + 1) * scale)
        start = away(f(after if mirrored and axis == 0 else before) * scale)
        covered.append([start <= p < start + visible for p in range(crop)])
    return np.outer(covered[1], covered[0])


BOXES = st.tuples(st.integers(0, 15), st.integers(0, 11), st.integers(0, 15), st.integers(0, 11)).map(
    lambda box: (min(box[0], box[2]), min(box[1], box[3]), max(box[0], box[2]), max(box[1], box[3]))
)


@given(BOXES, st.booleans(), st.integers(3, 14), st.integers(0, 4), st.booleans())
def test_what_a_window_covers(box, mirrored, crop_size, pad, square):
    pad = min(pad, (crop_size - 1) // 2)
    options = WarpOptions(crop_size, pad, square)
    warp = warp_of(box, IMAGE.shape[:2], mirrored, options)
    covered = np.zeros((crop_size, crop_size), bool)
    covered[warp.pad_top : warp.pad_top + warp.height, warp.pad_left : warp.pad_left + warp.width] = True
    if pad or square:
        assert np.array_equal(covered, square_by_definition(box, mirrored, options, IMAGE))
    else:
        assert covered.all()
        assert (warp.x1, warp.y1, warp.x2, warp.y2) == box


def test_a_worked_example():
    # A 4 × 4 window in the upper left corner, padded by 2 in a crop of 8: the factor is 2, so it grows to 9 × 9 from
    # -2 to 6. Of those, 7 × 7 are in the image, and become round(7 · 8/9) = 6 pixels after round(2 · 8/9) = 2.
    warp = warp_of((0, 0, 3, 3), (12, 16), False, WarpOptions(8, 2))
    assert (warp.x1, warp.y1, warp.x2, warp.y2) == (0, 0, 6, 6)
    assert (warp.height, warp.width, warp.pad_top, warp.pad_left) == (6, 6, 2, 2)
    mirrored = warp_of((0, 0, 3, 3), (12, 16), True, WarpOptions(8, 2))
    assert (mirrored.pad_top, mirrored.pad_left) == (2, 0)


def make(windows: WindowFile, options: WindowOptions, batch_size: int, share=ALONE, key=lambda sample: sample * 12345):
    return WindowBatches(windows, options, share, batch_size, key, BatchMemory(torch.float32))


def test_pixels_of_unscaled_windows():
    """Windows as large as the crop are copied: mean, scale and mirror by hand."""
    windows = window_file(HEADER + "2\n4 0.9 2 1 6 5\n5 0.1 7 6 11 10\n")
    mean = RNG.rand(3, 9, 9).astype(np.float32) * 100
    for options, under in (
        (WindowOptions(WarpOptions(5), 0.5, mirror=True, scale=0.5, mean=mean), mean[:, 2:7, 2:7]),
        (
            WindowOptions(WarpOptions(5), 0.5, mirror=True, mean_values=(1.5, 2, 3)),
            np.array([1.5, 2, 3])[:, None, None],
        ),
        (WindowOptions(WarpOptions(5), 0.5, scale=2), 0),
    ):
        keys = [0, 1, 2, 3]
        batch = make(windows, options, 4, key=keys.__getitem__).make(0)
        assert batch.label.tolist() == [0, 0, 4, 4]
        for i, (y, x) in enumerate([(6, 7), (6, 7), (1, 2), (1, 2)]):
            pixels = IMAGE[y : y + 5, x : x + 5].transpose(2, 0, 1).astype(np.float32)
            if options.mirror and keys[i] % 2:
                pixels = pixels[:, :, ::-1]
            np.testing.assert_array_equal(batch.data[i].numpy(), ((pixels - under) * options.scale).astype(np.float32))


def test_what_sticks_out_is_zero_also_with_a_mean():
    windows = window_file(HEADER + "1\n4 0.9 0 0 3 3\n")
    options = WindowOptions(WarpOptions(8, 2), 1.0, mean_values=(7.0,))
    data = make(windows, options, 2).make(0).data.numpy()
    assert (data[:, :, :2] == 0).all()
    assert (data[:, :, :, :2] == 0).all()
    assert (data[:, :, 2:, 2:] != 0).mean() > 0.9


def test_workers_draw_what_one_worker_draws():
    windows = window_file(TWO)
    options = WindowOptions(WarpOptions(5), 0.4, mirror=True)
    whole = make(windows, options, 6).make(12)
    for rank in range(3):
        part = make(windows, options, 2, Share(rank, 3)).make(12)
        assert torch.equal(part.data, whole.data[rank::3])
        assert torch.equal(part.label, whole.label[rank::3])
    assert (whole.label > 0).sum() == 2  # ⌊6 · 0.4⌋


def test_windows_are_drawn_evenly():
    windows = window_file(HEADER + "4\n" + "".join(f"{label} 0.9 0 0 4 4\n" for label in (1, 2, 3, 4)))
    rng = np.random.RandomState(0)
    batches = make(windows, WindowOptions(WarpOptions(5), 1.0), 400, key=lambda sample: int(rng.randint(0, 2**62)))
    counts = Counter(batches.make(0).label.tolist())
    assert sorted(counts) == [1, 2, 3, 4]
    assert all(abs(count - 100) < 45 for count in counts.values())


def test_what_cannot_be_drawn():
    windows = window_file(HEADER + "1\n4 0.9 2 1 6 5\n")
    with pytest.raises(DataError, match="has no background window, but 3 of 4 in a batch are drawn from them; look at"):
        make(windows, WindowOptions(WarpOptions(5)), 4)
    make(windows, WindowOptions(WarpOptions(5), 1.0), 4).make(0)


@pytest.mark.parametrize("box", ["10 1 20 5", "-1 0 4 4", "6 5 2 1"])
def test_windows_outside_the_image(box):
    windows = window_file(HEADER + f"1\n4 0.9 {box}\n")
    with pytest.raises(
        DataError, match=r"windows.txt:2: pic.png: window \(.*\) does not lie in the image, which has 12 x 16"
    ):
        make(windows, WindowOptions(WarpOptions(5), 1.0), 1).make(0)


def test_rounding_is_away_from_zero():
    # A 2 × 2 window in the corner, widened by 6 / 4: from 1 − 1.5 = −0.5, rounded to −1, to 2.5, rounded to 3. It is 5
    # wide then, and the column outside becomes round(1 · 6/5) = 1. Rounded to even, it would begin at 0, unpadded.
    warp = warp_of((0, 0, 1, 1), (12, 16), False, WarpOptions(6, 1))
    assert (warp.x1, warp.x2, warp.pad_left) == (0, 3, 1)
