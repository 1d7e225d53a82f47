"""Tally: payload bytes a worker has sent and received, and what whole-group operations move, whoever carries them out.

all-reduce (ring)        2·n·(P−1)/P sent and received
broadcast (binomial)     n sent for each child in the tree, n received by all but the root

What was sent with a tag is counted by tag too, so that it can be told for which exchange bytes have left.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable


class Tally:
    """Counts from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.sent = 0
        self.received = 0
        self._by_tag: dict[int, int] = {}  # what was sent

    def add(self, sent: int = 0, received: int = 0, tag: int | None = None) -> None:
        with self._lock:
            self.sent += sent
            self.received += received
            if sent and tag is not None:
                self._by_tag[tag] = self._by_tag.get(tag, 0) + sent

    def add_all_reduce(self, num_bytes: int, num_members: int, tag: int | None = None) -> None:
        moved = 2 * num_bytes * (num_members - 1) // num_members
        self.add(sent=moved, received=moved, tag=tag)

    def add_broadcast(self, num_bytes: int, place: int, num_members: int) -> None:
        """`place` counts members from the root on."""
        self.add(
            sent=num_bytes * num_children(place, num_members),
            received=0 if place == 0 else num_bytes,
        )

    def sent_with(self, tags: Iterable[int]) -> int:
        """Payload sent with these tags."""
        return sum([self._by_tag.get(tag, 0) for tag in tags])


def num_children(place: int, num_members: int) -> int:
    """Children in the binomial tree: in round k everybody below 2^k passes the message on to the member 2^k further."""
    count, reach = 0, 1
    while reach < num_members:
        count += place < reach and place + reach < num_members
        reach *= 2
    return count
