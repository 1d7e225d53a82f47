"""What the tests have worker processes do over real sockets."""

from __future__ import annotations

import os
import signal
import socket
import stat
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist

from poseidon.errors import TransportError
from poseidon.transport import c10d
from poseidon.transport.base import Transport
from poseidon.transport.c10d import C10dOptions, C10dTransport, from_group, join
from poseidon.transport.collectives import all_gather
from poseidon.transport.faulty import Faults, FaultyTransport
from poseidon.transport.levels import share_nodes
from poseidon.transport.probe import probe
from tests.transport import contract
from tests.worker_process import Seat

OPTIONS = C10dOptions(address="127.0.0.1", join_s=30.0, limit_s=60.0)
MIDST_OF_MESSAGE_ELEMS = 1 << 24  # 64 MB
SO_MAX_PACING_RATE = 47


@contextmanager
def joined(seat: Seat, by_gloo: tuple[int, ...] = ()) -> Iterator[C10dTransport]:
    """`by_gloo`: ranks that have nothing to move messages but gloo."""
    transport = join(seat.store, seat.rank, seat.size, replace(OPTIONS, is_native=seat.rank not in by_gloo))
    try:
        yield transport
    finally:
        transport.close()


def keep_contract(seat: Seat, clause: str, by_gloo: tuple[int, ...] = ()) -> Any:
    with joined(seat, by_gloo) as transport:
        answer = getattr(contract, clause)(transport)
        transport.barrier(30.0)
        return answer


def keep_contract_on_nodes(seat: Seat, clause: str, nodes: list[int]) -> Any:
    with joined(seat) as transport:
        answer = getattr(contract, clause)(share_nodes(transport, nodes).transport)
        transport.barrier(30.0)
        return answer


def keep_contract_staged(seat: Seat, clause: str) -> Any:
    """As if all tensors lived on a device that only collectives reach: messages pass through host memory."""
    with joined(seat) as transport:
        transport.send = lambda tensor, to, tag: transport._stage_send(tensor, to, tag)  # type: ignore[method-assign]
        transport.recv = lambda tensor, source, tag: transport._stage_recv(tensor, source, tag)  # type: ignore[method-assign]
        answer = getattr(contract, clause)(transport)
        transport.barrier(30.0)
        return answer


def keep_contract_with_faults(seat: Seat, clause: str) -> Any:
    with joined(seat) as transport:
        answer = getattr(contract, clause)(FaultyTransport(transport, Faults(seed=5)))
        transport.barrier(30.0)
        return answer


def count_bytes(seat: Seat) -> list[int]:
    """Sent and received, after each kind of operation."""
    with joined(seat) as transport:
        counted = []
        transport.barrier(30.0)
        for start in (
            lambda: transport.all_reduce(torch.ones(30)),
            lambda: transport.broadcast(torch.ones(10), 1),
            lambda: all_gather(transport, [torch.ones(50_000) for _ in range(transport.size)]),
        ):
            before = (transport.bytes_sent, transport.bytes_received)
            start().wait()
            counted += [transport.bytes_sent - before[0], transport.bytes_received - before[1]]
        transport.barrier(30.0)
        return counted


def lose_a_worker(seat: Seat, victim: int, how: str, waiting: str, by_gloo: tuple[int, ...] = ()) -> dict[str, Any]:
    """The victim ends in one of several ways while the others wait; what they are told, and after how long."""
    with joined(seat, by_gloo) as transport:
        if seat.rank == victim:
            transport.barrier(30.0)
            _end(how, transport)
        started_s = time.monotonic()
        try:
            transport.barrier(30.0)
            started_s = time.monotonic()
            _start(waiting, transport, victim)()
        except TransportError as error:
            seconds = time.monotonic() - started_s
            return {"type": type(error).__name__, "ranks": error.ranks, "text": str(error), "seconds": seconds}
        raise AssertionError("the wait ended well")


def _end(how: str, transport: Transport) -> None:
    if how == "exception":
        transport.abort("ValueError: label 12 is out of range")
        raise ValueError("label 12 is out of range")
    if how == "kill in the midst of a message":
        others = [rank for rank in range(transport.size) if rank != transport.rank]
        seen = [transport.recv(torch.ones(1), rank, 4) for rank in others]  # told when it sees the beginning
        _slow_down()
        message = torch.ones(MIDST_OF_MESSAGE_ELEMS)
        sends = [transport.send(message, rank, 3) for rank in others]
        for work in seen:
            work.wait()
        assert not any(work.done() for work in sends)
    os.kill(os.getpid(), signal.SIGSTOP if how == "stop" else signal.SIGKILL)


def _slow_down() -> None:
    """All connections of this process send 1 MB/s from now on."""
    for name in os.listdir("/proc/self/fd"):
        if os.path.exists(f"/proc/self/fd/{name}") and stat.S_ISSOCK(os.stat(int(name)).st_mode):
            with socket.socket(fileno=os.dup(int(name))) as connection:
                if connection.family == socket.AF_INET:
                    connection.setsockopt(socket.SOL_SOCKET, SO_MAX_PACING_RATE, 1_000_000)


def _start(waiting: str, transport: Transport, victim: int) -> Callable[[], None]:
    """Starts what then waits for the victim, or for somebody who does."""
    others = [rank for rank in range(transport.size) if rank not in (victim, transport.rank)]
    if waiting == "message under way":
        message = torch.zeros(MIDST_OF_MESSAGE_ELEMS)
        work = transport.recv(message, victim, 3)
        while message[0] == 0:
            time.sleep(0.001)
        transport.send(torch.ones(1), victim, 4).wait()
        return work.wait
    starts: dict[str, Callable[[], Callable[[], None]]] = {
        "all_reduce": lambda: transport.all_reduce(torch.ones(1 << 20)).wait,
        "recv": lambda: transport.recv(torch.zeros(10), victim, 3).wait,
        "recv with a limit": lambda: lambda: transport.recv(torch.zeros(10), victim, 3).wait(60.0),
        "send": lambda: transport.send(torch.ones(1 << 24), victim, 3).wait,
        "recv from a survivor": lambda: transport.recv(torch.zeros(10), others[0], 3).wait,
        "all_gather": lambda: all_gather(transport, [torch.ones(1 << 20) for _ in range(transport.size)]).wait,
        "barrier": lambda: lambda: transport.barrier(60.0),
        "new subgroup": lambda: lambda: transport.subgroup(range(transport.size)),  # type: ignore[return-value]
    }
    return starts[waiting]()


def leave_early(seat: Seat) -> str:
    """Rank 1 leaves in peace; rank 0 waits for it in vain, rank 2 works on with rank 0."""
    with joined(seat) as transport:
        transport.barrier(30.0)
        if seat.rank == 1:
            return ""
        text = ""
        if seat.rank == 0:
            try:
                transport.recv(torch.zeros(3), 1, 1).wait()
            except TransportError as error:
                text = f"{type(error).__name__}: {error}"
        other = 2 - seat.rank
        work = transport.recv(torch.zeros(3), other, 2)
        transport.send(torch.ones(3), other, 2).wait()
        work.wait()
        return text


def stop_for_a_while(seat: Seat) -> str | None:
    """Rank 1 was asleep for longer than anybody may be silent, is woken by rank 0, and is told."""
    with joined(seat) as transport:
        pids = [peer.pid for peer in transport.peers]
        transport.barrier(30.0)
        if seat.rank == 1:
            os.kill(os.getpid(), signal.SIGSTOP)
        try:
            transport.all_reduce(torch.ones(10)).wait()  # what it needed of the others may have arrived while it slept
            transport.barrier(30.0)
        except TransportError as error:
            if seat.rank == 0:
                os.kill(pids[1], signal.SIGCONT)
            return str(error)
        return None


def beside_a_group(seat: Seat) -> list[float]:
    """A transport built on somebody's process group, on connections of its own."""
    group = dist.ProcessGroupGloo(dist.PrefixStore("theirs", seat.store), seat.rank, seat.size)
    transport = from_group(group, OPTIONS)
    tensor = torch.full((2,), float(seat.rank))
    transport.all_reduce(tensor).wait()
    transport.barrier(30.0)
    transport.close()
    return tensor.tolist()


def refuse_to_sum_bools(seat: Seat) -> str:
    with joined(seat) as transport:
        try:
            transport.all_reduce(torch.ones(3, dtype=torch.bool))
        except TransportError as error:
            return str(error)
        return ""


def measure_links(seat: Seat) -> dict[str, Any]:
    with joined(seat) as transport:
        facts = probe(transport)
        return {"latency_s": facts.latency_s, "bandwidth_bps": facts.bandwidth_bps, "hosts": facts.num_hosts}


def threads_after_close(seat: Seat) -> list[str]:
    before = set(threading.enumerate())
    with joined(seat) as transport:
        transport.all_reduce(torch.ones(3)).wait()
        all_gather(transport, [torch.ones(50_000) for _ in range(transport.size)]).wait()
        transport.barrier(30.0)
    return [thread.name for thread in threading.enumerate() if thread not in before]


def connect_to_nobody(seat: Seat, port: int) -> str:
    options = C10dOptions(address="127.0.0.1", join_s=0.5)
    try:
        c10d.connect(1, 2, c10d.Master("127.0.0.1", port), options)
    except TransportError as error:
        return f"{type(error).__name__}: {error}"
    return ""
