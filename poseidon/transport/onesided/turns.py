"""Turns: which links send long frames now. Few at a time, so that not everybody sends to everybody at once.

With P−1 connections all pushing, every receiver's link is aimed at by P−1 senders, its queue overflows, and TCP waits
for what was dropped. So a worker fills at most MOST_ACTIVE links at a time, the most urgent frame first; a link's turn
is one frame, and ends when the kernel has handed nearly all of it to the wire (it has room again). Senders begin with
different receivers, and mostly stay that way.

Small frames that go at once take no turn.
"""

from __future__ import annotations

import threading

from poseidon.transport.onesided.link import Link

MOST_ACTIVE = 2


class Turns:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._wanting: set[Link] = set()
        self._active: set[Link] = set()

    def is_active(self, link: Link) -> bool:
        return link in self._active

    def want(self, link: Link) -> list[Link]:
        """A link has a frame that waits. Returns the links whose turn it is now, to be written when there is room."""
        with self._lock:
            if link not in self._active:
                self._wanting.add(link)
            return self._next()

    def room(self, link: Link) -> list[Link]:
        """An active link has room. Its next turn, or the rest of this one, is sent; or others' turns begin."""
        with self._lock:
            if link not in self._active:
                return []
            if not link.has_begun:
                self._active.discard(link)
                if link.has_waiting:
                    self._wanting.add(link)
            begun = self._next()
        if link in self._active:
            link.flush()
        return [other for other in begun if other is not link]

    def _next(self) -> list[Link]:
        begun = []
        while self._wanting and len(self._active) < MOST_ACTIVE:
            link = min(self._wanting, key=Link.urgency)
            self._wanting.discard(link)
            self._active.add(link)
            begun.append(link)
        return begun
