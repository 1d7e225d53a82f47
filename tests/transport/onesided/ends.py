"""Endpoints of several workers in one process: threads, joined in memory, by TCP, by shared memory, or by an MPI that
is played."""

from __future__ import annotations

import threading
from collections.abc import Callable
from socket import socket
from typing import Any
from weakref import WeakKeyDictionary

from poseidon.transport import Transport
from poseidon.transport.base import Peer
from poseidon.transport.health import HealthOptions
from poseidon.transport.inproc import run_workers
from poseidon.transport.onesided import Endpoint
from poseidon.transport.onesided.contact import Contact
from poseidon.transport.onesided.endpoint import SocketEndpoint
from poseidon.transport.onesided.inproc import Tricks
from poseidon.transport.onesided.interpreted import InterpretedCarrier
from poseidon.transport.onesided.joining import OneSidedOptions, open_endpoint
from poseidon.transport.onesided.link import Link
from poseidon.transport.onesided.mpi import MpiEndpoint
from poseidon.transport.onesided.native import NativeCarrier
from poseidon.transport.onesided.segments import Segments
from poseidon.transport.pacing import Pace
from tests.transport.onesided.fake_mpi import World

KINDS = ("inproc", "tcp", "shared memory", "tcp by Python", "shared memory by Python", "mixed", "mpi")
CARRIERS = {"native": (NativeCarrier, Contact), "interpreted": (InterpretedCarrier, Link)}
QUICK = HealthOptions(interval_s=0.1, limit_s=1.0)

_worlds: WeakKeyDictionary[Any, World] = WeakKeyDictionary()
_worlds_lock = threading.Lock()


def on_each(
    kind: str,
    size: int,
    act: Callable[[Endpoint, Transport], Any],
    *,
    tricks: Tricks | None = None,
    paces: dict[int, Pace] | None = None,
) -> list[Any]:
    """What `act(endpoint, transport)` returns on each worker; some may have to keep to a budget."""

    def work(transport: Transport) -> Any:
        endpoint = opened(kind, transport, pace=(paces or {}).get(transport.rank))
        try:
            return act(endpoint, transport)
        finally:
            endpoint.close()

    return run_workers(size, work, timeout_s=30, tricks=tricks)


def endpoint_on(carrier: str, peers: tuple[Peer, ...], sockets: list[socket], health: HealthOptions) -> SocketEndpoint:
    """Rank 0's endpoint, on connections to ranks 1, 2, …"""
    make, contact = CARRIERS[carrier]
    contacts = [contact(rank, own, None) for rank, own in enumerate(sockets, 1)]
    return SocketEndpoint(0, peers, Segments("test"), contacts, health, make)


def opened(kind: str, transport: Transport, health: HealthOptions | None = None, pace: Pace | None = None) -> Endpoint:
    """ "mixed": odd ranks are moved by Python."""
    if kind == "inproc":
        return transport.one_sided()
    if kind == "mpi":
        with _worlds_lock:
            world = _worlds.setdefault(transport._switch, World(transport.size))
        return MpiEndpoint(transport, world.seen_by(transport.rank))
    options = OneSidedOptions(
        "127.0.0.1",
        b"open sesame",
        shares_memory=kind.startswith("shared memory"),
        join_s=20.0,
        health=health or HealthOptions(),
        pace=pace,
        is_native=transport.rank % 2 == 0 if kind == "mixed" else not kind.endswith("by Python"),
    )
    return open_endpoint(transport, options)
