"""The faulty wrapper: seeded, keeps the order that must be kept, drops a connection where it is told to."""

from __future__ import annotations

import pytest
import torch

from poseidon.errors import PeerLost
from poseidon.transport.completion import finished
from poseidon.transport.engine import Engine
from poseidon.transport.faulty import Drop, Faults, FaultyTransport
from poseidon.transport.inproc import InprocTransport, run_workers


class Recorder(InprocTransport):
    """Writes down the order in which operations really start."""

    def __init__(self) -> None:
        run_workers(1, lambda transport: self.__dict__.update(transport.__dict__))
        self.engine = Engine("recorder", 20.0)
        self.started: list[tuple[int, float]] = []

    def send(self, tensor, to, tag):
        self.started.append((tag, tensor[0].item()))
        return finished("a send")


def order_of(seed: int) -> list[tuple[int, float]]:
    recorder = Recorder()
    faulty = FaultyTransport(recorder, Faults(seed, max_delay_s=0.02))
    works = [faulty.send(torch.tensor([float(number)]), 1, number % 5) for number in range(20)]
    for work in works:
        work.wait()
    recorder.engine.close()
    return recorder.started


def test_channels_overtake_each_other_but_keep_their_own_order():
    started = order_of(seed=3)
    assert started != [(number % 5, float(number)) for number in range(20)]
    for tag in range(5):
        assert [value for at, value in started if at == tag] == [float(tag + 5 * turn) for turn in range(4)]


@pytest.mark.parametrize("operation", [0, 5])
def test_a_dropped_connection_is_named_everywhere(operation):
    errors = {}

    def work(inner: InprocTransport) -> None:
        transport = FaultyTransport(inner, Faults(seed=1, drop=Drop(rank=2, operation=operation)))
        try:
            for _ in range(10):
                transport.all_reduce(torch.ones(3)).wait()
        except PeerLost as error:
            errors[transport.rank] = error
            raise

    with pytest.raises(PeerLost):
        run_workers(3, work)
    assert set(errors) == {0, 1, 2}
    for error in errors.values():
        assert error.ranks == (2,)
        assert f"connection dropped on purpose at its operation {operation}" in str(error)


def test_operations_of_subgroups_count_too():
    def work(inner: InprocTransport) -> None:
        transport = FaultyTransport(inner, Faults(seed=1, drop=Drop(rank=0, operation=1)))
        transport.all_reduce(torch.ones(1)).wait()
        group = transport.subgroup([1, 0])
        assert group is not None
        group.all_reduce(torch.ones(1)).wait()

    with pytest.raises(PeerLost, match=r"rank 0 .* at its operation 1"):
        run_workers(2, work)


def test_it_passes_on_what_it_wraps():
    def work(inner: InprocTransport) -> None:
        transport = FaultyTransport(inner, Faults(seed=1))
        transport.all_reduce(torch.ones(4)).wait()
        assert (transport.rank, transport.size, transport.peers) == (inner.rank, inner.size, inner.peers)
        assert transport.kind == "faulty inproc"
        assert (transport.bytes_sent, transport.bytes_received) == (16, 16)
        transport.barrier(20.0)
        transport.close()

    run_workers(2, work)
