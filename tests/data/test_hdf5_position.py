"""Rows of HDF5 files after a seek, against the same rows read without one."""

from __future__ import annotations

import h5py
import numpy as np
import pytest

from poseidon.data.hdf5 import Hdf5Rows

LENGTHS = (5, 3, 7)  # no divisor in common with the batches and workers below


@pytest.fixture
def source(tmp_path):
    first = 0
    for index, length in enumerate(LENGTHS):
        with h5py.File(tmp_path / f"{index}.h5", "w") as file:
            file["x"] = np.arange(first, first + length, dtype=np.float32)
        first += length
    listing = tmp_path / "list.txt"
    listing.write_text("".join(f"{tmp_path / str(i)}.h5\n" for i in range(len(LENGTHS))))
    return listing


def opened(source, seed, rank, num_workers):
    rows = Hdf5Rows(source, ["x"], shuffle_seed=seed)
    rows.shard(rank, num_workers)
    return rows


@pytest.mark.parametrize("seed", [None, 7])
@pytest.mark.parametrize("num_workers", [1, 4])
@pytest.mark.parametrize("num_batches", [0, 1, 2, 9])
def test_seek_goes_on_where_another_reader_stood(source, seed, num_workers, num_batches):
    for rank in range(num_workers):
        uninterrupted = opened(source, seed, rank, num_workers)
        for _ in range(num_batches):
            uninterrupted.take(2)
        resumed = opened(source, None if seed is None else 99, rank, num_workers)
        resumed.take(3)
        resumed.seek(uninterrupted.position, seed)
        for _ in range(12):
            np.testing.assert_array_equal(resumed.take(2)[0], uninterrupted.take(2)[0])
            assert resumed.position == uninterrupted.position


def test_in_file_order_the_position_is_the_next_row(source):
    rows = Hdf5Rows(source, ["x"])
    rows.seek(2 * sum(LENGTHS) + 6, None)
    np.testing.assert_array_equal(rows.take(4)[0], [6, 7, 8, 9])


def test_all_workers_stand_at_the_same_position_and_a_single_one_can_go_on(source):
    workers = [opened(source, 3, rank, 3) for rank in range(3)]
    alone = opened(source, 3, 0, 1)
    for _ in range(4):
        shares = np.stack([worker.take(2)[0] for worker in workers], axis=1)
        np.testing.assert_array_equal(shares.reshape(-1), alone.take(6)[0])
    assert {worker.position for worker in workers} == {alone.position}
    other = opened(source, 3, 0, 1)
    other.seek(workers[1].position, 3)
    np.testing.assert_array_equal(other.take(5)[0], alone.take(5)[0])
