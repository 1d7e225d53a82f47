"""Completion: a Work that somebody else completes, once; whoever waits is woken then."""

from __future__ import annotations

import threading
from collections.abc import Callable

from poseidon.errors import TransportTimeout


class Completion:
    """`what` and `ranks` say in error texts what is waited for, and from whom; `limit_s` bounds waits without limit."""

    def __init__(self, what: str, ranks: tuple[int, ...], limit_s: float) -> None:
        self.what = what
        self.ranks = ranks
        self._limit_s = limit_s
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._error: BaseException | None = None
        self._followers: list[Callable[[], None]] = []

    def succeed(self) -> None:
        self._end(None)

    def fail(self, error: BaseException) -> None:
        self._end(error)

    def wait(self, timeout_s: float | None = None) -> None:
        limit_s = self._limit_s if timeout_s is None else timeout_s
        if not self._over.wait(limit_s):
            raise TransportTimeout(f"{self.what}: not over after {limit_s:g} s", self.ranks)
        if self._error is not None:
            raise self._error

    def ends_within(self, seconds: float) -> bool:
        """Waits for the end, good or bad; false if it does not come in time."""
        return self._over.wait(seconds)

    def done(self) -> bool:
        return self._over.is_set()

    def then(self, follow: Callable[[], None]) -> bool:
        """Has it called by the thread that ends this, well or badly: no other has to wake up. False: it is over."""
        with self._lock:
            if self._over.is_set():
                return False
            self._followers.append(follow)
            return True

    def _end(self, error: BaseException | None) -> None:
        # An operation may fail (a peer is lost) at the moment it succeeds: the first word counts.
        with self._lock:
            if self._over.is_set():
                return
            self._error = error
            self._over.set()
            followers, self._followers = self._followers, []
        for follow in followers:
            follow()


def finished(what: str) -> Completion:
    """The work of an operation that had nothing to do."""
    completion = Completion(what, (), 0.0)
    completion.succeed()
    return completion
