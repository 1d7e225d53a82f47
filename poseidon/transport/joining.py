"""Joining: how the workers of a job find each other, through a store (torch's TCPStore or any other).

    size            number of workers, as the first one to come was told
    peer/<rank>     {"host", "pid", "size"} of each worker
    health          {"address", "port", "token"} of rank 0's end of the star (`health.py`)

A store that outlives the workers (torchrun's agent keeps one) has entries of earlier ones. So everything above is under
a word that rank 0 makes anew, and that it tells only to those who ask it now (`agree_on_round`):

    calls           how many have asked
    call/<n>        a word of the n-th one's own
    answer/<word>   rank 0's word, for the one who has asked with this
    <word>/<rank>   that one has heard it

Every wait has a deadline and names the ranks that have not come. Whoever comes to the star proves the job's secret
(`handshake.py`). A job that was given none has a token in its place, made by rank 0 and readable in the store: it keeps
out what strays in, not who means it. With a secret the entries of workers and of the star are sealed with it too.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import secrets
import socket
import time
from datetime import timedelta
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any

from poseidon.errors import JoinFailed, TransportError, TransportTimeout
from poseidon.transport.base import Peer, names_of
from poseidon.transport.door import Door, listen
from poseidon.transport.handshake import Key, call_until
from poseidon.transport.health import Line

if TYPE_CHECKING:
    from torch.distributed import Store

_PURPOSE = "health"
_LOOK_S = 0.05
_CALL_S = 1.0


def agree_on_round(store: Store, rank: int, size: int, timeout_s: float) -> str:
    """A word that only these workers share, although others have used the store before."""
    deadline = time.monotonic() + timeout_s
    own = secrets.token_hex(8)
    if rank == 0:
        _answer_calls(store, own, size, deadline)
        return own
    store.set(f"call/{store.add('calls', 1)}", own)
    if not _appear(store, [f"answer/{own}"], deadline):
        raise TransportTimeout(f"rank {rank}: rank 0 has not joined the job within {timeout_s:g} s", (0,))
    word = store.get(f"answer/{own}").decode(errors="replace")
    store.set(f"{word}/{rank}", "")
    return word


def _answer_calls(store: Store, word: str, size: int, deadline: float) -> None:
    """Answers all who have ever called: who is gone does not mind. Who does not come in time is missed later."""
    heard = [f"{word}/{other}" for other in range(1, size)]
    num_answered = 0
    while time.monotonic() < deadline and heard and not store.check(heard):
        num_calls = store.add("calls", 0)
        for number in range(num_answered + 1, num_calls + 1):
            if not _appear(store, [f"call/{number}"], min(deadline, time.monotonic() + _CALL_S)):
                continue  # it died between its number and its word
            store.set(f"answer/{store.get(f'call/{number}').decode(errors='replace')}", word)
        num_answered = num_calls
        time.sleep(_LOOK_S)


def meet_peers(store: Store, rank: int, size: int, timeout_s: float, secret: bytes = b"") -> tuple[Peer, ...]:
    """Everybody in the job, by rank."""
    own = {"host": socket.gethostname(), "pid": os.getpid(), "size": size}
    store.set(f"peer/{rank}", _sealed(own, secret))
    _check_size(rank, size, int(store.compare_set("size", "", str(size))), "others")
    deadline = time.monotonic() + timeout_s
    if not _appear(store, [f"peer/{other}" for other in range(size)], deadline):
        missing = tuple(other for other in range(size) if not store.check([f"peer/{other}"]))
        raise TransportTimeout(
            f"rank {rank}: after {timeout_s:g} s, rank(s) {', '.join(map(str, missing))} of {size} have not joined the "
            "job; check that all workers were started, with the same master address and port",
            missing,
        )
    cards = [_unsealed(store.get(f"peer/{other}"), secret, f"rank {other}") for other in range(size)]
    for other, card in enumerate(cards):
        _check_size(rank, size, card["size"], f"rank {other} on host {card['host']}")
    return tuple(Peer(other, str(card["host"]), int(card["pid"])) for other, card in enumerate(cards))


def _check_size(rank: int, size: int, found: int, who: str) -> None:
    if found != size:
        raise TransportError(
            f"rank {rank} was started for {size} workers, {who} for {found}; start all workers with the same number"
        )


def open_lines(
    store: Store, rank: int, peers: tuple[Peer, ...], address: str, timeout_s: float, secret: bytes = b""
) -> list[Line]:
    """This worker's connections of the star; rank 0 listens at `address`, on a free port."""
    deadline = time.monotonic() + timeout_s
    if len(peers) == 1:
        return []
    _check_reach(rank, peers, address)
    if rank == 0:
        token = "" if secret else secrets.token_hex(16)
        with listen(address) as listener:
            port = listener.getsockname()[1]
            door = Door([listener], Key(secret or token.encode(), _PURPOSE), len(peers) - 1)
            try:
                store.set("health", _sealed({"address": address, "port": port, "token": token}, secret))
                return _accept(door, address, peers, deadline)
            finally:
                door.close()
    if not _appear(store, ["health"], deadline):
        raise TransportTimeout(f"rank {rank}: {peers[0]} has not opened its health port within {timeout_s:g} s", (0,))
    place = _unsealed(store.get("health"), secret, "rank 0")
    key = Key(secret or str(place["token"]).encode(), _PURPOSE)
    try:
        connection = call_until(
            deadline,
            lambda: socket.create_connection((place["address"], place["port"]), _left_s(deadline)),
            key,
            rank,
        )
    except (OSError, TransportError) as error:
        kind = JoinFailed if isinstance(error, OSError | JoinFailed) else TransportError
        raise kind(
            f"rank {rank} cannot reach {peers[0]} at {place['address']} port {place['port']}: {error}; check the "
            "network interface and firewall between them",
            (0,),
        ) from error
    return [_line(0, connection)]


def _check_reach(rank: int, peers: tuple[Peer, ...], address: str) -> None:
    """Who started the workers may not have known that there are several hosts."""
    other = next((peer for peer in peers if peer.host != peers[rank].host), None)
    if other is not None and ip_address(address).is_loopback:
        raise TransportError(
            f"{peers[rank]} is to be reached at {address}, on the loopback interface, but {other} is on another host; "
            "set the master address to one that the other hosts can reach, or name an interface"
        )


def _accept(door: Door, address: str, peers: tuple[Peer, ...], deadline: float) -> list[Line]:
    ranks = range(1, len(peers))
    lines = {rank: _line(rank, connection) for rank, connection in door.members(ranks, deadline)}
    missing = tuple(rank for rank in ranks if rank not in lines)
    if missing:
        for line in lines.values():
            line.socket.close()
        raise TransportTimeout(
            f"rank 0 at {address} was not reached by {names_of(peers, missing)}; check the network interface and "
            "firewall between them",
            missing,
        )
    return [lines[rank] for rank in ranks]


# -- entries of the store ---------------------------------------------------------------------------------------------
def _sealed(entry: dict[str, object], secret: bytes) -> str:
    text = json.dumps(entry)
    return f"{_seal(text, secret)} {text}" if secret else text


def _unsealed(data: bytes, secret: bytes, who: str) -> dict[str, Any]:
    """An entry that somebody who knows the secret has written."""
    text = data.decode(errors="replace")
    if secret:
        seal, _, text = text.partition(" ")
        if not hmac.compare_digest(seal, _seal(text, secret)):
            raise TransportError(
                f"the entry of {who} in the job's store was not written with this job's secret; start all workers with "
                "the same POSEIDON_SECRET, and keep strangers away from the port at which they meet"
            )
    try:
        entry = json.loads(text)
    except ValueError:
        entry = None
    if not isinstance(entry, dict):
        raise TransportError(
            f"the entry of {who} in the job's store cannot be read: {text[:80]!r}; start all workers with the same "
            "version of Poseidon, and all or none of them with POSEIDON_SECRET"
        )
    return entry


def _seal(text: str, secret: bytes) -> str:
    return hmac.digest(secret, text.encode(), hashlib.sha256).hex()


def _line(rank: int, connection: socket.socket) -> Line:
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return Line(rank, connection)


def _appear(store: Store, keys: list[str], deadline: float) -> bool:
    """True when all keys are there, false if the deadline passes first."""
    try:
        store.wait(keys, timedelta(seconds=_left_s(deadline)))
    except RuntimeError as error:  # c10d has no exception of its own for this
        if "imeout" not in str(error) and "imed out" not in str(error):
            raise JoinFailed(f"the job's store failed: {error}; is rank 0 still running?", (0,)) from error
        return False
    return True


def _left_s(deadline: float) -> float:
    return max(0.001, deadline - time.monotonic())
