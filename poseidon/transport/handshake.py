"""Handshake: whoever connects to one of our ports proves that it knows the job's secret before anything it says is
read; the one that listens proves it too. The secret itself never travels.

    listener → caller    magic, S                            8 + 32 bytes, S and C are random
    caller → listener    magic, C, number, M(caller)         8 + 32 + 4 + 32
    listener → caller    M(listener)                         32

    M(role) = HMAC-SHA256(secret, role · purpose · S · C · number)

`number` is who calls (a rank). `purpose` tells the ports of a job apart, so that what one of them hears is of no use at
another. Every message has one length. What happens to strangers: `door.py`. A door that has no place left hangs up
before it says anything: a member calls again (`call_until`).
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import socket
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from poseidon.errors import JoinFailed, TransportError

MAGIC = b"PSDN\x00\x01\r\n"
HELLO_S = 5.0
PAUSE_S = 0.2

_NONCE_BYTES = 32
_CALL = struct.Struct(f">{len(MAGIC)}s{_NONCE_BYTES}sI32s")


@dataclass(frozen=True, slots=True)
class Key:
    """What opens a port: the job's secret, and what the port is for."""

    secret: bytes = field(repr=False)
    purpose: str

    def proof(self, role: bytes, ours: bytes, theirs: bytes, number: int) -> bytes:
        """`ours` is the listener's nonce, `theirs` the caller's."""
        purpose = self.purpose.encode()
        text = b"\0".join((role, purpose)) + b"\0" + ours + theirs + number.to_bytes(4, "big")
        return hmac.digest(self.secret, text, hashlib.sha256)


def make_secret() -> str:
    """A secret for one job, as text that fits an environment variable."""
    return secrets.token_hex(32)


class TurnedAway(JoinFailed):
    """The other side hung up before it said anything."""


def call_until(deadline_s: float, connect: Callable[[], socket.socket], key: Key, number: int) -> socket.socket:
    """A connection by which a member was let in; who is turned away tries again, until `deadline_s` (monotonic)."""
    while True:
        connection = connect()
        try:
            call(connection, key, number, max(0.001, deadline_s - time.monotonic()))
            return connection
        except TurnedAway:
            connection.close()
            if time.monotonic() + PAUSE_S > deadline_s:
                raise
        except BaseException:
            connection.close()
            raise
        time.sleep(PAUSE_S)


def call(connection: socket.socket, key: Key, number: int, timeout_s: float = HELLO_S) -> None:
    """The caller's part. Raises TransportError if the other side does not know the secret, or thinks we do not."""
    connection.settimeout(timeout_s)
    try:
        greeting = _greeting(connection)
        if not greeting.startswith(MAGIC):
            raise TransportError("what answers there is no worker of this version of Poseidon")
        ours, theirs = greeting[len(MAGIC) :], secrets.token_bytes(_NONCE_BYTES)
        connection.sendall(_CALL.pack(MAGIC, theirs, number, key.proof(b"caller", ours, theirs, number)))
        answer = _exactly(connection, 32)
    except OSError as error:
        raise JoinFailed(f"the connection broke in the handshake: {error}") from error
    if answer is None or not hmac.compare_digest(answer, key.proof(b"listener", ours, theirs, number)):
        raise TransportError(
            "the other side does not know this job's secret, or is of another job; all workers of a job need the same "
            "POSEIDON_SECRET"
        )
    connection.settimeout(None)


def _greeting(connection: socket.socket) -> bytes:
    try:
        greeting = _exactly(connection, len(MAGIC) + _NONCE_BYTES)
    except ConnectionResetError:
        greeting = None
    if greeting is None:
        raise TurnedAway("it hung up before it said anything: it is no worker, or too many call it at once")
    return greeting


def answer(connection: socket.socket, key: Key, timeout_s: float = HELLO_S) -> int | None:
    """The listener's part: the number of a caller that knows the secret; None for a stranger."""
    ours = secrets.token_bytes(_NONCE_BYTES)
    connection.settimeout(timeout_s)
    try:
        connection.sendall(MAGIC + ours)
        said = _exactly(connection, _CALL.size)
        if said is None:
            return None
        magic, theirs, number, proof = _CALL.unpack(said)
        if magic != MAGIC or not hmac.compare_digest(proof, key.proof(b"caller", ours, theirs, number)):
            return None
        connection.sendall(key.proof(b"listener", ours, theirs, number))
    except OSError:
        return None
    connection.settimeout(None)
    return int(number)


def _exactly(connection: socket.socket, num_bytes: int) -> bytes | None:
    """So many bytes; None if the other side stops before, or takes longer than the connection's timeout for all."""
    limit_s = connection.gettimeout()
    deadline_s = None if limit_s is None else time.monotonic() + limit_s
    data = b""
    while len(data) < num_bytes:
        if deadline_s is not None:
            left_s = deadline_s - time.monotonic()
            if left_s <= 0:
                raise TimeoutError("no answer in time")
            connection.settimeout(left_s)
        piece = connection.recv(num_bytes - len(data))
        if not piece:
            return None
        data += piece
    return data
