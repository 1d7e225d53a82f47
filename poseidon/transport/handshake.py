"""Handshake: whoever connects to one of our ports proves that it knows the job's secret before anything it says is
read; the one that listens proves it too. The secret itself never travels.

    listener → caller    magic, S                            8 + 32 bytes, S and C are random
    caller → listener    magic, C, number, M(caller)         8 + 32 + 4 + 32
    listener → caller    M(listener)                         32

    M(role) = HMAC-SHA256(secret, role · purpose · S · C · number)

`number` is who calls (a rank). `purpose` tells the ports of a job apart, so that what one of them hears is of no use at
another. Every message has one length; a stranger gets `HELLO_S` seconds and 76 bytes of attention, is dropped, and is
counted. Strangers are heard beside each other and beside members: one who says nothing holds up nobody.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import queue
import secrets
import socket
import struct
import threading
import time
from dataclasses import dataclass

from poseidon.errors import TransportError

MAGIC = b"PSDN\x00\x01\r\n"
HELLO_S = 5.0
MOST_HEARD = 64  # connections that are being heard at the same time; more are dropped at once

_NONCE_BYTES = 32
_CALL = struct.Struct(f">{len(MAGIC)}s{_NONCE_BYTES}sI32s")
_LOOK_S = 0.2


@dataclass(frozen=True, slots=True)
class Key:
    """What opens a port: the job's secret, and what the port is for."""

    secret: bytes
    purpose: str

    def proof(self, role: bytes, ours: bytes, theirs: bytes, number: int) -> bytes:
        """`ours` is the listener's nonce, `theirs` the caller's."""
        purpose = self.purpose.encode()
        text = b"\0".join((role, purpose)) + b"\0" + ours + theirs + number.to_bytes(4, "big")
        return hmac.digest(self.secret, text, hashlib.sha256)


def make_secret() -> str:
    """A secret for one job, as text that fits an environment variable."""
    return secrets.token_hex(32)


def call(connection: socket.socket, key: Key, number: int, timeout_s: float = HELLO_S) -> None:
    """The caller's part. Raises TransportError if the other side does not know the secret, or thinks we do not."""
    connection.settimeout(timeout_s)
    try:
        greeting = _exactly(connection, len(MAGIC) + _NONCE_BYTES)
        if greeting is None or not greeting.startswith(MAGIC):
            raise TransportError("what answers there is no worker of this version of Poseidon")
        ours, theirs = greeting[len(MAGIC) :], secrets.token_bytes(_NONCE_BYTES)
        connection.sendall(_CALL.pack(MAGIC, theirs, number, key.proof(b"caller", ours, theirs, number)))
        answer = _exactly(connection, 32)
    except OSError as error:
        raise TransportError(f"the connection broke in the handshake: {error}") from error
    if answer is None or not hmac.compare_digest(answer, key.proof(b"listener", ours, theirs, number)):
        raise TransportError(
            "the other side does not know this job's secret, or is of another job; all workers of a job need the same "
            "POSEIDON_SECRET"
        )
    connection.settimeout(None)


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


class Door:
    """A listening port that lets members in and counts strangers. `close` it; connections that were let in stay."""

    def __init__(self, address: str, key: Key, *, port: int = 0) -> None:
        family = socket.getaddrinfo(address, None)[0][0]
        self._listener = socket.create_server((address, port), family=family, backlog=128)
        self.address, self.port = address, int(self._listener.getsockname()[1])
        self._key = key
        self._members: queue.Queue[tuple[int, socket.socket]] = queue.Queue()
        self._places = threading.Semaphore(MOST_HEARD)
        self._lock = threading.Lock()
        self._num_strangers = 0
        self._is_open = True
        self._listener.settimeout(_LOOK_S)
        self._thread = threading.Thread(target=self._receive, name="door", daemon=True)
        self._thread.start()

    @property
    def num_strangers(self) -> int:
        return self._num_strangers

    def admit(self, timeout_s: float) -> tuple[int, socket.socket] | None:
        """The next member's number and connection; None if none comes in time."""
        try:
            return self._members.get(timeout=max(timeout_s, 0.001))
        except queue.Empty:
            return None

    def close(self) -> None:
        self._is_open = False
        self._thread.join()
        self._listener.close()
        with contextlib.suppress(queue.Empty):
            while True:
                self._members.get_nowait()[1].close()

    def _receive(self) -> None:
        while self._is_open:
            try:
                connection, _ = self._listener.accept()
            except TimeoutError:
                continue
            except OSError:  # the caller has gone already, or there are too many open files just now
                time.sleep(_LOOK_S)
                continue
            if self._places.acquire(blocking=False):
                threading.Thread(target=self._hear, args=(connection,), name="door-hears", daemon=True).start()
            else:
                self._turn_away(connection)

    def _hear(self, connection: socket.socket) -> None:
        try:
            number = answer(connection, self._key)
        finally:
            self._places.release()
        if number is None or not self._is_open:
            self._turn_away(connection)
        else:
            self._members.put((number, connection))

    def _turn_away(self, connection: socket.socket) -> None:
        with self._lock:
            self._num_strangers += 1
        connection.close()
