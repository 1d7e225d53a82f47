"""NativeCarrier: frames moved by C (`../native`): a thread of Python's lends itself to it, and deals with the rest.

    connection ends without BYE     that worker died               noticed at once
    silence for `limit_s`           it hangs, or is cut off        noticed after limit_s (+ interval_s)

Signs of life go out where nothing else has for `interval_s`. A process that was itself asleep for a while does not
blame the others.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Collection, Sequence

from torch import Tensor

from poseidon.errors import TransportError
from poseidon.transport.health import HealthOptions
from poseidon.transport.native import Mesh
from poseidon.transport.onesided.base import Note
from poseidon.transport.onesided.board import not_in_time
from poseidon.transport.onesided.carrier import MOST_URGENT, Frame, Hearer, Urgency, raise_again
from poseidon.transport.onesided.contact import Contact
from poseidon.transport.onesided.frames import BEAT, unexpected
from poseidon.transport.onesided.segments import Segment, Segments

FRAME, ODD_FRAME = 0, 1  # what a piece of news is about; else: the end of a connection
CLOSE_S = 5.0


class NativeCarrier:
    """See Carrier."""

    def __init__(
        self, rank: int, hearer: Hearer, segments: Segments, contacts: Sequence[Contact], options: HealthOptions
    ) -> None:
        self.error: TransportError | None = None
        self._hearer, self._options = hearer, options
        self._contacts = {contact.rank: contact for contact in contacts}
        self._ended: set[int] = set()
        self._is_closing = False
        self._mesh = Mesh(1 + max([rank, *self._contacts]))
        for contact in contacts:
            contact.socket.setblocking(False)
            self._mesh.connect(contact.rank, contact.fd)
        self._thread = threading.Thread(target=self._serve, name=f"onesided-{rank}", daemon=True)
        self._thread.start()

    def expose(self, number: int, segment: Segment) -> None:
        self._mesh.expose(number, segment.memory.data_ptr(), segment.num_bytes)

    # -- out --------------------------------------------------------------------------------------------------------
    def send(self, contact: Contact, frame: Frame, data: Tensor, urgency: Urgency) -> None:
        kind, segment, offset, length, id, value = frame
        self._mesh.put(contact.rank, kind, segment, offset, data, data.data_ptr(), length, id, value, *urgency)

    def say(self, contact: Contact, frame: Frame, text: bytes = b"", urgency: Urgency = MOST_URGENT) -> None:
        kind, segment, offset, _, id, value = frame
        self._mesh.say(contact.rank, kind, segment, offset, id, value, text, *urgency)

    def expect(self, number: int, data: Tensor) -> None:
        self._mesh.expect(number, data, data.data_ptr(), len(data))

    def drop(self, contact: Contact) -> None:
        self._mesh.drop(contact.rank)

    def num_waiting(self, contact: Contact) -> int:
        return self._mesh.waiting(contact.rank)

    # -- notifications ----------------------------------------------------------------------------------------------
    def post(self, note: Note) -> None:
        self._mesh.post(*note)

    def waitsome(self, ids: Collection[int], timeout_s: float) -> int:
        found = self._mesh.waitsome(ids, timeout_s)
        if found is None:
            raise not_in_time(ids)
        if found < 0:
            self.check()
        return found

    def take(self, ids: Collection[int], timeout_s: float) -> list[Note]:
        found = self._mesh.take(ids, timeout_s)
        if found is None:
            raise not_in_time(ids)
        if isinstance(found, int):
            self.check()
            return []
        return [Note(*pair) for pair in found]

    def reset(self, id: int) -> int:
        if self.error is not None:
            self.check()
        return self._mesh.reset(id)

    def flushed(self, queue: int, timeout_s: float) -> None:
        is_empty = self._mesh.flushed(queue, timeout_s)
        if is_empty is False:
            raise not_in_time(f"room for what was put into queue {queue}")
        if is_empty is not True:
            self.check()

    def leave(self) -> None:
        self._mesh.leave()

    # -- ends -------------------------------------------------------------------------------------------------------
    def fail(self, error: TransportError) -> None:
        self.error = self.error or error
        self._mesh.fail()

    def check(self) -> None:
        if self.error is not None:
            raise_again(self.error)

    def close(self) -> None:
        self._is_closing = True
        self._mesh.close()
        if self._thread is not threading.current_thread():
            self._thread.join(CLOSE_S)

    # -- the carrier's thread ----------------------------------------------------------------------------------------
    def _serve(self) -> None:
        pause_s = self._options.interval_s / 2
        looked_s = time.monotonic()
        while not self._is_closing:
            for rank, what, error, fields, text in self._mesh.serve(pause_s):
                self._deal_with(self._contacts[rank], what, error, Frame(*fields), text)
            now_s = time.monotonic()
            if now_s - looked_s >= pause_s:
                self._watch(now_s - looked_s > 2 * self._options.interval_s)
                looked_s = now_s

    def _deal_with(self, contact: Contact, what: int, error: int, frame: Frame, text: bytes) -> None:
        try:
            if what == ODD_FRAME:
                raise unexpected(contact.rank, frame)
            if what == FRAME:
                self._hearer.hear(contact, frame, text)
                return
        except Exception as problem:  # a frame that must not come: the connection is good for nothing any more
            self._lose(contact, f"is lost: {problem}")
            return
        self._ended.add(contact.rank)
        broken = f"its connection broke ({os.strerror(error)})"
        self._lose(contact, f"is lost: {broken if error else 'the process ended, its connection closed'}")

    def _lose(self, contact: Contact, reason: str) -> None:
        """That is a loss, unless one of the two has said goodbye."""
        if not (contact.has_left or contact.is_told or self._is_closing):
            self._hearer.lose(contact.rank, reason)

    def _watch(self, was_asleep: bool) -> None:
        if was_asleep:
            self._mesh.forgive()
        interval_s = self._options.interval_s
        for rank, contact in self._contacts.items():
            if contact.has_left or rank in self._ended:
                continue
            silent_s, unsaid_s = self._mesh.ages(rank)
            if unsaid_s >= interval_s:
                self.say(contact, Frame(BEAT))
            if silent_s >= interval_s:
                self._mesh.look(rank)  # a slow payload is not announced before it is worth it
                silent_s, _ = self._mesh.ages(rank)
            if silent_s > self._options.limit_s:
                silence = f"no sign of life for {silent_s:.1f} s"
                self._lose(contact, f"is lost: {silence}, so it hangs, or its host or network is down")
