"""Tally: payload bytes a worker has sent and received, and what whole-group operations move, whoever carries them out.

all-reduce (ring)        2·n·(P−1)/P sent and received
broadcast (binomial)     n sent for each child in the tree, n received by all but the root
"""

from __future__ import annotations

import threading


class Tally:
    """Counts from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.sent = 0
        self.received = 0

    def add(self, sent: int = 0, received: int = 0) -> None:
        with self._lock:
            self.sent += sent
            self.received += received

    def add_all_reduce(self, num_bytes: int, num_members: int) -> None:
        moved = 2 * num_bytes * (num_members - 1) // num_members
        self.add(sent=moved, received=moved)

    def add_broadcast(self, num_bytes: int, place: int, num_members: int) -> None:
        """`place` counts members from the root on."""
        self.add(
            sent=num_bytes * num_children(place, num_members),
            received=0 if place == 0 else num_bytes,
        )


def num_children(place: int, num_members: int) -> int:
    """Children in the binomial tree: in round k everybody below 2^k passes the message on to the member 2^k further."""
    count, reach = 0, 1
    while reach < num_members:
        count += place < reach and place + reach < num_members
        reach *= 2
    return count
