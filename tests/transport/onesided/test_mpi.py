"""By MPI: what is said where it is not there, and what happens when it fails, hangs or loses somebody.

MPI is played here (`fake_mpi.py`), as in the tests of what every endpoint promises; the real one is tried by hand
(docs/caffegpi.md).
"""

from __future__ import annotations

import sys
import threading
import time
from types import ModuleType, SimpleNamespace

import pytest
import torch

from poseidon.errors import PeerLost, TransportError
from poseidon.transport.inproc import run_workers
from poseidon.transport.onesided import Note, Spot, mpi
from poseidon.transport.onesided.mpi import MpiEndpoint
from tests.transport.onesided.fake_mpi import World


def test_without_mpi4py_the_way_out_is_told(monkeypatch):
    monkeypatch.setitem(sys.modules, "mpi4py", None)
    with pytest.raises(TransportError, match=r"needs mpi4py and an MPI library: .*poseidon-dl\[mpi\]"):
        run_workers(1, MpiEndpoint)


@pytest.mark.parametrize(
    ("world", "level", "text"),
    [
        (SimpleNamespace(rank=1, size=2), 3, "MPI started 2 processes, of which this is 1; the job has 1 workers"),
        (SimpleNamespace(rank=0, size=1), 2, "must not be called from several threads"),
    ],
)
def test_worlds_that_do_not_fit(monkeypatch, world, level, text):
    module = ModuleType("mpi4py")
    module.MPI = SimpleNamespace(COMM_WORLD=world, THREAD_MULTIPLE=3, Query_thread=lambda: level)
    monkeypatch.setitem(sys.modules, "mpi4py", module)
    with pytest.raises(TransportError, match=text):
        run_workers(1, MpiEndpoint)


def on_each(world, act):
    """What `act(endpoint, transport)` returns on each worker of a world."""

    def work(transport):
        end = MpiEndpoint(transport, world.seen_by(transport.rank))
        end.allocate(0, 64)
        transport.barrier(10)
        try:
            return act(end, transport)
        finally:
            end.close()

    return run_workers(world.size, work, timeout_s=20)


def test_all_leave_together_and_the_window_is_freed():
    world = World(3)
    on_each(world, lambda end, transport: None)
    assert world.num_freed == 3


def test_a_read_ends_when_somebody_is_lost_and_mpi_waits_for_it():
    world = World(2)

    def act(end, transport):
        if end.rank == 1:
            transport.barrier(10)
            transport.abort("the cat sat on the cable")
            return None
        world.hold.set()
        work = end.read(torch.zeros(4), Spot(1, 0))
        behind = end.read(torch.zeros(4), Spot(1, 0))
        transport.barrier(10)
        for read in (work, behind):
            with pytest.raises(PeerLost, match=r"the cat sat on the cable.*; while reading 16 bytes from segment 0 of"):
                read.wait(5.0)
        with pytest.raises(PeerLost):
            end.waitsome([1], 5.0)
        with pytest.raises(PeerLost):
            end.allocate(1, 8)
        assert end.health() == (True, False)
        started_s = time.monotonic()
        end.close()
        assert time.monotonic() - started_s < 2.0
        return True

    try:
        assert on_each(world, act) == [True, None]
    finally:
        world.released.set()


def test_what_fails_in_mpi_s_thread_is_raised_to_all_who_wait():
    world = World(2)

    def work(transport):
        end = MpiEndpoint(transport, world.seen_by(transport.rank))
        end.allocate(0, 64)
        transport.barrier(10)
        if end.rank == 0:
            world.mistake = ValueError("no such window")
            end.write_notify(torch.zeros(4), Spot(1, 0), Note(1, 1), queue=3)
            with pytest.raises(TransportError, match="MPI failed: ValueError: no such window"):
                end.wait(3, 5.0)
            with pytest.raises(TransportError, match="MPI failed"):
                end.notify(1, Note(1, 2))
        transport.barrier(10)
        world.mistake = None
        return True

    assert run_workers(2, work, timeout_s=20) == [True, True]


def test_notifications_are_heard_while_puts_flow():
    world, size = World(2), 2
    is_enough = threading.Event()

    def act(end, transport):
        if end.rank == 1:
            end.notify(0, Note(5, 1))
            assert is_enough.wait(10.0)
            return True
        errands = end._errands

        def again() -> None:  # there is always something to do
            if not is_enough.is_set():
                errands.add(7, again)

        errands.add(7, again)
        errands.add(7, again)
        assert end.waitsome([5], 5.0) == 5
        is_enough.set()
        return True

    assert on_each(world, act) == [True] * size


def test_lower_queues_go_first_in_each_round():
    world = World(2)

    def act(end, transport):
        if end.rank == 0:
            world.hold.set()
            for queue, num_bytes in ((5, 1), (5, 2), (3, 3), (0, 4), (4, 5), (0, 6)):
                if num_bytes == 5:
                    end.begin_round()
                end.write_notify(torch.zeros(num_bytes, dtype=torch.uint8), Spot(1, 0), None, queue)
                while not world.log:  # the first one is under way, and does not end
                    time.sleep(0.001)
            world.hold.clear()
            world.released.set()
            for queue in range(8):
                end.wait(queue, 10.0)
        transport.barrier(10)

    on_each(world, act)
    assert world.log == [("put", num_bytes) for num_bytes in (1, 4, 3, 2, 6, 5)]


def test_close_does_not_wait_for_ever_for_one_that_does_not_leave(monkeypatch):
    monkeypatch.setattr(mpi, "FAREWELL_S", 0.3)
    world = World(2)

    def work(transport):
        end = MpiEndpoint(transport, world.seen_by(transport.rank))
        memory = end.allocate(0, 4)
        transport.barrier(10)
        if end.rank == 0:
            end.close()
            with pytest.raises(TransportError, match="the one-sided endpoint of rank 0 is closed"):
                end.waitsome([1], 5.0)
            memory.fill_(7)
            transport.barrier(10)
        else:
            transport.barrier(10)
            found = torch.zeros(4, dtype=torch.uint8)
            end.read(found, Spot(0, 0)).wait(5.0)  # the other's memory can still be read
            assert found.tolist() == [7] * 4
            end.close()
        return True

    assert run_workers(2, work, timeout_s=20) == [True, True]
