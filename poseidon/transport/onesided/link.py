"""Link: one connection to another worker: frames on their way out, frames coming in.

Out: frames wait in the order (round, queue, time given). A small one is handed to the kernel at once by the thread that
gives it, if nothing waits before it; the rest leaves when the connection has room. A frame that has begun is finished
first. Signs of life wait for nothing but that.

In: headers and whatever comes with them are read into a small buffer; the rest of a long payload is read straight into
the memory it is for, and what follows it into the small buffer, by one call. What a frame is for, `Inbox` decides. As
long as a payload is under way, the kernel announces only as much as is worth waking up for (WORTH_BYTES, or its end):
packet by packet, a worker would be busier with waking up than with the bytes.

With a budget (`pace`) a link sends and reads short pieces, as many as the budget allows; the reactor sees to it that it
rests in between. What is urgent (very short) goes at once.

Two threads may use a link at the same time, one sending and one receiving; each direction has a lock.
"""

from __future__ import annotations

import heapq
import socket
import threading
import time
from itertools import count
from typing import Protocol

from poseidon.transport.onesided.carrier import Frame, Urgency
from poseidon.transport.onesided.contact import Contact
from poseidon.transport.onesided.frames import BEAT, HEADER, HEADER_BYTES, MAX_FRAME_BYTES, PUT, header
from poseidon.transport.pacing import URGENT_BYTES, Pace

AT_ONCE_BYTES = 64 << 10
STAGE_BYTES = 64 << 10
_NOTHING = memoryview(b"")
TURN_BYTES = 4 << 20  # a link reads so much before others are read
WORTH_BYTES = MAX_FRAME_BYTES
_BEAT = header(BEAT)


class Ledger(Protocol):
    """Keeps count of payloads that wait to leave their memory, by queue."""

    def begin(self, queue: int) -> None: ...

    def end(self, queue: int) -> None: ...


class Inbox(Protocol):
    """Where incoming frames go."""

    def put(self, link: Link, frame: tuple[int, ...], payload: memoryview) -> None:
        """A whole PUT, whose bytes are still to be copied to where they belong. Raises for what must not come."""

    def room(self, link: Link, frame: tuple[int, ...]) -> memoryview:
        """Memory for a frame's payload: the header's fields say what it is. Raises for what must not come."""

    def arrived(self, link: Link, frame: tuple[int, ...], payload: memoryview) -> None:
        """A frame is complete."""


class _Frame:
    """On its way out: what of it is still here."""

    __slots__ = ("has_payload", "parts", "queue")

    def __init__(self, head: bytes, payload: memoryview | None, queue: int) -> None:
        self.parts: list[bytes | memoryview] = [head] if payload is None else [head, payload]
        self.has_payload = payload is not None
        self.queue = queue

    def first(self, num_bytes: int) -> list[bytes | memoryview]:
        """The next so many bytes, or less."""
        found: list[bytes | memoryview] = []
        for part in self.parts:
            found.append(memoryview(part)[:num_bytes])
            num_bytes -= len(found[-1])
            if num_bytes == 0:
                break
        return found

    def begin(self, num_bytes: int) -> bool:
        """So many bytes have left; true if that was all."""
        parts = self.parts
        while parts and num_bytes >= len(parts[0]):
            num_bytes -= len(parts.pop(0))
        if parts and num_bytes:
            parts[0] = memoryview(parts[0])[num_bytes:]
        return not parts


class Link(Contact):
    """A contact whose frames Python moves."""

    def __init__(self, rank: int, connection: socket.socket, peer_file: int | None) -> None:
        super().__init__(rank, connection, peer_file)
        self.ledger: Ledger | None = None
        self.pace: Pace | None = None  # a link inside a host has none
        self.is_resting = False  # until the budget allows more; the reactor's
        self.heard_s = self.said_s = time.monotonic()
        self.has_more = False  # to be read, than a turn allowed
        self.numbers = count()
        self._waiting: list[tuple[Urgency, int, _Frame]] = []
        self._begun: _Frame | None = None
        self._send_lock = threading.Lock()
        self._receive_lock = threading.Lock()
        self._stage_view = memoryview(bytearray(STAGE_BYTES))
        self._last = 0  # so much of the stage is still to be looked at
        self._frame: tuple[int, ...] = ()
        self._payload = _NOTHING
        self._rest: memoryview | None = None  # of the payload under way
        self._announced = 1  # from so many bytes on the kernel tells that something has come

    @property
    def has_waiting(self) -> bool:
        return self._begun is not None or bool(self._waiting)

    @property
    def num_waiting(self) -> int:
        """Frames that have not left."""
        return len(self._waiting) + (self._begun is not None)

    # -- out --------------------------------------------------------------------------------------------------------
    def give(self, head: bytes, payload: memoryview | None, urgency: Urgency) -> bool:
        """Takes a frame; false if something has to wait for room, so that `flush` must be called when there is."""
        with self._send_lock:
            if self.is_closed or self.has_left:
                return True
            is_first = self._begun is None and (not self._waiting or urgency < self._waiting[0][0])
            if is_first and (payload is None or self._may_go_at_once(len(payload))):
                return self._push_at_once(head, payload, urgency[1])
            frame = self._waiting_frame(head, payload, urgency[1])
            heapq.heappush(self._waiting, (urgency, next(self.numbers), frame))
            return False

    def _may_go_at_once(self, length: int) -> bool:
        if self.pace is None:
            return length <= AT_ONCE_BYTES
        return length <= URGENT_BYTES or (length <= AT_ONCE_BYTES and self.pace.sending.delay() <= 0)

    def beat(self) -> bool:
        """A sign of life, past everything that waits; a frame that has begun is one itself. Returns as `give`."""
        with self._send_lock:
            self.said_s = time.monotonic()
            return self.is_closed or self._begun is not None or self._push_at_once(_BEAT, None, 0)

    def drop(self) -> None:
        """Nothing is sent any more: the peer has left, or is lost. What waits has not to be kept."""
        with self._send_lock:
            frames = [frame for _, _, frame in self._waiting] + ([] if self._begun is None else [self._begun])
            self._waiting.clear()
            self._begun = None
        for frame in frames:
            self._end_frame(frame)

    def flush(self) -> None:
        """Sends what there is room for of one frame: that which has begun, else the most urgent."""
        with self._send_lock:
            if self._begun is None and self._waiting:
                self._begun = heapq.heappop(self._waiting)[2]
            if self._begun is not None:
                self._push_begun()

    @property
    def has_begun(self) -> bool:
        return self._begun is not None

    def urgency(self) -> tuple[Urgency, int]:
        """Of what it would send next, and its number: what has begun goes on first, then what was given first."""
        if self._begun is not None or not self._waiting:
            return (-1, 0), 0
        return self._waiting[0][:2]

    def _waiting_frame(self, head: bytes, payload: memoryview | None, queue: int) -> _Frame:
        if payload is not None and self.ledger is not None:
            self.ledger.begin(queue)
        return _Frame(head, payload, queue)

    def _push_at_once(self, head: bytes, payload: memoryview | None, queue: int) -> bool:
        """A small frame before which none waits."""
        try:
            if payload is None:
                length = len(head)
                num_bytes = self.socket.send(head)
            else:
                length = len(head) + len(payload)
                num_bytes = self.socket.sendmsg((head, payload))
        except BlockingIOError:
            num_bytes = 0
        if self.pace is not None:
            self.pace.sending.spend(num_bytes)
        if num_bytes == length:
            return True
        self._begun = self._waiting_frame(head, payload, queue)
        self._begun.begin(num_bytes)
        return False

    def _push_begun(self) -> None:
        """Hands the frame that has begun to the kernel, as much as it takes, and the budget allows."""
        frame, pace = self._begun, self.pace
        assert frame is not None
        is_over = False
        while not is_over:
            if pace is not None and pace.sending.delay() > 0:
                return
            try:
                num_bytes = self.socket.sendmsg(frame.parts if pace is None else frame.first(pace.piece_bytes))
            except BlockingIOError:
                return
            if pace is not None:
                pace.sending.spend(num_bytes)
            is_over = frame.begin(num_bytes)
        self._begun = None
        self.said_s = time.monotonic()
        self._end_frame(frame)

    def _end_frame(self, frame: _Frame) -> None:
        if frame.has_payload and self.ledger is not None:
            self.ledger.end(frame.queue)

    # -- in ---------------------------------------------------------------------------------------------------------
    def receive(self, inbox: Inbox, *, to_the_end: bool = False) -> bool:
        """Reads what has come, within a turn; false at the end of the connection, which is looked for if `to_the_end`.

        The next that comes is announced by an event of its own, unless `has_more` tells that something is here still.
        """
        with self._receive_lock:
            if self.is_closed:
                return True
            pace = self.pace
            left = TURN_BYTES if pace is None else pace.piece_bytes
            self.has_more = True
            while left > 0 and self.has_more:
                try:
                    num_bytes, room = self._read(left)
                except BlockingIOError:
                    self.has_more = False
                    break
                if num_bytes == 0:
                    return False
                self.heard_s = time.monotonic()
                left -= num_bytes
                if pace is not None:
                    pace.receiving.spend(num_bytes)
                self._take_in(inbox, num_bytes)
                self.has_more = num_bytes == room or to_the_end  # less than there was room for: that was all
            self._ask_for_more()
            return True

    def _read(self, most: int) -> tuple[int, int]:
        """Bytes read, and for how many there was room."""
        rest = self._rest
        if rest is None:
            into = self._stage_view[self._last :] if self._last else self._stage_view
            return self.socket.recv_into(into), len(into)
        if self.pace is not None:
            rest = rest[:most]
            return self.socket.recv_into(rest), len(rest)
        return self.socket.recvmsg_into((rest, self._stage_view))[0], len(rest) + STAGE_BYTES

    def _take_in(self, inbox: Inbox, num_bytes: int) -> None:
        """So many bytes have come, of the payload under way first, the others on the stage."""
        rest = self._rest
        if rest is None:
            self._last += num_bytes
        elif num_bytes < len(rest):
            self._rest = rest[num_bytes:]
            return
        else:
            self._last = num_bytes - len(rest)
            self._rest = None
            inbox.arrived(self, self._frame, self._payload)
        self._look(inbox)

    def _ask_for_more(self) -> None:
        """Tells the kernel from how many bytes on it shall announce what comes. A budget reads short pieces anyway."""
        rest = self._rest
        worth = 1 if rest is None or self.pace is not None else min(len(rest), WORTH_BYTES)
        if worth != self._announced:
            self._announced = worth
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, worth)

    def _look(self, inbox: Inbox) -> None:
        """Goes through what is on the stage, frame by frame."""
        stage, first, last = self._stage_view, 0, self._last
        while last - first >= HEADER_BYTES:
            frame = HEADER.unpack_from(stage, first)
            first += HEADER_BYTES
            length = frame[3]
            if frame[0] == PUT and length <= last - first:
                inbox.put(self, frame, stage[first : first + length])
                first += length
                continue
            if length == 0:
                inbox.arrived(self, frame, _NOTHING)
                continue
            payload = inbox.room(self, frame)
            here = min(length, last - first)
            payload[:here] = stage[first : first + here]
            first += here
            if here < length:
                self._frame, self._payload, self._rest = frame, payload, payload[here:]
                break
            inbox.arrived(self, frame, payload)
        left = last - first
        if left:
            stage[:left] = bytes(stage[first:last])
        self._last = left

    def close(self) -> None:
        with self._receive_lock, self._send_lock:  # in the order in which a read is received and answered
            self._waiting.clear()
            self._begun = None
            super().close()


def put_frames(frame: Frame, view: memoryview, frame_bytes: int = MAX_FRAME_BYTES) -> list[tuple[bytes, memoryview]]:
    """A put, or the answer to a read, as frames; `value` goes with the last."""
    kind, segment, offset, _, id, value = frame
    frames = []
    for first in range(0, len(view), frame_bytes):
        part = view[first : first + frame_bytes]
        is_last = first + len(part) == len(view)
        frames.append((HEADER.pack(kind, segment, offset + first, len(part), id, value if is_last else 0), part))
    return frames
