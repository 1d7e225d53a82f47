"""InterpretedCarrier: frames moved by Python: a reactor, a board, and a link for each connection."""

from __future__ import annotations

import threading
from collections.abc import Collection, Sequence
from typing import cast

from torch import Tensor

from poseidon.errors import TransportError
from poseidon.transport.health import HealthOptions
from poseidon.transport.onesided.base import NUM_QUEUES, Note
from poseidon.transport.onesided.board import Board
from poseidon.transport.onesided.carrier import MOST_URGENT, Frame, Hearer, Urgency
from poseidon.transport.onesided.contact import Contact
from poseidon.transport.onesided.frames import (
    BEAT,
    DATA,
    HEADER,
    LOST,
    MAX_FRAME_BYTES,
    MAX_TEXT_BYTES,
    PUT,
    no_place,
    unexpected,
)
from poseidon.transport.onesided.link import Link, put_frames
from poseidon.transport.onesided.reactor import Reactor
from poseidon.transport.onesided.segments import Segment, Segments
from poseidon.transport.pacing import Pace

SMALL_BYTES = 4 << 10  # are copied behind their header, and sent as one piece


class InterpretedCarrier:
    """See Carrier. Contacts are Links here. With `pace`, what goes to other hosts and comes from there keeps to a
    budget, and frames are shorter."""

    def __init__(
        self,
        rank: int,
        hearer: Hearer,
        segments: Segments,
        contacts: Sequence[Contact],
        options: HealthOptions,
        pace: Pace | None = None,
    ) -> None:
        self._hearer, self._segments = hearer, segments
        self._reactor = Reactor(self, hearer.lose, options)
        self._board = Board(self._reactor)
        self._lock = threading.Lock()
        self._outstanding = [0] * NUM_QUEUES
        self._reads: dict[int, memoryview] = {}
        self._frame_bytes = MAX_FRAME_BYTES if pace is None else min(pace.piece_bytes, MAX_FRAME_BYTES)
        links = [cast(Link, contact) for contact in contacts]
        self._texts = {link.rank: bytearray(MAX_TEXT_BYTES) for link in links}
        for link in links:
            link.ledger = self
        self._reactor.start(links, f"onesided-{rank}")
        if pace is not None:
            self._reactor.keep_to(pace, f"pace-{rank}")

    @property
    def error(self) -> TransportError | None:
        return self._board.error

    def expose(self, number: int, segment: Segment) -> None:
        pass  # the endpoint's segments are looked up as frames come

    # -- out --------------------------------------------------------------------------------------------------------
    def send(self, contact: Contact, frame: Frame, data: Tensor, urgency: Urgency) -> None:
        view = data.numpy()
        if view.size <= SMALL_BYTES:
            self._give(contact, HEADER.pack(*frame) + view.tobytes(), None, urgency)
            return
        for head, payload in put_frames(frame, view.data, self._frame_bytes):
            self._give(contact, head, payload, urgency)

    def say(self, contact: Contact, frame: Frame, text: bytes = b"", urgency: Urgency = MOST_URGENT) -> None:
        self._give(contact, HEADER.pack(*frame._replace(length=len(text))) + text, None, urgency)

    def _give(self, contact: Contact, head: bytes, payload: memoryview | None, urgency: Urgency) -> None:
        link = cast(Link, contact)
        try:
            if not link.give(head, payload, urgency):
                self._reactor.arm(link)
        except OSError as error:
            if not link.is_told:
                self._hearer.lose(link.rank, f"is lost: its connection broke ({error.strerror or error})")

    def drop(self, contact: Contact) -> None:
        pass  # the reactor has noticed by itself

    def num_waiting(self, contact: Contact) -> int:
        return cast(Link, contact).num_waiting

    # -- what waits to leave (Ledger) -------------------------------------------------------------------------------
    def begin(self, queue: int) -> None:
        with self._lock:
            self._outstanding[queue] += 1

    def end(self, queue: int) -> None:
        with self._lock:
            self._outstanding[queue] -= 1
            is_last = self._outstanding[queue] == 0
        if is_last:
            self._board.change()

    def flushed(self, queue: int, timeout_s: float) -> None:
        def look() -> bool | None:
            return True if self._outstanding[queue] == 0 else None

        self._board.wait_for(look, timeout_s, f"room for what was put into queue {queue}")

    # -- what comes in (Inbox) --------------------------------------------------------------------------------------
    def put(self, link: Link, frame: tuple[int, ...], payload: memoryview) -> None:
        _, number, offset, length, id, value = frame
        if length:
            segment = self._segments.get(number)
            if segment is None or offset + length > segment.num_bytes:
                raise no_place(link.rank, frame)
            segment.view[offset : offset + length] = payload
        if value:
            self._board.post(id, value)

    def room(self, link: Link, frame: tuple[int, ...]) -> memoryview:
        kind, number, offset, length, id, _ = frame
        if kind == PUT and length <= MAX_FRAME_BYTES:
            segment = self._segments.get(number)
            if segment is not None and offset + length <= segment.num_bytes:
                return segment.view[offset : offset + length]
            raise no_place(link.rank, frame)
        if kind == DATA and length <= MAX_FRAME_BYTES:
            with self._lock:
                view = self._reads.get(id, memoryview(b""))
            if offset + length <= len(view):
                return view[offset : offset + length]
        if kind == LOST and length <= MAX_TEXT_BYTES:
            return memoryview(self._texts[link.rank])[:length]
        raise unexpected(link.rank, frame)

    def arrived(self, link: Link, frame: tuple[int, ...], payload: memoryview) -> None:
        kind, id, value = frame[0], frame[4], frame[5]
        if kind == PUT:
            if value:
                self._board.post(id, value)
        elif kind == DATA:
            if value:
                with self._lock:
                    self._reads.pop(id, None)
                self._hearer.hear(link, Frame(*frame), b"")
        elif kind != BEAT:
            self._hearer.hear(link, Frame(*frame), bytes(payload))

    def expect(self, number: int, data: Tensor) -> None:
        with self._lock:
            self._reads[number] = data.numpy().data

    # -- the board's -------------------------------------------------------------------------------------------------
    def post(self, note: Note) -> None:
        self._board.post(note.id, note.value)

    def waitsome(self, ids: Collection[int], timeout_s: float) -> int:
        return self._board.waitsome(ids, timeout_s)

    def take(self, ids: Collection[int], timeout_s: float) -> list[Note]:
        return self._board.take(ids, timeout_s)

    def reset(self, id: int) -> int:
        return self._board.reset(id)

    def leave(self) -> None:
        self._board.leave()

    def fail(self, error: TransportError) -> None:
        self._board.fail(error)

    def check(self) -> None:
        self._board.check()

    def close(self) -> None:
        self._reactor.close()
