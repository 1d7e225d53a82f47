"""c10d transport: torch.distributed's engines, gloo between hosts over Ethernet, NCCL between GPUs.

    transport = connect(rank, size, Master("10.0.0.1", 29500), options)     the usual way
    transport = join(store, rank, size, options)                            by a store that exists
    transport = from_group(group, options)                                  beside somebody's process group

Point-to-point and collectives have connections of their own: neither waits for the other. Messages go by our own
engine where it is built (`messages.py`), else by gloo. Nothing is pickled, and torch's default process group is neither
needed nor touched, so several transports may live in one process.

CUDA: all-reduce and broadcast go by NCCL. NCCL has no tags (messages of a pair of devices must be posted in one order
on both sides), so send and receive pass through pinned host memory, which on Ethernet is what NCCL would do too. After
`wait` a result may be used on the stream that is current in the waiting thread.
"""

from __future__ import annotations

import socket
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from poseidon.errors import JoinFailed, TransportError, TransportTimeout
from poseidon.transport.barrier import barrier
from poseidon.transport.base import Levels, Work, check_address, check_message, members_of, size_text
from poseidon.transport.c10d_work import GroupWork, Note, PointWork, StreamWork
from poseidon.transport.completion import finished
from poseidon.transport.groups import GroupSpec
from poseidon.transport.health import Loss
from poseidon.transport.job import C10dOptions, Job
from poseidon.transport.joining import agree_on_round
from poseidon.transport.messages import MessageWork, open_messages
from poseidon.transport.onesided.base import Endpoint, check_unlimited
from poseidon.transport.onesided.joining import OneSidedOptions, open_endpoint
from poseidon.transport.onesided.mpi import MpiEndpoint
from poseidon.transport.pacing import Pace
from poseidon.transport.tally import Tally
from poseidon.transport.vitals import Vitals

__all__ = ["C10dOptions", "C10dTransport", "Master", "connect", "from_group", "join"]

WHOLE_JOB = "job"
SUMMABLE = frozenset(
    (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int8, torch.uint8, torch.int32, torch.int64)
)


@dataclass(frozen=True, slots=True)
class Master:
    """Where rank 0's store listens. `prefix`, if not empty: somebody else (torchrun's agent) runs it already, for other
    purposes and earlier workers too; our keys begin with this, and a word that is agreed on."""

    address: str
    port: int
    prefix: str = ""


class C10dTransport:
    """One worker's end. `ranks` are the members' ranks in the job, in order; `name` tells subgroups apart."""

    def __init__(self, job: Job, ranks: tuple[int, ...], name: str) -> None:
        self._job, self._ranks, self._name = job, ranks, name
        self.rank = ranks.index(job.rank)
        self.size = len(ranks)
        self.peers = tuple(job.peers[rank] for rank in ranks)
        self.kind = "c10d-nccl" if torch.cuda.is_available() and dist.is_nccl_available() else "c10d-gloo"
        self.engine = job.engine
        self.levels: Levels | None = None
        self._tally = Tally()
        self._num_subgroups: Counter[tuple[int, ...]] = Counter()
        if self.size > 1:
            self._points = job.group(GroupSpec(f"{name}/points", self.rank, self.size))
            job.group(self._members_spec(tuple(range(self.size)), "cpu"))
            self.barrier(job.options.join_s)  # nobody leaves while another is still connecting
            if name == WHOLE_JOB:
                job.messages = open_messages(self, self._one_sided_options(shares_memory=False))

    @property
    def bytes_sent(self) -> int:
        return self._tally.sent

    @property
    def bytes_received(self) -> int:
        return self._tally.received

    def sent_with(self, tags: Iterable[int]) -> int:
        return self._tally.sent_with(tags)

    def send(self, tensor: Tensor, to: int, tag: int) -> Work:
        work = self._stage_send(tensor, to, tag) if tensor.device.type != "cpu" else self._post_send(tensor, to, tag)
        self._tally.add(sent=tensor.nbytes, tag=tag)
        return work

    def recv(self, tensor: Tensor, source: int, tag: int) -> Work:
        is_staged = tensor.device.type != "cpu"
        work = self._stage_recv(tensor, source, tag) if is_staged else self._post_recv(tensor, source, tag)
        self._tally.add(received=tensor.nbytes)
        return work

    def all_reduce(self, tensor: Tensor, group: Sequence[int] | None = None, *, tag: int | None = None) -> Work:
        members = members_of(group, self.size, self.rank)
        if tensor.dtype not in SUMMABLE:
            raise TransportError(
                f"all-reduce cannot sum {tensor.dtype}; convert to one of {sorted(map(str, SUMMABLE))}"
            )
        what = f"in the all-reduce of {size_text(tensor.nbytes)}"
        work = self._collective(tensor, members, what, lambda c10d_group: c10d_group.allreduce([tensor]))
        self._tally.add_all_reduce(tensor.nbytes, len(members), tag)
        return work

    def broadcast(self, tensor: Tensor, root: int, group: Sequence[int] | None = None) -> Work:
        members = members_of(group, self.size, self.rank)
        if root not in members:
            raise TransportError(f"the root of a broadcast must be one of {list(members)}, got {root}")
        options = dist.BroadcastOptions()
        options.rootRank = members.index(root)
        what = f"in the broadcast of {size_text(tensor.nbytes)} from {self.peers[root]}"
        work = self._collective(tensor, members, what, lambda c10d_group: c10d_group.broadcast([tensor], options))
        place = (members.index(self.rank) - members.index(root)) % len(members)
        self._tally.add_broadcast(tensor.nbytes, place, len(members))
        return work

    def barrier(self, timeout_s: float) -> None:
        barrier(self.peers, self.rank, self._post_send, self._post_recv, timeout_s)

    def subgroup(self, ranks: Sequence[int]) -> C10dTransport | None:
        if self.rank not in ranks:
            return None
        members = members_of(ranks, self.size, self.rank)
        self._num_subgroups[members] += 1
        name = f"{self._name}/{'-'.join(map(str, members))}:{self._num_subgroups[members]}"
        return C10dTransport(self._job, tuple(self._ranks[rank] for rank in members), name)

    def one_sided(self, pace: Pace | None = None) -> Endpoint:
        """Notified puts among the same workers, on connections of their own; all call it together."""
        options = self._job.options
        if options.one_sided == "mpi":
            check_unlimited(pace, "mpi")
            return MpiEndpoint(self)
        return open_endpoint(self, self._one_sided_options(pace=pace))

    def _one_sided_options(self, *, shares_memory: bool = True, pace: Pace | None = None) -> OneSidedOptions:
        options = self._job.options
        return OneSidedOptions(
            options.address,
            options.secret,
            shares_memory,
            options.join_s,
            options.health,
            pace,
            options.is_native,
        )

    def loss(self, doing: str, ranks: Sequence[int] = ()) -> TransportError | None:
        members = tuple(self._ranks[rank] for rank in ranks)
        return None if self._job.health.cause(members, 0.0) is None else self._job.explain(doing, members, "")

    def verdict(self, grace_s: float) -> Loss | None:
        """Who is lost to the job, for which `grace_s` may be waited; None if nobody is."""
        return self._job.health.cause((), grace_s)

    def vitals(self) -> dict[int, Vitals]:
        """Where workers stood when last heard of, by rank: of all workers at rank 0, of rank 0 at the others."""
        return self._job.health.vitals()

    def ask_stacks(self, timeout_s: float) -> dict[int, str]:
        """Rank 0's: what the other workers' threads do just now, by rank; of those that answer in time."""
        return self._job.health.ask_stacks(timeout_s)

    def declare_lost(self, ranks: tuple[int, ...], how: str) -> None:
        """Rank 0's: to all workers these are lost from now on."""
        self._job.health.declare(ranks, how)

    def abort(self, reason: str) -> None:
        self._job.health.give_up(reason)

    def close(self) -> None:
        if self._name == WHOLE_JOB:  # a subgroup ends with the transport it was taken from
            self._job.close()

    # -- point to point ---------------------------------------------------------------------------------------------
    def _post_send(self, tensor: Tensor, to: int, tag: int) -> Work:
        check_address(to, tag, self.size, self.rank)
        return self._post(tensor, "sending to", to, tag)

    def _post_recv(self, tensor: Tensor, source: int, tag: int) -> Work:
        check_address(source, tag, self.size, self.rank)
        return self._post(tensor, "receiving from", source, tag)

    def _post(self, tensor: Tensor, verb: str, place: int, tag: int) -> Work:
        check_message(tensor)
        note = Note(verb, tensor.nbytes, self.peers[place], tag)
        self._job.check(note)
        if tensor.numel() == 0:
            return finished(str(note))
        messages, is_sent = self._job.messages, verb == "sending to"
        if messages is not None:
            begin = messages.send if is_sent else messages.recv
            return MessageWork(self._job, begin(tensor, self._ranks[place], self._name, tag), note)
        try:
            start = self._points.send if is_sent else self._points.recv
            return PointWork(self._job, start([tensor], place, tag), note)
        except RuntimeError as error:  # gloo has no exception of its own for a broken connection
            raise self._job.explain(str(note), note.ranks, str(error)) from error

    def _stage_send(self, tensor: Tensor, to: int, tag: int) -> Work:
        """The copy to the host waits for the device, on the engine's thread; one channel's messages stay in order."""
        check_message(tensor)

        def run() -> None:
            self._post_send(_host_like(tensor).copy_(tensor), to, tag).wait()

        what = f"sending {size_text(tensor.nbytes)} from {tensor.device} to {self.peers[to]}, tag {tag}"
        return self.engine.submit((self._name, "send", to, tag), run, what, (self._ranks[to],))

    def _stage_recv(self, tensor: Tensor, source: int, tag: int) -> Work:
        check_message(tensor)
        host = _host_like(tensor)
        arrival = self._post_recv(host, source, tag)

        def run() -> None:
            arrival.wait()
            tensor.copy_(host)

        what = f"receiving {size_text(tensor.nbytes)} to {tensor.device} from {self.peers[source]}, tag {tag}"
        return self.engine.submit((self._name, "recv", source, tag), run, what, (self._ranks[source],))

    # -- collectives ------------------------------------------------------------------------------------------------
    def _collective(self, tensor: Tensor, members: tuple[int, ...], what: str, start: Callable[[Any], Any]) -> Work:
        check_message(tensor)
        self._job.check(what)
        if len(members) == 1 or tensor.numel() == 0:
            return finished(what)
        others = tuple(self._ranks[place] for place in members if place != self.rank)
        group = self._job.group(self._members_spec(members, tensor.device.type))
        try:
            work = start(group)
        except RuntimeError as error:  # c10d has no exception of its own for a broken connection
            raise self._job.explain(what, others, str(error)) from error
        return (StreamWork if tensor.is_cuda else GroupWork)(self._job, work, what, others)

    def _members_spec(self, members: tuple[int, ...], device: str) -> GroupSpec:
        name = f"{self._name}/group {'-'.join(map(str, members))}"
        return GroupSpec(name, members.index(self.rank), len(members), device)


def join(store: dist.Store, rank: int, size: int, options: C10dOptions) -> C10dTransport:
    """A transport among `size` workers that share the store (use a PrefixStore if it serves other purposes too)."""
    return C10dTransport(Job(store, rank, size, options), tuple(range(size)), WHOLE_JOB)


def connect(rank: int, size: int, master: Master, options: C10dOptions) -> C10dTransport:
    """A transport among `size` workers that meet at `master`. Rank 0 listens there on its own interface only."""
    if rank == 0 and not master.prefix:
        return join(_serve(options.address, master.port, options.join_s), rank, size, options)
    try:
        limit = timedelta(seconds=options.join_s)
        store: dist.Store = dist.TCPStore(master.address, master.port, size, False, limit, wait_for_workers=False)
    except RuntimeError as error:  # c10d has no exception of its own
        problem = str(error).splitlines()[0]
        raise TransportTimeout(
            f"rank {rank} cannot reach rank 0 at {master.address} port {master.port} within {options.join_s:g} s: "
            f"{problem}; check that rank 0 was started, and the address",
            (0,),
        ) from error
    if master.prefix:
        store = dist.PrefixStore(master.prefix, store)
        store = dist.PrefixStore(agree_on_round(store, rank, size, options.join_s), store)
    return join(store, rank, size, options)


def _serve(address: str, port: int, join_s: float) -> dist.TCPStore:
    """A store at this address alone: c10d by itself would listen on all interfaces."""
    try:
        family = socket.getaddrinfo(address, port)[0][0]
        listener = socket.create_server((address, port), family=family, backlog=1024)
    except OSError as error:
        raise JoinFailed(
            f"rank 0 cannot listen on port {port} of {address}: {error.strerror or error}; choose another port"
        ) from error
    port, fd = listener.getsockname()[1], listener.detach()  # the store's from now on
    return dist.TCPStore(
        address, port, None, True, timedelta(seconds=join_s), wait_for_workers=False, master_listen_fd=fd
    )


def from_group(group: Any, options: C10dOptions, device: str = "cpu") -> C10dTransport:
    """A transport among the members of a process group, on connections of its own.

    The group, usable for tensors on `device`, serves once, to spread the address of a new store.
    """
    rank, size = group.rank(), group.size()
    place = torch.zeros(256, dtype=torch.uint8)
    server = None
    if rank == 0:
        server = _serve(options.address, 0, options.join_s)
        text = f"{options.address} {server.port}".encode()
        place[: len(text)] = torch.frombuffer(bytearray(text), dtype=torch.uint8)
    carried = place.to(device)
    dist_options = dist.BroadcastOptions()
    dist_options.rootRank = 0
    group.broadcast([carried], dist_options).wait()
    address, port = bytes(carried.cpu().tolist()).rstrip(b"\0").decode().split()
    return join(server, rank, size, options) if server else connect(rank, size, Master(address, int(port)), options)


def _host_like(tensor: Tensor) -> Tensor:
    return torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=tensor.is_cuda)
