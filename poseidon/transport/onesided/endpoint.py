"""SocketEndpoint: one-sided communication between processes: shared memory inside a host, TCP between hosts.

Every two workers have a connection (`joining.py`). Inside a host it is a Unix socket that carries notifications only,
since either process can copy into the other's segments; between hosts it is TCP, and the bytes put go straight into the
target's segment as they are read (`link.py`). Which it is, is decided for each pair; `links` tells.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Collection, Sequence
from itertools import count
from typing import TypeVar

import numpy as np
from torch import Tensor

from poseidon.errors import PeerLost, TransportError
from poseidon.transport.base import Peer, Work, names_of
from poseidon.transport.completion import Completion, finished
from poseidon.transport.health import HealthOptions
from poseidon.transport.onesided.base import (
    NUM_QUEUES,
    Note,
    Spot,
    check_local,
    check_note,
    check_range,
    check_rank,
)
from poseidon.transport.onesided.board import Board
from poseidon.transport.onesided.frames import (
    BEAT,
    BYE,
    DATA,
    HEADER,
    LOST,
    MAX_FRAME_BYTES,
    MAX_TEXT_BYTES,
    PUT,
    READ,
    SEGMENT,
    header,
)
from poseidon.transport.onesided.link import Link, put_frames, unexpected
from poseidon.transport.onesided.reactor import Reactor
from poseidon.transport.onesided.segments import Segment, Segments, bytes_of
from poseidon.transport.pacing import Pace

T = TypeVar("T")
READ_QUEUE = 1  # answers to reads: behind what is urgent, before the bulk
LIMIT_S = 1800.0
SEGMENT_S = 60.0  # for a peer's segment to become known
SMALL_BYTES = 4 << 10  # are copied behind their header, and sent as one piece
FAREWELL_S = 5.0


class SocketEndpoint:
    """`segments` are this worker's; `links` lead to all others."""

    def __init__(
        self,
        rank: int,
        peers: tuple[Peer, ...],
        segments: Segments,
        links: Sequence[Link],
        options: HealthOptions,
    ) -> None:
        self.rank, self.size, self.peers = rank, len(peers), peers
        self._segments = segments
        self._links: dict[int, Link] = {link.rank: link for link in links}
        self.kind = " + ".join(sorted({link.kind for link in links})) or "alone"
        self._reactor = Reactor(self, self._lose, options)
        self._board = Board(self._reactor)
        self._lock = threading.Lock()
        self._num_sent = 0
        self._round = 0
        self._frame_bytes = MAX_FRAME_BYTES
        self._outstanding = [0] * NUM_QUEUES
        self._reads: dict[int, tuple[Completion, memoryview]] = {}
        self._read_numbers = count(1)
        self._texts = {link.rank: bytearray(MAX_TEXT_BYTES) for link in links}
        self._lost: tuple[int, ...] = ()
        self._closed = False
        for link in links:
            link.ledger = self
        self._reactor.start(links, f"onesided-{rank}")

    # -- facts ------------------------------------------------------------------------------------------------------
    @property
    def links(self) -> tuple[str, ...]:
        return tuple("self" if rank == self.rank else self._links[rank].kind for rank in range(self.size))

    @property
    def bytes_sent(self) -> int:
        return self._num_sent

    def health(self) -> tuple[bool, ...]:
        return tuple(
            rank == self.rank or not (self._links[rank].has_left or rank in self._lost) for rank in range(self.size)
        )

    def keep_to(self, pace: Pace) -> None:
        """From now on, what goes to other hosts and comes from there keeps to a budget; frames become shorter."""
        self._frame_bytes = min(pace.piece_bytes, MAX_FRAME_BYTES)
        self._reactor.keep_to(pace, f"pace-{self.rank}")

    # -- segments ---------------------------------------------------------------------------------------------------
    def allocate(self, segment: int, num_bytes: int) -> Tensor:
        self._board.check()
        made = self._segments.allocate(segment, num_bytes)
        for link in self._links.values():
            head = header(SEGMENT, segment=segment, offset=made.start, value=num_bytes)
            self._reactor.say(link, head)
        return made.memory

    def _known(self, link: Link, segment: int, found: dict[int, T]) -> T:
        """What is known of a peer's segment, which may be on its way to be known."""
        what = f"segment {segment} of {self.peers[link.rank]}"
        return self._board.wait_for(lambda: found.get(segment), SEGMENT_S, what)

    # -- puts -------------------------------------------------------------------------------------------------------
    def write_notify(self, local: Tensor, spot: Spot, note: Note | None, queue: int = 0) -> None:
        check_local(local)
        check_note(note, queue)
        rank, segment, offset = spot
        view = bytes_of(local).numpy()
        num_bytes = view.size
        if rank == self.rank:
            self._put_to_self(view, spot, note)
            return
        link = self._link(rank)
        if link.peer_file is not None:
            window = link.windows.get(segment) or self._known(link, segment, link.windows)
            check_range(spot, num_bytes, window.num_bytes)
            window.array[offset : offset + num_bytes] = view
            if note is not None:
                self._send(link, HEADER.pack(PUT, 0, 0, 0, note[0], note[1]), None, queue)
        else:
            check_range(spot, num_bytes, link.sizes.get(segment) or self._known(link, segment, link.sizes))
            id, value = note or (0, 0)
            if num_bytes <= SMALL_BYTES:
                frame = HEADER.pack(PUT, segment, offset, num_bytes, id, value) + view.tobytes()
                self._send(link, frame, None, queue)
            else:
                frames = put_frames(view.data, segment, offset, id, value, frame_bytes=self._frame_bytes)
                self._send_all(link, frames, queue)
        self._num_sent += num_bytes

    def begin_round(self) -> None:
        self._round += 1

    def notify(self, rank: int, note: Note, queue: int = 0) -> None:
        check_note(note, queue)
        if rank == self.rank:
            self._board.check()
            self._board.post(note.id, note.value)
            return
        self._send(self._link(rank), HEADER.pack(PUT, 0, 0, 0, note.id, note.value), None, queue)

    def wait(self, queue: int, timeout_s: float) -> None:
        def look() -> bool | None:
            return True if self._outstanding[queue] == 0 else None

        self._board.wait_for(look, timeout_s, f"room for what was put into queue {queue}")

    def _link(self, rank: int) -> Link:
        if self._board.error is not None:
            self._board.check()
        link = self._links.get(rank)
        if link is None:
            check_rank(rank, self.size)
            raise TransportError(f"rank {rank} has no connection to itself")
        if link.has_left:
            raise PeerLost(f"{self.peers[rank]} left the job before that was over; while putting to it", (rank,))
        return link

    def _send(self, link: Link, head: bytes, payload: memoryview | None, queue: int) -> None:
        try:
            if not link.give(head, payload, (self._round, queue)):
                self._reactor.arm(link)
        except OSError as error:
            self._lose(link.rank, f"is lost: its connection broke ({error.strerror or error})")
            self._board.check()

    def _send_all(self, link: Link, frames: list[tuple[bytes, memoryview]], queue: int) -> None:
        for head, payload in frames:
            self._send(link, head, payload, queue)

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

    def _put_to_self(self, view: np.ndarray, spot: Spot, note: Note | None) -> None:
        self._board.check()
        segment = self._own(spot)
        check_range(spot, view.size, segment.num_bytes)
        segment.array[spot.offset : spot.offset + view.size] = view
        if note is not None:
            self._board.post(note.id, note.value)

    def _own(self, spot: Spot) -> Segment:
        segment = self._segments.get(spot.segment)
        if segment is None:
            raise TransportError(f"rank {self.rank} has no segment {spot.segment}")
        return segment

    # -- reads ------------------------------------------------------------------------------------------------------
    def read(self, local: Tensor, spot: Spot) -> Work:
        check_local(local)
        check_rank(spot.rank, self.size)
        data = bytes_of(local)
        what = f"reading {len(data)} bytes from segment {spot.segment} of {self.peers[spot.rank]}"
        if len(data) == 0:
            return finished(what)
        if spot.rank != self.rank:
            link = self._link(spot.rank)
            if link.peer_file is None:
                check_range(spot, len(data), self._known(link, spot.segment, link.sizes))
                return self._ask(link, data, spot, what)
            segment = self._known(link, spot.segment, link.windows)
        else:
            segment = self._own(spot)
        check_range(spot, len(data), segment.num_bytes)
        data.numpy()[:] = segment.array[spot.offset : spot.offset + len(data)]
        return finished(what)

    def _ask(self, link: Link, data: Tensor, spot: Spot, what: str) -> Work:
        work = Completion(what, (link.rank,), LIMIT_S)
        number = next(self._read_numbers) % 2**32
        with self._lock:
            self._reads[number] = work, data.numpy().data
        head = header(READ, segment=spot.segment, offset=spot.offset, id=number, value=len(data))
        self._send(link, head, None, READ_QUEUE)
        if link.has_left:  # since it was looked at last: whoever noticed may not have seen this read
            self._fail_reads(self._farewell(link), link.rank)
        elif self._board.error is not None:
            self._fail_reads(self._board.error, None)
        return work

    def _farewell(self, link: Link) -> PeerLost:
        return PeerLost(f"{self.peers[link.rank]} left the job", (link.rank,))

    # -- notifications ----------------------------------------------------------------------------------------------
    def waitsome(self, ids: Collection[int], timeout_s: float) -> int:
        return self._board.waitsome(ids, timeout_s)

    def reset(self, id: int) -> int:
        return self._board.reset(id)

    def take(self, ids: Collection[int], timeout_s: float) -> list[Note]:
        return self._board.take(ids, timeout_s)

    # -- what comes in (Inbox) --------------------------------------------------------------------------------------
    def put(self, link: Link, frame: tuple[int, ...], payload: memoryview) -> None:
        _, number, offset, length, id, value = frame
        if length:
            segment = self._segments.get(number)
            if segment is None or offset + length > segment.num_bytes:
                raise _no_place(link, frame)
            segment.view[offset : offset + length] = payload
        if value:
            self._board.post(id, value)

    def room(self, link: Link, frame: tuple[int, ...]) -> memoryview:
        kind, number, offset, length, id, _ = frame
        if kind == PUT and length <= MAX_FRAME_BYTES:
            segment = self._segments.get(number)
            if segment is not None and offset + length <= segment.num_bytes:
                return segment.view[offset : offset + length]
            raise _no_place(link, frame)
        if kind == DATA and length <= MAX_FRAME_BYTES:
            with self._lock:
                _, view = self._reads.get(id, (None, memoryview(b"")))
            if offset + length <= len(view):
                return view[offset : offset + length]
            raise unexpected(link.rank, "an answer to a read that nobody asked for")
        if kind == LOST and length <= MAX_TEXT_BYTES:
            return memoryview(self._texts[link.rank])[:length]
        raise unexpected(link.rank, f"a frame of kind {kind} with {length} bytes")

    def arrived(self, link: Link, frame: tuple[int, ...], payload: memoryview) -> None:
        kind, segment, offset, _, id, value = frame
        if kind == PUT:
            if value:
                self._board.post(id, value)
        elif kind == READ:
            self._answer(link, Spot(self.rank, segment, offset), id, value)
        elif kind == DATA:
            if value:
                with self._lock:
                    work, _ = self._reads.pop(id)
                work.succeed()
        elif kind == SEGMENT:
            link.learn(segment, offset, value)
            self._board.change()
        elif kind == LOST:
            self._hear_of_loss(link, bytes(payload))
        elif kind == BYE:
            link.has_left = True
            self._fail_reads(self._farewell(link), link.rank)
            self._board.leave()
        elif kind != BEAT:
            raise unexpected(link.rank, f"a frame of kind {kind}")

    def _answer(self, link: Link, spot: Spot, id: int, num_bytes: int) -> None:
        segment = self._segments.get(spot.segment)
        if segment is None or spot.offset + num_bytes > segment.num_bytes:
            raise unexpected(link.rank, f"a read of {num_bytes} bytes at {spot.offset} of segment {spot.segment}")
        view = segment.view[spot.offset : spot.offset + num_bytes]
        self._num_sent += num_bytes
        self._send_all(link, put_frames(view, 0, 0, id, 1, DATA, self._frame_bytes), READ_QUEUE)

    # -- ends -------------------------------------------------------------------------------------------------------
    def _hear_of_loss(self, link: Link, text: bytes) -> None:
        try:
            told = json.loads(text)
            ranks = tuple(rank for rank in told["ranks"] if rank in range(self.size) and rank != self.rank)
            reason = str(told["reason"])
        except (ValueError, TypeError, KeyError):
            ranks, reason = (), ""
        link.has_left = True  # it ends now; that is no further news
        self._conclude(ranks or (link.rank,), reason or "gave up")

    def _lose(self, rank: int, reason: str) -> None:
        self._conclude((rank,), reason)

    def _conclude(self, ranks: tuple[int, ...], reason: str) -> None:
        """The first verdict stays, and is told to all: what breaks afterwards is a consequence."""
        with self._lock:
            if self._lost or self._closed:
                return
            self._lost = ranks
        self._tell_loss(ranks, reason)
        self._end_waits(PeerLost(f"{names_of(self.peers, ranks)} {reason}", ranks))

    def _tell_loss(self, ranks: tuple[int, ...], reason: str) -> None:
        text = json.dumps({"ranks": list(ranks), "reason": reason[: MAX_TEXT_BYTES // 8]}).encode()
        for link in self._links.values():
            if not link.has_left and link.rank not in ranks:
                self._reactor.say(link, header(LOST, length=len(text)), memoryview(text))

    def _end_waits(self, error: TransportError) -> None:
        self._board.fail(error)  # first: a read that begins now sees that, or is failed here
        self._fail_reads(error, None)

    def _fail_reads(self, error: TransportError, rank: int | None) -> None:
        """Fails reads, those from one rank or all."""
        with self._lock:
            reads = [work for work, _ in self._reads.values() if rank is None or rank in work.ranks]
            self._reads = {n: entry for n, entry in self._reads.items() if entry[0] not in reads}
        for work in reads:
            work.fail(type(error)(f"{error}; while {work.what}", error.ranks))

    def abort(self, reason: str) -> None:
        with self._lock:
            if self._lost or self._closed:
                return
            self._lost = (self.rank,)
        self._tell_loss((self.rank,), f"gave up: {reason}")
        self._end_waits(PeerLost(f"{self.peers[self.rank]} gave up: {reason}", (self.rank,)))

    def close(self) -> None:
        if self._closed:
            return
        if self._board.error is None:
            self._leave()
        self._closed = True
        self._end_waits(TransportError(f"the one-sided endpoint of rank {self.rank} is closed"))
        self._reactor.close()
        for link in self._links.values():
            link.close()
        self._segments.close()

    def _leave(self) -> None:
        """Says goodbye behind everything else, and waits for it to be out, as long as anything leaves at all."""
        for link in self._links.values():
            if not link.has_left:
                link.is_told = True
                self._reactor.say(link, header(BYE), urgency=(self._round, NUM_QUEUES))
        deadline_s, num_left = time.monotonic() + FAREWELL_S, -1
        while time.monotonic() < deadline_s and self._board.error is None:
            waiting = sum(link.num_waiting for link in self._links.values() if not link.has_left)
            if waiting == 0:
                return
            if waiting != num_left:
                deadline_s, num_left = time.monotonic() + FAREWELL_S, waiting
            time.sleep(0.001)


def _no_place(link: Link, frame: tuple[int, ...]) -> TransportError:
    _, number, offset, length, _, _ = frame
    return unexpected(link.rank, f"{length} bytes for {offset} of segment {number}, which has no such place")
