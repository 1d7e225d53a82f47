"""Endpoint: one worker's end of one-sided communication, shaped like GASPI; all above it speaks these types only.

    memory = endpoint.allocate(segment=1, num_bytes=4096)               others may write and read it from now on
    endpoint.write_notify(grad, Spot(3, segment=1, offset=0), Note(id=7, value=12))      starts, never blocks
    note = endpoint.waitsome(range(0, 16), timeout_s=10.0)              an id in the range that has a value
    value = endpoint.reset(note)                                        its value; the id is free again

segment        memory of one worker that all others can reach; the number is the owner's to choose
put            bytes written into another worker's segment while that worker does something else
notification   a value (1 … 2³²−1) that appears under an id at the target *after* the bytes put with it. Ids are places,
               not queues: of two values under an id the newer one stays. Values are versions and wrap (`is_newer`)
queue          puts of one queue leave in the order given; those of a lower queue number go before those of a higher
               one. `wait(queue)` returns when the sender's memory may be written again: no sign that anything arrived

Every call ends: after a time that each takes, or with PeerLost once somebody is. After a loss an endpoint is good for
nothing but `close`.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple, Protocol

from torch import Tensor

from poseidon.errors import TransportError
from poseidon.transport.base import Peer, Work
from poseidon.transport.pacing import Pace

LAST_VALUE = 2**32 - 1
LAST_ID = 2**32 - 1
NUM_QUEUES = 8


def next_value(value: int) -> int:
    """The version after `value`; 0 is no version, so the last is followed by 1."""
    return value + 1 if value < LAST_VALUE else 1


def is_newer(value: int, than: int) -> bool:
    """Whether a version comes after another, if they are less than half a round apart."""
    return 0 < (value - than) % LAST_VALUE <= LAST_VALUE // 2


class Spot(NamedTuple):
    """A place in another worker's memory."""

    rank: int
    segment: int
    offset: int = 0


class Note(NamedTuple):
    """A notification."""

    id: int
    value: int


class Endpoint(Protocol):
    """The seam. `links` tells by rank what carries puts there: "shared memory", "tcp", "self", …"""

    rank: int
    size: int
    peers: tuple[Peer, ...]
    kind: str

    @property
    def links(self) -> tuple[str, ...]: ...

    @property
    def bytes_sent(self) -> int:
        """Payload put to others, and given to their reads; by whatever way."""

    def allocate(self, segment: int, num_bytes: int) -> Tensor:
        """A new segment: bytes, all zero. Others may use it once they know that it is there."""

    def write_notify(self, local: Tensor, spot: Spot, note: Note | None, queue: int = 0) -> None:
        """Starts to put a contiguous tensor; nobody may write to it before `wait(queue)`, or an answer, says so."""

    def notify(self, rank: int, note: Note, queue: int = 0) -> None:
        """A notification alone."""

    def begin_round(self) -> None:
        """What is put from now on waits behind what was put before, whatever its queue: queues say what is urgent
        within a round."""

    def read(self, local: Tensor, spot: Spot) -> Work:
        """Starts to fetch another worker's bytes into a contiguous tensor."""

    def waitsome(self, ids: Collection[int], timeout_s: float) -> int:
        """Waits until one of the ids has a value; which one."""

    def reset(self, id: int) -> int:
        """Takes an id's value, 0 if there is none, and frees the id: exactly one caller gets it."""

    def take(self, ids: Collection[int], timeout_s: float) -> list[Note]:
        """Waits until some of the ids have values, and takes them all. Empty if a peer has left meanwhile.

        With a time of 0 it takes what is there, which may be nothing.
        """

    def wait(self, queue: int, timeout_s: float) -> None:
        """Returns when everything put into a queue has left this worker's memory."""

    def health(self) -> tuple[bool, ...]:
        """By rank: whether that worker is there, as far as is known."""

    def abort(self, reason: str) -> None:
        """Tells the others why this worker ends, as well as that can be done."""

    def close(self) -> None:
        """Leaves in peace, when what was put has left. Harmless if called twice."""


def check_local(local: Tensor) -> None:
    """Raises unless the tensor can travel as it lies in memory."""
    if not local.is_cpu or not local.is_contiguous():
        raise TransportError(
            f"only contiguous tensors in host memory can be put or read, got one on {local.device} of shape "
            f"{tuple(local.shape)} and strides {local.stride()}"
        )


def check_note(note: Note | None, queue: int) -> None:
    """Raises unless such a notification can travel in such a queue."""
    if not 0 <= queue < NUM_QUEUES:
        raise TransportError(f"queues are numbered 0 … {NUM_QUEUES - 1}, got {queue}")
    if note is not None and not (0 <= note[0] <= LAST_ID and 0 < note[1] <= LAST_VALUE):
        raise TransportError(
            f"a notification has an id of 0 … {LAST_ID} and a value of 1 … {LAST_VALUE}, got id {note.id}, value "
            f"{note.value}"
        )


def check_rank(rank: int, size: int) -> None:
    """Raises unless there is such a worker."""
    if not 0 <= rank < size:
        raise TransportError(f"rank must be within 0 … {size - 1}, got {rank}")


def check_unlimited(pace: Pace | None, kind: str) -> None:
    """Raises if there is a budget, for those that cannot keep to one."""
    if pace is not None:
        raise TransportError(f"--bandwidth-limit: what {kind} moves cannot be limited from here; leave --one-sided out")


def check_range(spot: Spot, num_bytes: int, segment_bytes: int) -> None:
    """Raises unless so many bytes fit behind a spot."""
    if not 0 <= spot.offset <= segment_bytes - num_bytes:
        raise TransportError(
            f"{num_bytes} bytes at {spot.offset} are not inside segment {spot.segment} of rank {spot.rank}, which has "
            f"{segment_bytes}"
        )
