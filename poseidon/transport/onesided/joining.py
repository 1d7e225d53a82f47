"""Joining: how the workers of a job get their one-sided connections, over a transport that they have already.

Everybody listens on a TCP port and, for workers of its own host, on a Unix socket without a name in the file system,
which is seen only inside the same network namespace: what is separated there stays separated. Cards with both addresses
go around by the transport, and with them random bytes of everybody, which together with the job's secret give the key.
Rank r then calls all ranks below it: by the Unix socket if the other names the same host and answers there, else by
TCP. Both prove that they have the key (`../handshake.py`). Workers of one host then hand each other their memory.
"""

from __future__ import annotations

import json
import secrets
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from functools import partial
from hashlib import sha256
from itertools import chain
from typing import Any

import torch

from poseidon.errors import JoinFailed, TransportError, TransportTimeout
from poseidon.transport.base import OWN_TAGS, Peer, Transport, names_of
from poseidon.transport.collectives import all_gather
from poseidon.transport.door import Door, listen
from poseidon.transport.handshake import Key, call_until
from poseidon.transport.health import HealthOptions
from poseidon.transport.native import IS_BUILT
from poseidon.transport.onesided.carrier import MakeCarrier
from poseidon.transport.onesided.contact import Contact
from poseidon.transport.onesided.endpoint import SocketEndpoint
from poseidon.transport.onesided.interpreted import InterpretedCarrier
from poseidon.transport.onesided.link import Link
from poseidon.transport.onesided.native import NativeCarrier
from poseidon.transport.onesided.segments import Segments
from poseidon.transport.pacing import Pace

CARD_TAG = OWN_TAGS + 4
CARD_BYTES = 512
UNSENT_BYTES = 256 << 10  # what the kernel may hold before the wire takes it: urgent frames must not queue behind more


@dataclass(frozen=True, slots=True)
class OneSidedOptions:
    """`address`: this host's, on the interface that carries the traffic. `secret`: the job's, if it has one.
    `shares_memory`: false sends everything by TCP, also inside a host. `pace`: a budget, which only Python keeps to;
    `is_native`: false lets Python move the bytes in any case."""

    address: str
    secret: bytes = field(default=b"", repr=False)
    shares_memory: bool = True
    join_s: float = 120.0
    health: HealthOptions = field(default_factory=HealthOptions)
    pace: Pace | None = None
    is_native: bool = IS_BUILT

    @property
    def carrier(self) -> MakeCarrier:
        if self.pace is None and self.is_native:
            return NativeCarrier
        return partial(InterpretedCarrier, pace=self.pace)

    @property
    def contact(self) -> type[Contact]:
        """What connections are to the carrier."""
        return Contact if self.carrier is NativeCarrier else Link


def open_endpoint(transport: Transport, options: OneSidedOptions) -> SocketEndpoint:
    """The one-sided end of a worker of `transport`; all workers call it together."""
    with ExitStack() as failed:
        segments = Segments(f"rank-{transport.rank}")
        failed.callback(segments.close)
        contacts = meet(transport, options, "one-sided", True, segments.fd)
        assert contacts is not None
        failed.pop_all()
    return SocketEndpoint(transport.rank, transport.peers, segments, contacts, options.health, options.carrier)


def meet(
    transport: Transport, options: OneSidedOptions, purpose: str, is_willing: bool, own_file: int = -1
) -> list[Contact] | None:
    """Connections to all others; all workers call it together. None if one of them is not willing. `own_file`: this
    worker's memory, for those of its host."""
    rank, size = transport.rank, transport.size
    with ExitStack() as always, ExitStack() as failed:
        tcp = always.enter_context(listen(options.address))
        local_name = f"poseidon-{secrets.token_hex(16)}"
        local = always.enter_context(_local_listener(local_name, size))
        own = {
            "host": transport.peers[rank].host,
            "address": options.address,
            "port": tcp.getsockname()[1],
            "local": local_name if options.shares_memory else "",
            "willing": is_willing,
            "salt": secrets.token_hex(16),
        }
        cards = _exchange_cards(transport, own)
        if not all(card["willing"] for card in cards):
            return None
        secret = sha256(options.secret + "".join(card["salt"] for card in cards).encode()).digest()
        door = always.enter_context(closing(Door([tcp, local], key_of(secret, rank, size, purpose), size - 1 - rank)))
        deadline_s = time.monotonic() + options.join_s
        party = _Party(rank, transport.peers, secret, own_file, deadline_s, options.contact, purpose)
        contacts: list[Contact] = []
        for contact in chain((party.call(other, cards[other], own) for other in range(rank)), party.admit(door)):
            failed.callback(contact.close)
            contacts.append(contact)
        failed.pop_all()
    return contacts


def key_of(secret: bytes, rank: int, size: int, purpose: str = "one-sided") -> Key:
    """What opens the door of a rank: a caller that comes to another one is a stranger there."""
    return Key(secret, f"{purpose} {rank} of {size}")


def _exchange_cards(transport: Transport, own: dict[str, Any]) -> list[dict[str, Any]]:
    blocks = [torch.zeros(CARD_BYTES, dtype=torch.uint8) for _ in range(transport.size)]
    text = json.dumps(own).encode()
    blocks[transport.rank][: len(text)] = torch.frombuffer(bytearray(text), dtype=torch.uint8)
    all_gather(transport, blocks, tag=CARD_TAG).wait()
    return [json.loads(block.numpy().tobytes().rstrip(b"\0")) for block in blocks]


@dataclass(frozen=True, slots=True)
class _Party:
    """One worker while it makes its connections."""

    rank: int
    peers: tuple[Peer, ...]
    secret: bytes = field(repr=False)
    own_file: int
    deadline_s: float
    contact: type[Contact] = Contact
    purpose: str = "one-sided"

    def call(self, to: int, card: dict[str, Any], own: dict[str, Any]) -> Contact:
        is_near = bool(card["local"] and own["local"]) and card["host"] == own["host"]

        def connect() -> socket.socket:
            connection = self._call_local(card["local"]) if is_near else None
            return connection or socket.create_connection((card["address"], card["port"]), self._left_s())

        connection = None
        try:
            connection = call_until(
                self.deadline_s, connect, key_of(self.secret, to, len(self.peers), self.purpose), self.rank
            )
            return self._contact(to, connection)
        except (OSError, TransportError) as error:
            if connection is not None:
                connection.close()
            kind = JoinFailed if isinstance(error, OSError | JoinFailed) else TransportError
            raise kind(
                f"rank {self.rank} cannot reach {self.peers[to]} at {card['address']} port {card['port']}: {error}; "
                "check the network interface and firewall between them",
                (to,),
            ) from error

    def _call_local(self, name: str) -> socket.socket | None:
        """None if that worker is on another host of the same name, or in another network namespace."""
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connection.connect(f"\0{name}")
        except OSError:
            connection.close()
            return None
        return connection

    def admit(self, door: Door) -> Iterator[Contact]:
        """Of all ranks above this one, as they come."""
        missing = set(range(self.rank + 1, len(self.peers)))
        for caller, connection in door.members(missing, self.deadline_s):
            missing.discard(caller)
            try:
                contact = self._contact(caller, connection)
            except OSError as error:
                connection.close()
                raise JoinFailed(
                    f"rank {self.rank} lost {self.peers[caller]} while the two connected: {error}", (caller,)
                ) from error
            yield contact
        if missing:
            ranks = tuple(sorted(missing))
            raise TransportTimeout(
                f"rank {self.rank} was not called by {names_of(self.peers, ranks)}; check the network interface and "
                "firewall between them",
                ranks,
            )

    def _contact(self, rank: int, connection: socket.socket) -> Contact:
        if connection.family == socket.AF_UNIX:
            connection.settimeout(self._left_s())
            socket.send_fds(connection, [b"\1"], [self.own_file])
            _, files, _, _ = socket.recv_fds(connection, 1, 1)
            if len(files) != 1:
                raise ConnectionError("no memory was handed over")
            return self.contact(rank, connection, files[0])
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, UNSENT_BYTES)
        return self.contact(rank, connection, None)

    def _left_s(self) -> float:
        return max(0.001, self.deadline_s - time.monotonic())


def _local_listener(name: str, backlog: int) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(f"\0{name}")
    listener.listen(backlog)
    return listener
