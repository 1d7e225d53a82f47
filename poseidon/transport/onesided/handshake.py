"""Handshake: two workers prove to each other that they know the job's secret, before anything else is said.

    caller    hello: rank, size, nonce
    answerer  rank, nonce, HMAC(secret, "answer", both nonces, both ranks)
    caller    HMAC(secret, "call", both nonces, both ranks)

SHA-256; nonces of 16 bytes. The secret never travels here. Whoever does not know it, or is a worker of another job, is
hung up on: a port open to a network meets strangers. All of this happens on blocking sockets with a time limit.
"""

from __future__ import annotations

import hmac
import secrets
import socket
import struct
from hashlib import sha256

from poseidon.errors import TransportError

MAGIC = b"poseidon-1sided\x01"
_HELLO = struct.Struct("<16sII16s")
_PROOF_BYTES = sha256().digest_size
_ANSWER = struct.Struct(f"<I16s{_PROOF_BYTES}s")


def call(connection: socket.socket, rank: int, size: int, to: int, secret: bytes) -> None:
    """The caller's side; raises if the other end is not worker `to` of this job."""
    nonce = secrets.token_bytes(16)
    connection.sendall(_HELLO.pack(MAGIC, rank, size, nonce))
    found, answer_nonce, proof = _ANSWER.unpack(_exactly(connection, _ANSWER.size))
    if found != to or not hmac.compare_digest(proof, _proof(secret, b"answer", nonce, answer_nonce, rank, to)):
        raise TransportError(f"rank {rank} called rank {to}, but what answered is no worker of this job", (to,))
    connection.sendall(_proof(secret, b"call", nonce, answer_nonce, rank, to))


def answer(connection: socket.socket, rank: int, size: int, secret: bytes) -> int | None:
    """The other side: the caller's rank; None for strangers."""
    try:
        magic, caller, caller_size, nonce = _HELLO.unpack(_exactly(connection, _HELLO.size))
        if magic != MAGIC or caller_size != size or not 0 <= caller < size or caller == rank:
            return None
        own_nonce = secrets.token_bytes(16)
        connection.sendall(_ANSWER.pack(rank, own_nonce, _proof(secret, b"answer", nonce, own_nonce, caller, rank)))
        proof = _exactly(connection, _PROOF_BYTES)
    except OSError:
        return None
    return caller if hmac.compare_digest(proof, _proof(secret, b"call", nonce, own_nonce, caller, rank)) else None


def _proof(secret: bytes, role: bytes, nonce: bytes, answer_nonce: bytes, caller: int, answerer: int) -> bytes:
    return hmac.digest(secret, role + nonce + answer_nonce + struct.pack("<II", caller, answerer), "sha256")


def _exactly(connection: socket.socket, num_bytes: int) -> bytes:
    data = b""
    while len(data) < num_bytes:
        part = connection.recv(num_bytes - len(data))
        if not part:
            raise ConnectionError("hung up during the handshake")
        data += part
    return data
