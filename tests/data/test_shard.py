"""Sharding is checked by counting: who reads what, over whole epochs, against the plain definition."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from poseidon.data.shard import Order, Share, choose_source
from poseidon.errors import DataError, UsageError

LENGTHS = st.integers(1, 40)
WORKERS = st.integers(1, 9)
BATCHES = st.integers(1, 7)


def samples_read(num_workers: int, batch_size: int, num_batches: int, start: int = 0) -> list[list[int]]:
    """The samples each worker reads in so many batches."""
    read: list[list[int]] = []
    for rank in range(num_workers):
        share = Share(rank, num_workers)
        read.append([])
        for k in range(num_batches):
            read[-1].extend(share.samples(start + k * batch_size * num_workers, batch_size))
    return read


@given(LENGTHS, WORKERS, BATCHES, st.integers(0, 50), st.booleans())
def test_every_record_once_per_epoch_over_all_workers(length, num_workers, batch_size, skip, shuffled):
    order = Order(length, skip, (lambda epoch: epoch * 7919 + 5) if shuffled else None)
    num_batches = -(-4 * length // (batch_size * num_workers))
    seen: dict[int, Counter] = {}
    for samples in samples_read(num_workers, batch_size, num_batches):
        for sample in samples:
            epoch, _ = order.place(sample)
            seen.setdefault(epoch, Counter())[order.record(sample)] += 1
    first, last = min(seen), max(seen)
    for epoch, records in seen.items():
        assert all(count == 1 for count in records.values())
        if first < epoch < last:
            assert sorted(records) == list(range(length))


@given(WORKERS, BATCHES)
def test_workers_read_what_one_worker_with_all_their_batches_reads(num_workers, batch_size):
    together = samples_read(num_workers, batch_size, 3)
    (alone,) = samples_read(1, batch_size * num_workers, 3)
    for k in range(3):
        union = [sample for samples in together for sample in samples[k * batch_size : (k + 1) * batch_size]]
        whole = alone[k * batch_size * num_workers : (k + 1) * batch_size * num_workers]
        assert sorted(union) == whole


@given(LENGTHS, WORKERS, WORKERS, BATCHES, st.integers(1, 5), st.integers(1, 5))
def test_another_number_of_workers_goes_on_without_gap_or_repetition(length, before, after, batch, first, second):
    position = before * batch * first
    read = samples_read(before, batch, first) + samples_read(after, batch, second, start=position)
    samples = sorted(sample for worker in read for sample in worker)
    assert samples == list(range(position + after * batch * second))
    order = Order(length, shuffle_key=lambda epoch: epoch)
    whole_epochs = len(samples) // length
    counts = Counter(order.record(sample) for sample in samples[: whole_epochs * length])
    assert all(count == whole_epochs for count in counts.values())


@given(WORKERS, BATCHES, st.integers(1, 5), st.integers(0, 50))
def test_whole_batches_are_those_of_one_worker(num_workers, batch_size, num_rounds, start):
    """Batch k of one worker is batch k // P of worker k mod P, sample for sample."""
    for number in range(num_rounds * num_workers):
        turn, rank = divmod(number, num_workers)
        share = Share(rank, num_workers, whole_batches=True)
        position = start + turn * batch_size * num_workers
        expected = Share().samples(start + number * batch_size, batch_size)
        assert list(share.samples(position, batch_size)) == list(expected)
        assert share.begin(position, batch_size) == expected[0]
        assert share.batch_extent(batch_size) == batch_size


def test_epochs_are_shuffled_differently_and_alike_on_every_worker():
    keys = {0: 11, 1: 12}
    one, other = (Order(50, shuffle_key=keys.__getitem__) for _ in range(2))
    first = [one.record(sample) for sample in range(50)]
    second = [one.record(sample) for sample in range(50, 100)]
    assert first != second
    assert first != sorted(first)
    assert [other.record(sample) for sample in range(99, -1, -1)] == (first + second)[::-1]


def test_the_permutation_of_a_key_never_changes():
    # Written down once: snapshots of other machines and versions depend on it.
    assert [Order(6, shuffle_key=lambda epoch: 2**40 + 3).record(s) for s in range(6)] == PERMUTATION


PERMUTATION = [1, 4, 3, 5, 2, 0]


def test_far_away_epochs_do_not_pile_up():
    order = Order(10, shuffle_key=lambda epoch: epoch)
    for epoch in range(100):
        order.record(epoch * 10)
    assert len(order._permutations) <= 2


def test_rank_is_checked():
    with pytest.raises(UsageError, match="expected a rank from 0 to 2, got 3"):
        Share(3, 3)


class TestChooseSource:
    @pytest.fixture(autouse=True)
    def here(self, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        self.folder = tmp_path

    def make(self, *names: str) -> None:
        for name in names:
            (self.folder / name).mkdir()

    def choice(self, shared, rank, num_workers):
        chosen = choose_source("db", shared, Share(rank, num_workers))
        return chosen.path, chosen.is_part

    def test_shared(self):
        self.make("db", "db_0", "db_1")
        assert self.choice(True, 1, 2) == ("db", False)

    def test_own_part(self):
        self.make("db", "db_0", "db_1")
        assert self.choice(False, 1, 2) == ("db_1", True)

    def test_not_said(self):
        self.make("db_0", "db_1")
        assert self.choice(None, 1, 2) == ("db_1", True)
        self.make("db")
        assert self.choice(None, 1, 2) == ("db", False)

    def test_alone(self):
        self.make("db_0")
        assert self.choice(False, 0, 1) == ("db_0", True)
        self.make("db")
        assert self.choice(False, 0, 1) == ("db", False)

    def test_nothing_there(self):
        with pytest.raises(DataError, match=r"db: no such file or folder, and no part of it for this worker \(db_2\)"):
            self.choice(None, 2, 4)
        with pytest.raises(DataError, match=r"db_2: no such.*worker 2 reads its own part. Deal.* db_0 to db_3, or set"):
            self.choice(False, 2, 4)


# -- unequal parts ----------------------------------------------------------------------------------------------------
@given(st.lists(st.integers(1, 9), min_size=1, max_size=6), st.integers(0, 100))
def test_unequal_parts_are_the_whole_batch(more, start):
    """Parts that add up to P times the batch size; each sample is one worker's, in order."""
    size = len(more)
    counts = (*more[:-1], more[-1] + (-sum(more)) % size)
    batch_size = sum(counts) // size
    shares = [Share(rank, size, counts=counts) for rank in range(size)]
    read = [list(share.samples(start, batch_size)) for share in shares]
    assert [len(samples) for samples in read] == [share.num_samples(batch_size) for share in shares] == list(counts)
    assert [sample for samples in read for sample in samples] == list(range(start, start + size * batch_size))
    assert {share.batch_extent(batch_size) for share in shares} == {size * batch_size}


@pytest.mark.parametrize("counts", [(1, 2, 3), (0, 4), (4,)])
def test_impossible_parts_are_refused(counts):
    with pytest.raises(UsageError, match="expected 2 counts of 1 or more samples"):
        Share(0, 2, counts=counts)
