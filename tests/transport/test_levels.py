"""Workers of nodes: collectives on all levels against loops, on any nodes, in any order of sessions."""

from __future__ import annotations

import random
import threading

import pytest
import torch
from torch import Tensor

from poseidon.errors import PeerLost, TransportError
from poseidon.transport import Transport, levels, node
from poseidon.transport.cargo import Narrowing, Room, Table
from poseidon.transport.collectives import all_gather, exchange_slices, gather_tables, reduce_shards, shards_of
from poseidon.transport.inproc import run_workers
from poseidon.transport.levels import share_nodes
from poseidon.transport.probe import probe_memory
from tests.transport.contract import values

NODES = ((0, 0), (0, 1, 1), (0, 1, 0), (0, 0, 1, 1), (0, 1, 0, 2, 2, 2), (1, 0, 0, 1))


def shared(transport: Transport, nodes: tuple[int, ...]) -> Transport:
    sharing = share_nodes(transport, nodes)
    assert sharing.problem == ""
    return sharing.transport


@pytest.fixture
def small_slots(monkeypatch):
    """Everything takes many rounds, and slots serve again and again."""
    monkeypatch.setattr(node, "SLOT_BYTES", 4096)


@pytest.mark.parametrize("nodes", NODES, ids=str)
@pytest.mark.parametrize("num_elems", [1, 5, 4099])
def test_collectives_agree_with_loops(small_slots, nodes, num_elems):
    size = len(nodes)

    def work(flat: Transport) -> None:
        transport = shared(flat, nodes)
        total = sum(values(rank, num_elems, torch.float64) for rank in range(size))
        for tag in range(3):
            tensor = values(transport.rank, num_elems, torch.float64)
            transport.all_reduce(tensor).wait()
            assert torch.equal(tensor, total)

            tensor = values(transport.rank, num_elems, torch.float64)
            shards = shards_of(tensor, size)
            reduce_shards(transport, shards, tag=tag).wait()
            assert torch.equal(shards[transport.rank], shards_of(total, size)[transport.rank])

            lengths = [0 if rank == 1 else num_elems + rank for rank in range(size)]
            blocks = [values(r, n) if r == transport.rank else torch.zeros(n) for r, n in enumerate(lengths)]
            all_gather(transport, blocks, tag=tag).wait()
            assert all(
                torch.equal(block, values(r, n)) for r, (block, n) in enumerate(zip(blocks, lengths, strict=True))
            )

            outgoing = [values(transport.rank * size + i, num_elems + i * transport.rank) for i in range(size)]
            incoming = [torch.zeros(num_elems + i * transport.rank) for i in range(size)]
            exchange_slices(transport, outgoing, incoming, tag=tag).wait()
            for i, part in enumerate(incoming):
                assert torch.equal(part, values(i * size + transport.rank, num_elems + i * transport.rank))

    run_workers(size, work)


def joined_rows(tables):
    return Table(tuple(torch.cat(columns) for columns in zip(*(table.columns for table in tables), strict=True)))


@pytest.mark.parametrize("nodes", NODES, ids=str)
def test_tables_are_combined_on_each_node(nodes):
    """Worker r has r + 1 rows with its number in them; combining puts them one below the other."""
    size = len(nodes)

    def work(flat: Transport) -> list[list[int]]:
        transport = shared(flat, nodes)
        rank = transport.rank
        own = Table((torch.full((rank + 1,), rank, dtype=torch.int32), torch.full((rank + 1, 3), float(rank))))
        gathered = gather_tables(transport, own, joined_rows, tag=2)
        gathered.work.wait()
        for table in gathered.tables:
            assert torch.equal(table.columns[1], table.columns[0].double().float().view(-1, 1).expand(-1, 3))
        return [table.columns[0].tolist() for table in gathered.tables]

    order = list(dict.fromkeys(nodes))
    expected = [[rank for rank in range(size) if nodes[rank] == n for _ in range(rank + 1)] for n in order]
    assert run_workers(size, work) == [expected] * size


@pytest.mark.parametrize("nodes", [(0, 1), (0, 1, 2), (0, 0, 1)], ids=str)
def test_tables_of_any_length_find_room(nodes):
    """Lengths that grow, shrink, vanish and come back, of each worker by itself, in rooms made for those before."""
    size = len(nodes)
    lengths = [[5 * (rank + 1), 5 * (rank + 1), 40, 41, 0, 3 + rank, 200 * rank, 7] for rank in range(size)]

    def work(flat: Transport) -> list[list[list[float]]]:
        transport, room, found = shared(flat, nodes), Room(), []
        for step, number in enumerate(lengths[transport.rank]):
            rows = torch.arange(number, dtype=torch.int32) + 1000 * transport.rank + 7 * step
            own = Table((rows, torch.stack([rows.double(), -rows.double(), rows.double() / 2], 1)))
            gathered = gather_tables(transport, own, joined_rows, tag=step % 2, room=room)
            gathered.work.wait()
            for table in gathered.tables:
                whole = table.columns[0].double()
                assert torch.equal(table.columns[1], torch.stack([whole, -whole, whole / 2], 1))
            found.append([table.columns[0].tolist() for table in gathered.tables])
        return found

    order = list(dict.fromkeys(nodes))
    expected = [
        [
            [1000 * r + 7 * step + i for r in range(size) if nodes[r] == node for i in range(lengths[r][step])]
            for node in order
        ]
        for step in range(len(lengths[0]))
    ]
    assert run_workers(size, work) == [expected] * size


def test_tables_may_be_empty():
    def work(flat: Transport) -> list[int]:
        transport = shared(flat, (0, 0, 1))
        own = Table((torch.zeros(0, dtype=torch.int32), torch.zeros(0, 3)))
        gathered = gather_tables(transport, own, lambda tables: tables[0])
        gathered.work.wait()
        return [table.num_rows for table in gathered.tables]

    assert run_workers(3, work) == [[0, 0]] * 3


@pytest.mark.parametrize("nodes", [(0, 0, 1), (0, 1, 1), (0, 1, 2)], ids=str)
def test_only_what_crosses_between_nodes_is_narrowed(nodes):
    """A node's sum is narrowed by its first worker; what workers of one node give each other keeps its width."""
    narrowed: list[tuple[int, int]] = []

    def work(flat: Transport) -> Tensor:
        transport = shared(flat, nodes)

        def narrow(owner: int, shard: Tensor) -> Tensor:
            narrowed.append((transport.rank, owner))
            return shard.to(torch.bfloat16)

        tensor = torch.full((6,), 1 + 2.0**-12)
        shards = shards_of(tensor, 3)
        reduce_shards(transport, shards, narrowing=Narrowing(torch.bfloat16, narrow)).wait()
        return shards[transport.rank].double()

    found = run_workers(3, work)
    leaders = {nodes.index(number) for number in nodes}
    assert {(rank, owner) for rank in leaders for owner in range(3) if nodes[owner] != nodes[rank]} == set(narrowed)
    full = 1 + 2.0**-12
    for owner, shard in enumerate(found):
        own = nodes.count(nodes[owner]) * full
        others = sum(
            torch.tensor(nodes.count(n) * full).to(torch.bfloat16).double().item()
            for n in set(nodes)
            if n != nodes[owner]
        )
        assert shard.tolist() == [own + others] * 2


def test_sessions_may_come_in_any_order_on_each_worker(small_slots):
    """Many more at once than lanes are warm, started in another order everywhere, from several threads."""
    nodes, num_tags = (0, 0, 0), 40

    def work(flat: Transport) -> None:
        transport = shared(flat, nodes)
        tags = list(range(num_tags))
        random.Random(transport.rank).shuffle(tags)
        works = {}

        def start(some: list[int]) -> None:
            for tag in some:
                blocks = [torch.full((3000 + tag,), float(r * 100 + tag)) for r in range(3)]
                for rank in range(3):
                    if rank != transport.rank:
                        blocks[rank].zero_()
                works[tag] = (blocks, all_gather(transport, blocks, tag=tag))

        threads = [threading.Thread(target=start, args=(tags[part::2],)) for part in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for tag, (blocks, work) in works.items():
            work.wait()
            assert all(bool((block == rank * 100 + tag).all()) for rank, block in enumerate(blocks))

    run_workers(3, work)


def test_all_reduces_keep_their_order_among_nodes():
    def work(flat: Transport) -> None:
        transport = shared(flat, (0, 0, 1))
        tensors = [torch.full((1 + 5000 * (number % 2),), float(number)) for number in range(30)]
        works = [transport.all_reduce(tensor) for tensor in tensors]
        for number, (tensor, work) in enumerate(zip(tensors, works, strict=True)):
            work.wait()
            assert bool((tensor == 3 * number).all())

    run_workers(3, work)


# -- what can go wrong ------------------------------------------------------------------------------------------------
def test_workers_alone_on_their_nodes_share_nothing():
    def work(transport: Transport) -> bool:
        sharing = share_nodes(transport, (0, 1))
        return sharing.transport is transport and sharing.problem == ""

    assert run_workers(2, work) == [True, True]


def test_if_one_cannot_share_all_use_the_network(monkeypatch):
    def refuse(word: str, timeout_s: float):
        raise TransportError("cannot fetch this host's shared memory: no way")

    monkeypatch.setattr(levels, "fetch", refuse)
    monkeypatch.setattr(levels, "SHARE_S", 0.1)

    def work(transport: Transport) -> str:
        sharing = share_nodes(transport, (0, 0, 1))
        assert sharing.transport is transport
        return sharing.problem

    problems = run_workers(3, work)
    assert len(set(problems)) == 1
    assert problems[0].startswith("rank 0 (host ")
    assert "did not fetch its shared memory" in problems[0]


def test_if_a_leader_has_nothing_to_offer_nobody_waits_for_it(monkeypatch):
    class Broken:
        def __init__(self) -> None:
            raise TransportError("no local sockets here")

    monkeypatch.setattr(levels, "Counter", Broken)
    found = run_workers(3, lambda transport: share_nodes(transport, (0, 0, 1)), timeout_s=20)
    assert [sharing.transport.levels for sharing in found] == [None] * 3
    assert {sharing.problem for sharing in found} == {f"{found[0].transport.peers[0]}: no local sockets here"}


@pytest.mark.parametrize("loser", [0, 1, 2])
def test_who_fails_while_others_wait_in_memory_is_named(loser):
    def work(flat: Transport) -> tuple[int, ...]:
        transport = shared(flat, (0, 0, 0))
        if transport.rank == loser:
            transport.abort("the cat sat on the cable")
            return (loser,)
        blocks = [torch.zeros(4) for _ in range(3)]
        with pytest.raises(PeerLost, match="the cat sat on the cable") as caught:
            all_gather(transport, blocks).wait()
        return caught.value.ranks

    assert run_workers(3, work) == [(loser,)] * 3


def test_memory_is_measured_alike_by_all():
    def work(flat: Transport) -> tuple[float | None, float | None]:
        return probe_memory(flat), probe_memory(shared(flat, (0, 0, 1)))

    found = run_workers(3, work)
    assert found == [found[0]] * 3
    assert found[0][0] is None
    assert found[0][1] > 0
