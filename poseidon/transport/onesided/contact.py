"""Contact: what a worker knows of another one that it has a connection to.

With a window into the peer's memory (`peer_file`), puts and reads are copies, made by the thread that asks for them,
and only notifications travel. The copy is there before the notification: system calls lie between them.
"""

from __future__ import annotations

import os
import socket

from poseidon.transport.onesided.segments import Segment, mapped


class Contact:
    """`peer_file`: the peer's memory, if it runs on this host; None if bytes have to travel."""

    def __init__(self, rank: int, connection: socket.socket, peer_file: int | None) -> None:
        self.rank, self.socket, self.peer_file = rank, connection, peer_file
        self.fd = connection.fileno()
        self.has_left = False
        self.is_told = False  # that we leave: it may end the connection whenever it likes
        self.is_closed = False
        self.sizes: dict[int, int] = {}
        self.windows: dict[int, Segment] = {}

    @property
    def kind(self) -> str:
        return "tcp" if self.peer_file is None else "shared memory"

    def learn(self, segment: int, start: int, num_bytes: int) -> None:
        """The peer has a segment, which begins at `start` of its file."""
        self.sizes[segment] = num_bytes
        if self.peer_file is not None:
            self.windows[segment] = mapped(self.peer_file, start, num_bytes)

    def close(self) -> None:
        if not self.is_closed and self.peer_file is not None:
            os.close(self.peer_file)
            self.windows.clear()
        self.is_closed = True
        self.socket.close()
