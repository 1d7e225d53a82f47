"""Whose turn it is to send: few at a time, the most urgent first, and nobody is forgotten."""

from __future__ import annotations

import socket
from itertools import count

import pytest

from poseidon.transport.onesided.link import AT_ONCE_BYTES, Link
from poseidon.transport.onesided.turns import MOST_ACTIVE, Turns

LONG = memoryview(bytes(AT_ONCE_BYTES + 1))


@pytest.fixture
def links():
    numbers, pairs = count(), [socket.socketpair() for _ in range(5)]
    found = []
    for rank, (own, _) in enumerate(pairs):
        own.setblocking(False)
        found.append(Link(rank, own, None))
        found[-1].numbers = numbers
    yield found
    for own, other in pairs:
        own.close()
        other.close()


def send(turns, links):
    """What the reactor does with those who may."""
    for link in links:
        link.flush()
        turns.sent(link)


def test_at_most_so_many_send_at_a_time_and_all_come_to_it(links):
    turns = Turns()
    for link in links:
        assert not link.give(b"h", LONG, (0, 1))
        send(turns, turns.want(link))
    served = []
    for _ in range(100):
        active = [link for link in links if turns.is_active(link)]
        assert len(active) <= MOST_ACTIVE
        if not active:
            break
        send(turns, turns.room(active[0]))
        if not active[0].has_waiting and active[0].rank not in served:
            served.append(active[0].rank)
    assert served == [0, 1, 2, 3, 4]
    assert not any(link.has_waiting for link in links)


def test_the_most_urgent_goes_first(links):
    turns = Turns()
    for urgency, link in zip(((0, 3), (0, 3), (1, 0), (0, 0), (0, 1)), links, strict=True):
        link.give(b"h", LONG, urgency)
    begun = [link for link in links[:2] for link in turns.want(link)]
    assert [link.rank for link in begun] == [0, 1]
    send(turns, begun)
    for link in links[2:]:
        assert turns.want(link) == []
    order = []
    while any(map(turns.is_active, links)):
        for link in [link for link in links if turns.is_active(link)]:
            send(turns, turns.room(link))
            order += [other.rank for other in links if turns.is_active(other) and other.rank not in order]
    assert order.index(3) < order.index(4) < order.index(2)


def test_a_turn_does_not_end_before_it_has_begun(links):
    turns = Turns()
    first = links[0]
    first.give(b"h", LONG, (0, 1))
    begun = turns.want(first)
    assert turns.room(first) == []  # an event of before: another thread is about to send
    assert turns.is_active(first)
    send(turns, begun)
    assert turns.room(first) == []
    assert not turns.is_active(first)
