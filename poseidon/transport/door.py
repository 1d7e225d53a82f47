"""Door: listening sockets that let members of a job in (`handshake.py`) and count strangers.

A stranger gets `HELLO_S` seconds and 76 bytes of attention and is dropped; how many came is told at the end. Strangers
are heard beside each other and beside members: one who says nothing holds up nobody.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import selectors
import socket
import threading
import time
from collections.abc import Iterable, Iterator, Sequence

from poseidon.transport.handshake import Key, answer

MOST_HEARD = 64  # strangers that are being heard at the same time; more are dropped at once
PAUSE_S = 0.2  # when nobody can be let in just now

_log = logging.getLogger(__name__)


def listen(address: str) -> socket.socket:
    """At a free port of one of this host's addresses."""
    family = socket.getaddrinfo(address, None)[0][0]
    return socket.create_server((address, 0), family=family, backlog=128)


class Door:
    """Takes the listening sockets over. `close` it; connections that were let in stay.

    `num_members`: so many may come at once, besides strangers.
    """

    def __init__(self, listeners: Sequence[socket.socket], key: Key, num_members: int) -> None:
        self._listeners = list(listeners)
        self._key = key
        self._members: queue.Queue[tuple[int, socket.socket]] = queue.Queue()
        self._places = threading.Semaphore(MOST_HEARD + num_members)
        self._lock = threading.Lock()
        self._num_strangers = 0
        self._is_open = True
        self._bell, self._button = socket.socketpair()
        for listener in self._listeners:
            listener.setblocking(False)
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

    def members(self, numbers: Iterable[int], deadline_s: float) -> Iterator[tuple[int, socket.socket]]:
        """Each of these as it comes, until all have come or it is too late. Others have no place here."""
        expected = set(numbers)
        while expected:
            member = self.admit(deadline_s - time.monotonic())
            if member is None:
                return
            if member[0] in expected:
                expected.discard(member[0])
                yield member
            else:
                member[1].close()

    def close(self) -> None:
        with self._lock:
            self._is_open = False
        self._button.close()  # which the other end hears
        self._thread.join()
        if self._num_strangers:
            places = ", ".join(str(end.getsockname()) for end in self._listeners if end.family != socket.AF_UNIX)
            _log.warning(
                "%d connection(s) to %s did not prove this job's secret and were dropped; keep strangers away from the "
                "network of the job",
                self._num_strangers,
                places or "this host's own door",
            )
        for listener in (*self._listeners, self._bell):
            listener.close()
        with contextlib.suppress(queue.Empty):
            while True:
                self._members.get_nowait()[1].close()

    def _receive(self) -> None:
        with selectors.DefaultSelector() as selector:
            for end in (*self._listeners, self._bell):
                selector.register(end, selectors.EVENT_READ)
            while self._is_open:
                for key, _ in selector.select():
                    assert isinstance(key.fileobj, socket.socket)
                    if key.fileobj is not self._bell:
                        self._accept(key.fileobj)

    def _accept(self, listener: socket.socket) -> None:
        try:
            connection, _ = listener.accept()
        except BlockingIOError:  # the caller has gone already
            return
        except OSError:  # or there are too many open files just now
            time.sleep(PAUSE_S)
            return
        if self._places.acquire(blocking=False):
            threading.Thread(target=self._hear, args=(connection,), name="door-hears", daemon=True).start()
        else:
            self._turn_away(connection)

    def _hear(self, connection: socket.socket) -> None:
        try:
            number = answer(connection, self._key)
        finally:
            self._places.release()
        with self._lock:
            if number is not None and self._is_open:
                self._members.put((number, connection))
                return
        self._turn_away(connection)

    def _turn_away(self, connection: socket.socket) -> None:
        with self._lock:
            self._num_strangers += 1
        connection.close()
