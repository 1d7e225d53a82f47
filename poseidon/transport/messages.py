"""Messages: tagged sends and receives on connections of our own, moved by C (`native/`), for all workers of a job.

Gloo, which serves where this cannot be built, hands every message from its own thread to the one that waits; here the
one that waits reads the network itself. A message that comes before anybody asks for it is kept aside. Receives can be
interrupted, and waited for by anybody, any number of times.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from hashlib import blake2b
from typing import Any

from torch import Tensor

from poseidon.errors import TransportTimeout
from poseidon.transport.base import Transport
from poseidon.transport.c10d_work import Note
from poseidon.transport.job import Job
from poseidon.transport.native import Mesh
from poseidon.transport.onesided.contact import Contact
from poseidon.transport.onesided.joining import OneSidedOptions, meet

SERVE_S = 1.0  # how long the thread that serves stays away from Python
CLOSE_S = 5.0
PURPOSE = "messages"


class Messages:
    """`contacts` are all other workers of the job."""

    def __init__(self, rank: int, contacts: Sequence[Contact]) -> None:
        self._contacts = contacts
        self._mesh = Mesh(1 + max([rank, *(contact.rank for contact in contacts)]))
        self._keys: dict[tuple[str, int], int] = {}
        self._is_closing = False
        for contact in contacts:
            contact.socket.setblocking(False)
            self._mesh.connect(contact.rank, contact.fd)
        self._thread = threading.Thread(target=self._serve, name=f"messages-{rank}", daemon=True)
        self._thread.start()

    def send(self, tensor: Tensor, rank: int, channel: str, tag: int) -> Any:
        return self._mesh.send(rank, self._key(channel, tag), tensor, tensor.data_ptr(), tensor.nbytes)

    def recv(self, tensor: Tensor, rank: int, channel: str, tag: int) -> Any:
        return self._mesh.recv(rank, self._key(channel, tag), tensor, tensor.data_ptr(), tensor.nbytes)

    def fail(self) -> None:
        """Ends all waits."""
        self._mesh.fail()

    def close(self) -> None:
        self._is_closing = True
        self._mesh.close()
        self._thread.join(CLOSE_S)
        for contact in self._contacts:
            contact.close()

    def _key(self, channel: str, tag: int) -> int:
        """What a tag of a group of workers is known by among all groups."""
        found = self._keys.get((channel, tag))
        if found is None:
            digest = blake2b(f"{channel} {tag}".encode(), digest_size=8).digest()
            found = self._keys[channel, tag] = int.from_bytes(digest, "little")
        return found

    def _serve(self) -> None:
        """News are of no interest: who waits is told by its operation, and who is lost by the job's health."""
        while not self._is_closing:
            self._mesh.serve(SERVE_S)


class MessageWork:
    """A send or a receive."""

    __slots__ = ("_job", "_note", "_operation")

    def __init__(self, job: Job, operation: Any, note: Note) -> None:
        self._job, self._operation, self._note = job, operation, note

    def wait(self, timeout_s: float | None = None) -> None:
        limit_s = self._job.options.limit_s if timeout_s is None else timeout_s
        try:
            is_over = self._operation.wait(limit_s)
        except ConnectionError as error:
            raise self._job.explain(str(self._note), self._note.ranks, str(error)) from error
        if not is_over:
            self._job.check(self._note)
            raise TransportTimeout(f"{self._note}: not over after {limit_s:g} s", self._note.ranks)

    def done(self) -> bool:
        return self._operation.done() or self._job.health.loss is not None


def open_messages(transport: Transport, options: OneSidedOptions) -> Messages | None:
    """Connections among all workers of a transport, which call this together; None if it is not native everywhere."""
    contacts = meet(transport, options, PURPOSE, options.is_native)
    return None if contacts is None else Messages(transport.rank, contacts)
