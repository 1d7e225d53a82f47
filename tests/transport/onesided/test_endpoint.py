"""What every endpoint promises, whatever carries it."""

from __future__ import annotations

import itertools
import random

import pytest
import torch

from poseidon.errors import PeerLost, TransportError, TransportTimeout
from poseidon.transport.onesided import Note, Spot
from poseidon.transport.onesided.base import LAST_VALUE, is_newer, next_value
from tests.transport.onesided.ends import KINDS, on_each

every_kind = pytest.mark.parametrize("kind", KINDS)


@every_kind
@pytest.mark.parametrize("num_bytes", [0, 1, 31, 5000, 70_000, 3_000_001])
def test_bytes_are_there_when_the_notification_is(kind, num_bytes):
    def act(end, transport):
        memory = end.allocate(3, num_bytes + 10)
        transport.barrier(10)
        pattern = torch.randint(0, 256, (num_bytes,), generator=torch.Generator().manual_seed(end.rank))
        data = pattern.to(torch.uint8)
        end.write_notify(data, Spot(1 - end.rank, 3, 7), Note(5, 41 + end.rank))
        assert end.waitsome(range(4, 8), 10.0) == 5
        assert end.reset(5) == 42 - end.rank
        assert end.reset(5) == 0
        expected = torch.randint(0, 256, (num_bytes,), generator=torch.Generator().manual_seed(1 - end.rank))
        assert torch.equal(memory[7 : 7 + num_bytes], expected.to(torch.uint8))
        assert memory[:7].sum() == 0
        assert memory[7 + num_bytes :].sum() == 0
        end.wait(0, 10.0)
        transport.barrier(10)
        return end.bytes_sent

    assert on_each(kind, 2, act) == [num_bytes] * 2


@every_kind
def test_many_puts_of_all_to_all_arrive_once_each(kind):
    size, rounds = 4, 40

    def act(end, transport):
        memory = end.allocate(0, size * 8).view(torch.int64)
        transport.barrier(10)
        draw = random.Random(end.rank)
        for step in range(1, rounds + 1):
            value = torch.tensor([step * 100 + end.rank])
            for to in draw.sample(range(size), size):
                if to != end.rank:
                    end.write_notify(value, Spot(to, 0, end.rank * 8), Note(end.rank, step), queue=draw.randrange(8))
            heard = {}
            while len(heard) < size - 1:
                heard |= {note.id: note.value for note in end.take(range(size), 10.0)}
            assert heard == {other: step for other in range(size) if other != end.rank}
            assert memory.tolist() == [0 if o == end.rank else step * 100 + o for o in range(size)]
            for to in range(size):
                if to != end.rank:
                    end.notify(to, Note(100 + end.rank, step))
            answered = set()
            while len(answered) < size - 1:
                answered |= {note.id for note in end.take(range(100, 100 + size), 10.0)}
        transport.barrier(10)

    on_each(kind, size, act)


@every_kind
@pytest.mark.parametrize("num_bytes", [1, 4096, 2_500_000])
def test_a_read_fetches_while_the_owner_does_nothing(kind, num_bytes):
    def act(end, transport):
        memory = end.allocate(1, num_bytes)
        memory.copy_(torch.arange(num_bytes).remainder(251) + end.rank)
        transport.barrier(10)
        found = torch.empty(num_bytes, dtype=torch.uint8)
        works = []
        if end.rank == 0:
            works = [
                end.read(found[: num_bytes // 2], Spot(1, 1)),
                end.read(found[num_bytes // 2 :], Spot(1, 1, num_bytes // 2)),
            ]
        for work in works:
            work.wait(10.0)
        transport.barrier(10)
        return found.tolist() if end.rank == 0 else (torch.arange(num_bytes).remainder(251) + 1).tolist()

    first, second = on_each(kind, 2, act)
    assert first == second


@every_kind
def test_an_older_value_does_not_replace_a_newer_one(kind):
    def act(end, transport):
        transport.barrier(10)
        if end.rank == 0:
            for value in (LAST_VALUE - 1, LAST_VALUE, 2, LAST_VALUE):  # the last one comes late
                end.notify(1, Note(9, value))
            end.notify(1, Note(10, 1))
            transport.barrier(10)
            return None
        assert end.waitsome([10], 10.0) == 10
        found = end.reset(9)
        transport.barrier(10)
        return found

    assert on_each(kind, 2, act)[1] == 2


@every_kind
def test_every_wait_has_an_end(kind):
    def act(end, transport):
        with pytest.raises(TransportTimeout, match=r"ids 3 … 6 did not come in the time given"):
            end.waitsome(range(3, 7), 0.01)
        with pytest.raises(TransportTimeout, match="id 3 did not come"):
            end.take([3], 0.01)
        assert end.take([3], 0) == []
        transport.barrier(10)

    on_each(kind, 2, act)


@every_kind
def test_a_put_beyond_a_segment_is_refused(kind):
    def act(end, transport):
        end.allocate(0, 10)
        transport.barrier(10)
        for offset in (-1, 7, 2**40):
            with pytest.raises(TransportError, match=rf"4 bytes at {offset} are not inside segment 0"):
                end.write_notify(torch.zeros(4, dtype=torch.uint8), Spot(1 - end.rank, 0, offset), None)
            with pytest.raises(TransportError, match="are not inside segment 0"):
                end.read(torch.zeros(4, dtype=torch.uint8), Spot(1 - end.rank, 0, offset))
        transport.barrier(10)

    on_each(kind, 2, act)


@every_kind
def test_what_cannot_be_put(kind):
    def act(end, transport):
        transport.barrier(10)
        spot = Spot(1 - end.rank, 0)
        with pytest.raises(TransportError, match="contiguous"):
            end.write_notify(torch.zeros(4, 4).t()[1:], spot, None)
        with pytest.raises(TransportError, match="queues are numbered 0 … 7, got 8"):
            end.write_notify(torch.zeros(4), spot, None, queue=8)
        for note in (Note(0, 0), Note(0, 2**32), Note(-1, 1), Note(2**32, 1)):
            with pytest.raises(TransportError, match="a notification has an id of 0"):
                end.write_notify(torch.zeros(4), spot, note)
            with pytest.raises(TransportError, match="a notification has an id of 0"):
                end.notify(1 - end.rank, note)
        with pytest.raises(TransportError, match="queues are numbered 0 … 7, got -1"):
            end.notify(1 - end.rank, Note(0, 1), queue=-1)
        end.allocate(0, 8)
        with pytest.raises(TransportError, match="segment 0 is there already"):
            end.allocate(0, 8)
        transport.barrier(10)

    on_each(kind, 2, act)


@every_kind
def test_a_rank_that_is_not_there_is_named(kind):
    def act(end, transport):
        end.allocate(0, 8)
        transport.barrier(10)
        for rank in (-1, 2, 9):
            with pytest.raises(TransportError, match=rf"rank must be within 0 … 1, got {rank}"):
                end.read(torch.zeros(4), Spot(rank, 0))
            with pytest.raises(TransportError, match=rf"rank must be within 0 … 1, got {rank}"):
                end.write_notify(torch.zeros(1), Spot(rank, 0), None)
            with pytest.raises(TransportError, match=rf"rank must be within 0 … 1, got {rank}"):
                end.notify(rank, Note(0, 1))
        transport.barrier(10)

    on_each(kind, 2, act)


@every_kind
def test_a_worker_that_gives_up_is_named_to_all(kind):
    def act(end, transport):
        transport.barrier(10)
        if end.rank == 1:
            for rank in (0, 2):  # which have passed the barrier
                end.waitsome([4 + rank], 20.0)
            end.abort("the cat sat on the cable")
            return None
        end.notify(1, Note(4 + end.rank, 1))
        with pytest.raises(PeerLost, match=r"rank 1 .*gave up: the cat sat on the cable") as caught:
            end.waitsome([1], 20.0)
        with pytest.raises(PeerLost):
            end.notify(2 - end.rank, Note(0, 1))
        return caught.value.ranks

    assert on_each(kind, 3, act) == [(1,), None, (1,)]


@every_kind
def test_one_that_leaves_in_peace_is_no_loss(kind):
    def act(end, transport):
        transport.barrier(10)
        if end.rank == 1:
            end.notify(0, Note(4, 2))
            return None
        assert end.take([4], 10.0) == [Note(4, 2)]
        while end.health() != (True, False):
            assert end.take([4], 10.0) == []
        return end.health()

    assert on_each(kind, 2, act)[0] == (True, False)


def test_versions_wrap_around():
    value = LAST_VALUE - 2
    seen = [value := next_value(value) for _ in range(4)]
    assert seen == [LAST_VALUE - 1, LAST_VALUE, 1, 2]
    for older, newer in itertools.pairwise(seen):
        assert is_newer(newer, older)
        assert not is_newer(older, newer)
        assert not is_newer(older, older)
