"""Probe: the same facts on every worker, from the right workers, within its limits. No figure of speed is asserted."""

from __future__ import annotations

import math

import pytest
import torch

from poseidon.transport import probe as probing
from poseidon.transport.inproc import InprocTransport, run_workers
from poseidon.transport.probe import LinkFacts, probe
from tests.transport import jobs
from tests.workers import WorkerPool

pytestmark = pytest.mark.xdist_group("workers")
MB = 1 << 20


@pytest.fixture(autouse=True)
def _small(monkeypatch):
    monkeypatch.setattr(probing, "LEAST_BYTES", 2 * MB)
    monkeypatch.setattr(probing, "MOST_BYTES", 4 * MB)
    monkeypatch.setattr(probing, "SHARE_S", 0.0)


class Listing(InprocTransport):
    """Notes who sends how much to whom."""

    def __init__(self, inner: InprocTransport) -> None:
        self.__dict__.update(inner.__dict__)
        self.large: dict[int, int] = {}

    def send(self, tensor: torch.Tensor, to: int, tag: int):
        if tensor.nbytes >= probing.PIECE_BYTES:
            self.large[to] = self.large.get(to, 0) + tensor.nbytes
        return super().send(tensor, to, tag)


def test_one_worker_of_each_host_measures_its_nic():
    """Five workers on three hosts: 0 and 1 on a, 2 on b, 3 and 4 on c. Bytes go 0 → 2 → 3 → 0."""

    def work(inner: InprocTransport) -> tuple[LinkFacts, dict[int, int]]:
        transport = Listing(inner)
        return probe(transport), transport.large

    answers = run_workers(5, work, hosts=["a", "a", "b", "c", "c"])
    facts = answers[0][0]
    assert all(found == facts for found, _ in answers)
    assert (facts.num_workers, facts.num_hosts) == (5, 3)
    assert 2 * MB <= facts.probed_bytes <= 4 * MB
    moved = answers[0][1][2]
    assert [large for _, large in answers] == [{2: moved}, {}, {3: moved}, {0: moved}, {}]
    num_passes, left = divmod(moved - MB, facts.probed_bytes)
    assert probing.NUM_PASSES <= num_passes <= probing.MOST_PASSES
    assert left == 0
    assert 0 < facts.latency_s < 10
    assert 0 < facts.overhead_s <= facts.latency_s
    assert 0 < facts.bandwidth_bps < math.inf
    assert 0 < facts.gather_share <= 1
    assert 0 < facts.push_share <= 1


@pytest.mark.parametrize(
    ("tries", "expected"),  # of two workers; all they may try, and how many tries the best takes, with its time
    [
        ([(2.0, 1.0)] * 16, (4, 2.0)),  # the first is not beaten: the least number
        (
            [(9, 1), (8, 1), (7, 1), (6, 1), (5, 1), (5, 1), (5, 1), (5, 1), (1, 1)],
            (8, 5.0),
        ),  # it gets better, then not
        ([(1, 9), (9, 1), (9, 9), (9, 9), (9, 9), (0, 0)], (5, 1.0)),  # another is disturbed in each try
        ([(1.0 - number / 32, 0.5) for number in range(16)], (16, 1.0 - 15 / 32)),  # for ever better: the most
    ],
)
def test_a_link_is_tried_as_long_as_it_shows_itself_faster(tries, expected):
    def work(transport: InprocTransport) -> tuple[int, float]:
        seconds = [pair[transport.rank] for pair in tries]
        left = iter(seconds)
        best_s = probing._best_s(transport, lambda: next(left))
        return len(seconds) - len(list(left)), best_s

    assert run_workers(2, work) == [expected, expected]


def test_on_a_single_host_all_workers_take_part():
    def work(inner: InprocTransport) -> set[int]:
        transport = Listing(inner)
        probe(transport, hosts=[0, 0, 0])
        return set(transport.large)

    assert run_workers(3, work, hosts=["a", "b", "c"]) == [{1}, {2}, {0}]


def test_one_worker_has_no_links():
    facts = run_workers(1, probe)[0]
    assert facts == LinkFacts(1, 1, 0.0, math.inf, 0)
    assert str(facts) == "1 workers on 1 hosts, 0 µs per message"


def test_over_sockets(worker_pool: WorkerPool):
    facts = worker_pool.results(jobs.measure_links, 3)
    assert facts[0] == facts[1] == facts[2]
    assert facts[0]["hosts"] == 1
    assert 0 < facts[0]["latency_s"] < 10


@pytest.mark.parametrize(
    ("bytes_per_s", "expected"),
    [
        (1e5, 1 * MB),  # 0.8 Mbit/s: the least
        (12.5e6, 4 * MB),  # 100 Mbit/s: as much as LIMIT_S allows
        (117.5e6, 22 * MB),  # 1 Gbit/s: TARGET_S
        (60e6, 16 * MB),  # in between: the least that gives a good figure
        (1e10, 64 * MB),  # the most
    ],
)
def test_the_amount_follows_the_speed(monkeypatch, bytes_per_s, expected):
    monkeypatch.undo()
    assert probing._amount(bytes_per_s) == expected


def test_text():
    facts = LinkFacts(num_workers=8, num_hosts=4, latency_s=85e-6, bandwidth_bps=938e6, probed_bytes=1)
    assert str(facts) == "8 workers on 4 hosts, 85 µs per message, 938 Mbit/s per NIC each way"
