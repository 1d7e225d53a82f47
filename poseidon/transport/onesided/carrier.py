"""Carrier: what moves an endpoint's frames and keeps its notifications. Two, with the same frames (`frames.py`):

    native.py        in C, without Python's lock; there if the package was built where there is a compiler
    interpreted.py   in Python, everywhere; and where a budget is kept (`--bandwidth-limit`)

Puts and notifications a carrier deals with itself. All else that comes, the endpoint is told, on the carrier's thread.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple, Protocol

from torch import Tensor

from poseidon.errors import TransportError
from poseidon.transport.health import HealthOptions
from poseidon.transport.onesided.base import Note
from poseidon.transport.onesided.contact import Contact
from poseidon.transport.onesided.segments import Segment, Segments

Urgency = tuple[int, int]
"""A round, and a queue in it; what is lower goes first."""
MOST_URGENT: Urgency = (0, 0)


class Frame(NamedTuple):
    """The fields of a frame's header (`frames.py`)."""

    kind: int
    segment: int = 0
    offset: int = 0
    length: int = 0
    id: int = 0
    value: int = 0


class Hearer(Protocol):
    """Who is told what comes: the endpoint."""

    def hear(self, contact: Contact, frame: Frame, text: bytes) -> None:
        """Everything but puts. DATA: all of a read has come. Raises for what must not come."""

    def lose(self, rank: int, reason: str) -> None:
        """A peer is lost."""


class Carrier(Protocol):
    """See the file's beginning."""

    @property
    def error(self) -> TransportError | None:
        """Once there, every call raises it."""

    def expose(self, number: int, segment: Segment) -> None:
        """Others may put into it from now on."""

    def send(self, contact: Contact, frame: Frame, data: Tensor, urgency: Urgency) -> None:
        """Starts to send bytes (`bytes_of`), in as many frames as it takes; a put's notification goes with the last."""

    def say(self, contact: Contact, frame: Frame, text: bytes = b"", urgency: Urgency = MOST_URGENT) -> None:
        """A frame of the endpoint's own, or a notification alone."""

    def expect(self, number: int, data: Tensor) -> None:
        """Where the answer to read `number` goes."""

    def drop(self, contact: Contact) -> None:
        """The peer has left, and reads no more."""

    def num_waiting(self, contact: Contact) -> int:
        """How much has not left."""

    def post(self, note: Note) -> None:
        """A notification from this worker to itself."""

    def waitsome(self, ids: Collection[int], timeout_s: float) -> int: ...

    def take(self, ids: Collection[int], timeout_s: float) -> list[Note]: ...

    def reset(self, id: int) -> int: ...

    def flushed(self, queue: int, timeout_s: float) -> None:
        """Returns when all that was sent in a queue has left its memory."""

    def leave(self) -> None:
        """A peer has left in peace: `take` returns."""

    def fail(self, error: TransportError) -> None:
        """From now on every call raises; the first reason stays."""

    def check(self) -> None:
        """Raises if there is an error."""

    def close(self) -> None: ...


class MakeCarrier(Protocol):
    """How an endpoint gets its carrier."""

    def __call__(
        self, rank: int, hearer: Hearer, segments: Segments, contacts: Sequence[Contact], options: HealthOptions
    ) -> Carrier: ...


def raise_again(error: TransportError) -> None:
    """The same to everybody who comes, each with a traceback of its own."""
    raise type(error)(str(error), error.ranks) from error
