"""Puts within a budget: everything arrives, in the order of queues, and everybody leaves in peace."""

from __future__ import annotations

import contextlib

import pytest
import torch

from poseidon.errors import TransportTimeout
from poseidon.transport.onesided import Note, Spot
from poseidon.transport.pacing import Pace
from tests.transport.onesided.ends import on_each

SEGMENT_BYTES = 900_001


def exchange(endpoint, transport):
    """Every rank puts a long message, and a short one behind it, to every other."""
    incoming = endpoint.allocate(7, endpoint.size * SEGMENT_BYTES)
    transport.barrier(10)
    others = [rank for rank in range(endpoint.size) if rank != endpoint.rank]
    for turn in range(3):
        for rank in others:
            data = torch.full((SEGMENT_BYTES,), 10 * endpoint.rank + turn, dtype=torch.uint8)
            endpoint.write_notify(data, Spot(rank, 7, endpoint.rank * SEGMENT_BYTES), Note(endpoint.rank, turn + 1), 3)
            endpoint.notify(rank, Note(100 + endpoint.rank, turn + 1))
        missing = set(others)
        while missing:
            for note in endpoint.take(range(endpoint.size), 20.0):
                missing.discard(note.id)
                part = incoming[note.id * SEGMENT_BYTES : (note.id + 1) * SEGMENT_BYTES]
                assert part.unique().tolist() == [10 * note.id + turn]
        endpoint.wait(3, 20.0)
        met = set(others)
        for rank in others:  # nobody puts the next before all have looked
            endpoint.notify(rank, Note(200 + endpoint.rank, turn + 1))
        while met:
            met -= {note.id - 200 for note in endpoint.take(range(200, 200 + endpoint.size), 20.0)}
    endpoint.close()
    return True


@pytest.mark.parametrize("kind", ["tcp", "shared memory"])
def test_everything_arrives_and_nobody_is_lost(kind):
    assert on_each(kind, 3, exchange, paces={rank: Pace(400e6) for rank in range(3)}) == [True] * 3


def test_what_one_that_leaves_has_still_to_send_arrives_whoever_else_leaves():
    """Rank 2 says goodbye while much of a put to rank 0 waits for its budget; rank 1 hears that, and ends at once."""
    num_bytes = 4 << 20

    def act(end, transport):
        memory = end.allocate(0, num_bytes)
        transport.barrier(10)
        if end.rank == 2:
            end.write_notify(torch.ones(num_bytes, dtype=torch.uint8), Spot(0, 0), Note(0, 1))
        elif end.rank == 1:
            while end.health()[2]:
                with contextlib.suppress(TransportTimeout):
                    end.waitsome([1], 0.05)
        else:
            end.waitsome([0], 20.0)
            return int(memory.sum())
        return None

    half_a_second = {2: Pace(64e6)}
    assert on_each("tcp", 3, act, paces=half_a_second) == [num_bytes, None, None]
