"""What every transport must do, as functions of one worker's transport that any number of workers run together.

They are called on threads over the in-process transport, plain and faulty, and in processes over c10d
(`test_contract.py`). Each checks itself against loops over Python numbers, knowing what every rank contributed; what
they return is compared between ranks by the test.
"""

from __future__ import annotations

import threading

import pytest
import torch
from torch import Tensor

from poseidon.errors import TransportError, TransportTimeout
from poseidon.transport.base import Transport
from poseidon.transport.collectives import all_gather, exchange_slices, reduce_shards, shards_of, sum_in_pairs

DTYPES = (
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.int16,
    torch.int64,
    torch.uint8,
    torch.bool,
    torch.complex64,
)


def values(rank: int, num_elems: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """What `rank` contributes: different for every rank and place, exact in every dtype."""
    return ((rank * 7 + torch.arange(num_elems) * 3) % 11).to(dtype)


def rough(rank: int, num_elems: int) -> Tensor:
    """Values whose float32 sum depends on the order of the additions."""
    generator = torch.Generator().manual_seed(rank)
    return torch.randn(num_elems, generator=generator) * 10.0 ** (rank % 4)


def sum_in_order(parts: list[Tensor]) -> Tensor:
    total = parts[0].clone()
    for part in parts[1:]:
        total = total + part
    return total


def messages_of_every_dtype_arrive(transport: Transport) -> None:
    right, left = (transport.rank + 1) % transport.size, (transport.rank - 1) % transport.size
    for tag, dtype in enumerate(DTYPES):
        incoming = torch.zeros(5, dtype=dtype)
        work = transport.recv(incoming, left, tag)
        transport.send(values(transport.rank, 5, dtype), right, tag).wait()
        work.wait()
        assert torch.equal(incoming, values(left, 5, dtype)), dtype
        assert work.done()


def a_message_goes_straight_into_a_slice(transport: Transport) -> None:
    right, left = (transport.rank + 1) % transport.size, (transport.rank - 1) % transport.size
    memory = torch.full((10,), -1.0)
    work = transport.recv(memory[3:7], left, 0)
    transport.send(values(transport.rank, 4), right, 0).wait()
    work.wait()
    assert memory.tolist() == [-1.0] * 3 + values(left, 4).tolist() + [-1.0] * 3


def tags_overtake_and_channels_keep_order(transport: Transport) -> None:
    """Rank 0 sends a1 a2 (tag 1), b1 b2 (tag 2); rank 1 receives b's first. Would hang if tags did not overtake."""
    if transport.rank == 0:
        numbers = [(1, 11.0), (1, 12.0), (2, 21.0), (2, 22.0)]
        works = [transport.send(torch.full((3,), value), 1, tag) for tag, value in numbers]
        for work in works:
            work.wait()
    elif transport.rank == 1:
        for tag, expected in ((2, 21.0), (2, 22.0), (1, 11.0), (1, 12.0)):
            incoming = torch.zeros(3)
            transport.recv(incoming, 0, tag).wait()
            assert incoming.tolist() == [expected] * 3


def an_empty_message_is_no_message(transport: Transport) -> None:
    """Nobody needs to receive it."""
    if transport.rank == 0:
        transport.recv(torch.empty(0), 1, 5).wait()
    transport.barrier(30.0)


def any_thread_may_wait(transport: Transport) -> None:
    right, left = (transport.rank + 1) % transport.size, (transport.rank - 1) % transport.size
    incoming = torch.zeros(4)
    works = [transport.recv(incoming, left, 9), transport.all_reduce(torch.ones(4))]
    woken = []
    threads = [threading.Thread(target=lambda work=work: woken.append(work.wait())) for work in works for _ in range(3)]
    for thread in threads:
        thread.start()
    transport.send(values(transport.rank, 4), right, 9).wait()
    for thread in threads:
        thread.join(30.0)
    assert woken == [None] * 6
    assert torch.equal(incoming, values(left, 4))


def a_wait_that_timed_out_can_be_repeated(transport: Transport) -> None:
    """Rank 0 is late: the others run into a timeout first, then get their message and their sum."""
    if transport.rank == 0:
        transport.barrier(30.0)
        for rank in range(1, transport.size):
            transport.send(values(rank, 4), rank, 3).wait()
        transport.all_reduce(torch.ones(4)).wait()
        return
    incoming, total = torch.zeros(4), torch.ones(4)
    message, reduction = transport.recv(incoming, 0, 3), transport.all_reduce(total)
    for work in (message, reduction):
        assert not work.done()
        with pytest.raises(TransportTimeout, match=r"not over after 0\.05 s"):
            work.wait(0.05)
    transport.barrier(30.0)
    message.wait()
    reduction.wait(30.0)
    assert message.done()
    assert reduction.done()
    assert torch.equal(incoming, values(transport.rank, 4))
    assert total.tolist() == [float(transport.size)] * 4


def a_collective_nobody_joins_holds_up_no_message(transport: Transport) -> None:
    """Messages pass while an all-reduce still waits for rank 0, and the other way round."""
    if transport.rank == 0:
        for rank in range(1, transport.size):
            transport.recv(torch.zeros(2), rank, 1).wait()
        transport.all_reduce(torch.ones(8)).wait()
        for rank in range(1, transport.size):
            transport.send(torch.ones(2), rank, 4).wait()
        return
    late = transport.recv(torch.zeros(2), 0, 4)
    reduction = transport.all_reduce(torch.ones(8))
    transport.send(torch.ones(2), 0, 1).wait()
    reduction.wait()
    late.wait()


def all_reduce_sums(transport: Transport) -> list[float]:
    """The bits are compared between ranks by the test."""
    for dtype in (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int32, torch.int64):
        tensor = values(transport.rank, 37, dtype)
        transport.all_reduce(tensor).wait()
        expected = sum_in_order([values(rank, 37, dtype) for rank in range(transport.size)])
        assert torch.equal(tensor, expected), dtype
    tensor = rough(transport.rank, 1001)
    transport.all_reduce(tensor).wait()
    expected = sum_in_order([rough(rank, 1001).double() for rank in range(transport.size)])
    assert torch.allclose(tensor.double(), expected, rtol=1e-5, atol=1e-3)
    return tensor.tolist()


def groups_reduce_and_broadcast_among_themselves(transport: Transport) -> None:
    """Ranks 0 and 2 form a group that lists 2 first; rank 1 stays out of it."""
    if transport.rank in (0, 2):
        tensor = values(transport.rank, 6)
        transport.all_reduce(tensor, [2, 0]).wait()
        assert torch.equal(tensor, values(2, 6) + values(0, 6))
        transport.broadcast(tensor.add_(transport.rank), 2, [2, 0]).wait()
        assert torch.equal(tensor, values(2, 6) + values(0, 6) + 2)
    else:
        transport.all_reduce(torch.ones(3), [transport.rank]).wait()


def broadcast_spreads_the_roots_values(transport: Transport) -> None:
    for root in range(transport.size):
        tensor = values(transport.rank, 9)
        transport.broadcast(tensor, root).wait()
        assert torch.equal(tensor, values(root, 9))


def a_barrier_names_who_is_missing(transport: Transport) -> None:
    if transport.rank == 0:
        with pytest.raises(TransportTimeout, match=r"still waiting for rank 1 \(host .*have not come") as caught:
            transport.barrier(0.1)
        assert caught.value.ranks == tuple(range(1, transport.size))
        for rank in range(1, transport.size):
            transport.send(torch.ones(1), rank, 1).wait()
    else:
        transport.recv(torch.ones(1), 0, 1).wait()
        transport.barrier(30.0)  # meets the call that timed out
    transport.barrier(30.0)


def subgroups_are_renumbered_and_apart(transport: Transport) -> None:
    """Group [2, 0] beside the whole: same tags, no mixing; rank 2 is number 0 there, and still rank 2 to its peers."""
    group = transport.subgroup([2, 0])
    assert (group is None) == (transport.rank not in (0, 2))
    works = []
    if transport.rank == 0:
        works.append(transport.send(torch.full((2,), 1.0), 2, 0))
    if group is not None:
        assert (group.rank, group.size) == (0 if transport.rank == 2 else 1, 2)
        assert [peer.rank for peer in group.peers] == [2, 0]
        tensor = values(transport.rank, 4)
        group.all_reduce(tensor).wait()
        assert torch.equal(tensor, values(2, 4) + values(0, 4))
        if group.rank == 1:
            works.append(group.send(torch.full((2,), 2.0), 0, 0))
        else:
            for channel, source, expected in ((group, 1, 2.0), (transport, 0, 1.0)):
                incoming = torch.zeros(2)
                channel.recv(incoming, source, 0).wait()
                assert incoming.tolist() == [expected] * 2
        group.barrier(30.0)
    for work in works:
        work.wait()
    again = transport.subgroup([2, 0])
    if again is not None:
        tensor = torch.ones(1)
        again.all_reduce(tensor).wait()
        assert tensor.item() == 2.0


def misuse_is_refused(transport: Transport) -> None:
    size = transport.size
    other = (transport.rank + 1) % size
    refusals = [
        (lambda: transport.send(torch.ones(2, 2), other, 0), r"contiguous tensor with one axis, got shape \(2, 2\)"),
        (lambda: transport.recv(torch.ones(4)[::2], other, 0), r"strides \(2,\)"),
        (lambda: transport.all_reduce(torch.ones(2, 2)), "contiguous tensor with one axis"),
        (lambda: transport.send(torch.ones(2), size, 0), rf"within 0 … {size - 1}, got {size}"),
        (lambda: transport.recv(torch.ones(2), transport.rank, 0), "cannot exchange messages with itself"),
        (lambda: transport.send(torch.ones(2), other, -1), "must not be negative, got -1"),
        (lambda: transport.all_reduce(torch.ones(2), [transport.rank, transport.rank]), "distinct ranks"),
        (lambda: transport.all_reduce(torch.ones(2), [other]), "does not belong"),
        (lambda: transport.broadcast(torch.ones(2), size), f"root of a broadcast must be one of .* got {size}"),
        (lambda: all_gather(transport, [torch.ones(2)]), f"needs {size} blocks, got 1"),
    ]
    for call, text in refusals:
        with pytest.raises(TransportError, match=text):
            call().wait()


def collectives_agree_with_loops(transport: Transport) -> None:
    """Sizes around the limits between small and large, pieces and blocks; unequal and empty blocks; groups."""
    size = transport.size
    for tag, num_elems in enumerate((1, 10, 40_000, 300_001)):
        sizes = [0 if place == 1 else num_elems + place * 5 for place in range(size)]
        blocks = [
            values(place, count) if place == transport.rank else torch.zeros(count) for place, count in enumerate(sizes)
        ]
        all_gather(transport, blocks, tag=tag).wait()
        for place, block in enumerate(blocks):
            assert torch.equal(block, values(place, sizes[place]))

        tensor = rough(transport.rank, num_elems)
        shards = shards_of(tensor, size)
        reduce_shards(transport, shards, tag=tag).wait()
        expected = sum_in_order([rough(rank, num_elems) for rank in range(size)])
        assert torch.equal(shards[transport.rank], shards_of(expected, size)[transport.rank])
        all_gather(transport, shards, tag=tag).wait()
        assert torch.equal(tensor, expected)

        outgoing = [values(transport.rank * size + place, num_elems + place) for place in range(size)]
        incoming = [torch.zeros(num_elems + transport.rank) for _ in range(size)]
        exchange_slices(transport, outgoing, incoming, tag=tag).wait()
        for place, part in enumerate(incoming):
            assert torch.equal(part, values(place * size + transport.rank, num_elems + transport.rank))


def sums_in_pairs_are_the_same_everywhere(transport: Transport) -> list[float]:
    """Exact where no order of additions matters; the same bits on all ranks where one does; groups; empty ones."""
    size = transport.size
    for tag, num_elems in enumerate((0, 1, 10, 40_001)):
        tensor = values(transport.rank, num_elems)
        sum_in_pairs(transport, tensor, tag=tag).wait()
        assert torch.equal(tensor, sum_in_order([values(rank, num_elems) for rank in range(size)]))
    group = [2, 0]
    if transport.rank in group:
        tensor = values(transport.rank, 7)
        sum_in_pairs(transport, tensor, group=group, tag=5).wait()
        assert torch.equal(tensor, values(2, 7) + values(0, 7))
    tensor = rough(transport.rank, 1000)
    sum_in_pairs(transport, tensor, tag=6).wait()
    exact = sum_in_order([rough(rank, 1000).double() for rank in range(size)])
    torch.testing.assert_close(tensor.double(), exact, rtol=1e-5, atol=1e-3)
    return tensor.tolist()


def parameters_travel_like_any_tensor(transport: Transport) -> None:
    """Leaves that require a gradient are written to without a trace in autograd."""
    right, left = (transport.rank + 1) % transport.size, (transport.rank - 1) % transport.size
    weight = torch.nn.Parameter(values(transport.rank, 12))
    incoming = torch.nn.Parameter(torch.zeros(12))
    work = transport.recv(incoming, left, 0)
    transport.send(weight, right, 0).wait()
    work.wait()
    assert torch.equal(incoming, values(left, 12))
    transport.broadcast(weight, 1).wait()
    assert torch.equal(weight, values(1, 12))
    transport.all_reduce(weight).wait()
    assert torch.equal(weight, values(1, 12) * transport.size)
    shards = shards_of(weight.detach(), transport.size)
    reduce_shards(transport, shards).wait()
    all_gather(transport, shards).wait()
    assert torch.equal(weight, values(1, 12) * transport.size**2)
    assert weight.is_leaf
    assert incoming.is_leaf


def collectives_of_groups(transport: Transport) -> None:
    group = [2, 0]
    if transport.rank not in group:
        return
    place = group.index(transport.rank)
    blocks = [torch.full((50_000,), float(rank if rank == transport.rank else -1)) for rank in group]
    all_gather(transport, blocks, group=group, tag=7).wait()
    assert [block[0].item() for block in blocks] == [2.0, 0.0]
    tensor = rough(transport.rank, 101)
    reduce_shards(transport, shards_of(tensor, 2), group=group, tag=7).wait()
    expected = rough(2, 101) + rough(0, 101)
    assert torch.equal(shards_of(tensor, 2)[place], shards_of(expected, 2)[place])


def collectives_side_by_side(transport: Transport) -> None:
    """Eight at once, with four tags, waited for in another order than started: those with one tag keep their order."""
    size = transport.size
    started = []
    for number in range(8):
        num_elems = 100_000 if number % 3 == 0 else 50
        blocks = [torch.full((num_elems,), float(place * 10 + number)) for place in range(size)]
        for place, block in enumerate(blocks):
            if place != transport.rank:
                block.zero_()
        started.append((number, blocks, all_gather(transport, blocks, tag=number % 4)))
    for number, blocks, work in reversed(started):
        work.wait()
        for place, block in enumerate(blocks):
            assert bool((block == place * 10 + number).all())


def collectives_of_a_subgroup_hold_up_no_others(transport: Transport) -> None:
    """Started in another order on each worker, with one tag: they belong to different groups and need not wait."""
    subgroup = transport.subgroup(range(transport.size))
    assert subgroup is not None
    sides = [transport, subgroup] if transport.rank % 2 else [subgroup, transport]
    blocks = [[torch.zeros(4) for _ in range(transport.size)] for _ in sides]
    for own in blocks:
        own[transport.rank] = values(transport.rank, 4)
    for work in [all_gather(side, own, tag=3) for side, own in zip(sides, blocks, strict=True)]:
        work.wait(20)
    for own in blocks:
        assert all(torch.equal(block, values(rank, 4)) for rank, block in enumerate(own))
