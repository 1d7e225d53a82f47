"""Endpoints on sockets: strangers, broken connections, silence, segments that are not there, urgent frames."""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator

import pytest
import torch

from poseidon.errors import PeerLost, TransportError, TransportTimeout
from poseidon.transport.base import Peer
from poseidon.transport.door import Door, listen
from poseidon.transport.handshake import call
from poseidon.transport.onesided import Note, Spot
from poseidon.transport.onesided.frames import BEAT, HEADER, PUT, READ, SEGMENT, header
from poseidon.transport.onesided.joining import _Party, key_of
from tests.transport.jobs import joined
from tests.transport.onesided.ends import CARRIERS, QUICK, endpoint_on, on_each
from tests.worker_process import Seat

pytestmark = pytest.mark.xdist_group("workers")

PEERS = (Peer(0, "here", 1), Peer(1, "there", 2))


@pytest.fixture(params=CARRIERS)
def half(request):
    """An endpoint whose only peer is a bare socket in the hands of the test."""
    own, other = socket.socketpair()
    end = endpoint_on(request.param, PEERS, [own], QUICK)
    yield end, other
    other.close()
    end.close()


SECRET = b"sesame"


def party(rank: int, secret: bytes = SECRET, *, join_s: float = 5.0) -> _Party:
    peers = tuple(Peer(number, "here", 1) for number in range(4))
    return _Party(rank, peers, secret, -1, time.monotonic() + join_s)


@contextlib.contextmanager
def open_door(rank: int) -> Iterator[tuple[Door, dict[str, object]]]:
    """The door of a rank of 4, and its card."""
    listener = listen("127.0.0.1")
    card = {"local": "", "address": "127.0.0.1", "port": listener.getsockname()[1]}
    with contextlib.closing(Door([listener], key_of(SECRET, rank, 4), 3)) as door:
        yield door, card


def test_workers_that_share_a_secret_meet():
    with open_door(2) as (door, card):
        calling = party(3).call(2, card, card)
        (answering,) = party(2).admit(door)
        assert (calling.rank, answering.rank) == (2, 3)
        calling.close()
        answering.close()


@pytest.mark.parametrize(("secret", "to"), [(b"other", 2), (SECRET, 1)], ids=["another secret", "looking for rank 1"])
def test_strangers_are_hung_up_on(secret, to):
    with open_door(2) as (door, card):
        with pytest.raises(TransportError, match=rf"rank 3 cannot reach rank {to} .*of another job") as caught:
            party(3, secret).call(to, card, card)
        assert caught.value.ranks == (to,)
        assert door.admit(0) is None


@pytest.mark.parametrize("number", [0, 1, 2, 4, 2**32 - 1])
def test_who_knows_the_secret_but_is_not_above_has_no_place(number):
    with open_door(2) as (door, card), socket.create_connection(("127.0.0.1", card["port"])) as caller:
        call(caller, key_of(SECRET, 2, 4), number)
        with pytest.raises(TransportTimeout, match=r"rank 2 was not called by rank 3 \(host here, pid 1\)") as caught:
            list(party(2, join_s=0.2).admit(door))
        assert caught.value.ranks == (3,)
        assert caller.recv(1) == b""


def test_a_dead_peer_is_an_exception_at_once(half):
    end, other = half
    other.close()
    with pytest.raises(PeerLost, match=r"rank 1 \(host there, pid 2\) is lost: the process ended") as caught:
        end.waitsome([1], 20.0)
    assert caught.value.ranks == (1,)
    assert end.health() == (True, False)


def test_a_silent_peer_is_lost_after_a_while(half):
    end, _ = half
    with pytest.raises(PeerLost, match=r"rank 1 .*no sign of life for 1\.\d s"):
        end.waitsome([1], 20.0)


def test_signs_of_life_go_out(half):
    end, other = half
    other.settimeout(10.0)
    seen = b""
    while len(seen) < 2 * HEADER.size:
        seen += other.recv(4096)
        other.sendall(header(BEAT))
    assert HEADER.unpack_from(seen)[0] == BEAT
    assert end.health() == (True, True)


@pytest.mark.parametrize(
    ("frame", "text"),
    [
        (header(PUT, segment=0, offset=6, length=4, id=1, value=1), "4 bytes for 6 of segment 0"),
        (header(PUT, segment=0, offset=2**64 - 1, length=4), "of segment 0"),
        (header(PUT, segment=5, length=4), "4 bytes for 0 of segment 5"),
        (header(PUT, segment=0, length=2**32 - 1), "a frame of kind 1 with 4294967295 bytes"),
        (header(READ, segment=0, value=9), "a read of 9 bytes at 0 of segment 0"),
        (header(3, id=77, length=4), "an answer to a read that nobody asked for"),
        (header(99), "a frame of kind 99"),
        (header(99, length=8), "a frame of kind 99 with 8 bytes"),
        (header(6, length=2**20), "a frame of kind 6"),
    ],
)
def test_what_must_not_come_ends_the_connection(half, frame, text):
    end, other = half
    memory = end.allocate(0, 8)
    other.sendall(frame + b"\xff" * 8)
    with pytest.raises(PeerLost, match=r"rank 1 .*is lost: rank 1 sent ") as caught:
        end.waitsome([1], 20.0)
    assert text in str(caught.value)
    assert memory.sum() == 0


@pytest.mark.parametrize(
    ("end_it", "kind", "text"),
    [
        (lambda end: end.abort("enough"), PeerLost, "gave up: enough; while reading 4 bytes from segment 0 of rank 1"),
        (lambda end: end.close(), TransportError, "is closed; while reading 4 bytes from segment 0 of rank 1"),
    ],
    ids=["abort", "close"],
)
def test_reads_under_way_end_with_the_endpoint(half, end_it, kind, text):
    end, other = half
    other.sendall(header(SEGMENT, segment=0, value=4))
    work = end.read(torch.zeros(4, dtype=torch.uint8), Spot(1, 0))
    assert not work.done()
    end_it(end)
    with pytest.raises(kind, match=text):
        work.wait(10.0)


def test_urgent_puts_pass_between_the_frames_of_long_ones(half):
    end, other = half
    other.sendall(header(SEGMENT, segment=0, value=12 << 20) + header(SEGMENT, segment=1, value=1))
    long, short = torch.ones(12 << 20, dtype=torch.uint8), torch.zeros(1, dtype=torch.uint8)
    end.write_notify(long, Spot(1, 0), Note(1, 1), queue=5)
    end.write_notify(short, Spot(1, 1), Note(2, 1), queue=0)
    order = ids_of_puts(other, 2)
    assert order.index(2) < 6  # of 13 frames; some were on their way already
    assert order[-1] == 1
    end.wait(5, 10.0)


def test_nothing_overtakes_what_was_put_in_the_round_before(half):
    end, other = half
    other.sendall(header(SEGMENT, segment=0, value=12 << 20) + header(SEGMENT, segment=1, value=1))
    long, short = torch.ones(12 << 20, dtype=torch.uint8), torch.zeros(1, dtype=torch.uint8)
    end.write_notify(long, Spot(1, 0), Note(1, 1), queue=5)
    end.begin_round()
    end.write_notify(short, Spot(1, 1), Note(2, 1), queue=3)
    end.write_notify(short, Spot(1, 1), Note(3, 1), queue=0)
    assert [id for id in ids_of_puts(other, 3) if id] == [1, 3, 2]
    end.wait(5, 10.0)


def ids_of_puts(other: socket.socket, num_puts: int) -> list[int]:
    """Frame by frame as they come, until so many puts are complete; 0 for one that is not its put's last."""
    order: list[int] = []
    other.settimeout(10.0)
    with other.makefile("rb") as stream:
        while sum(id > 0 for id in order) < num_puts:
            kind, _, _, length, id, value = HEADER.unpack(stream.read(HEADER.size))
            stream.read(length)
            if kind == PUT:
                order.append(id if value else 0)
    return order


def test_a_killed_process_is_an_exception_in_the_others(worker_pool):
    outcomes = worker_pool.run(lose_one, 3, lost=(1,))
    for outcome in (outcomes[0], outcomes[2]):
        assert outcome.error is None, outcome.trace
        assert outcome.value["ranks"] == [1]
        assert "rank 1 (" in outcome.value["text"]


def lose_one(seat: Seat) -> dict[str, object]:
    with joined(seat) as transport:
        end = transport.one_sided()
        transport.barrier(10.0)
        if seat.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        try:
            end.waitsome([0], 30.0)
        except PeerLost as problem:
            return {"text": str(problem), "ranks": list(problem.ranks)}
        finally:
            end.close()
    raise AssertionError("nothing was raised")


def test_links_tell_what_carries_them():
    def act(end, transport):
        transport.barrier(10)
        return end.links

    assert on_each("tcp", 2, act) == [("self", "tcp"), ("tcp", "self")]
    assert on_each("shared memory", 2, act)[0] == ("self", "shared memory")


@pytest.mark.parametrize("kind", ["tcp", "shared memory"])
def test_nothing_stays_open(kind):
    def act(end, transport):
        end.allocate(0, 100)
        transport.barrier(10)
        end.write_notify(torch.ones(100, dtype=torch.uint8), Spot(1 - end.rank, 0), Note(1, 1))
        end.waitsome([1], 10.0)
        transport.barrier(10)

    on_each(kind, 2, act)
    gc.collect()  # what earlier tests have left
    before = len(os.listdir("/proc/self/fd"))
    on_each(kind, 2, act)
    assert len(os.listdir("/proc/self/fd")) == before
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("onesided-")]
