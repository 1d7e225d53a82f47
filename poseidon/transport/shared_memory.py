"""Shared memory of the workers of one host, and semaphores in it to wait with.

A segment has no name in any file system: it lives in descriptors that its creator hands to the others over a local
socket, and is gone with the last process that maps it, however that ends. Who wants it proves that it knows the word
which the creator has told it by another way, and is of the same user.

Semaphores are POSIX's, shared between processes: waiting blocks in the kernel, and what was written before a `post` is
seen after the `wait` that it ended, on every processor.
"""

from __future__ import annotations

import ctypes
import errno
import hmac
import mmap
import os
import secrets
import socket
import struct
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from poseidon.errors import TransportError

SEMAPHORE_BYTES = 32  # sizeof(sem_t) of 64-bit glibc and musl
PAGE_BYTES = mmap.PAGESIZE
_CREDENTIALS = struct.Struct("3i")  # pid, uid, gid


class Segment:
    """Memory mapped by several processes; `memory` is all of it, as bytes. Pages nobody has touched cost nothing."""

    def __init__(self, descriptor: int, num_bytes: int) -> None:
        self.num_bytes = num_bytes
        self._map = mmap.mmap(descriptor, num_bytes)
        self.memory: Tensor = torch.frombuffer(self._map, dtype=torch.uint8)

    def semaphore(self, offset: int) -> Semaphore:
        return Semaphore(self.memory.data_ptr() + offset)

    @classmethod
    @contextmanager
    def create(cls, num_bytes: int) -> Iterator[tuple[Segment, int]]:
        """A segment of zeros, and the descriptor to hand out; it is closed at the end, the segment stays."""
        if not hasattr(os, "memfd_create"):
            raise TransportError(f"shared memory without a name needs Linux; this is {sys.platform}")
        descriptor = os.memfd_create("poseidon", os.MFD_CLOEXEC)
        try:
            os.ftruncate(descriptor, num_bytes)
            yield cls(descriptor, num_bytes), descriptor
        except OSError as problem:
            raise TransportError(f"no shared memory of {num_bytes} bytes: {problem}") from problem
        finally:
            os.close(descriptor)


class Semaphore:
    """One semaphore at an address in shared memory; `prepare` it once, before anybody else uses it."""

    __slots__ = ("_place",)

    def __init__(self, address: int) -> None:
        self._place = ctypes.c_void_p(address)

    def prepare(self, value: int = 0) -> None:
        if _quick.sem_init(self._place, 1, value) != 0:
            raise TransportError(f"semaphores in shared memory: {os.strerror(ctypes.get_errno())}")

    def post(self) -> None:
        if _quick.sem_post(self._place) != 0:
            raise TransportError(f"a semaphore in shared memory: {os.strerror(ctypes.get_errno())}")

    def wait(self, timeout_s: float) -> bool:
        """True if it was posted, false if that did not happen in time."""
        if _quick.sem_trywait(self._place) == 0:
            return True
        deadline_s = time.time() + timeout_s  # the clock that sem_timedwait goes by
        limit = _Timespec(int(deadline_s), int(deadline_s % 1 * 1e9))
        while _blocking.sem_timedwait(self._place, ctypes.byref(limit)) != 0:
            number = ctypes.get_errno()
            if number == errno.ETIMEDOUT:
                return False
            if number != errno.EINTR:
                raise TransportError(f"a semaphore in shared memory: {os.strerror(number)}")
        return True


class _Timespec(ctypes.Structure):
    _fields_ = [("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long)]


# Calls that return at once keep Python's lock: to let go of it and queue for it again takes longer than they do.
_quick = ctypes.PyDLL(None, use_errno=True)
_blocking = ctypes.CDLL(None, use_errno=True)


# -- from one process to another --------------------------------------------------------------------------------------
class Counter:
    """Where a segment is handed out, at an address that only this network namespace has and no file system."""

    def __init__(self) -> None:
        self.word = secrets.token_hex(16)
        try:
            self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            self._listener.bind(_address(self.word))
            self._listener.listen()
        except OSError as problem:
            raise TransportError(f"shared memory is handed out over local sockets without a name: {problem}") from None

    def hand_out(self, descriptor: int, num_bytes: int, num_receivers: int, timeout_s: float) -> None:
        """Returns when so many have got it."""
        deadline_s = time.monotonic() + timeout_s
        with self._listener:
            while num_receivers > 0:
                self._listener.settimeout(max(0.001, deadline_s - time.monotonic()))
                try:
                    connection, _ = self._listener.accept()
                except OSError as problem:
                    raise TransportError(
                        f"{num_receivers} worker(s) of this host did not fetch its shared memory: {problem}"
                    ) from problem
                with connection:
                    if self._knows(connection):
                        socket.send_fds(connection, [num_bytes.to_bytes(8, "little")], [descriptor])
                        num_receivers -= 1

    def _knows(self, connection: socket.socket) -> bool:
        connection.settimeout(5.0)
        found = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        try:
            word = connection.recv(len(self.word), socket.MSG_WAITALL)
        except OSError:
            return False
        return _CREDENTIALS.unpack(found)[1] == os.getuid() and hmac.compare_digest(word, self.word.encode())


def fetch(word: str, timeout_s: float) -> Segment:
    """The segment that a counter of this host hands out to whoever knows its word."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(timeout_s)
        try:
            connection.connect(_address(word))
            connection.sendall(word.encode())
            size, descriptors, _, _ = socket.recv_fds(connection, 8, 1)
        except OSError as problem:
            raise TransportError(f"cannot fetch this host's shared memory: {problem}") from problem
    if len(size) != 8 or len(descriptors) != 1:
        raise TransportError("cannot fetch this host's shared memory: the other worker has refused or ended")
    try:
        return Segment(descriptors[0], int.from_bytes(size, "little"))
    finally:
        os.close(descriptors[0])


def _address(word: str) -> str:
    # The word opens the counter and must not be its name, which everybody on the host can list.
    return f"\0poseidon-{hmac.digest(word.encode(), b'counter', 'sha256').hex()[:32]}"
