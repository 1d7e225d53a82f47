"""SocketEndpoint: one-sided communication between processes: shared memory inside a host, TCP between hosts.

Every two workers have a connection (`joining.py`). Inside a host it is a Unix socket that carries notifications only,
since either process can copy into the other's segments; between hosts it is TCP, and the bytes put go straight into the
target's segment as they are read. Which it is, is decided for each pair; `links` tells. What moves the bytes is a
carrier (`carrier.py`); here is who may put what where, what becomes of reads, and how workers part.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Collection, Sequence
from itertools import count
from typing import TypeVar

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
from poseidon.transport.onesided.board import not_in_time
from poseidon.transport.onesided.carrier import Carrier, Frame, MakeCarrier
from poseidon.transport.onesided.contact import Contact
from poseidon.transport.onesided.frames import (
    BYE,
    DATA,
    LOST,
    MAX_TEXT_BYTES,
    PUT,
    READ,
    SEGMENT,
    no_such_read,
    unexpected,
)
from poseidon.transport.onesided.segments import Segment, Segments, bytes_of

T = TypeVar("T")
READ_QUEUE = 1  # answers to reads: behind what is urgent, before the bulk
LIMIT_S = 1800.0
SEGMENT_S = 60.0  # for a peer's segment to become known
LOOK_S = 0.2
FAREWELL_S = 5.0


class SocketEndpoint:
    """`segments` are this worker's; `contacts` are all others."""

    def __init__(
        self,
        rank: int,
        peers: tuple[Peer, ...],
        segments: Segments,
        contacts: Sequence[Contact],
        options: HealthOptions,
        make_carrier: MakeCarrier,
    ) -> None:
        self.rank, self.size, self.peers = rank, len(peers), peers
        self._segments = segments
        self._contacts = {contact.rank: contact for contact in contacts}
        self.kind = " + ".join(sorted({contact.kind for contact in contacts})) or "alone"
        self._lock = threading.Lock()
        self._learned = threading.Condition()
        self._num_sent = 0
        self._round = 0
        self._reads: dict[int, Completion] = {}
        self._read_numbers = count(1)
        self._lost: tuple[int, ...] = ()
        self._closed = False
        self.carrier: Carrier = make_carrier(rank, self, segments, contacts, options)

    # -- facts ------------------------------------------------------------------------------------------------------
    @property
    def links(self) -> tuple[str, ...]:
        return tuple("self" if rank == self.rank else self._contacts[rank].kind for rank in range(self.size))

    @property
    def bytes_sent(self) -> int:
        return self._num_sent

    def health(self) -> tuple[bool, ...]:
        return tuple(
            rank == self.rank or not (self._contacts[rank].has_left or rank in self._lost) for rank in range(self.size)
        )

    # -- segments ---------------------------------------------------------------------------------------------------
    def allocate(self, segment: int, num_bytes: int) -> Tensor:
        self.carrier.check()
        made = self._segments.allocate(segment, num_bytes)
        self.carrier.expose(segment, made)
        for contact in self._contacts.values():
            self.carrier.say(contact, Frame(SEGMENT, segment, made.start, value=num_bytes))
        return made.memory

    def _known(self, contact: Contact, segment: int, found: dict[int, T]) -> T:
        """What is known of a peer's segment, which may be on its way to be known."""
        deadline_s = time.monotonic() + SEGMENT_S
        with self._learned:
            while segment not in found:
                self.carrier.check()
                if time.monotonic() > deadline_s:
                    raise not_in_time(f"segment {segment} of {self.peers[contact.rank]}")
                self._learned.wait(LOOK_S)
            return found[segment]

    # -- puts -------------------------------------------------------------------------------------------------------
    def write_notify(self, local: Tensor, spot: Spot, note: Note | None, queue: int = 0) -> None:
        check_local(local)
        check_note(note, queue)
        rank, segment, offset = spot
        data = bytes_of(local)
        num_bytes = local.nbytes
        if rank == self.rank:
            self._put_to_self(data, spot, note)
            return
        contact = self._contact(rank)
        id, value = note or (0, 0)
        if contact.peer_file is not None:
            window = contact.windows.get(segment) or self._known(contact, segment, contact.windows)
            check_range(spot, num_bytes, window.num_bytes)
            window.array[offset : offset + num_bytes] = data.numpy()
            if note is not None:
                self._say(contact, Frame(PUT, 0, 0, 0, id, value), queue)
        else:
            check_range(spot, num_bytes, contact.sizes.get(segment) or self._known(contact, segment, contact.sizes))
            self.carrier.send(contact, Frame(PUT, segment, offset, num_bytes, id, value), data, (self._round, queue))
            if self.carrier.error is not None:
                self.carrier.check()
        self._num_sent += num_bytes

    def begin_round(self) -> None:
        self._round += 1

    def notify(self, rank: int, note: Note, queue: int = 0) -> None:
        check_note(note, queue)
        if rank == self.rank:
            self.carrier.check()
            self.carrier.post(note)
            return
        self._say(self._contact(rank), Frame(PUT, 0, 0, 0, note.id, note.value), queue)

    def wait(self, queue: int, timeout_s: float) -> None:
        self.carrier.flushed(queue, timeout_s)

    def _say(self, contact: Contact, frame: Frame, queue: int) -> None:
        self.carrier.say(contact, frame, b"", (self._round, queue))
        if self.carrier.error is not None:
            self.carrier.check()

    def _contact(self, rank: int) -> Contact:
        if self.carrier.error is not None:
            self.carrier.check()
        contact = self._contacts.get(rank)
        if contact is None:
            check_rank(rank, self.size)
            raise TransportError(f"rank {rank} has no connection to itself")
        if contact.has_left:
            raise PeerLost(f"{self.peers[rank]} left the job before that was over; while putting to it", (rank,))
        return contact

    def _put_to_self(self, data: Tensor, spot: Spot, note: Note | None) -> None:
        self.carrier.check()
        segment = self._own(spot)
        check_range(spot, len(data), segment.num_bytes)
        segment.array[spot.offset : spot.offset + len(data)] = data.numpy()
        if note is not None:
            self.carrier.post(note)

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
            contact = self._contact(spot.rank)
            if contact.peer_file is None:
                check_range(spot, len(data), self._known(contact, spot.segment, contact.sizes))
                return self._ask(contact, data, spot, what)
            segment = self._known(contact, spot.segment, contact.windows)
        else:
            segment = self._own(spot)
        check_range(spot, len(data), segment.num_bytes)
        data.numpy()[:] = segment.array[spot.offset : spot.offset + len(data)]
        return finished(what)

    def _ask(self, contact: Contact, data: Tensor, spot: Spot, what: str) -> Work:
        work = Completion(what, (contact.rank,), LIMIT_S)
        number = next(self._read_numbers) % 2**32
        with self._lock:
            self._reads[number] = work
        self.carrier.expect(number, data)
        asking = Frame(READ, spot.segment, spot.offset, id=number, value=len(data))
        self.carrier.say(contact, asking, urgency=(self._round, READ_QUEUE))
        if contact.has_left:  # since it was looked at last: whoever noticed may not have seen this read
            self._fail_reads(self._farewell(contact), contact.rank)
        elif self.carrier.error is not None:
            self._fail_reads(self.carrier.error, None)
        return work

    def _farewell(self, contact: Contact) -> PeerLost:
        return PeerLost(f"{self.peers[contact.rank]} left the job", (contact.rank,))

    # -- notifications ----------------------------------------------------------------------------------------------
    def waitsome(self, ids: Collection[int], timeout_s: float) -> int:
        return self.carrier.waitsome(ids, timeout_s)

    def reset(self, id: int) -> int:
        return self.carrier.reset(id)

    def take(self, ids: Collection[int], timeout_s: float) -> list[Note]:
        return self.carrier.take(ids, timeout_s)

    # -- what comes besides puts (Hearer) ---------------------------------------------------------------------------
    def hear(self, contact: Contact, frame: Frame, text: bytes) -> None:
        if frame.kind == READ:
            self._answer(contact, frame)
        elif frame.kind == DATA:
            with self._lock:
                work = self._reads.pop(frame.id, None)
            if work is not None:
                work.succeed()
        elif frame.kind == SEGMENT:
            with self._learned:
                contact.learn(frame.segment, frame.offset, frame.value)
                self._learned.notify_all()
        elif frame.kind == LOST:
            self._hear_of_loss(contact, text)
        elif frame.kind == BYE:
            contact.has_left = True
            self.carrier.drop(contact)
            self._fail_reads(self._farewell(contact), contact.rank)
            self.carrier.leave()
        else:
            raise unexpected(contact.rank, frame)

    def _answer(self, contact: Contact, frame: Frame) -> None:
        segment = self._segments.get(frame.segment)
        if segment is None or frame.offset + frame.value > segment.num_bytes:
            raise no_such_read(contact.rank, frame)
        part = segment.memory[frame.offset : frame.offset + frame.value]
        self._num_sent += frame.value
        answer = Frame(DATA, length=frame.value, id=frame.id, value=1)
        self.carrier.send(contact, answer, part, (self._round, READ_QUEUE))

    # -- ends -------------------------------------------------------------------------------------------------------
    def _hear_of_loss(self, contact: Contact, text: bytes) -> None:
        try:
            told = json.loads(text)
            ranks = tuple(rank for rank in told["ranks"] if rank in range(self.size) and rank != self.rank)
            reason = str(told["reason"])
        except (ValueError, TypeError, KeyError):
            ranks, reason = (), ""
        contact.has_left = True  # it ends now; that is no further news
        self._conclude(ranks or (contact.rank,), reason or "gave up")

    def lose(self, rank: int, reason: str) -> None:
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
        for contact in self._contacts.values():
            if not contact.has_left and contact.rank not in ranks:
                self.carrier.say(contact, Frame(LOST), text)

    def _end_waits(self, error: TransportError) -> None:
        self.carrier.fail(error)  # first: a read that begins now sees that, or is failed here
        self._fail_reads(error, None)

    def _fail_reads(self, error: TransportError, rank: int | None) -> None:
        """Fails reads, those from one rank or all."""
        with self._lock:
            reads = [work for work in self._reads.values() if rank is None or rank in work.ranks]
            self._reads = {number: work for number, work in self._reads.items() if work not in reads}
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
        if self.carrier.error is None:
            self._leave()
        self._closed = True
        self._end_waits(TransportError(f"the one-sided endpoint of rank {self.rank} is closed"))
        self.carrier.close()
        for contact in self._contacts.values():
            contact.close()
        self._segments.close()

    def _leave(self) -> None:
        """Says goodbye behind everything else, and waits for it to be out, as long as anything leaves at all."""
        for contact in self._contacts.values():
            if not contact.has_left:
                contact.is_told = True
                self.carrier.say(contact, Frame(BYE), urgency=(self._round, NUM_QUEUES))
        deadline_s, num_left = time.monotonic() + FAREWELL_S, -1
        while time.monotonic() < deadline_s and self.carrier.error is None:
            present = [contact for contact in self._contacts.values() if not contact.has_left]
            waiting = sum(self.carrier.num_waiting(contact) for contact in present)
            if waiting == 0:
                return
            if waiting != num_left:
                deadline_s, num_left = time.monotonic() + FAREWELL_S, waiting
            time.sleep(0.001)
