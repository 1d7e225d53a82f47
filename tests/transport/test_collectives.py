"""Collectives: bytes against the formulas of the schemes, and that nothing depends on arrival."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from poseidon.errors import TransportError
from poseidon.transport import collectives, cutting
from poseidon.transport.base import Transport
from poseidon.transport.collectives import all_gather, exchange_slices, reduce_shards, shards_of, sum_in_pairs
from poseidon.transport.faulty import Faults, FaultyTransport
from poseidon.transport.inproc import InprocTransport, run_workers

# K rows of factors per worker, an M×N weight; divisible by every P below, so that the formulas are exact.
K, M, N = 6, 48, 120
S, L = min(M, N), max(M, N)


def ring(transport: Transport) -> None:
    transport.all_reduce(torch.ones(M * N)).wait()


def server(transport: Transport) -> None:
    shards = shards_of(torch.ones(M * N), transport.size)
    reduce_shards(transport, shards).wait()
    all_gather(transport, shards).wait()


def factors(transport: Transport) -> None:
    all_gather(transport, [torch.ones(K * (M + N)) for _ in range(transport.size)]).wait()


def factor_server(transport: Transport) -> None:
    slices = [torch.ones(K * S + K * L // transport.size) for _ in range(transport.size)]
    exchange_slices(transport, slices, [torch.empty_like(part) for part in slices]).wait()
    all_gather(transport, shards_of(torch.ones(M * N), transport.size)).wait()


def rows(transport: Transport, touched: int = 9) -> None:
    all_gather(transport, [torch.ones(touched * (N + 1)) for _ in range(transport.size)]).wait()


FORMULAS = {
    ring: lambda P: 8 * M * N * (P - 1) / P,
    server: lambda P: 8 * M * N * (P - 1) / P,
    factors: lambda P: 4 * K * (M + N) * (P - 1),
    factor_server: lambda P: 4 * (P - 1) * (K * S + K * L / P) + 4 * M * N * (P - 1) / P,
    rows: lambda P: 4 * (P - 1) * 9 * (N + 1),
}


@pytest.mark.parametrize("size", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("scheme", FORMULAS, ids=lambda scheme: scheme.__name__)
def test_bytes_are_those_of_the_schemes(scheme, size):
    def work(transport: InprocTransport) -> tuple[int, int]:
        scheme(transport)
        return transport.bytes_sent, transport.bytes_received

    expected = FORMULAS[scheme](size)
    assert run_workers(size, work) == [(expected, expected)] * size


@pytest.mark.parametrize("size", range(1, 10))
def test_sums_in_pairs(size):
    """The sum of all, the same bits everywhere; each message counted: pairs, and guests beyond a power of two."""

    def work(transport: InprocTransport) -> tuple[torch.Tensor, int]:
        values = torch.randn(33, generator=torch.Generator().manual_seed(transport.rank))
        sum_in_pairs(transport, values).wait()
        return values, transport.bytes_sent

    found = run_workers(size, work)
    exact = sum(torch.randn(33, generator=torch.Generator().manual_seed(rank)).double() for rank in range(size))
    for values, _ in found:
        assert torch.equal(values, found[0][0])
    torch.testing.assert_close(found[0][0].double(), exact, rtol=0, atol=1e-5)
    num_even = max(2**k for k in range(4) if 2**k <= size)
    num_rounds = next(k for k in range(4) if 2**k == num_even)
    pairs, guests = num_even * num_rounds, size - num_even
    assert sum(sent for _, sent in found) == (pairs + 2 * guests) * 33 * 4


@pytest.mark.parametrize("direct_bytes", [0, 1 << 30], ids=["ring", "direct"])
def test_bytes_of_large_and_unequal_blocks(monkeypatch, direct_bytes):
    """Counted message by message from what the pattern says; pieces are cut so that all paths are walked."""
    monkeypatch.setattr(cutting, "DIRECT_BYTES", direct_bytes)
    monkeypatch.setattr(cutting, "MIN_PIECE_BYTES", 64)
    monkeypatch.setattr(collectives, "MAX_PIECE_BYTES", 256)
    monkeypatch.setattr(collectives, "MAX_PART_BYTES", 200)
    sizes = [1000, 0, 7, 12_345]
    is_ring = direct_bytes == 0
    around = [sum(size for i, size in enumerate(sizes) if i != (rank + 1) % 4) for rank in range(4)]
    straight = [3 * size for size in sizes]

    def work(transport: InprocTransport) -> int:
        blocks = [torch.full((size,), float(i == transport.rank) * (i + 1)) for i, size in enumerate(sizes)]
        all_gather(transport, blocks).wait()
        for i, block in enumerate(blocks):
            assert bool((block == i + 1).all())
        return transport.bytes_sent // 4

    assert run_workers(4, work) == (around if is_ring else straight)


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_any_sizes_groups_and_delays(data):
    """Random blocks, groups and faults against the obvious result; tiny pieces, so that windows fill and empty."""
    size = data.draw(st.integers(1, 5), "workers")
    group = data.draw(st.permutations(range(size)), "group")[: data.draw(st.integers(1, size), "members")]
    sizes = data.draw(st.lists(st.integers(0, 300), min_size=len(group), max_size=len(group)), "elements")
    seed = data.draw(st.integers(0, 1000), "seed")

    def contribution(rank: int, place: int) -> torch.Tensor:
        return torch.randn(sizes[place], generator=torch.Generator().manual_seed(rank * 100 + place))

    def work(inner: InprocTransport) -> None:
        transport = FaultyTransport(inner, Faults(seed, max_delay_s=0.0005))
        if transport.rank not in group:
            return
        place = group.index(transport.rank)
        shards = [contribution(transport.rank, at) for at in range(len(group))]
        reduce_shards(transport, shards, group=group, tag=1).wait()
        expected = contribution(group[0], place)
        for rank in group[1:]:
            expected = expected + contribution(rank, place)
        assert torch.equal(shards[place], expected)
        for at, shard in enumerate(shards):
            assert at == place or torch.equal(shard, contribution(transport.rank, at))
        blocks = [contribution(rank, at) if at == place else torch.zeros(sizes[at]) for at, rank in enumerate(group)]
        all_gather(transport, blocks, group=group, tag=1).wait()
        for at, rank in enumerate(group):
            assert torch.equal(blocks[at], contribution(rank, at))
        outgoing = [torch.full((sizes[at],), float(place * 10 + at)) for at in range(len(group))]
        incoming = [torch.zeros(sizes[place]) for _ in group]
        exchange_slices(transport, outgoing, incoming, group=group, tag=2).wait()
        for at, part in enumerate(incoming):
            assert bool((part == at * 10 + place).all())

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cutting, "DIRECT_BYTES", data.draw(st.sampled_from([0, 400, 1 << 30]), "direct"))
        patch.setattr(cutting, "MIN_PIECE_BYTES", 16)
        patch.setattr(collectives, "MAX_PIECE_BYTES", data.draw(st.sampled_from([16, 100, 4096]), "piece"))
        patch.setattr(collectives, "MAX_PART_BYTES", data.draw(st.sampled_from([16, 100, 4096]), "part"))
        patch.setattr(collectives, "OPEN_PIECES", data.draw(st.integers(1, 4), "open pieces"))
        patch.setattr(collectives, "OPEN_ROUNDS", data.draw(st.integers(1, 3), "open rounds"))
        run_workers(size, work)


@pytest.mark.parametrize("num_elems", [0, 1, 5, 12, 13])
def test_shards_cover_the_tensor_evenly(num_elems):
    tensor = torch.arange(num_elems)
    shards = shards_of(tensor, 4)
    assert torch.cat(shards).tolist() == list(range(num_elems))
    lengths = [len(shard) for shard in shards]
    assert max(lengths) - min(lengths) <= 1
    for shard in shards:
        shard.fill_(-1)
    assert tensor.tolist() == [-1] * num_elems


def test_a_wrong_number_of_blocks_is_refused():
    def work(transport: InprocTransport) -> None:
        with pytest.raises(TransportError, match="a group of 2 workers needs 2 blocks, got 3"):
            reduce_shards(transport, [torch.ones(1)] * 3, group=[1, 0])

    run_workers(2, work)
