"""Joining: how the workers of a job find each other, through a store (torch's TCPStore or any other).

    size            number of workers, as the first one to come was told
    peer/<rank>     {"host", "pid", "size"} of each worker
    health          {"address", "port", "token"} of rank 0's end of the star (`health.py`)

Every wait has a deadline and names the ranks that have not come.
"""

from __future__ import annotations

import hmac
import json
import os
import secrets
import socket
import time
from datetime import timedelta
from typing import TYPE_CHECKING

from poseidon.errors import TransportError, TransportTimeout
from poseidon.transport.base import Peer
from poseidon.transport.health import Line

if TYPE_CHECKING:
    from torch.distributed import Store

HELLO_S = 5.0


def meet_peers(store: Store, rank: int, size: int, timeout_s: float) -> tuple[Peer, ...]:
    """Everybody in the job, by rank."""
    store.set(f"peer/{rank}", json.dumps({"host": socket.gethostname(), "pid": os.getpid(), "size": size}))
    _check_size(rank, size, int(store.compare_set("size", "", str(size))), "others")
    deadline = time.monotonic() + timeout_s
    if not _appear(store, [f"peer/{other}" for other in range(size)], deadline):
        missing = tuple(other for other in range(size) if not store.check([f"peer/{other}"]))
        raise TransportTimeout(
            f"rank {rank}: after {timeout_s:g} s, rank(s) {', '.join(map(str, missing))} of {size} have not joined the "
            "job; check that all workers were started, with the same master address and port",
            missing,
        )
    cards = [json.loads(store.get(f"peer/{other}")) for other in range(size)]
    for other, card in enumerate(cards):
        _check_size(rank, size, card["size"], f"rank {other} on host {card['host']}")
    return tuple(Peer(other, str(card["host"]), int(card["pid"])) for other, card in enumerate(cards))


def _check_size(rank: int, size: int, found: int, who: str) -> None:
    if found != size:
        raise TransportError(
            f"rank {rank} was started for {size} workers, {who} for {found}; start all workers with the same number"
        )


def open_lines(store: Store, rank: int, peers: tuple[Peer, ...], address: str, timeout_s: float) -> list[Line]:
    """This worker's connections of the star; rank 0 listens at `address`, on a free port."""
    deadline = time.monotonic() + timeout_s
    if len(peers) == 1:
        return []
    if rank == 0:
        with socket.create_server((address, 0), family=_family_of(address), backlog=len(peers)) as listener:
            token = secrets.token_hex(16)
            place = {"address": address, "port": listener.getsockname()[1], "token": token}
            store.set("health", json.dumps(place))
            return _accept(listener, token, peers, deadline)
    if not _appear(store, ["health"], deadline):
        raise TransportTimeout(f"rank {rank}: {peers[0]} has not opened its health port within {timeout_s:g} s", (0,))
    place = json.loads(store.get("health"))
    try:
        connection = socket.create_connection((place["address"], place["port"]), _left_s(deadline))
        connection.sendall(json.dumps({"rank": rank, "token": place["token"]}).encode() + b"\n")
    except OSError as error:
        raise TransportError(
            f"rank {rank} cannot reach {peers[0]} at {place['address']} port {place['port']}: {error}; check the "
            "network interface and firewall between them",
            (0,),
        ) from error
    return [_line(0, connection)]


def _accept(listener: socket.socket, token: str, peers: tuple[Peer, ...], deadline: float) -> list[Line]:
    lines: dict[int, Line] = {}
    while len(lines) < len(peers) - 1:
        listener.settimeout(_left_s(deadline))
        try:
            connection, _ = listener.accept()
        except TimeoutError as error:
            missing = tuple(peer.rank for peer in peers[1:] if peer.rank not in lines)
            names = ", ".join(str(peers[rank]) for rank in missing)
            raise TransportTimeout(
                f"rank 0 at {listener.getsockname()[0]} was not reached by {names}; check the network interface and "
                "firewall between them",
                missing,
            ) from error
        rank = _greeting(connection, token)
        if rank is None or rank in lines or not 0 < rank < len(peers):
            connection.close()  # somebody else's; a port open to a network meets strangers
            continue
        lines[rank] = _line(rank, connection)
    return [lines[rank] for rank in sorted(lines)]


def _greeting(connection: socket.socket, token: str) -> int | None:
    """The rank of a member that knows the token; None for strangers."""
    connection.settimeout(HELLO_S)
    try:
        with connection.makefile("rb") as reader:
            hello = json.loads(reader.readline(1024))
        is_member = hmac.compare_digest(str(hello["token"]), token)
        return int(hello["rank"]) if is_member else None
    except (OSError, ValueError, TypeError, KeyError):
        return None


def _line(rank: int, connection: socket.socket) -> Line:
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return Line(rank, connection)


def _appear(store: Store, keys: list[str], deadline: float) -> bool:
    """True when all keys are there, false if the deadline passes first."""
    try:
        store.wait(keys, timedelta(seconds=_left_s(deadline)))
    except RuntimeError as error:  # c10d has no exception of its own for this
        if "imeout" not in str(error) and "imed out" not in str(error):
            raise TransportError(f"the job's store failed: {error}; is rank 0 still running?", (0,)) from error
        return False
    return True


def _left_s(deadline: float) -> float:
    return max(0.001, deadline - time.monotonic())


def _family_of(address: str) -> socket.AddressFamily:
    return socket.getaddrinfo(address, None)[0][0]
