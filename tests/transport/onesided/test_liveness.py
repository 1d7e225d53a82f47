"""Endpoints on sockets whose peers are bare sockets in the hands of the test: who reads nothing, leaves or is closed
holds up nobody else."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator

import pytest
import torch

from poseidon.errors import PeerLost, TransportError
from poseidon.transport.base import Peer
from poseidon.transport.health import HealthOptions
from poseidon.transport.onesided import Note, Spot
from poseidon.transport.onesided.carrier import Frame
from poseidon.transport.onesided.endpoint import SocketEndpoint
from poseidon.transport.onesided.frames import BEAT, BYE, HEADER, PUT, SEGMENT, header
from tests.transport.onesided.ends import CARRIERS, QUICK, endpoint_on

LONG = torch.ones(4 << 20, dtype=torch.uint8)
PATIENT = HealthOptions(interval_s=0.1, limit_s=60.0)


class Others:
    """The far ends of an endpoint's connections, and what each has sent."""

    def __init__(self, carrier: str, num_others: int, options: HealthOptions) -> None:
        pairs = [socket.socketpair() for _ in range(num_others)]
        self.sockets = {rank: other for rank, (_, other) in enumerate(pairs, 1)}
        peers = tuple(Peer(rank, "here", rank) for rank in range(num_others + 1))
        self.end = endpoint_on(carrier, peers, [own for own, _ in pairs], options)
        for rank, other in self.sockets.items():
            other.settimeout(10.0)
            self.say(rank, SEGMENT, segment=0, value=len(LONG))

    def say(self, rank: int, kind: int, **fields: int) -> None:
        self.sockets[rank].sendall(header(kind, **fields))

    def put_long(self, rank: int, note: Note | None = None, queue: int = 0) -> None:
        self.end.write_notify(LONG, Spot(rank, 0), note, queue)

    def frames(self, rank: int) -> Iterator[tuple[int, ...]]:
        """Headers of what comes for a rank, until 10 s have brought nothing."""
        with self.sockets[rank].makefile("rb") as stream:
            while True:
                frame = HEADER.unpack(stream.read(HEADER.size))
                stream.read(frame[3])
                yield frame


@pytest.fixture(params=CARRIERS)
def others(request):
    """`others(number, options)`: an endpoint that has so many."""

    @contextlib.contextmanager
    def make(num_others: int, options: HealthOptions = PATIENT) -> Iterator[Others]:
        made = Others(request.param, num_others, options)
        try:
            yield made
        finally:
            for other in made.sockets.values():
                other.close()
            made.end.close()

    return make


def test_signs_of_life_do_not_wait_for_turns(others):
    with others(3) as made:
        for rank in (1, 2, 3):
            made.put_long(rank)
        frames = made.frames(3)
        assert next(frame for frame in frames if frame[0] == BEAT)  # ranks 1 and 2 read nothing, and have the turns


def test_a_link_with_much_to_send_does_not_keep_others_from_theirs(others):
    with others(3) as made:
        for rank in (1, 2, 3):
            for _ in range(2):
                made.put_long(rank)
        made.put_long(3, Note(7, 1))
        orders: dict[int, list[float]] = {1: [], 2: [], 3: []}

        def read(rank: int) -> None:
            for frame in made.frames(rank):
                if frame[0] == PUT:
                    orders[rank].append(time.monotonic())
                    time.sleep(0.0 if rank == 3 else 0.02)  # however late its thread begins, rank 3 is there in time
                if len(orders[rank]) == 8:
                    return

        threads = [threading.Thread(target=read, args=(rank,)) for rank in orders]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20.0)
        # In turns: the first frame of rank 3 comes before the last ones of ranks 1 and 2.
        assert orders[3][0] < min(orders[1][-1], orders[2][-1])


def test_what_is_more_urgent_and_small_passes_what_waits_for_its_turn(others):
    with others(3) as made:
        for rank in (1, 2, 3):
            made.put_long(rank, queue=5)
        made.end.notify(3, Note(9, 4), queue=0)
        kind, _, _, _, id, value = next(frame for frame in made.frames(3) if frame[0] != BEAT)
        assert (kind, id, value) == (PUT, 9, 4)


@pytest.mark.parametrize("ends", [True, False], ids=["and ends", "and stays"])
def test_turns_of_those_who_leave_are_free_for_others(others, ends):
    with others(3) as made:
        for rank in (1, 2, 3):
            made.put_long(rank, Note(1, 1), queue=3)
        for rank in (1, 2):
            made.say(rank, BYE)
            if ends:
                made.sockets[rank].close()
        assert any(frame[0] == PUT and frame[5] == 1 for frame in made.frames(3))
        made.end.wait(3, 10.0)  # what nobody will read is not kept
        assert made.end.health() == (True, False, False, True)


@pytest.mark.parametrize("num_waiting", [1, 3])
def test_close_ends_the_waits_of_other_threads(others, num_waiting):
    caught: list[TransportError] = []

    def wait(end: SocketEndpoint) -> None:
        with pytest.raises(TransportError, match="the one-sided endpoint of rank 0 is closed") as found:
            end.waitsome([1], 60.0)
        caught.append(found.value)

    for _ in range(20):
        with others(1) as made:
            threads = [threading.Thread(target=wait, args=(made.end,)) for _ in range(num_waiting)]
            for thread in threads:
                thread.start()
            time.sleep(0.01)
            made.say(1, BYE)
            made.end.close()
            for thread in threads:
                thread.join(5.0)
                assert not thread.is_alive()
    assert len(caught) == 20 * num_waiting


@pytest.mark.parametrize(
    ("end_it", "text"),
    [
        (lambda end, link: end.hear(link, Frame(BYE), b""), "rank 1 .* left the job"),
        (lambda end, link: end.abort("enough"), "gave up: enough"),
    ],
    ids=["goodbye", "loss"],
)
def test_a_read_that_begins_while_its_peer_leaves_ends(others, monkeypatch, end_it, text):
    with others(1, QUICK) as made:
        end, numbers = made.end, made.end._read_numbers
        while 0 not in end._contacts[1].sizes:
            time.sleep(0.001)

        class Late:
            """Draws a read's number just after something has happened that it was not asked about."""

            def __next__(self) -> int:
                end_it(end, end._contacts[1])
                return next(numbers)

        monkeypatch.setattr(end, "_read_numbers", Late())
        work = end.read(torch.zeros(4, dtype=torch.uint8), Spot(1, 0))
        with pytest.raises(PeerLost, match=rf"{text}.*; while reading 4 bytes from segment 0 of rank 1"):
            work.wait(5.0)
