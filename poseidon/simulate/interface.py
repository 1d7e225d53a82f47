"""Interface: what a node sends, in the turns that its connections take.

Connections share a link as TCP does: one that has little to send is not held up by what others have queued. Each
connection's messages keep their order. A message gets a mark when it comes: the bytes that every connection with
something to send will have been served before it is this one's turn; the lowest mark goes first. With one connection,
or with messages of one size to everybody in rounds, that is first come first served.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from typing import Generic, TypeVar

from poseidon.simulate.agenda import Agenda

T = TypeVar("T")


class Interface(Generic[T]):
    """One direction of a link. `start` puts a message on the wire and tells when the link is free again."""

    __slots__ = ("_agenda", "_free_s", "_is_awaited", "_marks", "_num_put", "_served", "_start", "_waiting")

    def __init__(self, agenda: Agenda, start: Callable[[T], float]) -> None:
        self._agenda, self._start = agenda, start
        self._free_s = 0.0
        self._is_awaited = False  # it will be looked at again when it is free
        self._waiting: list[tuple[float, int, int, T]] = []
        self._marks: dict[object, float] = {}  # by connection, of the message that it will have next
        self._served = 0.0  # the mark of the last one served
        self._num_put = 0

    def put(self, connection: object, num_bytes: float, message: T, order: int) -> None:
        """The message goes when its turn comes, maybe at once. `order`: among other things at that moment."""
        mark = max(self._served, self._marks.get(connection, 0.0))
        self._marks[connection] = mark + num_bytes
        self._num_put += 1
        heappush(self._waiting, (mark, self._num_put, order, message))
        if not self._is_awaited:
            self._serve()

    def _serve(self) -> None:
        self._is_awaited = False
        while self._waiting and self._free_s <= self._agenda.now_s:
            self._served, _, _, message = heappop(self._waiting)
            self._free_s = self._start(message)
        if self._waiting:
            self._is_awaited = True
            self._agenda.at(self._free_s, self._serve, order=self._waiting[0][2])
