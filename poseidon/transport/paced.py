"""PacedTransport: a transport that keeps to a budget of bytes per second, in each direction of this worker.

    send, receive         in pieces, each started when the budget allows; both ends cut alike. A receive that has not
                          been started holds its sender up, so that many senders together keep to the receiver's budget:
                          the inner transport's messages must be gloo's (C10dOptions.is_native), ours do not wait
    all-reduce, broadcast   in pieces too, one after another in the order of the calls, which is the same on all members

Nothing here blocks the caller: pieces are started by the engine's threads, one line for each channel, so that messages
of one channel stay in order and those of others pass between their pieces. All workers must have the same limit: it
decides how messages are cut. What stays inside a host does not count: levels (`levels.py`) go on top of this one, and
use it for what crosses between nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from torch import Tensor

from poseidon.errors import TransportError
from poseidon.transport.base import Levels, Transport, Work, check_address, check_message, members_of, size_text
from poseidon.transport.completion import Completion
from poseidon.transport.onesided.base import Endpoint
from poseidon.transport.pacing import Budget, Pace
from poseidon.transport.tally import num_children

OPEN_PIECES = 2  # of an all-reduce: one moves while the next waits for its turn


class PacedTransport:
    """One worker's end. Subgroups share its budget."""

    def __init__(self, inner: Transport, pace: Pace) -> None:
        self._inner, self.pace = inner, pace
        self.rank, self.size, self.peers, self.engine = inner.rank, inner.size, inner.peers, inner.engine
        self.kind = f"{inner.kind}, paced"
        if inner.levels is not None:
            raise TransportError("levels go on top of a paced transport, not under it")

    @property
    def levels(self) -> Levels | None:
        return None

    @property
    def bytes_sent(self) -> int:
        return self._inner.bytes_sent

    @property
    def bytes_received(self) -> int:
        return self._inner.bytes_received

    def sent_with(self, tags: Iterable[int]) -> int:
        return self._inner.sent_with(tags)

    # -- messages ---------------------------------------------------------------------------------------------------
    def send(self, tensor: Tensor, to: int, tag: int) -> Work:
        what = f"sending {size_text(tensor.nbytes)} to rank {to}, tag {tag}"
        start = self._inner.send
        return self._channel(tensor, (to, tag, "send"), self.pace.sending, what, lambda part: start(part, to, tag))

    def recv(self, tensor: Tensor, source: int, tag: int) -> Work:
        what = f"receiving {size_text(tensor.nbytes)} from rank {source}, tag {tag}"
        start = self._inner.recv
        line = (source, tag, "receive")
        return self._channel(tensor, line, self.pace.receiving, what, lambda part: start(part, source, tag))

    def _channel(
        self, tensor: Tensor, line: tuple[int, int, str], budget: Budget, what: str, start: Callable[[Tensor], Work]
    ) -> Work:
        check_message(tensor)
        check_address(line[0], line[1], self.size, self.rank)
        started: list[Work] = []

        def run() -> None:
            for part in self._cut(tensor, self.pace.piece_bytes):
                budget.take(part.nbytes)
                started.append(start(part))

        return _Pieces(self.engine.submit((self, *line), run, what, (self.peers[line[0]].rank,)), started)

    def _cut(self, tensor: Tensor, most_bytes: int) -> Sequence[Tensor]:
        return tensor.split(max(most_bytes // tensor.element_size(), 1)) if tensor.numel() else (tensor,)

    # -- collectives ------------------------------------------------------------------------------------------------
    def all_reduce(self, tensor: Tensor, group: Sequence[int] | None = None, *, tag: int | None = None) -> Work:
        members = members_of(group, self.size, self.rank)
        share = 2 * (len(members) - 1) / len(members)  # of a piece's bytes, sent and received
        start = self._inner.all_reduce
        return self._collective(tensor, members, (share, share), lambda part: start(part, group, tag=tag))

    def broadcast(self, tensor: Tensor, root: int, group: Sequence[int] | None = None) -> Work:
        members = members_of(group, self.size, self.rank)
        if root not in members:
            raise TransportError(f"the root of a broadcast must be one of {list(members)}, got {root}")
        place = (members.index(self.rank) - members.index(root)) % len(members)
        shares = (float(num_children(place, len(members))), float(place > 0))
        start = self._inner.broadcast
        return self._collective(tensor, members, shares, lambda part: start(part, root, group))

    def _collective(
        self, tensor: Tensor, members: tuple[int, ...], shares: tuple[float, float], start: Callable[[Tensor], Work]
    ) -> Work:
        check_message(tensor)
        pace = self.pace
        most_bytes = pace.piece_bytes  # the same on all members, whatever their shares

        def run() -> None:
            open_works: list[Work] = []
            for part in self._cut(tensor, most_bytes):
                for budget, share in zip((pace.sending, pace.receiving), shares, strict=True):
                    budget.take(int(share * part.nbytes))
                open_works.append(start(part))
                if len(open_works) == OPEN_PIECES:
                    open_works.pop(0).wait()
            for work in open_works:
                work.wait()

        others = tuple(self.peers[rank].rank for rank in members if rank != self.rank)
        what = f"in a collective of {size_text(tensor.nbytes)} over {len(members)} workers"
        return self.engine.submit((self, members), run, what, others)

    # -- the rest is the inner one's --------------------------------------------------------------------------------
    def barrier(self, timeout_s: float) -> None:
        self._inner.barrier(timeout_s)

    def subgroup(self, ranks: Sequence[int]) -> PacedTransport | None:
        inner = self._inner.subgroup(ranks)
        return None if inner is None else PacedTransport(inner, self.pace)

    def one_sided(self, pace: Pace | None = None) -> Endpoint:
        return self._inner.one_sided(pace or self.pace)

    def loss(self, doing: str, ranks: Sequence[int] = ()) -> TransportError | None:
        return self._inner.loss(doing, ranks)

    def abort(self, reason: str) -> None:
        self._inner.abort(reason)

    def close(self) -> None:
        self._inner.close()


class _Pieces:
    """A message whose pieces are started one after another: over when all are started, and each is over."""

    def __init__(self, starting: Completion, started: Sequence[Work]) -> None:
        self._starting, self._started = starting, started

    def wait(self, timeout_s: float | None = None) -> None:
        self._starting.wait(timeout_s)
        for work in self._started:
            work.wait(timeout_s)

    def done(self) -> bool:
        return self._starting.done() and all(work.done() for work in self._started)
