"""MPI endpoint: one-sided communication by MPI's own remote memory access, for sites whose fabric MPI knows best.

    pip install 'poseidon-dl[mpi]'         and start workers with mpiexec; --one-sided=mpi chooses it

One window over all segments (dynamic: each is attached when it is made, and everybody is told its address). A put is
MPI_Put and a flush, after which the bytes are at their target; then the notification goes as a message of 24 bytes.

MPI moves nothing towards a process that does not call it. So every worker has one thread that does all of MPI's work:
it carries out what was asked for, round by round, the lowest queue first, looks for notifications after each job, and
with nothing to do looks ever more rarely, up to every IDLE_S. Other endpoints of the process have threads of their own
(MPI_THREAD_MULTIPLE).

MPI does not tell who is lost; most implementations end the job, others wait for the lost one for ever. So a second
thread, which never calls MPI, asks the transport that the workers have beside it (`loss`).
"""

from __future__ import annotations

import threading
from collections.abc import Collection
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from poseidon.errors import PeerLost, TransportError
from poseidon.transport.base import Transport, Work
from poseidon.transport.completion import Completion
from poseidon.transport.onesided.base import NUM_QUEUES, Note, Spot, check_local, check_note, check_range, check_rank
from poseidon.transport.onesided.board import Board
from poseidon.transport.onesided.errands import Errands
from poseidon.transport.onesided.segments import bytes_of

NOTE_TAG, SEGMENT_TAG, BYE_TAG = 1, 2, 3
SOON_S, IDLE_S = 5e-5, 1e-3
LOOK_S = 0.25
SEGMENT_S = 60.0
LIMIT_S = 1800.0
FAREWELL_S = 60.0
READ_QUEUE = 1  # as between sockets: behind what is urgent, before the bulk


def load_mpi() -> Any:
    """mpi4py's MPI, initialised."""
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        raise TransportError(
            f"one-sided communication by MPI needs mpi4py and an MPI library: {error}; install them with "
            "pip install 'poseidon-dl[mpi]', or leave --one-sided=mpi out"
        ) from error
    if MPI.Query_thread() < MPI.THREAD_MULTIPLE:
        raise TransportError(
            "this MPI library must not be called from several threads; --one-sided=mpi needs one that may"
        )
    return MPI


class MpiEndpoint:
    """One worker's end; `transport` has the same workers, in the same order as MPI's world. `mpi`: the library."""

    kind = "mpi"

    def __init__(self, transport: Transport, mpi: Any = None) -> None:
        self._mpi = load_mpi() if mpi is None else mpi
        world = self._mpi.COMM_WORLD
        if (world.rank, world.size) != (transport.rank, transport.size):
            raise TransportError(
                f"MPI started {world.size} processes, of which this is {world.rank}; the job has {transport.size} "
                f"workers, of which it is {transport.rank}: start all workers by one mpiexec"
            )
        self._transport = transport
        self.rank, self.size, self.peers = transport.rank, transport.size, transport.peers
        self.bytes_sent = 0
        self._board = Board()
        self._errands = Errands()
        self._waiting = [0] * NUM_QUEUES
        self._own: dict[int, Tensor] = {}
        self._known: dict[tuple[int, int], tuple[int, int]] = {}  # (rank, segment): address, bytes
        self._reads: set[Completion] = set()
        self._reads_lock = threading.Lock()
        self._gone: set[int] = set()
        self._messages: list[tuple[Any, np.ndarray]] = []
        self._is_closing = False
        self._is_over = threading.Event()  # nobody needs to be watched any more
        self._comm = world.Dup()
        self._window = self._mpi.Win.Create_dynamic(comm=self._comm)
        self._window.Lock_all()
        self._thread = threading.Thread(target=self._serve, name=f"mpi-{self.rank}", daemon=True)
        self._thread.start()
        threading.Thread(target=self._watch, name=f"mpi-watch-{self.rank}", daemon=True).start()

    @property
    def links(self) -> tuple[str, ...]:
        return tuple("self" if rank == self.rank else "mpi" for rank in range(self.size))

    def health(self) -> tuple[bool, ...]:
        lost = self._board.error.ranks if isinstance(self._board.error, PeerLost) else ()
        return tuple(rank not in self._gone and rank not in lost for rank in range(self.size))

    # -- worker -----------------------------------------------------------------------------------------------------
    def allocate(self, segment: int, num_bytes: int) -> Tensor:
        self._board.check()
        if segment in self._own:
            raise TransportError(f"segment {segment} is there already; take another number")
        memory = self._own[segment] = torch.zeros(num_bytes, dtype=torch.uint8)
        made: list[int] = []

        def attach() -> None:
            self._window.Attach(memory.numpy())
            address = self._mpi.Get_address(memory.numpy())
            for rank in self._others():
                self._message(rank, SEGMENT_TAG, segment, address, num_bytes)
            self._board.change(lambda: made.append(address))

        self._errands.add(0, attach)
        what = f"that MPI takes segment {segment} of {num_bytes} bytes"
        self._board.wait_for(lambda: True if made else None, SEGMENT_S, what)
        return memory

    def write_notify(self, local: Tensor, spot: Spot, note: Note | None, queue: int = 0) -> None:
        check_local(local)
        check_note(note, queue)
        check_rank(spot.rank, self.size)
        self._board.check()
        data = bytes_of(local)
        if spot.rank == self.rank:
            self._own_memory(spot, len(data)).copy_(data)
            if note is not None:
                self._board.post(*note)
            return
        address = self._address(spot, len(data))
        self.bytes_sent += len(data)
        self._change_waiting(queue, 1)

        def put() -> None:
            if len(data):
                self._window.Put([data.numpy(), self._mpi.BYTE], spot.rank, (address, len(data), self._mpi.BYTE))
                self._window.Flush(spot.rank)
            if note is not None:
                self._message(spot.rank, NOTE_TAG, note.id, note.value)
            self._change_waiting(queue, -1)

        self._errands.add(queue, put)

    def begin_round(self) -> None:
        self._errands.begin_round()

    def notify(self, rank: int, note: Note, queue: int = 0) -> None:
        check_note(note, queue)
        check_rank(rank, self.size)
        self._board.check()
        if rank == self.rank:
            self._board.post(*note)
        else:
            self._errands.add(queue, partial(self._message, rank, NOTE_TAG, note.id, note.value))

    def read(self, local: Tensor, spot: Spot) -> Work:
        check_local(local)
        check_rank(spot.rank, self.size)
        self._board.check()
        data = bytes_of(local)
        what = f"reading {len(data)} bytes from segment {spot.segment} of {self.peers[spot.rank]}"
        work = Completion(what, (spot.rank,), LIMIT_S)
        if spot.rank == self.rank:
            data.copy_(self._own_memory(spot, len(data)))
            work.succeed()
            return work
        address = self._address(spot, len(data))

        def get() -> None:
            self._window.Get([data.numpy(), self._mpi.BYTE], spot.rank, (address, len(data), self._mpi.BYTE))
            self._window.Flush(spot.rank)
            with self._reads_lock:
                self._reads.discard(work)
            work.succeed()

        with self._reads_lock:
            self._reads.add(work)
        self._errands.add(READ_QUEUE, get)
        if self._board.error is not None:  # since it was looked at last
            self._fail_reads(self._board.error)
        return work

    def waitsome(self, ids: Collection[int], timeout_s: float) -> int:
        return self._board.waitsome(ids, timeout_s)

    def reset(self, id: int) -> int:
        return self._board.reset(id)

    def take(self, ids: Collection[int], timeout_s: float) -> list[Note]:
        return self._board.take(ids, timeout_s)

    def wait(self, queue: int, timeout_s: float) -> None:
        def look() -> bool | None:
            return True if self._waiting[queue] == 0 else None

        self._board.wait_for(look, timeout_s, f"room for what was put into queue {queue}")

    def abort(self, reason: str) -> None:
        self._transport.abort(reason)
        self._fail(PeerLost(f"{self.peers[self.rank]} gave up: {reason}", (self.rank,)))

    def close(self) -> None:
        """MPI frees windows when all have come to that: a worker leaves when the others have, or are lost.

        That is waited for FAREWELL_S; then MPI's thread goes on serving the others by itself, as long as the process
        lives.
        """
        if self._is_closing:
            return
        for rank in self._others():
            self._errands.add(NUM_QUEUES, partial(self._message, rank, BYE_TAG))
        self._is_closing = True
        self._thread.join(FAREWELL_S if self._board.error is None else LOOK_S)
        self._is_over.set()
        self._fail(TransportError(f"the one-sided endpoint of rank {self.rank} is closed"))

    def _others(self) -> list[int]:
        return [rank for rank in range(self.size) if rank != self.rank]

    def _own_memory(self, spot: Spot, num_bytes: int) -> Tensor:
        if spot.segment not in self._own:
            raise TransportError(f"rank {self.rank} has no segment {spot.segment}")
        check_range(spot, num_bytes, len(self._own[spot.segment]))
        return self._own[spot.segment][spot.offset : spot.offset + num_bytes]

    def _address(self, spot: Spot, num_bytes: int) -> int:
        key = (spot.rank, spot.segment)
        what = f"segment {spot.segment} of {self.peers[spot.rank]}"
        start, length = self._board.wait_for(lambda: self._known.get(key), SEGMENT_S, what)
        check_range(spot, num_bytes, length)
        return start + spot.offset

    def _change_waiting(self, queue: int, change: int) -> None:
        def act() -> None:
            self._waiting[queue] += change

        self._board.change(act)

    # -- ends -------------------------------------------------------------------------------------------------------
    def _watch(self) -> None:
        """MPI's own thread may be waiting inside MPI for the one that is lost."""
        while not self._is_over.wait(LOOK_S):
            loss = self._transport.loss("waiting for notifications")
            if loss is not None:
                self._fail(loss)
                return

    def _fail(self, error: TransportError) -> None:
        self._board.fail(error)  # first: a read that begins now sees that, or is failed here
        self._fail_reads(error)

    def _fail_reads(self, error: TransportError) -> None:
        with self._reads_lock:
            reads, self._reads = self._reads, set()
        for work in reads:
            work.fail(type(error)(f"{error}; while {work.what}", error.ranks))

    # -- MPI's thread -----------------------------------------------------------------------------------------------
    def _serve(self) -> None:
        idle_s = SOON_S
        try:
            while not self._may_end():
                has_worked = self._errands.carry_out_next(idle_s)
                has_heard = self._listen()
                idle_s = SOON_S if has_worked or has_heard else min(2 * idle_s, IDLE_S)
            if not isinstance(self._board.error, PeerLost):  # MPI cannot end in peace without everybody
                for request, _ in self._messages:
                    request.Wait()
                self._window.Unlock_all()
                self._window.Free()
        except Exception as error:  # MPI's, or a mistake of ours: whoever waits has to hear of it
            self._fail(TransportError(f"MPI failed: {type(error).__name__}: {error}"))

    def _may_end(self) -> bool:
        if isinstance(self._board.error, PeerLost):
            return True
        return self._is_closing and len(self._gone) == self.size - 1 and self._errands.is_empty

    def _listen(self) -> bool:
        status = self._mpi.Status()
        has_heard = False
        while self._comm.Iprobe(self._mpi.ANY_SOURCE, self._mpi.ANY_TAG, status):
            values = np.empty(3, np.int64)
            source, tag = status.Get_source(), status.Get_tag()
            self._comm.Recv([values, self._mpi.INT64_T], source, tag)
            self._take(source, tag, values.tolist())
            has_heard = True
        return has_heard

    def _take(self, source: int, tag: int, values: list[int]) -> None:
        first, second, third = values
        if tag == NOTE_TAG:
            self._board.post(first, second)
        elif tag == SEGMENT_TAG:
            self._board.change(lambda: self._known.__setitem__((source, first), (second, third)))
        elif tag == BYE_TAG:
            self._gone.add(source)
            self._board.leave()

    def _message(self, rank: int, tag: int, first: int = 0, second: int = 0, third: int = 0) -> None:
        values = np.array([first, second, third], np.int64)
        self._messages = [(request, held) for request, held in self._messages if not request.Test()]
        self._messages.append((self._comm.Isend([values, self._mpi.INT64_T], rank, tag), values))
