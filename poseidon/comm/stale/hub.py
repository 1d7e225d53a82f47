"""Hub: one rank's part in all tables of a job. Its thread takes what comes, serves shards, fills caches, and sends.

    worker's thread    reads and writes caches (under `lock`), hands over messages (`post`), waits (`wait_for`)
    hub's thread       everything else: mailbox, message scheduler, shards

Ranks 0 … W − 1 are workers. They serve tables too, unless there are ranks of their own for that, the last ones.

Leaving is an affair of all. A worker that has finished (`close`) says so for every table, is waited for no longer, and
waits until servers have nothing more for it; then it says goodbye, but serves on until all workers have. Whoever goes
without that word is lost, and named to all within seconds.
"""

from __future__ import annotations

import contextlib
import json
import threading
from collections import defaultdict, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeVar

import torch

from poseidon.comm.conductor import placed
from poseidon.comm.stale.cache import Cache
from poseidon.comm.stale.layout import TableSpec
from poseidon.comm.stale.mailbox import NUM_SLOTS, SLOT_BYTES, Mailbox
from poseidon.comm.stale.message import FROM_SERVERS, Kind, Message
from poseidon.comm.stale.outgoing import ORDINARY, InOrder, MessageScheduler
from poseidon.comm.stale.shard import Addition, Shard
from poseidon.errors import PeerLost, TransportError, TransportTimeout, UsageError
from poseidon.transport import Transport

T = TypeVar("T")
LOOK_S = 60.0
MEET_S = 120.0
_NO_TABLE = 2**32 - 1


def _adding_shard(hub: Hub, spec: TableSpec, text: str) -> Shard:
    return Shard(spec, hub.rank, Addition())


@dataclass(frozen=True, slots=True)
class HubOptions:
    """`num_servers`: how many ranks, the last ones, do nothing but serve; 0: every worker serves its share.

    `outgoing`: which message leaves next (`outgoing.py`); None: in order. `make_shard`: what a rank that only serves
    has of a table, from its spec and what the workers tell of its updates; called on the hub's thread.
    """

    num_servers: int = 0
    outgoing: MessageScheduler | None = None
    make_shard: Callable[[Hub, TableSpec, str], Shard] = _adding_shard
    slot_bytes: int = SLOT_BYTES
    num_slots: int = NUM_SLOTS


class Hub:
    """All ranks make theirs together."""

    def __init__(self, transport: Transport, options: HubOptions | None = None) -> None:
        options = options or HubOptions()
        if not 0 <= options.num_servers < transport.size:
            raise UsageError(
                f"of {transport.size} processes at least one is a worker, got {options.num_servers} that only serve"
            )
        self.transport, self.rank = transport, transport.rank
        self.num_workers = transport.size - options.num_servers
        self.owners = tuple(range(self.num_workers, transport.size) if options.num_servers else range(transport.size))
        self._endpoint = transport.one_sided()
        self.kind = self._endpoint.kind
        self.outgoing = options.outgoing or InOrder()
        self.mailbox = Mailbox(self._endpoint, self.outgoing, options.slot_bytes, options.num_slots)
        self.lock = threading.RLock()
        self._changed = threading.Condition(self.lock)
        self.caches: dict[int, Cache] = {}
        self.shards: dict[int, Shard] = {}
        self._specs: dict[int, TableSpec] = {}
        self._early: dict[int, list[tuple[int, Message]]] = defaultdict(list)  # for tables not known here yet
        self._recalled: dict[tuple[int, int, int], Message] = {}
        self.arrived: Callable[[int], None] = lambda table: None  # hears of a table's new values, before who waits
        self._jobs: deque[Callable[[], None]] = deque()
        self._make_shard = options.make_shard
        self._creating: dict[int, Shard] = {}  # on ranks that only serve: tables whose seeds are still coming
        self._told: set[tuple[int, int]] = set()  # (server, table) that have nothing more for this worker
        self._gone: set[int] = set()  # workers that have said goodbye
        self._failure: BaseException | None = None
        self._closed = False
        self._thread = threading.Thread(target=self._run, name=f"poseidon-hub-{self.rank}", daemon=True)
        transport.barrier(MEET_S)  # nobody puts into a mailbox that is not there
        self._thread.start()

    @property
    def is_worker(self) -> bool:
        return self.rank < self.num_workers

    # -- any thread -------------------------------------------------------------------------------------------------
    def add(self, spec: TableSpec, cache: Cache | None, shard: Shard | None) -> None:
        """A table is there from now on, with what this rank has of it."""
        self.call(lambda: self._know(spec, cache, shard))

    def post(self, messages: Iterable[tuple[int, Message]]) -> None:
        """Sends messages, each to a rank; to this one too."""
        given = list(messages)

        def act() -> None:
            for rank, message in given:
                self._send((rank,), message)

        self._do(act)

    def soon(self, act: Callable[[], None]) -> None:
        """Runs `act` on the hub's thread, behind what was given before."""
        self._do(act)

    def send(self, ranks: tuple[int, ...], message: Message) -> None:
        """Sends a message at once. On the hub's thread."""
        self._send(ranks, message)

    def call(self, act: Callable[[], T]) -> T:
        """What `act` returns, on the hub's thread: it may use shards and the mailbox."""
        results: list[T] = []

        def job() -> None:
            results.append(act())
            with self.lock:
                self._changed.notify_all()

        self._do(job)
        self.wait_for(lambda: bool(results), "its own hub")
        return results[0]

    def wait_for(self, is_there: Callable[[], bool], what: str) -> bool:
        """Waits, under the lock, until something is there; true if that was not so at once. `what` is waited for."""
        with self.lock:
            if is_there():
                self._raise_failure()
                return False
            while not (is_there() or self._has_ended):
                self._changed.wait()
            self._raise_failure()
            if not is_there():
                raise TransportError(f"{what} was waited for when communication was closed")
            return True

    def recall(self, spec: TableSpec, part: int, number: int) -> Message:
        """A part's values (0) or histories (1, 2 …) from its server. Says also that all sent there before was read."""
        self.post([(spec.spans[part].owner, Message(Kind.RECALL, spec.index, part, number=number))])
        key = (spec.index, part, number)
        self.wait_for(lambda: key in self._recalled, f"table {spec.name!r}, part {part}")
        return self._recalled.pop(key)

    def _do(self, job: Callable[[], None]) -> None:
        with self.lock:
            self._raise_failure()
            if self._closed:
                raise TransportError("tables were used after they were closed")
            self._jobs.append(job)
        self.mailbox.wake()

    # -- ends -------------------------------------------------------------------------------------------------------
    def close(self, *, wait: bool = True) -> None:
        """Leaves. `wait`: when all have finished, else at once, whatever that means to the others."""
        if self._closed:
            return
        try:
            if wait and self._failure is None:
                self._leave()
        finally:
            with self.lock:
                self._closed = True
                self._changed.notify_all()
            with contextlib.suppress(TransportError):  # somebody is lost: the thread has ended by itself
                self.mailbox.wake()
            self._thread.join()
            self._endpoint.close()

    def _leave(self) -> None:
        if self.is_worker:
            answers = {(span.owner, spec.index) for spec in self._specs.values() for span in spec.spans}
            self.post((owner, Message(Kind.LEAVE, table)) for owner, table in sorted(answers))
            self.wait_for(lambda: self._told == answers, "the last word of servers")
            self.post((rank, Message(Kind.GOODBYE, _NO_TABLE)) for rank in range(self.transport.size))
        self.wait_for(lambda: len(self._gone) == self.num_workers, "the end of all workers")
        self.wait_for(lambda: self.outgoing.num_waiting == 0, "room for its last words")

    @property
    def _has_ended(self) -> bool:
        return self._closed or self._failure is not None

    def _fail(self, problem: BaseException) -> None:
        """Whoever is lost to us is lost to the others too; all else they are told, before anybody here leaves."""
        if self._has_ended:
            return
        try:
            if not isinstance(problem, PeerLost):
                reason = f"{type(problem).__name__}: {problem} (while serving tables)"
                self._endpoint.abort(reason)
                self.transport.abort(reason)
        finally:
            with self.lock:
                self._failure = placed(problem, "while serving tables")
                self._changed.notify_all()

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure

    # -- the hub's thread -------------------------------------------------------------------------------------------
    def _run(self) -> None:
        with torch.no_grad():
            while not self._has_ended:
                try:
                    self._step()
                except TransportTimeout:
                    continue  # nothing has happened for long: a long test, a slow worker
                except BaseException as problem:  # raised again to whoever waits
                    if not (isinstance(problem, PeerLost) and self._all_gone):
                        self._fail(problem)

    @property
    def _all_gone(self) -> bool:
        """Everybody has said goodbye, and may go at any moment."""
        return len(self._gone) == self.num_workers

    def _step(self) -> None:
        while self._jobs:
            self._jobs.popleft()()
        due_s = self.mailbox.pump()
        if self._all_gone:
            with self.lock:
                self._changed.notify_all()  # `close` looks whether all was sent
        found = self.mailbox.collect(0.0 if self._jobs else LOOK_S if due_s is None else min(LOOK_S, due_s))
        if not found and not self._all_gone:
            self._check_left()
        for sender, message in found:
            self._handle(sender, message)

    def _handle(self, sender: int, message: Message) -> None:
        if message.kind is Kind.CREATE or (message.table in self._creating and message.kind is Kind.SEED):
            self._create(sender, message)
        elif message.kind is Kind.GOODBYE:
            with self.lock:
                self._gone.add(sender)
                self._changed.notify_all()
        elif message.table not in self._specs:
            self._early[message.table].append((sender, message))
        elif message.kind in FROM_SERVERS:
            with self.lock:
                self._take(sender, message)
                self._changed.notify_all()
        else:
            self._serve(sender, message)

    def _take(self, server: int, message: Message) -> None:
        """What a server says to this worker."""
        if message.kind is Kind.VALUES:
            self.caches[message.table].receive(message)
            self.arrived(message.table)
        elif message.kind is Kind.RECALLED:
            self._recalled[message.table, message.part, message.number] = message
        else:
            self._told.add((server, message.table))

    def _serve(self, worker: int, message: Message) -> None:
        """What a worker says to this server."""
        shard = self.shards.get(message.table)
        if shard is None:
            raise TransportError(f"{message} came to rank {self.rank}, which serves no part of that table", (worker,))
        for reply in shard.receive(worker, message):
            self._send(reply.to, reply.message)

    def _create(self, worker: int, message: Message) -> None:
        """On a rank that only serves: a table, then what it starts from. Until the last of that, others wait."""
        if message.kind is Kind.CREATE:
            told = json.loads(message.payload.numpy().tobytes())
            spec = TableSpec.from_json(told["spec"])
            self._creating[spec.index] = self._make_shard(self, spec, told["update"])
        else:
            self._creating[message.table].receive(worker, message)
        if message.ends:
            shard = self._creating.pop(message.table)
            self._know(shard.spec, None, shard)

    def _know(self, spec: TableSpec, cache: Cache | None, shard: Shard | None) -> None:
        self._specs[spec.index] = spec
        if cache is not None:
            self.caches[spec.index] = cache
        if shard is not None:
            self.shards[spec.index] = shard
        for sender, message in self._early.pop(spec.index, []):
            self._handle(sender, message)

    def _send(self, ranks: tuple[int, ...], message: Message) -> None:
        spec = self._specs.get(message.table)
        others = [rank for rank in ranks if rank != self.rank]
        if others:
            self.mailbox.post(message, others, ORDINARY if spec is None else spec.priority)
        if self.rank in ranks:
            self._handle(self.rank, message)

    def _check_left(self) -> None:
        """Peers that have gone without a goodbye are lost. Servers go when all workers have said theirs."""
        gone = [rank for rank, is_there in enumerate(self._endpoint.health()) if not is_there]
        is_late = self.rank in self._gone or not self.is_worker  # a server cannot know that all have said it
        lost = tuple(rank for rank in gone if rank not in self._gone and not (rank >= self.num_workers and is_late))
        if lost:
            names = ", ".join(str(self._endpoint.peers[rank]) for rank in lost)
            raise PeerLost(f"{names} left the job before that was over", lost)
