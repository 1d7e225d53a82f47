"""Transport: what moves bytes between the P workers of a job. Everything above it speaks these types only.

    work = transport.send(gradient, to=3, tag=7)     starts, never blocks
    work.wait()                                       blocks until the operation is over, or raises

Messages are 1-D contiguous tensors of any dtype; both sides know how long a message is, and an empty one is no message.
A receive writes straight into its tensor. Nobody may write to a tensor between the start of its operation and the end.

Tags are channels: messages of one (sender, receiver, tag) arrive in the order in which they were sent; messages with
different tags may overtake each other, and a message nobody receives yet holds up nobody else. Tags from `OWN_TAGS` on
belong to this package.

Every operation ends. A worker that dies, hangs, is cut off or gives up makes all operations of all survivors raise
`PeerLost`, which names it; an operation that outlasts its time raises `TransportTimeout`. After a loss a transport is
good for nothing but `close`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from torch import Tensor

from poseidon.errors import TransportError
from poseidon.transport.cargo import Combine, Narrowing, Room, Table
from poseidon.transport.engine import Engine

if TYPE_CHECKING:
    from poseidon.transport.onesided.base import Endpoint
    from poseidon.transport.pacing import Pace

OWN_TAGS = 1 << 24


class Work(Protocol):
    """One started operation. Any number of threads may wait for it, not only the one that started it.

    Keep it until it is over: a work that nobody holds takes its operation with it.
    """

    def wait(self, timeout_s: float | None = None) -> None:
        """Returns when the operation is over; raises PeerLost or TransportTimeout (None: the transport's own limit).

        An operation whose wait timed out goes on and can be waited for again.
        """

    def done(self) -> bool:
        """True if `wait` would return or raise at once."""


@dataclass(frozen=True, slots=True)
class Peer:
    """One worker of the job, this one included."""

    rank: int
    host: str
    pid: int

    def __str__(self) -> str:
        return f"rank {self.rank} (host {self.host}, pid {self.pid})"


class Transport(Protocol):
    """The seam. `bytes_sent` and `bytes_received` count payload: no headers, heartbeats or barriers."""

    rank: int
    size: int
    peers: tuple[Peer, ...]
    kind: str
    engine: Engine

    @property
    def levels(self) -> Levels | None:
        """None: every worker is a node of its own."""

    @property
    def bytes_sent(self) -> int: ...

    @property
    def bytes_received(self) -> int: ...

    def sent_with(self, tags: Iterable[int]) -> int:
        """Of `bytes_sent`, what was sent with these tags."""

    def send(self, tensor: Tensor, to: int, tag: int) -> Work: ...

    def recv(self, tensor: Tensor, source: int, tag: int) -> Work: ...

    def all_reduce(self, tensor: Tensor, group: Sequence[int] | None = None, *, tag: int | None = None) -> Work:
        """The sum over the members of `group` (None: all), in place.

        The order of the sum is fixed and the bits are the same on all members. Members start the all-reduces and
        broadcasts of one group in the same order. A `tag` makes no channel here: its bytes are counted with that.
        """

    def broadcast(self, tensor: Tensor, root: int, group: Sequence[int] | None = None) -> Work:
        """`root`'s values, in place; `root` is a rank of this transport, not a place in `group`."""

    def barrier(self, timeout_s: float) -> None:
        """Returns when all workers have called it; a timeout names those who have not."""

    def subgroup(self, ranks: Sequence[int]) -> Transport | None:
        """A transport among these ranks, renumbered 0, 1, … in the order given; None where this rank is not among them.

        All members call it in the same order. Its life ends with this transport's.
        """

    def loss(self, doing: str, ranks: Sequence[int] = ()) -> TransportError | None:
        """Who is lost, if somebody is, or has left of these `ranks`, to a worker that is `doing` something else."""

    def one_sided(self, pace: Pace | None = None) -> Endpoint:
        """Notified puts among the same workers (`onesided/base.py`), within a budget if there is one. All call it, in
        the same order."""

    def abort(self, reason: str) -> None:
        """Tells the peers why this worker ends, as well as that can be done: they get PeerLost with the reason."""

    def close(self) -> None:
        """Leaves in peace. Peers that still wait for this worker get PeerLost. Harmless if called twice."""


class Levels(Protocol):
    """What a transport offers whose workers share nodes: collectives of all of them, on all levels (`levels.py`).

    Each is carried out by the calling thread, one of the engine's. `collectives.py` says what they do.
    """

    @property
    def node_workers(self) -> tuple[int, ...]:
        """How many workers each node has, nodes in the order of their first ranks."""

    def sum_on_node(self, tensor: Tensor, tag: int) -> None:
        """The sum over the workers of this node alone, in place."""

    def gather(self, blocks: Sequence[Tensor], tag: int) -> None: ...

    def reduce_shards(self, shards: Sequence[Tensor], narrowing: Narrowing | None, tag: int) -> None: ...

    def exchange_slices(self, outgoing: Sequence[Tensor], incoming: Sequence[Tensor], tag: int) -> None: ...

    def gather_tables(self, own: Table, combine: Combine, tag: int, room: Room) -> list[Table]: ...


def check_message(tensor: Tensor) -> None:
    """Raises unless the tensor can travel as it lies in memory."""
    if tensor.dim() != 1 or not tensor.is_contiguous():
        raise TransportError(
            f"a message must be a contiguous tensor with one axis, got shape {tuple(tensor.shape)} and strides "
            f"{tensor.stride()}; pass tensor.contiguous().view(-1)"
        )


def check_address(rank: int, tag: int, size: int, own: int) -> None:
    """Raises unless `rank` is another worker and `tag` a tag."""
    if not 0 <= rank < size:
        raise TransportError(f"rank must be within 0 … {size - 1}, got {rank}")
    if rank == own:
        raise TransportError(f"rank {own} cannot exchange messages with itself")
    if tag < 0:
        raise TransportError(f"a tag must not be negative, got {tag}")


def members_of(group: Sequence[int] | None, size: int, own: int) -> tuple[int, ...]:
    """The ranks of a group, checked: known, distinct, this one among them."""
    if group is None:
        return tuple(range(size))
    ranks = tuple(group)
    if len(set(ranks)) != len(ranks) or any(not 0 <= rank < size for rank in ranks):
        raise TransportError(f"a group must hold distinct ranks within 0 … {size - 1}, got {list(ranks)}")
    if own not in ranks:
        raise TransportError(
            f"rank {own} takes part in an operation of group {list(ranks)}, which it does not belong to"
        )
    return ranks


def names_of(peers: Sequence[Peer], ranks: Iterable[int]) -> str:
    """'rank 1 (host a, pid 7), rank 2 (host b, pid 9)'."""
    return ", ".join(str(peers[rank]) for rank in ranks)


def size_text(num_bytes: int) -> str:
    """A number of bytes for people: '512 B', '64.0 kB', '4.2 MB'."""
    if num_bytes < 1000:
        return f"{num_bytes} B"
    if num_bytes < 1_000_000:
        return f"{num_bytes / 1e3:.1f} kB"
    return f"{num_bytes / 1e6:.1f} MB"
