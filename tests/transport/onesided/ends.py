"""Endpoints of several workers in one process: threads, joined in memory, by TCP, by shared memory, or by an MPI that
is played."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

from poseidon.transport import Transport
from poseidon.transport.health import HealthOptions
from poseidon.transport.inproc import run_workers
from poseidon.transport.onesided import Endpoint
from poseidon.transport.onesided.inproc import Tricks
from poseidon.transport.onesided.joining import OneSidedOptions, open_endpoint
from poseidon.transport.onesided.mpi import MpiEndpoint
from tests.transport.onesided.fake_mpi import World

KINDS = ("inproc", "tcp", "shared memory", "mpi")
QUICK = HealthOptions(interval_s=0.1, limit_s=1.0)

_worlds: WeakKeyDictionary[Any, World] = WeakKeyDictionary()
_worlds_lock = threading.Lock()


def on_each(
    kind: str, size: int, act: Callable[[Endpoint, Transport], Any], *, tricks: Tricks | None = None
) -> list[Any]:
    """What `act(endpoint, transport)` returns on each worker."""

    def work(transport: Transport) -> Any:
        endpoint = opened(kind, transport)
        try:
            return act(endpoint, transport)
        finally:
            endpoint.close()

    return run_workers(size, work, timeout_s=30, tricks=tricks)


def opened(kind: str, transport: Transport, health: HealthOptions | None = None) -> Endpoint:
    if kind == "inproc":
        return transport.one_sided()
    if kind == "mpi":
        with _worlds_lock:
            world = _worlds.setdefault(transport._switch, World(transport.size))
        return MpiEndpoint(transport, world.seen_by(transport.rank))
    options = OneSidedOptions(
        "127.0.0.1", b"open sesame", shares_memory=kind != "tcp", join_s=20.0, health=health or HealthOptions()
    )
    return open_endpoint(transport, options)
