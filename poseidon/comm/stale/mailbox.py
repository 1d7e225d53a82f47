"""Mailbox: messages between the ranks of a job, over notified puts.

Every rank has, for each other, a row of slots in a segment of its own. A sender puts a letter into the next slot of
its row and notifies that slot; the receiver reads slots in turn, and tells now and then how many it has emptied:

    sender                                         receiver
    put → slot n mod K, notify (slot, n + 1)       has slot m's turn come and is it notified? copy it out, m + 1
    waits while n − emptied = K                    notify (emptied, m)

Each slot has a notification of its own whose value is the letter's number, so the order of arrival is of no account,
and what comes late or twice is dropped. Letters of one sender are read in the order sent, each exactly once.

A message that is longer than a letter is cut into fragments; they are put together by their message's number.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from time import monotonic

import torch
from torch import Tensor

from poseidon.comm.stale.message import FROM_SERVERS, Kind, Message, read_message
from poseidon.comm.stale.outgoing import Letter, MessageScheduler, joined
from poseidon.errors import PeerLost, TransportError
from poseidon.transport.onesided import Endpoint, Note, Spot
from poseidon.transport.onesided.base import LAST_VALUE

SEGMENT = 0
WAKE_ID = 0
SLOT_BYTES = 256 << 10
NUM_SLOTS = 16
_LETTERS_QUEUE, _NEWS_QUEUE = 1, 0
_WITHOUT_NETWORK = ("self", "shared memory")  # as an endpoint calls its links
_FRAGMENT = struct.Struct("<IQQ")  # number of the message, its bytes, where this fragment begins


@dataclass(slots=True)
class _Row:
    """The slots of one sender, as the receiver sees them."""

    num_read: int = 0
    num_told: int = 0
    arrived: set[int] = field(default_factory=set)  # numbers of letters that are in their slots


@dataclass(slots=True)
class _Coming:
    """A message of which not all fragments are here."""

    memory: Tensor
    num_missing: int


class Mailbox:
    """One rank's. Its thread calls everything but `wake`."""

    def __init__(
        self, endpoint: Endpoint, outgoing: MessageScheduler, slot_bytes: int = SLOT_BYTES, num_slots: int = NUM_SLOTS
    ) -> None:
        self._endpoint, self._outgoing = endpoint, outgoing
        self._slot_bytes, self._num_slots = slot_bytes, num_slots
        self.rank, self.size = endpoint.rank, endpoint.size
        self._slots = endpoint.allocate(SEGMENT, self.size * num_slots * slot_bytes)
        self._ids = range(1 + self.size * (num_slots + 1))
        self._rows = [_Row() for _ in range(self.size)]
        self._coming: dict[tuple[int, int], _Coming] = {}
        self._num_sent = [0] * self.size
        self._num_emptied = [0] * self.size  # of what was sent, as far as receivers have told
        self._num_messages = 0
        self._clocks: Counter[tuple[int, int, bool]] = Counter()  # of the last letter, by receiver, table and role
        self.bytes_sent = 0
        self.bytes_received = 0
        self.sent_about: Counter[int] = Counter()  # of the bytes sent, by table
        self.num_made: Counter[tuple[int, int]] = Counter()  # letters, by whom they are for and the table
        self.num_left: Counter[tuple[int, int]] = Counter()
        self.left: Callable[[int, int], None] = lambda rank, table: None  # hears of each letter that was put
        outgoing.know([rank for rank, link in enumerate(endpoint.links) if link in _WITHOUT_NETWORK])

    # -- out --------------------------------------------------------------------------------------------------------
    def letters(self, message: Message, to: Iterable[int], priority: int, *, is_early: bool = False) -> list[Letter]:
        """The letters of a message to some ranks; they share their bytes."""
        self._num_messages = (self._num_messages + 1) % 2**32
        head, total = message.head(), message.num_bytes
        room = self._slot_bytes - _FRAGMENT.size
        pieces = []
        first = _FRAGMENT.pack(self._num_messages, total, 0)
        pieces.append(joined(first + head, message.payload[: room - len(head)]))
        for start in range(room, total, room):
            mark = _FRAGMENT.pack(self._num_messages, total, start)
            pieces.append(joined(mark, message.payload[start - len(head) : start - len(head) + room]))
        ranks = list(to)
        for rank in ranks:
            self.num_made[rank, message.table] += len(pieces)
        clocks = {rank: self._clock_of(message, rank) for rank in ranks}
        return [
            Letter(rank, piece, priority, message.table, is_early, clocks[rank]) for rank in ranks for piece in pieces
        ]

    def _clock_of(self, message: Message, rank: int) -> int:
        """Of the updates that it brings, or whose outcome. What has no clock of its own keeps its place behind what the
        same role, worker or server, has said of the table before; a question overtakes: the answer waits for what it
        must."""
        if message.kind is Kind.READ:
            return message.clock - 1
        own = message.clock if message.kind is Kind.DELTA else message.clock - 1 if message.kind is Kind.VALUES else 0
        role = rank, message.table, message.kind in FROM_SERVERS
        self._clocks[role] = max(self._clocks[role], own)
        return self._clocks[role]

    def post(self, message: Message, to: Iterable[int], priority: int) -> None:
        """Sends a message to other ranks when its turn comes."""
        for letter in self.letters(message, to, priority):
            self._outgoing.put(letter)

    def pump(self) -> float | None:
        """Sends what may be sent now. Returns after how many seconds there may be more; None: not by itself."""
        while True:
            now_s = monotonic()
            ready = [rank for rank in range(self.size) if rank != self.rank and self._has_room(rank)]
            letter = self._outgoing.take(ready, now_s)
            if letter is None:
                return self._outgoing.due_s(now_s)
            self._put(letter)
            self._outgoing.sent(letter, now_s)

    def _has_room(self, rank: int) -> bool:
        return self._num_sent[rank] - self._num_emptied[rank] < self._num_slots

    def _put(self, letter: Letter) -> None:
        number = self._num_sent[letter.to]
        slot = number % self._num_slots
        spot = Spot(letter.to, SEGMENT, (self.rank * self._num_slots + slot) * self._slot_bytes)
        note = Note(1 + self.rank * self._num_slots + slot, _value_of(number + 1))
        self._num_sent[letter.to] += 1
        self.bytes_sent += letter.num_bytes
        self._endpoint.write_notify(letter.data, spot, note, _LETTERS_QUEUE)
        self.sent_about[letter.stream] += letter.num_bytes
        self.num_left[letter.to, letter.stream] += 1
        self.left(letter.to, letter.stream)

    def wake(self) -> None:
        """Lets `collect` return; any thread may call it."""
        self._endpoint.notify(self.rank, Note(WAKE_ID, 1))

    # -- in ---------------------------------------------------------------------------------------------------------
    def collect(self, timeout_s: float) -> list[tuple[int, Message]]:
        """Waits until something has happened; the messages that are complete, with their senders."""
        senders = set()
        for note in self._endpoint.take(self._ids, timeout_s):
            if note.id == WAKE_ID:
                continue
            row, slot = divmod(note.id - 1, self._num_slots)
            if row < self.size:
                self._note_slot(row, slot, note.value)
                senders.add(row)
            else:
                self._hear_emptied(note.id - 1 - self.size * self._num_slots, note.value)
        return [(sender, message) for sender in sorted(senders) for message in self._read(sender)]

    def _note_slot(self, sender: int, slot: int, value: int) -> None:
        row = self._rows[sender]
        turn = (slot - row.num_read) % self._num_slots
        number = row.num_read + turn
        if value == _value_of(number + 1):  # else an old one, late or once more
            row.arrived.add(number)

    def _hear_emptied(self, receiver: int, value: int) -> None:
        ahead = (value - _value_of(self._num_emptied[receiver])) % LAST_VALUE
        if ahead <= self._num_slots:  # else it is older than what is known
            self._num_emptied[receiver] += ahead

    def _read(self, sender: int) -> list[Message]:
        row = self._rows[sender]
        found = []
        while row.num_read in row.arrived:
            row.arrived.remove(row.num_read)
            message = self._read_slot(sender, row.num_read % self._num_slots)
            row.num_read += 1
            if message is not None:
                found.append(message)
        num_untold = row.num_read - row.num_told
        if num_untold >= self._num_slots // 4 or (num_untold and not row.arrived):
            row.num_told = row.num_read
            self._tell_emptied(sender, row.num_read)
        return found

    def _tell_emptied(self, sender: int, num_read: int) -> None:
        try:
            note = Note(1 + self.size * self._num_slots + self.rank, _value_of(num_read))
            self._endpoint.notify(sender, note, _NEWS_QUEUE)
        except PeerLost:
            if self._endpoint.health()[sender]:
                raise  # another one is lost; this one has said its last word, and needs no room any more

    def _read_slot(self, sender: int, slot: int) -> Message | None:
        """Copies a letter out of its slot; the message, if it is the last one missing of it."""
        start = (sender * self._num_slots + slot) * self._slot_bytes
        memory = self._slots[start : start + self._slot_bytes]
        number, total, offset = _FRAGMENT.unpack(memory[: _FRAGMENT.size].numpy().tobytes())
        length = min(total - offset, self._slot_bytes - _FRAGMENT.size)
        if length < 0:
            raise TransportError(f"rank {sender} sent a fragment at {offset} of a message of {total} bytes", (sender,))
        data = memory[_FRAGMENT.size : _FRAGMENT.size + length]
        self.bytes_received += _FRAGMENT.size + length
        if length == total:
            return read_message(data.clone())
        coming = self._coming.get((sender, number))
        if coming is None:
            coming = self._coming[sender, number] = _Coming(torch.empty(total, dtype=torch.uint8), total)
        coming.memory[offset : offset + length] = data
        coming.num_missing -= length
        if coming.num_missing:
            return None
        del self._coming[sender, number]
        return read_message(coming.memory)


def _value_of(number: int) -> int:
    """What a notification says for a count: 1 … LAST_VALUE, over and over."""
    return (number - 1) % LAST_VALUE + 1
