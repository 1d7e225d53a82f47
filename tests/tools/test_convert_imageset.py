"""convert_imageset: Caffe's own databases byte for byte; images written by hand; bad input; interruptions."""

from __future__ import annotations

import cv2
import numpy as np
import pytest

from poseidon.data.database import BACKENDS
from poseidon.errors import DataError, UsageError
from poseidon.tools.convert_imageset import ConvertOptions, convert_imageset
from tests.tools.kit import DATA, DATA_CASES, Told, datums, golden_case, read_database, write_images


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def convert(told=None, lines: str | None = None, here=None, **options):
    if lines is not None:
        (here / "list.txt").write_text(lines)
    return convert_imageset("images/", "list.txt", "made", ConvertOptions(**options), told or Told())


def planes(pixels: np.ndarray) -> bytes:
    """All of blue row by row, then green, then red."""
    height, width, channels = pixels.shape
    return bytes(pixels[h, w, c] for c in range(channels) for h in range(height) for w in range(width))


# -- Caffe's own ------------------------------------------------------------------------------------------------------
OPTIONS = {
    "leveldb_color_raw_compacted": {"backend": "leveldb"},
    "leveldb_gray_raw_log": {"backend": "leveldb", "gray": True},
    "lmdb_color_png_encoded": {"encoded": True},
    "lmdb_color_raw": {},
    "lmdb_color_resized": {"new_size": (8, 9), "check_size": True},
}


@pytest.mark.parametrize("name", DATA_CASES)
def test_records_are_caffes(name, here):
    meta = golden_case(name, here)
    made = convert(**OPTIONS[name])
    assert (made.num_written, made.num_left_out) == (meta["count"], 0)
    assert read_database(here / "made", meta["backend"]) == read_database(here / "db", meta["backend"])


@pytest.mark.parametrize("name", [name for name in DATA_CASES if name.startswith("lmdb")])
def test_an_lmdb_is_caffes_file(name, here):
    golden_case(name, here)
    convert(**OPTIONS[name])
    assert (here / "made" / "data.mdb").read_bytes() == (DATA / name / "db" / "data.mdb").read_bytes()


def test_a_leveldbs_log_is_caffes(here):
    golden_case("leveldb_gray_raw_log", here)
    convert(gray=True, backend="leveldb")
    logs = [path.read_bytes() for path in (here / "made").glob("*.log")]
    assert logs == [(DATA / "leveldb_gray_raw_log" / "db" / "000003.log").read_bytes()]


# -- what is stored ---------------------------------------------------------------------------------------------------
SIZES = {"a.png": (5, 7), "b c.png": (3, 4), "d.JPG": (8, 8), "e.bmp": (2, 9)}
LINES = "a.png 3\nb c.png -1\nd.JPG 70000000\ne.bmp 0\n"


@pytest.mark.parametrize("backend", BACKENDS)
def test_pixels_as_planes(backend, here):
    made = write_images(here / "images", SIZES)
    convert(lines=LINES, here=here, backend=backend)
    found = datums(here / "made", backend)
    assert list(found) == ["00000000_a.png", "00000001_b c.png", "00000002_d.JPG", "00000003_e.bmp"]
    assert [datum.label for datum in found.values()] == [3, -1, 70000000, 0]
    for key, datum in found.items():
        name = key[9:]
        assert (datum.channels, datum.height, datum.width) == (3, *SIZES[name])
        assert datum.HasField("encoded")
        assert not datum.encoded
        if not name.endswith("JPG"):
            assert datum.data == planes(made[name])


def test_gray(here):
    made = write_images(here / "images", {"a.png": (5, 7)})
    convert(lines="a.png 1\n", here=here, gray=True)
    (datum,) = datums(here / "made").values()
    assert (datum.channels, datum.height, datum.width) == (1, 5, 7)
    blue, green, red = (made["a.png"][:, :, c].astype(float) for c in range(3))
    expected = 0.299 * red + 0.587 * green + 0.114 * blue
    assert np.abs(np.frombuffer(datum.data, np.uint8).reshape(5, 7) - expected).max() <= 1


def test_resized(here):
    (here / "images").mkdir()
    pixels = np.zeros((4, 4, 3), np.uint8)
    pixels[:, 2:] = 200
    cv2.imwrite("images/a.png", pixels)
    convert(lines="a.png 1\n", here=here, new_size=(2, 8))
    (datum,) = datums(here / "made").values()
    # Bilinear on pixel centres: new pixel i lies at (i + 1/2) / 2 - 1/2 of the old ones.
    assert (datum.height, datum.width) == (2, 8)
    assert list(datum.data[:8]) == [0, 0, 0, 50, 150, 200, 200, 200]


@pytest.mark.parametrize(
    ("options", "stays"),
    [
        ({"encoded": True}, ["a.png", "b.jpg", "c.JPEG"]),
        ({"encoded": True, "gray": True}, ["a.png", "b.jpg", "c.JPEG"]),
        ({"encode_type": "png"}, ["a.png"]),
        ({"encode_type": "jpg"}, ["b.jpg", "c.JPEG"]),
        ({"encoded": True, "encode_type": "PNG"}, ["a.png"]),
        ({"encoded": True, "new_size": (4, 5)}, []),
    ],
)
def test_image_files_stay_what_they_are(options, stays, here):
    sizes = {"a.png": (5, 7), "b.jpg": (5, 7), "c.JPEG": (6, 7)}
    write_images(here / "images", sizes)
    convert(lines="".join(f"{name} 2\n" for name in sizes), here=here, **options)
    found = {key[9:]: datum for key, datum in datums(here / "made").items()}
    for name, datum in found.items():
        assert datum.encoded
        assert datum.label == 2
        assert not datum.HasField("channels")
        assert (datum.data == (here / "images" / name).read_bytes()) == (name in stays)
        decoded = cv2.imdecode(np.frombuffer(datum.data, np.uint8), cv2.IMREAD_UNCHANGED)
        assert decoded.shape[:2] == (options.get("new_size") or sizes[name])


def test_encoded_again_in_gray(here):
    write_images(here / "images", {"a.png": (5, 7)})
    convert(lines="a.png 1\n", here=here, encode_type="bmp", gray=True)
    (datum,) = datums(here / "made").values()
    assert datum.data[:2] == b"BM"
    assert cv2.imdecode(np.frombuffer(datum.data, np.uint8), cv2.IMREAD_UNCHANGED).shape == (5, 7)


def test_shuffling_takes_every_line_once(here):
    made = write_images(here / "images", {f"{n}.png": (2, 2) for n in range(30)})
    lines = "".join(f"{n}.png {n}\n" for n in range(30))
    convert(lines=lines, here=here, shuffle=True, seed=5)
    found = datums(here / "made")
    assert [int(key[:8]) for key in found] == list(range(30))
    order = [datum.label for datum in found.values()]
    assert sorted(order) == list(range(30))
    assert order != list(range(30))
    assert all(datum.data == planes(made[f"{datum.label}.png"]) for datum in found.values())
    (here / "made").rename(here / "first")
    convert(here=here, shuffle=True, seed=5)
    assert [datum.label for datum in datums(here / "made").values()] == order


def test_names_that_are_no_utf8_keep_their_bytes(here):
    write_images(here / "images", {"a.png": (2, 2)})
    (here / "images" / "a.png").rename(here / "images" / "\udce4.png")
    (here / "list.txt").write_bytes(b"\xe4.png 1\r\n\n")
    convert()
    assert [key for key, _ in read_database(here / "made", "lmdb")] == [b"00000000_\xe4.png"]


def test_more_than_a_commit(here):
    write_images(here / "images", {"a.png": (40, 40)})
    told = Told()
    convert(told, lines="a.png 1\n" * 2500, here=here)
    assert len(read_database(here / "made", "lmdb")) == 2500
    assert [line for line in told.lines if "Processed" in line] == [
        "I Processed 1000 files.",
        "I Processed 2000 files.",
        "I Processed 2500 files.",
    ]
    assert told.steps[-1] == ("converting", 2500, 2500)


# -- bad input --------------------------------------------------------------------------------------------------------
def test_what_cannot_be_read_is_told_and_left_out(here):
    write_images(here / "images", {"a.png": (2, 2), "d.png": (2, 2)})
    (here / "images" / "b.png").write_bytes(b"\x89PNG but not really")
    told = Told()
    made = convert(told, lines="a.png 0\nb.png 1\nc.png 2\nd.png 3\n", here=here)
    assert (made.num_written, made.num_left_out) == (2, 2)
    assert list(datums(here / "made")) == ["00000000_a.png", "00000003_d.png"]
    wrong = [line for line in told.lines if line.startswith("E")]
    assert len(wrong) == 2
    assert "images/b.png" in wrong[0]
    assert wrong[1].startswith("E Could not open or find file images/c.png")


def test_strict_ends_there(here):
    write_images(here / "images", {"a.png": (2, 2)})
    with pytest.raises(DataError, match=r"Could not open or find file images/c\.png"):
        convert(lines="a.png 0\nc.png 2\n", here=here, strict=True)
    assert sorted(path.name for path in here.iterdir()) == ["images", "list.txt"]


def test_sizes_are_checked_on_request(here):
    write_images(here / "images", {"a.png": (2, 3), "b.png": (3, 2)})
    lines = "a.png 0\nb.png 1\n"
    with pytest.raises(DataError, match=r"images/b\.png: Incorrect data field size: 3 x 3 x 2, expected 3 x 2 x 3"):
        convert(lines=lines, here=here, check_size=True)
    assert not (here / "made").exists()
    convert(here=here, check_size=True, new_size=(2, 2))
    assert len(datums(here / "made")) == 2


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ("", "list.txt: the list is empty"),
        ("a.png\n", r"list.txt:1: expected `path label` with an integer label, got 'a.png'"),
        ("a.png 0\na.png x\n", r"list.txt:2: expected `path label`"),
        ("a.png 0\n\na.png 1\n", r"list.txt:2: expected `path label`"),
        ("a.png 2147483648\n", r"list.txt:1: label 2147483648 is out of range"),
        ("b.png 0\nc.png 1\n", r"list.txt: none of its 2 images can be read; the first one: .*images/b\.png"),
        (f"{'x' * 600}.png 0\n", r"none of its 1 images"),
    ],
)
def test_lists_that_cannot_be_used(lines, expected, here):
    write_images(here / "images", {"a.png": (2, 2)})
    with pytest.raises(DataError, match=expected):
        convert(lines=lines, here=here)
    assert sorted(path.name for path in here.iterdir()) == ["images", "list.txt"]


def test_keys_too_long_for_lmdb(here):
    folder = here / "images" / ("f" * 200) / ("g" * 200)
    write_images(folder, {f"{'x' * 200}.png": (2, 2)})
    name = f"{'f' * 200}/{'g' * 200}/{'x' * 200}.png"
    with pytest.raises(DataError, match="LMDB takes 1 to 511"):
        convert(lines=f"{name} 1\n", here=here)
    assert not (here / "made").exists()
    convert(here=here, backend="leveldb")
    assert list(datums(here / "made", "leveldb")) == [f"00000000_{name}"]


def test_nothing_is_overwritten(here):
    write_images(here / "images", {"a.png": (2, 2)})
    (here / "made").write_text("mine")
    with pytest.raises(DataError, match="made: exists already; remove it, or give another name"):
        convert(lines="a.png 0\n", here=here)
    assert (here / "made").read_text() == "mine"
    with pytest.raises(DataError, match="cannot be made, there is no folder"):
        convert_imageset("images/", "list.txt", "no/where", ConvertOptions(), Told())


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"backend": "lmbd"}, r"unknown database backend 'lmbd' \(did you mean 'lmdb'\?\)"),
        ({"encode_type": "nonsense"}, "OpenCV cannot encode images as 'nonsense'"),
    ],
)
def test_options_that_mean_nothing(options, expected):
    with pytest.raises(UsageError, match=expected):
        ConvertOptions(**options)


# -- interruptions ----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("backend", BACKENDS)
def test_interrupted_it_leaves_nothing(backend, here):
    write_images(here / "images", {f"{n}.png": (2, 2) for n in range(40)})
    lines = "".join(f"{n}.png {n}\n" for n in range(40))
    with pytest.raises(KeyboardInterrupt):
        convert(Told(interrupt_at=25), lines=lines, here=here, backend=backend)
    assert sorted(path.name for path in here.iterdir()) == ["images", "list.txt"]


def test_what_a_killed_run_left_is_in_nobodys_way(here):
    write_images(here / "images", {"a.png": (2, 2)})
    (here / ".made.partial" / "database").mkdir(parents=True)
    (here / ".made.partial" / "database" / "data.mdb").write_bytes(b"half")
    convert(lines="a.png 0\n", here=here)
    assert sorted(path.name for path in here.iterdir()) == ["images", "list.txt", "made"]
