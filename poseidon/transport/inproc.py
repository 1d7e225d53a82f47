"""In-process transport: the P workers of a job are threads of one process. For tests, and for trying things out.

    results = run_workers(4, lambda transport: train(transport))

It keeps the strictest rules a network may have: a message moves only when both sides are there, so a send completes no
sooner than its receive is posted; sums are taken in rank order. A worker whose function raises is lost to the others,
just as a process that died. Nothing depends on timing: what arrives, and what is summed in which order, is the same in
every run.
"""

from __future__ import annotations

import os
import socket
import sys
import threading
import time
import traceback
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from typing import TypeVar

import torch
from torch import Tensor

from poseidon.errors import PeerLost, TransportError, TransportTimeout
from poseidon.transport.barrier import barrier
from poseidon.transport.base import Levels, Peer, Work, check_address, check_message, members_of, names_of, size_text
from poseidon.transport.completion import Completion, finished
from poseidon.transport.engine import Engine
from poseidon.transport.onesided.base import Endpoint, check_unlimited
from poseidon.transport.onesided.inproc import Fabric, Tricks
from poseidon.transport.pacing import Pace
from poseidon.transport.tally import Tally

T = TypeVar("T")
LAST_WORDS_S = 5.0  # for the others to end, after one has failed


@dataclass(frozen=True, slots=True)
class _Entry:
    """One side of an operation that waits for the others."""

    rank: int
    tensor: Tensor
    completion: Completion


@dataclass(slots=True)
class _Channel:
    """Messages of one (space, sender, receiver, tag), whichever side came first."""

    sends: deque[_Entry] = field(default_factory=deque)
    receives: deque[_Entry] = field(default_factory=deque)


class Switch:
    """Where the workers meet. A space is a transport or one of its subgroups: their messages never mix."""

    def __init__(self, peers: tuple[Peer, ...], limit_s: float, tricks: Tricks | None = None) -> None:
        self.peers = peers
        self.limit_s = limit_s
        self._lock = threading.Lock()
        self._channels: dict[object, _Channel] = defaultdict(_Channel)
        self._meetings: dict[object, dict[int, _Entry]] = defaultdict(dict)
        self._left: set[int] = set()
        self._loss: PeerLost | None = None
        self._tricks = tricks
        self._fabrics: dict[object, Fabric] = {}

    def fabric(self, key: object, peers: tuple[Peer, ...]) -> Fabric:
        """Where the one-sided endpoints of a space meet."""
        with self._lock:
            if key not in self._fabrics:
                self._fabrics[key] = Fabric(peers, self._tricks)
            return self._fabrics[key]

    def exchange(self, channel_key: object, entry: _Entry, *, is_send: bool) -> None:
        """Adds one side of a message; whoever completes the pair copies it."""
        with self._lock:
            self._raise_if_lost(entry.completion)
            channel = self._channels[channel_key]
            own, other = (channel.sends, channel.receives) if is_send else (channel.receives, channel.sends)
            if not other:
                own.append(entry)
                return
            partner = other.popleft()
        send, receive = (entry, partner) if is_send else (partner, entry)
        _copy(send, receive)

    def meet(self, key: object, members: tuple[int, ...], entry: _Entry, act: Callable[[list[_Entry]], None]) -> None:
        """Adds one member to an operation of a group; the last one acts for all."""
        with self._lock:
            self._raise_if_lost(entry.completion)
            meeting = self._meetings[key]
            meeting[entry.rank] = entry
            if len(meeting) < len(members):
                return
            del self._meetings[key]
        _act_for_all([meeting[rank] for rank in members], act)

    def lose(self, rank: int, reason: str) -> None:
        """From now on `rank` is lost to everybody; all that wait are told."""
        with self._lock:
            if self._loss is None:
                self._loss = PeerLost(f"{self.peers[rank]} gave up: {reason}", (rank,))
            self._fail_waiting(lambda entry: True)
            for fabric in self._fabrics.values():
                fabric.lose(rank, reason)

    def leave(self, rank: int) -> None:
        """`rank` has left in peace: only those who wait for it are told."""
        with self._lock:
            self._left.add(rank)
            self._fail_waiting(lambda entry: rank in entry.completion.ranks)

    def _fail_waiting(self, concerns: Callable[[_Entry], bool]) -> None:
        lines = [line for channel in self._channels.values() for line in (channel.sends, channel.receives)]
        waiting = [entry for line in lines for entry in line]
        waiting += [entry for meeting in self._meetings.values() for entry in meeting.values()]
        for entry in filter(concerns, waiting):
            entry.completion.fail(self._loss_for(entry.completion))

    def loss(self, completion: Completion) -> PeerLost | None:
        """Why an operation that concerns these ranks cannot end well; None if nothing stands against it."""
        is_lost = self._loss is not None or self._left.intersection(completion.ranks)
        return self._loss_for(completion) if is_lost else None

    def _raise_if_lost(self, completion: Completion) -> None:
        loss = self.loss(completion)
        if loss is not None:
            raise loss

    def _loss_for(self, completion: Completion) -> PeerLost:
        if self._loss is not None:
            return PeerLost(f"{self._loss}; while {completion.what}", self._loss.ranks)
        gone = tuple(sorted(self._left.intersection(completion.ranks)))
        return PeerLost(
            f"{names_of(self.peers, gone)} left the job before that was over; while {completion.what}", gone
        )


class InprocTransport:
    """One worker's end. `ranks` are the members' ranks in the job, in order; `space` tells subgroups apart."""

    kind = "inproc"

    def __init__(self, switch: Switch, rank: int, ranks: tuple[int, ...] | None = None, space: object = ()) -> None:
        self._switch = switch
        self._ranks = tuple(range(len(switch.peers))) if ranks is None else ranks
        self._space = space
        self.rank = rank
        self.size = len(self._ranks)
        self.peers = tuple(switch.peers[rank] for rank in self._ranks)
        self.engine = Engine(f"inproc-{self._ranks[rank]}", switch.limit_s)
        self.levels: Levels | None = None
        self._tally = Tally()
        self._counts: dict[object, int] = defaultdict(int)
        self._subgroups: list[InprocTransport] = []
        self._closed = False

    @property
    def bytes_sent(self) -> int:
        return self._tally.sent

    @property
    def bytes_received(self) -> int:
        return self._tally.received

    def sent_with(self, tags: Iterable[int]) -> int:
        return self._tally.sent_with(tags)

    def send(self, tensor: Tensor, to: int, tag: int) -> Work:
        work = self._post_send(tensor, to, tag)
        self._tally.add(sent=tensor.nbytes, tag=tag)
        return work

    def recv(self, tensor: Tensor, source: int, tag: int) -> Work:
        work = self._post_recv(tensor, source, tag)
        self._tally.add(received=tensor.nbytes)
        return work

    def all_reduce(self, tensor: Tensor, group: Sequence[int] | None = None, *, tag: int | None = None) -> Work:
        members = members_of(group, self.size, self.rank)
        work = self._meet(tensor, f"in the all-reduce of {size_text(tensor.nbytes)}", members, _sum_in_rank_order)
        self._tally.add_all_reduce(tensor.nbytes, len(members), tag)
        return work

    def broadcast(self, tensor: Tensor, root: int, group: Sequence[int] | None = None) -> Work:
        members = members_of(group, self.size, self.rank)
        if root not in members:
            raise TransportError(f"the root of a broadcast must be one of {list(members)}, got {root}")
        at = members.index(root)

        def spread(entries: list[_Entry]) -> None:
            for entry in entries:
                entry.tensor.copy_(entries[at].tensor)

        work = self._meet(tensor, f"in the broadcast of {size_text(tensor.nbytes)} from rank {root}", members, spread)
        self._tally.add_broadcast(tensor.nbytes, (members.index(self.rank) - at) % len(members), len(members))
        return work

    def barrier(self, timeout_s: float) -> None:
        barrier(self.peers, self.rank, self._post_send, self._post_recv, timeout_s)

    def subgroup(self, ranks: Sequence[int]) -> InprocTransport | None:
        if self.rank not in ranks:
            return None
        members = members_of(ranks, self.size, self.rank)
        self._counts["subgroup", members] += 1
        global_ranks = tuple(self._ranks[rank] for rank in members)
        space = (self._space, members, self._counts["subgroup", members])
        group = InprocTransport(self._switch, members.index(self.rank), global_ranks, space)
        self._subgroups.append(group)
        return group

    def loss(self, doing: str, ranks: Sequence[int] = ()) -> TransportError | None:
        return self._switch.loss(Completion(doing, tuple(self._ranks[rank] for rank in ranks), 0.0))

    def one_sided(self, pace: Pace | None = None) -> Endpoint:
        check_unlimited(pace, "inproc")
        self._counts["one-sided"] += 1
        return self._switch.fabric((self._space, self._counts["one-sided"]), self.peers).endpoints[self.rank]

    def abort(self, reason: str) -> None:
        self._switch.lose(self._ranks[self.rank], reason)

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        for group in self._subgroups:
            group.engine.close()
        if self._space == ():
            self._switch.leave(self._ranks[self.rank])
        self.engine.close()

    def _post_send(self, tensor: Tensor, to: int, tag: int) -> Completion:
        check_address(to, tag, self.size, self.rank)
        entry = self._entry(tensor, f"sending to {self.peers[to]}, {size_text(tensor.nbytes)}, tag {tag}", (to,))
        return self._post(entry, (self._space, self.rank, to, tag), is_send=True)

    def _post_recv(self, tensor: Tensor, source: int, tag: int) -> Completion:
        check_address(source, tag, self.size, self.rank)
        what = f"receiving from {self.peers[source]}, {size_text(tensor.nbytes)}, tag {tag}"
        entry = self._entry(tensor, what, (source,))
        return self._post(entry, (self._space, source, self.rank, tag), is_send=False)

    def _post(self, entry: _Entry, channel_key: object, *, is_send: bool) -> Completion:
        if entry.tensor.numel() == 0:
            return finished(entry.completion.what)
        self._switch.exchange(channel_key, entry, is_send=is_send)
        return entry.completion

    def _meet(
        self, tensor: Tensor, what: str, members: tuple[int, ...], act: Callable[[list[_Entry]], None]
    ) -> Completion:
        entry = self._entry(tensor, what, members)
        self._counts[members] += 1
        self._switch.meet((self._space, members, self._counts[members]), members, entry, act)
        return entry.completion

    def _entry(self, tensor: Tensor, what: str, places: tuple[int, ...]) -> _Entry:
        check_message(tensor)
        others = tuple(self._ranks[place] for place in places if place != self.rank)
        return _Entry(self.rank, tensor, Completion(what, others, self._switch.limit_s))


@torch.no_grad()
def _copy(send: _Entry, receive: _Entry) -> None:
    error = None
    if (send.tensor.dtype, send.tensor.numel()) != (receive.tensor.dtype, receive.tensor.numel()):
        error = TransportError(
            f"{send.completion.what}: {send.tensor.numel()} × {send.tensor.dtype} sent, "
            f"{receive.tensor.numel()} × {receive.tensor.dtype} expected by the receiver"
        )
    else:
        receive.tensor.copy_(send.tensor)
    for entry in (send, receive):
        entry.completion.succeed() if error is None else entry.completion.fail(error)


@torch.no_grad()
def _act_for_all(entries: list[_Entry], act: Callable[[list[_Entry]], None]) -> None:
    kinds = {(entry.tensor.dtype, entry.tensor.numel()) for entry in entries}
    if len(kinds) > 1:
        found = ", ".join(f"{entry.tensor.numel()} × {entry.tensor.dtype} on rank {entry.rank}" for entry in entries)
        for entry in entries:
            entry.completion.fail(TransportError(f"{entry.completion.what}: members differ: {found}"))
        return
    act(entries)
    for entry in entries:
        entry.completion.succeed()


def _sum_in_rank_order(entries: list[_Entry]) -> None:
    total = entries[0].tensor.clone()
    for entry in entries[1:]:
        total += entry.tensor
    for entry in entries:
        entry.tensor.copy_(total)


CORE: int | None = None
"""Where all threads of `run_workers` stay; None: anywhere. Python runs one of them at a time, and to hand over to one
on another core takes longer than the layers of a small net."""


def run_workers(
    size: int,
    function: Callable[[InprocTransport], T],
    *,
    timeout_s: float = 60.0,
    hosts: Sequence[str] | None = None,
    tricks: Tricks | None = None,
) -> list[T]:
    """What `function(transport)` returns on each of `size` workers, by rank. Never hangs.

    The first worker that raises is lost to the others, and its exception is raised here. Workers that have not finished
    after `timeout_s` are named, with the line at which each is stuck. `hosts` names each worker's host;
    `tricks` are what the one-sided network plays.
    """
    names = [socket.gethostname()] * size if hosts is None else list(hosts)
    switch = Switch(
        tuple(Peer(rank, names[rank], os.getpid()) for rank in range(size)), limit_s=timeout_s, tricks=tricks
    )
    results: dict[int, T] = {}
    failures: list[tuple[int, BaseException]] = []
    ended: SimpleQueue[int] = SimpleQueue()

    def work(rank: int) -> None:
        if CORE is not None:
            os.sched_setaffinity(0, {CORE})  # of this thread, and those it starts
        transport = InprocTransport(switch, rank)
        try:
            results[rank] = function(transport)
        except BaseException as error:  # told to the other workers here, raised to the caller below
            failures.append((rank, error))
            transport.abort(f"{type(error).__name__}: {error}")
        finally:
            transport.close()
            ended.put(rank)

    threads = [threading.Thread(target=work, args=(rank,), name=f"worker-{rank}", daemon=True) for rank in range(size)]
    for thread in threads:
        thread.start()
    stuck = _wait_for_all(size, ended, failures, timeout_s)
    if failures:
        rank, error = failures[0]
        if hasattr(error, "add_note"):  # Python 3.11
            error.add_note(f"raised by worker {rank} of {size}")
        raise error
    if stuck:
        places = "; ".join(f"rank {rank} in {_place_of(threads[rank])}" for rank in stuck)
        switch.lose(stuck[0], f"it did not finish within {timeout_s:g} s")
        raise TransportTimeout(f"workers did not finish within {timeout_s:g} s: {places}", stuck)
    return [results[rank] for rank in range(size)]


def _wait_for_all(size: int, ended: SimpleQueue[int], failures: Sequence[object], timeout_s: float) -> tuple[int, ...]:
    """The ranks that have not ended in time; there is less of it once somebody has failed."""
    stuck = set(range(size))
    deadline_s = time.monotonic() + timeout_s
    while stuck:
        try:
            stuck.remove(ended.get(timeout=max(0.0, deadline_s - time.monotonic())))
        except Empty:
            break
        if failures:
            deadline_s = min(deadline_s, time.monotonic() + LAST_WORDS_S)
    return tuple(sorted(stuck))


def _place_of(thread: threading.Thread) -> str:
    """Where a thread is: the innermost line outside of the standard library's threading."""
    frame = sys._current_frames().get(thread.ident or 0)
    lines = [line for line in traceback.extract_stack(frame) if line.filename != threading.__file__]
    return f"{lines[-1].filename}:{lines[-1].lineno} ({lines[-1].name})" if lines else "an unknown place"
