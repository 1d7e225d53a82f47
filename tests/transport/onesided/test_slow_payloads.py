"""Long payloads that come in little by little: nobody is woken for each packet, and nobody is taken for lost."""

from __future__ import annotations

import select
import socket
import time

import pytest

from poseidon.transport.base import Peer
from poseidon.transport.onesided.frames import PUT, header
from poseidon.transport.onesided.link import Link
from tests.transport.onesided.ends import CARRIERS, QUICK, endpoint_on

LENGTH = 200_000


@pytest.fixture
def pair():
    """Two ends of a TCP connection: other sockets announce every byte."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        near = socket.create_connection(listener.getsockname())
        far, _ = listener.accept()
    yield near, far
    near.close()
    far.close()


class Shelf:
    """An inbox of one payload, which keeps what has arrived."""

    def __init__(self) -> None:
        self.memory, self.values = bytearray(LENGTH), []

    def put(self, link, frame, payload):
        self.values.append(frame[5])

    def room(self, link, frame):
        return memoryview(self.memory)

    def arrived(self, link, frame, payload):
        self.values.append(frame[5])


def readable(connection, wait_s):
    return bool(select.select([connection], [], [], wait_s)[0])


def under_way(near, far):
    """A link that has read the first thousand bytes of a long payload, and what takes it in."""
    near.setblocking(False)
    link, shelf = Link(1, near, None), Shelf()
    far.sendall(header(PUT, length=LENGTH, value=7) + b"a" * 1000)
    assert readable(near, 5.0)
    assert link.receive(shelf)
    return link, shelf


def test_a_payload_is_announced_when_the_rest_is_there(pair):
    near, far = pair
    link, shelf = under_way(near, far)
    far.sendall(b"b" * 1000)
    assert not readable(near, 0.2)
    far.sendall(b"c" * (LENGTH - 2000))
    assert readable(near, 5.0)
    while not shelf.values:
        assert link.receive(shelf)
    assert bytes(shelf.memory) == b"a" * 1000 + b"b" * 1000 + b"c" * (LENGTH - 2000)
    far.sendall(header(PUT, value=8))  # and a small one is again announced at once
    assert readable(near, 5.0)
    assert link.receive(shelf)
    assert shelf.values == [7, 8]


def test_what_follows_a_payload_is_read_with_it(pair):
    near, far = pair
    link, shelf = under_way(near, far)
    far.sendall(b"b" * (LENGTH - 1000) + header(PUT, value=8) + header(PUT, value=9)[:5])
    deadline_s = time.monotonic() + 5.0
    while len(shelf.values) < 2 and time.monotonic() < deadline_s:
        assert link.receive(shelf)
    far.sendall(header(PUT, value=9)[5:])
    while len(shelf.values) < 3 and time.monotonic() < deadline_s:
        assert link.receive(shelf)
    assert shelf.values == [7, 8, 9]


@pytest.mark.parametrize("carrier", CARRIERS)
def test_who_sends_slowly_is_not_lost(pair, carrier):
    near, far = pair
    peers = (Peer(0, "here", 0), Peer(1, "here", 1))
    end = endpoint_on(carrier, peers, [near], QUICK)
    try:
        end.allocate(0, LENGTH)
        far.sendall(header(PUT, length=LENGTH, value=7))
        until_s = time.monotonic() + 2.5 * QUICK.limit_s
        while time.monotonic() < until_s:
            far.sendall(b"x" * 100)
            time.sleep(0.05)
        assert end.health() == (True, True)
    finally:
        far.close()
        end.close()
