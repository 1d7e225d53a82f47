"""Pacing: a budget of bytes per second, for each direction of one worker (--bandwidth-limit).

A token bucket: tokens (bytes) come in at the rate of the limit and are kept up to `burst_bytes`; whoever wants to move
bytes waits until there is no debt, takes what it needs, and may leave a debt behind:

    moved in any interval of t seconds  ≤  rate · t + burst + one piece

Long messages are moved in pieces of `piece_bytes`, each of which waits by itself: what is urgent waits for a piece at
most, and what is very short (URGENT_BYTES) not at all: it only leaves its debt.

Bytes are counted as a network interface counts them, with the headers of Ethernet, IP and TCP: 1448 of payload in 1514.
"""

from __future__ import annotations

import heapq
import threading
import time
from collections.abc import Callable
from itertools import count

WIRE_SHARE = 1448 / 1514
URGENT_BYTES = 4 << 10
BURST_S = 0.02
PIECE_S = 0.005
MIN_PIECE_BYTES = 16 << 10
MAX_PIECE_BYTES = 256 << 10


class TokenBucket:
    """Pure arithmetic: times are given."""

    def __init__(self, bytes_per_s: float, burst_bytes: float, now_s: float) -> None:
        self._bytes_per_s, self._burst_bytes = bytes_per_s, burst_bytes
        self._level = 0.0
        self._at_s = now_s

    def delay(self, now_s: float) -> float:
        """Seconds until something may be taken; 0: now. A debt of less than a byte is none: clocks round."""
        debt = -self._filled(now_s)
        return debt / self._bytes_per_s if debt >= 1 else 0.0

    def spend(self, num_bytes: float, now_s: float) -> None:
        self._level = self._filled(now_s) - num_bytes

    def spare(self, now_s: float) -> float:
        """Tokens that are there."""
        return max(self._filled(now_s), 0.0)

    def _filled(self, now_s: float) -> float:
        self._level = min(self._level + (now_s - self._at_s) * self._bytes_per_s, self._burst_bytes)
        self._at_s = now_s
        return self._level


class Budget:
    """One direction's budget, for any number of threads. `limit_bps`: bits per second, on the wire."""

    def __init__(
        self,
        limit_bps: float,
        now: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._now, self._sleep = now, sleep
        self._lock = threading.Lock()
        bytes_per_s = limit_bps / 8
        self._bucket = TokenBucket(bytes_per_s, max(bytes_per_s * BURST_S, MIN_PIECE_BYTES), now())

    def take(self, num_bytes: int) -> None:
        """Waits until so much payload may move."""
        is_urgent = num_bytes <= URGENT_BYTES
        while True:
            with self._lock:
                now_s = self._now()
                delay_s = self._bucket.delay(now_s)
                if is_urgent or delay_s <= 0:
                    self._bucket.spend(num_bytes / WIRE_SHARE, now_s)
                    return
            self._sleep(delay_s)

    def delay(self) -> float:
        """Seconds until something may move; 0: now."""
        with self._lock:
            return self._bucket.delay(self._now())

    def spend(self, num_bytes: int) -> None:
        """So much payload has moved."""
        with self._lock:
            self._bucket.spend(num_bytes / WIRE_SHARE, self._now())

    def spare_bytes(self) -> int:
        """Payload that could move at once: nobody else has used the budget for a while."""
        with self._lock:
            return int(self._bucket.spare(self._now()) * WIRE_SHARE)


class Pace:
    """A worker's budgets, one for each direction. `limit_bps`: bits per second, on the wire."""

    def __init__(self, limit_bps: float) -> None:
        self.limit_bps = limit_bps
        self.piece_bytes = int(min(max(limit_bps / 8 * PIECE_S, MIN_PIECE_BYTES), MAX_PIECE_BYTES))
        self.sending, self.receiving = Budget(limit_bps), Budget(limit_bps)


class Alarm:
    """Calls functions at given times, on a thread of its own, until `close`."""

    def __init__(self, name: str) -> None:
        self._changed = threading.Condition()
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = count()
        self._closed = False
        threading.Thread(target=self._run, name=name, daemon=True).start()

    def after(self, delay_s: float, call: Callable[[], None]) -> None:
        with self._changed:
            heapq.heappush(self._due, (time.monotonic() + delay_s, next(self._numbers), call))
            self._changed.notify()

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify()

    def _run(self) -> None:
        while True:
            with self._changed:
                if self._closed:
                    return
                if not self._due:
                    self._changed.wait()
                    continue
                left_s = self._due[0][0] - time.monotonic()
                if left_s > 0:
                    self._changed.wait(left_s)
                    continue
                call = heapq.heappop(self._due)[2]
            call()
