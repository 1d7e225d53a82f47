"""A data set in the memory of all workers: every record exactly once per epoch, whoever keeps it, in a global order."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import torch

from poseidon.data import memory_share
from poseidon.data.memory_share import spread
from poseidon.data.shard import Order, Share, Stream
from poseidon.data.source import Record
from poseidon.errors import DataError
from poseidon.transport.collectives import all_gather
from tests.transport.onesided.ends import KINDS, on_each


class Numbers:
    """Record i: an array of i's, whose shape and type depend on i too."""

    def __init__(self, first: int, count: int) -> None:
        self.path, self._first, self._count = "numbers", first, count

    def __len__(self) -> int:
        return self._count

    def get(self, index: int) -> Record:
        number = self._first + index
        kind = (np.uint8, np.float32)[number % 2]
        return Record(f"number {number}", number - 3, np.full((1, 2, 1 + number % 5), number, kind), number % 3 == 0)

    def close(self) -> None:
        """Nothing to close."""


def gatherer(transport):
    def gather(tensor: torch.Tensor) -> torch.Tensor:
        rows = tensor.new_empty(transport.size, tensor.numel())
        rows[transport.rank] = tensor.reshape(-1)
        all_gather(transport, list(rows)).wait()
        return rows.view(transport.size, *tensor.shape)

    return gather


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("is_part", [False, True])
def test_every_record_exactly_once_per_epoch(monkeypatch, kind, is_part):
    monkeypatch.setattr(memory_share, "CHUNK_BYTES", 64)  # several segments on each worker
    size, total, batch, epochs = 3, 50, 2, 3
    parts = [range(20), range(20, 21), range(21, 50)]

    def act(end, transport):
        own = parts[end.rank]
        source = Numbers(own[0], len(own)) if is_part else Numbers(0, total)
        share = spread(source, end, gatherer(transport), number=2, is_part=is_part)
        transport.barrier(10)
        assert len(share) == total
        stream = Stream(share, Order(total, 0, lambda epoch: 1000 + epoch))
        ledger: list[list[int]] = [[] for _ in range(epochs)]
        for start in range(0, epochs * total, batch * size):
            samples = Share(end.rank, size).samples(start, batch)
            stream.announce(samples)
            for sample in samples:
                record = stream.record(sample)
                number = int(record.pixels.flat[0])
                expected = Numbers(0, total).get(number)
                assert (record.label, record.planar) == (expected.label, expected.planar)
                assert record.pixels.dtype == expected.pixels.dtype
                assert np.array_equal(record.pixels, expected.pixels)
                if sample < epochs * total:
                    ledger[sample // total].append(number)
        transport.barrier(10)
        return ledger

    found = on_each(kind, size, act)
    orders = []
    for epoch in range(epochs):
        read = Counter(number for ledger in found for number in ledger[epoch])
        assert read == Counter(range(total))
        orders.append([ledger[epoch] for ledger in found])
    assert orders[0] != orders[1]
    if not is_part:  # records move between workers: what one keeps, others read
        assert {number % size for number in found[0][0]} == set(range(size))


def test_what_cannot_be_kept():
    class Words(Numbers):
        def get(self, index: int) -> Record:
            return Record("word 0", 0, np.zeros((1, 1, 1), np.int16), True)

    def act(end, transport):
        with pytest.raises(DataError, match="word 0: records kept in memory are bytes or floats, got int16"):
            spread(Words(0, 3), end, gatherer(transport), number=0, is_part=False)

    on_each("inproc", 1, act)
