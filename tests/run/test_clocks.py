"""Clocks compared: workers whose clocks are off by known amounts, on a network whose delays are known too."""

from __future__ import annotations

import itertools
import time

import pytest

from poseidon.run import clocks
from poseidon.run.clocks import ClockOffset, compare_clocks
from poseidon.run.roundtable import Roundtable
from poseidon.transport.inproc import run_workers
from tests.transport.jobs import joined
from tests.worker_process import Seat

pytestmark = pytest.mark.xdist_group("workers")


class Wire:
    """Rank 0 and one other worker, as that worker sees it: every message takes the time that is next in the list."""

    rank, size = 1, 2

    def __init__(self, ahead_s: float, delays_s: list[float]) -> None:
        self.true_s, self._ahead_s, self._delays = 1000.0, ahead_s, iter(delays_s)
        self._answer_s = 0.0

    def gather_texts(self, text):
        return ["another clock", text]

    def tell(self, tensor, to):
        self.true_s += next(self._delays)
        self._answer_s = self.true_s

    def hear(self, tensor, source):
        self.true_s += next(self._delays)
        tensor.fill_(self._answer_s)

    def now(self):
        return self.true_s + self._ahead_s


def test_the_quickest_answer_counts(monkeypatch):
    """There 1 ms, back 3 ms: the middle is 1 ms late; the error stays below half the round trip of 4 ms."""
    monkeypatch.setattr(clocks, "NUM_QUESTIONS", 3)
    wire = Wire(50.0, [0.02, 0.01, 0.001, 0.003, 0.005, 0.005])
    found = compare_clocks(wire, wire.now)
    assert found.uncertainty_s == pytest.approx(0.002)
    assert found.offset_s == pytest.approx(-50.0 - 0.001)
    assert abs(found.offset_s + 50.0) <= found.uncertainty_s


@pytest.mark.parametrize("delays", list(itertools.permutations([0.0, 0.004, 0.05])))
def test_the_truth_lies_within_the_uncertainty(monkeypatch, delays):
    monkeypatch.setattr(clocks, "NUM_QUESTIONS", 3)
    wire = Wire(-3.0, [delays[0], delays[1], delays[1], delays[2], delays[2], delays[0]])
    found = compare_clocks(wire, wire.now)
    assert abs(found.offset_s - 3.0) <= found.uncertainty_s + 1e-9


def test_workers_with_one_clock_differ_by_nothing():
    """Ranks 0 and 2 name the same clock; rank 1's is 7 s ahead, rank 3's 2 s behind."""
    ahead_s = (0.0, 7.0, 0.0, -2.0)

    def work(transport):
        time_s = itertools.count(100.0, 1e-6)
        table = Roundtable(transport)
        return compare_clocks(table, lambda: next(time_s) + ahead_s[transport.rank], str(ahead_s[transport.rank]))

    found = run_workers(4, work, timeout_s=60)
    assert found[0] == found[2] == ClockOffset()
    # Everybody's clock here ticks with every look at it, so that they agree to some dozens of looks.
    assert [round(found[rank].offset_s, 3) for rank in (1, 3)] == [-7.0, 2.0]
    assert 0 < found[1].uncertainty_s < 1e-4


def test_a_process_has_one_clock():
    assert clocks.clock_name() == clocks.clock_name()
    assert len(clocks.clock_name().split()) == 2


def compare_over_sockets(seat: Seat) -> list[float]:
    """Processes of one host have one clock; here each says that its own is another, so many seconds ahead."""
    with joined(seat) as transport:
        found = compare_clocks(Roundtable(transport), lambda: time.perf_counter() + 1000 * seat.rank, str(seat.rank))
        transport.barrier(30.0)
        return [found.offset_s, found.uncertainty_s]


def test_clocks_over_real_sockets(worker_pool):
    by_rank = worker_pool.results(compare_over_sockets, 3)
    assert by_rank[0] == [0.0, 0.0]
    for rank, (offset_s, uncertainty_s) in enumerate(by_rank[1:], start=1):
        assert abs(offset_s + 1000 * rank) <= uncertainty_s
