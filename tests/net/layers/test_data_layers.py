"""Data, ImageData and WindowData: Caffe's batches, and the same batches whoever reads them and whenever."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import poseidon.net.layers  # noqa: F401  (registers every built-in layer)
from poseidon.errors import DataError, LayerError, UsageError
from poseidon.net.draws import Draws
from poseidon.net.layer import LayerContext
from poseidon.net.layers import prefetched
from poseidon.net.registry import layer_class
from poseidon.spec import caffe_pb2, parse
from tests.data.make import datum, encoded_datum, numbered, png, write_leveldb, write_lmdb
from tests.net.layers.build import build

FORMATS = Path(__file__).resolve().parents[2] / "golden" / "formats" / "data"
FORMAT_CASES = sorted(str(path.relative_to(FORMATS).with_suffix("")) for path in FORMATS.glob("*/nets/*.prototxt"))
RNG = np.random.RandomState(4)


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def data_layer(options: str = "", transform: str = "", tops: str = 'top: "data" top: "label"', **context):
    text = (
        f'type: "Data" {tops} data_param {{ source: "db" backend: LMDB {options} }} transform_param {{ {transform} }}'
    )
    return build(text, **context)


def image_layer(options: str = "", transform: str = "", **context):
    text = (
        f'type: "ImageData" top: "data" top: "label" image_data_param {{ source: "list.txt" {options} }} '
        f"transform_param {{ {transform} }}"
    )
    return build(text, **context)


def window_layer(options: str = "", transform: str = "crop_size: 5", **context):
    text = (
        f'type: "WindowData" top: "data" top: "label" window_data_param {{ source: "windows.txt" {options} }} '
        f"transform_param {{ {transform} }}"
    )
    return build(text, **context)


def write_images(folder: Path, count: int, size: tuple[int, ...] = (6, 7, 3)) -> None:
    lines = []
    for number in range(count):
        (folder / f"{number}.png").write_bytes(png(RNG.randint(0, 256, size, np.uint8)))
        lines.append(f"{number}.png {number}\n")
    (folder / "list.txt").write_text("".join(lines))


def write_windows(folder: Path) -> None:
    (folder / "pic.png").write_bytes(png(RNG.randint(0, 256, (12, 16, 3), np.uint8)))
    rows = [f"{1 + k % 3} {k / 10} {k % 5} {k % 4} {k % 5 + 6} {k % 4 + 5}" for k in range(10)]
    (folder / "windows.txt").write_text("# 0\npic.png\n3\n12\n16\n10\n" + "\n".join(rows) + "\n")


def labels(layer, batches: int) -> list[int]:
    return [int(label) for _ in range(batches) for label in layer()[1]]


# -- Caffe's own figures ---------------------------------------------------------------------------------------------
@pytest.mark.parametrize("case", FORMAT_CASES)
def test_batches_as_caffe_reads_them(case, monkeypatch):
    folder, _, name = case.split("/")
    if folder.startswith("leveldb"):
        pytest.importorskip("plyvel")
    monkeypatch.chdir(FORMATS / folder)
    before = sorted(path.name for path in Path("db").iterdir())
    net = parse(Path(f"nets/{name}.prototxt").read_text(), caffe_pb2.NetParameter(), name)
    record = np.load(f"nets/{name}.npz")
    layer = layer_class("Data")(net.layer[0], LayerContext(caffe_pb2.TEST))
    layer.setup([])
    shapes = layer.reshape([])
    atol = float(record["atol"]) if "atol" in record.files else 1e-5
    num_batches = len({key.split("/")[1] for key in record.files if key.startswith("seq/")})
    assert num_batches > 1
    for k in range(num_batches):
        got = layer()
        for top, shape, blob in zip(got, shapes, ("data", "label"), strict=True):
            want = record[f"seq/{k}/{blob}"]
            assert tuple(top.shape) == shape == want.shape
            np.testing.assert_allclose(top.numpy(), want, rtol=1e-4, atol=atol)
    layer.close()
    assert sorted(path.name for path in Path("db").iterdir()) == before


# -- order, workers, resuming ----------------------------------------------------------------------------------------
def test_round_and_round(here):
    write_lmdb(here / "db", numbered(5))
    assert labels(data_layer("batch_size: 3"), 4) == [0, 1, 2, 3, 4, 0, 1, 2, 3, 4, 0, 1]


def test_a_batch_larger_than_the_database(here):
    write_lmdb(here / "db", numbered(2))
    assert labels(data_layer("batch_size: 5"), 1) == [0, 1, 0, 1, 0]


def test_without_labels(here):
    write_lmdb(here / "db", numbered(2))
    layer = data_layer("batch_size: 2", tops='top: "data"')
    assert layer.reshape([]) == [(2, 1, 1, 1)]
    assert layer().flatten().tolist() == [0, 1]


LAYERS = {
    "Data": lambda size, **context: data_layer(f"batch_size: {size}", "crop_size: 3 mirror: true", **context),
    "ImageData": lambda size, **context: image_layer(
        f"batch_size: {size} shuffle: true rand_skip: 5", "crop_size: 4 mirror: true", **context
    ),
    "WindowData": lambda size, **context: window_layer(
        f"batch_size: {size} fg_fraction: 0.5 context_pad: 1", "crop_size: 5 mirror: true", **context
    ),
}


@pytest.fixture(scope="module")
def everything(tmp_path_factory):
    folder = tmp_path_factory.mktemp("everything")
    write_lmdb(folder / "db", [encoded_datum(RNG.randint(0, 256, (6, 7, 3), np.uint8), k) for k in range(11)])
    write_images(folder, 11)
    write_windows(folder)
    return folder


def batches_of(layer, count: int) -> list[torch.Tensor]:
    return [tensor.clone() for _ in range(count) for tensor in layer()]


def assert_equal(got: list[torch.Tensor], want: list[torch.Tensor]) -> None:
    assert len(got) == len(want)
    assert all(torch.equal(one, other) for one, other in zip(got, want, strict=True))


@pytest.mark.parametrize("kind", LAYERS)
def test_the_same_batches_with_any_number_of_threads(kind, everything, monkeypatch):
    monkeypatch.chdir(everything)
    results = []
    for num_threads in (1, 4):
        monkeypatch.setattr(prefetched, "default_num_threads", lambda depth, n=num_threads: n)
        layer = LAYERS[kind](3)
        results.append(batches_of(layer, 12))
        layer.close()
    assert_equal(*results)


@pytest.mark.parametrize("kind", LAYERS)
@pytest.mark.parametrize("num_workers", [2, 3, 5])
def test_workers_together_read_what_one_reads(kind, num_workers, everything, monkeypatch):
    monkeypatch.chdir(everything)
    whole = batches_of(LAYERS[kind](2 * num_workers), 4)
    for rank in range(num_workers):
        layer = LAYERS[kind](2)
        layer.shard(rank, num_workers)
        assert_equal(batches_of(layer, 4), [tensor[rank::num_workers] for tensor in whole])


@pytest.mark.parametrize("kind", LAYERS)
@pytest.mark.parametrize("num_workers", [2, 3])
def test_workers_take_whole_batches_in_turn(kind, num_workers, everything, monkeypatch):
    monkeypatch.chdir(everything)
    alone = LAYERS[kind](3)
    whole = [batches_of(alone, 1) for _ in range(4 * num_workers)]
    for rank in range(num_workers):
        layer = LAYERS[kind](3)
        layer.shard(rank, num_workers, whole_batches=True)
        for expected in whole[rank::num_workers]:
            assert_equal(batches_of(layer, 1), expected)
        assert layer.position() == alone.position()


@pytest.mark.parametrize("kind", LAYERS)
@settings(max_examples=8, deadline=None)
@given(before=st.integers(0, 5), old=st.integers(1, 3), new=st.integers(1, 3))
def test_resuming_with_any_number_of_workers(kind, everything, before, old, new):
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(everything)
        # 6 samples per batch over all workers, before and after.
        straight = LAYERS[kind](6)
        want = batches_of(straight, before + 3)[2 * before :]
        first = LAYERS[kind](6 // old)
        first.shard(old - 1, old)
        batches_of(first, before)
        position = json.loads(json.dumps(first.position()))
        for rank in range(new):
            layer = LAYERS[kind](6 // new)
            layer.shard(rank, new)
            layer.seek(position)
            assert_equal(batches_of(layer, 3), [tensor[rank::new] for tensor in want])
            assert layer.position() == straight.position()


@pytest.mark.parametrize("kind", LAYERS)
def test_another_seed_draws_something_else(kind, everything, monkeypatch):
    monkeypatch.chdir(everything)
    one, same, other = (batches_of(LAYERS[kind](4, draws=Draws(seed)), 3) for seed in (1, 1, 2))
    assert_equal(one, same)
    assert not all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize("kind", LAYERS)
def test_seeking_back_and_closing(kind, everything, monkeypatch):
    monkeypatch.chdir(everything)
    layer = LAYERS[kind](3)
    start = layer.position()
    want = batches_of(layer, 4)
    layer.seek(start)
    assert_equal(batches_of(layer, 2), want[:4])
    layer.close()
    layer.close()
    assert_equal(batches_of(layer, 2), want[4:])
    layer.close()


def test_shuffled_epochs_hold_every_image_once(everything, monkeypatch):
    monkeypatch.chdir(everything)
    layer = image_layer("batch_size: 11 shuffle: true")
    first, second = labels(layer, 1), labels(layer, 1)
    assert sorted(first) == sorted(second) == list(range(11))
    assert len({tuple(first), tuple(second), tuple(range(11))}) == 3


def test_rand_skip_starts_later(here):
    write_lmdb(here / "db", numbered(50))
    starts = {labels(data_layer("batch_size: 1 rand_skip: 4", draws=Draws(seed)), 1)[0] for seed in range(40)}
    assert starts == {0, 1, 2, 3}


def test_parts_of_workers_without_a_common_file_system(here):
    for part, numbers in enumerate(([0, 3, 6], [1, 4], [2, 5])):
        write_lmdb(here / f"db_{part}", [datum(np.zeros((1, 1, 1), np.uint8), number) for number in numbers])
    read = []
    for rank in range(3):
        layer = data_layer("batch_size: 2 shared_file_system: false")
        layer.shard(rank, 3)
        read.append(labels(layer, 3))
        layer.seek({"sample": 6})
        assert labels(layer, 2) == read[-1][2:]
    assert read == [[0, 3, 6, 0, 3, 6], [1, 4, 1, 4, 1, 4], [2, 5, 2, 5, 2, 5]]


def test_a_layer_tells_whether_it_reads_a_part_of_its_own(here):
    for name in ("db", "db_1"):
        write_lmdb(here / name, numbered(4))
    for shared, expected in (("", False), ("shared_file_system: true", False), ("shared_file_system: false", True)):
        layer = data_layer(f"batch_size: 2 {shared}")
        layer.shard(1, 2)
        assert layer.reads_own_part is expected


def test_a_part_that_is_missing(here):
    write_lmdb(here / "db", numbered(3))
    layer = data_layer("batch_size: 2 shared_file_system: false")
    layer.shard(1, 2)
    with pytest.raises(DataError, match="db_1: no such file or folder; with shared_file_system: false worker 1 reads"):
        layer()
    with pytest.raises(UsageError, match="expected a rank from 0 to 1, got 2"):
        layer.shard(2, 2)


# -- shapes and types ------------------------------------------------------------------------------------------------
def test_each_batch_has_the_shape_of_its_first_image(here):
    write_images(here, 1, (4, 5, 3))
    (here / "wide.png").write_bytes(png(np.zeros((2, 9, 3), np.uint8)))
    (here / "list.txt").write_text("0.png 0\nwide.png 1\n")
    layer = image_layer("batch_size: 1")
    assert layer.reshape([]) == [(1, 3, 4, 5), (1,)]
    assert [tuple(layer()[0].shape) for _ in range(3)] == [(1, 3, 4, 5), (1, 3, 2, 9), (1, 3, 4, 5)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_types(here, dtype):
    write_lmdb(here / "db", [datum(np.full((1, 1, 1), 3, np.uint8), 1001)] * 3)
    spec = parse(
        'type: "Data" name: "d" top: "data" top: "label" data_param { source: "db" backend: LMDB batch_size: 2 }',
        caffe_pb2.LayerParameter(),
        "t",
    )
    layer = layer_class("Data")(spec, LayerContext(dtype=dtype))
    layer.setup([])
    data, label = layer()
    assert data.dtype == dtype
    assert data.flatten().tolist() == [3, 3]
    assert label.tolist() == [1001, 1001]  # which bfloat16 could not hold


def test_tensors_that_are_kept_stay_as_they_are(here):
    write_lmdb(here / "db", numbered(30))
    layer = data_layer("batch_size: 3 prefetch: 2")
    kept = [layer() for _ in range(10)]
    assert [label for _, batch in kept for label in batch.tolist()] == list(range(30))
    assert [value for batch, _ in kept for value in batch.flatten().tolist()] == list(range(30))


def test_force_color_and_gray(here):
    image = RNG.randint(0, 256, (3, 4, 3), np.uint8)
    write_lmdb(here / "db", [encoded_datum(image), encoded_datum(image[:, :, 0])])
    assert data_layer("batch_size: 2", "force_color: true")()[0].shape == (2, 3, 3, 4)
    assert data_layer("batch_size: 2 force_encoded_color: true")()[0].shape == (2, 3, 3, 4)
    gray = data_layer("batch_size: 2", "force_gray: true")()[0]
    assert gray.shape == (2, 1, 3, 4)
    assert abs(gray[0, 0].numpy() - cv2.cvtColor(image, cv2.COLOR_BGR2GRAY)).max() <= 1


# -- errors ----------------------------------------------------------------------------------------------------------
def test_a_bad_record_is_reported_in_its_turn_and_never_skipped(here):
    values = [made.SerializeToString() for made in numbered(6)]
    values[4] = b"\xff damaged"
    write_lmdb(here / "db", values)
    layer = data_layer("batch_size: 2")
    assert labels(layer, 2) == [0, 1, 2, 3]
    for _ in range(2):
        with pytest.raises(DataError, match=r"db: key '00000004': not a Datum"):
            layer()
    assert layer.position() == {"sample": 4}


def test_records_of_other_shapes_in_a_batch(here):
    write_lmdb(here / "db", [datum(np.zeros((3, 4, 4), np.uint8)), datum(np.zeros((3, 4, 5), np.uint8))])
    with pytest.raises(DataError, match=r"db: key '00000001': expected 3 x 4 x 4 .* got 3 x 4 x 5; records of a batch"):
        data_layer("batch_size: 2")()
    assert data_layer("batch_size: 2", "crop_size: 4")()[0].shape == (2, 3, 4, 4)
    write_lmdb(here / "mixed", [datum(np.zeros((3, 4, 4), np.uint8)), datum(np.zeros((1, 4, 4), np.uint8))])
    (here / "mixed").rename(here / "db2")
    layer = build(
        'type: "Data" top: "data" top: "label" data_param { source: "db2" backend: LMDB batch_size: 2 } '
        "transform_param { crop_size: 2 }"
    )
    with pytest.raises(DataError, match=r"db2: key '00000001': expected 3 x 2 x 2 .* got 1 x 2 x 2"):
        layer()


@pytest.mark.parametrize(
    ("options", "transform", "message"),
    [
        ("", "", "test.prototxt:7: layer 'L' \\(Data\\): batch_size must be given and at least 1"),
        ("batch_size: 2 prefetch: 0", "", "data_param.prefetch must be at least 1"),
        ("batch_size: 2", 'mean_file: "m" mean_value: 3', "has both mean_file and mean_value; give one of them"),
        ("batch_size: 2", "force_color: true force_gray: true", "has both force_color and force_gray; give one"),
    ],
)
def test_wrong_options(here, options, transform, message):
    write_lmdb(here / "db", numbered(3))
    with pytest.raises(LayerError, match=message):
        data_layer(options, transform)


def test_missing_sources(here):
    with pytest.raises(LayerError, match="source must be given"):
        build('type: "Data" top: "data" data_param { batch_size: 1 }')
    with pytest.raises(DataError, match=r"db: no such file or folder, and no part of it for this worker \(db_0\)"):
        data_layer("batch_size: 1")
    with pytest.raises(DataError, match=r"list.txt: no such file or folder"):
        image_layer("batch_size: 1")
    with pytest.raises(DataError, match=r"windows.txt: cannot be read \(No such file or directory\)"):
        window_layer("batch_size: 1")
    with pytest.raises(LayerError, match="source must be given"):
        build('type: "WindowData" top: "a" top: "b" window_data_param { batch_size: 1 }')


def test_new_size_needs_both(here):
    write_images(here, 1)
    with pytest.raises(LayerError, match="new_height and new_width go together, got 5 and 0"):
        image_layer("batch_size: 1 new_height: 5")
    assert image_layer("batch_size: 1 new_height: 5 new_width: 2").reshape([]) == [(1, 3, 5, 2), (1,)]


def test_the_default_backend_is_leveldb(here):
    pytest.importorskip("plyvel")
    write_leveldb(here / "db", numbered(3))
    layer = build('type: "Data" top: "data" top: "label" data_param { source: "db" batch_size: 2 }')
    assert labels(layer, 2) == [0, 1, 2, 0]
    layer.close()


@pytest.mark.parametrize(
    ("options", "transform", "message"),
    [
        ("batch_size: 1", "", "transform_param.crop_size must be given and at least 1"),
        ('batch_size: 1 crop_mode: "round"', "crop_size: 5", "expected crop_mode 'warp' or 'square', got 'round'"),
        ("batch_size: 1 context_pad: 3", "crop_size: 6", "context_pad must be less than half of crop_size 6, got 3"),
        ("batch_size: 1 fg_fraction: 1.5", "crop_size: 6", "fg_fraction must be from 0 to 1, got 1.5"),
        ("batch_size: 1", "crop_size: 6 mean_value: 1 mean_value: 2", "expected 1 or 3 mean_value, got 2"),
        ("batch_size: 1", 'crop_size: 6 mean_file: "mean"', r"must hold 3 x 6 x 6 values or more .*, got 3 x 5 x 6"),
    ],
)
def test_wrong_window_options(here, options, transform, message):
    write_windows(here)
    blob = caffe_pb2.BlobProto(num=1, channels=3, height=5, width=6, data=[0] * 90)
    (here / "mean").write_bytes(blob.SerializeToString())
    with pytest.raises(LayerError, match=message):
        window_layer(options, transform)


def test_a_program_ends_with_batches_still_ahead(here):
    write_lmdb(here / "db", numbered(30))
    code = (
        "from tests.net.layers.build import build\n"
        'layer = build(\'type: "Data" top: "d" top: "l" data_param {source: "db" backend: LMDB batch_size: 2}\')\n'
        "print(layer()[1].tolist())\n"
    )
    root = Path(__file__).resolve().parents[3]
    told = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
        env={"PYTHONPATH": str(root)},
    )
    assert told.stdout == "[0.0, 1.0]\n"
    assert told.stderr == ""
