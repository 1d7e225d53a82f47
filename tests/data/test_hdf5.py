"""Rows of HDF5 files against the arrays they were written from, and what is said about files that cannot be read."""

from __future__ import annotations

import re

import h5py
import numpy as np
import pytest

from poseidon.data.hdf5 import Hdf5Rows, write_arrays
from poseidon.errors import DataError


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(folder, name: str, **datasets) -> None:
    with h5py.File(folder / name, "w") as file:
        for dataset, value in datasets.items():
            file[dataset] = value


def listed(folder, *names: str) -> str:
    (folder / "list.txt").write_text("\n".join(names) + "\n")
    return "list.txt"


@pytest.fixture
def three_files(folder):
    """14 rows numbered through three files."""
    first = 0
    for name, length in (("a", 5), ("b", 2), ("c", 7)):
        numbers = np.arange(first, first + length)
        write(folder, f"{name}.h5", x=np.stack([numbers, -numbers], axis=1), y=numbers.astype(np.float64))
        first += length
    return listed(folder, "a.h5", "b.h5 c.h5")


@pytest.mark.parametrize("batch", [1, 3, 14, 33])
def test_rows_go_round_and_batches_span_files(three_files, batch):
    rows = Hdf5Rows(three_files, ["y", "x"])
    assert rows.row_shapes == [(), (2,)]
    for start in range(0, 100, batch):
        y, x = rows.take(batch)
        expected = np.arange(start, start + batch) % 14
        np.testing.assert_array_equal(y, expected)
        np.testing.assert_array_equal(x[:, 1], -expected)
        assert y.dtype == x.dtype == np.float32


@pytest.mark.parametrize("num_workers", [2, 3, 20])
@pytest.mark.parametrize("seed", [None, 2**62 + 5])
def test_workers_share_one_sequence_row_by_row(three_files, num_workers, seed):
    alone = Hdf5Rows(three_files, ["y"], shuffle_seed=seed)
    workers = [Hdf5Rows(three_files, ["y"], shuffle_seed=seed) for _ in range(num_workers)]
    for rank, worker in enumerate(workers):
        worker.shard(rank, num_workers)
    for _ in range(4):
        together = alone.take(2 * num_workers)[0]
        for rank, worker in enumerate(workers):
            np.testing.assert_array_equal(worker.take(2)[0], together[rank::num_workers])


@pytest.mark.parametrize("num_workers", [2, 3, 20])
@pytest.mark.parametrize("seed", [None, 2**62 + 5])
@pytest.mark.parametrize("batch", [1, 4, 9])
def test_workers_take_whole_batches_in_turn(three_files, num_workers, seed, batch):
    alone = Hdf5Rows(three_files, ["y"], shuffle_seed=seed)
    workers = [Hdf5Rows(three_files, ["y"], shuffle_seed=seed) for _ in range(num_workers)]
    for rank, worker in enumerate(workers):
        worker.shard(rank, num_workers, whole_batches=True)
    for _ in range(4):
        for worker in workers:
            np.testing.assert_array_equal(worker.take(batch)[0], alone.take(batch)[0])
    assert {worker.position for worker in workers} == {alone.position}


def test_a_share_may_change_between_batches(three_files):
    rows, alone = Hdf5Rows(three_files, ["y"]), Hdf5Rows(three_files, ["y"])
    rows.shard(1, 2, whole_batches=True)
    np.testing.assert_array_equal(rows.take(4)[0], [4, 5, 6, 7])
    alone.take(8)
    rows.shard(0, 1)
    np.testing.assert_array_equal(rows.take(9)[0], alone.take(9)[0])


def test_a_shuffled_round_keeps_files_together_and_every_row_once(three_files):
    rows = Hdf5Rows(three_files, ["y"], shuffle_seed=1)
    file_orders, row_orders = set(), set()
    for _ in range(12):
        numbers = rows.take(14)[0].astype(int).tolist()
        assert sorted(numbers) == list(range(14))
        files = ["aaaaabbccccccc"[n] for n in numbers]
        runs = [name for i, name in enumerate(files) if i == 0 or files[i - 1] != name]
        assert len(runs) == 3
        file_orders.add(tuple(runs))
        row_orders.add(tuple(n for n in numbers if n < 5))
    assert len(file_orders) > 1
    assert len(row_orders) > 3


def test_doubles_are_kept_when_asked_for(folder):
    value = np.array([1 / 3, 2 / 3])
    write(folder, "a.h5", x=value)
    assert Hdf5Rows(listed(folder, "a.h5"), ["x"], dtype=np.float64).take(2)[0].tolist() == value.tolist()


def test_booleans_and_bytes_count_as_numbers(folder):
    write(folder, "a.h5", x=np.array([True, False]), y=np.array([3, 255], np.uint8))
    x, y = Hdf5Rows(listed(folder, "a.h5"), ["x", "y"]).take(2)
    assert (x.tolist(), y.tolist()) == ([1, 0], [3, 255])


# -- what cannot be read --------------------------------------------------------------------------------------------
def fails_with(message: str, source: str, names: list[str]) -> None:
    with pytest.raises(DataError, match=re.escape(message)):
        Hdf5Rows(source, names)


def test_lists(folder):
    fails_with("nowhere.txt: cannot read the list of HDF5 files", "nowhere.txt", ["x"])
    fails_with("list.txt: the list of HDF5 files is empty", listed(folder, " "), ["x"])
    (folder / "binary.txt").write_bytes(b"\xff\xfe\x00")
    fails_with("binary.txt: cannot read the list of HDF5 files", "binary.txt", ["x"])


def test_files(folder):
    fails_with("list.txt:2: cannot open HDF5 file 'gone.h5'", listed(folder, "", "gone.h5"), ["x"])
    (folder / "text.h5").write_text("not HDF5")
    fails_with("list.txt:1: cannot open HDF5 file 'text.h5'", listed(folder, "text.h5"), ["x"])


def test_a_later_file_is_named_when_its_turn_comes(folder):
    write(folder, "a.h5", x=np.zeros((2, 3)))
    write(folder, "b.h5", x=np.zeros((2, 4)))
    rows = Hdf5Rows(listed(folder, "a.h5", "b.h5", "c.h5"), ["x"])
    with pytest.raises(
        DataError,
        match=re.escape("b.h5 (list.txt:2): rows of 'x' must have shape (3,) as in the first file, got (4,)"),
    ):
        rows.take(3)
    write(folder, "b.h5", x=np.zeros((2, 3)))
    rows = Hdf5Rows("list.txt", ["x"])
    with pytest.raises(DataError, match=re.escape("list.txt:3: cannot open HDF5 file 'c.h5'")):
        rows.take(5)


def test_datasets(folder):
    write(folder, "a.h5", x=np.zeros((2, 3)), short=np.zeros(1), one=np.float32(1), none=np.zeros((0, 2)))
    write(folder, "words.h5", x=np.array([b"a", b"b"]))
    write(folder, "group.h5", **{"x/inner": np.zeros(2)})
    source = listed(folder, "a.h5")
    fails_with("a.h5 (list.txt:1): has no dataset 'label' (datasets: none, one, short, x)", source, ["x", "label"])
    fails_with("a.h5 (list.txt:1): datasets need the same number of rows, got x 2, short 1", source, ["x", "short"])
    fails_with("a.h5 (list.txt:1): dataset 'one' needs at least one axis, got a scalar", source, ["one"])
    fails_with("a.h5 (list.txt:1): has no rows", source, ["none"])
    fails_with("words.h5 (list.txt:1): dataset 'x' must hold numbers, got type |S1", listed(folder, "words.h5"), ["x"])
    fails_with("group.h5 (list.txt:1): has no dataset 'x' (datasets: none)", listed(folder, "group.h5"), ["x"])


def test_writing_replaces_a_file_and_says_where_it_cannot(folder):
    write_arrays("o.h5", {"x": np.arange(3), "y": np.zeros(2)})
    write_arrays("o.h5", {"x": np.arange(4.0)})
    with h5py.File("o.h5", "r") as file:
        assert list(file) == ["x"]
        assert file["x"][...].tolist() == [0, 1, 2, 3]
    with pytest.raises(DataError, match=r"nowhere/o\.h5: cannot write the HDF5 file"):
        write_arrays("nowhere/o.h5", {})
