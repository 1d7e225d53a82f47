"""Turns: which links send long frames now. Few at a time, so that not everybody sends to everybody at once.

With P−1 connections all pushing, every receiver's link is aimed at by P−1 senders, its queue overflows, and TCP waits
for what was dropped. So a worker fills at most MOST_ACTIVE links at a time; a link's turn is one frame, and ends when
the kernel has handed nearly all of it to the wire (it has room again). Senders begin with different receivers, and
mostly stay that way.

The most urgent frame goes first; among links with equally urgent ones, that whose last turn is longest ago: nobody
waits for all that was given to another before.

Small frames that go at once take no turn. One of which the kernel has taken a part is finished without one: until then
nothing else can be sent there, not even a sign of life.
"""

from __future__ import annotations

import threading

from poseidon.transport.onesided.carrier import Urgency
from poseidon.transport.onesided.link import Link

MOST_ACTIVE = 2


class Turns:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._wanting: set[Link] = set()
        self._active: set[Link] = set()
        self._fresh: set[Link] = set()  # of those, the ones that are about to send their first bytes
        self._num_turns = 0
        self._last_turns: dict[Link, int] = {}

    def is_active(self, link: Link) -> bool:
        return link in self._active

    def want(self, link: Link) -> list[Link]:
        """A link has a frame that waits. Returns the links that may send now."""
        with self._lock:
            if link in self._active:
                return []
            if link.has_begun:
                self._wanting.discard(link)
                self._active.add(link)
                return [link]
            self._wanting.add(link)
            return self._next()

    def room(self, link: Link) -> list[Link]:
        """An active link has room: the rest of its turn, or others' turns. Returns the links that may send now."""
        with self._lock:
            if link not in self._active or link in self._fresh:
                return []
            if link.has_begun:
                return [link]
            self._active.discard(link)
            if link.has_waiting:
                self._wanting.add(link)
            return self._next()

    def sent(self, link: Link) -> None:
        """A link that might has sent what there was room for."""
        with self._lock:
            self._fresh.discard(link)

    def drop(self, link: Link) -> list[Link]:
        """A link sends nothing any more. Returns the links that may send instead."""
        with self._lock:
            self._wanting.discard(link)
            self._active.discard(link)
            self._fresh.discard(link)
            return self._next()

    def _next(self) -> list[Link]:
        begun = []
        while self._wanting and len(self._active) < MOST_ACTIVE:
            link = min(self._wanting, key=self._urgency)
            self._num_turns += 1
            self._last_turns[link] = self._num_turns
            self._wanting.discard(link)
            self._active.add(link)
            self._fresh.add(link)
            begun.append(link)
        return begun

    def _urgency(self, link: Link) -> tuple[Urgency, int, int]:
        urgency, number = link.urgency()
        return urgency, self._last_turns.get(link, 0), number
