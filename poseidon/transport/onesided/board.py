"""Board: where notifications appear, and where threads wait for them, for sent puts and for bad news.

One waiting thread at a time may be the *poller*: instead of sleeping until another thread has read the network, it
reads the network itself, which saves waking it up. Everybody else sleeps on a condition. Whoever posts wakes both.
Endpoints without a network of their own have no poller.

This is the innermost loop of everything one-sided: locks are plain ones, and nothing is called that need not be.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection
from typing import Protocol, TypeVar

from poseidon.errors import TransportError, TransportTimeout
from poseidon.transport.onesided.base import Note, is_newer
from poseidon.transport.onesided.carrier import raise_again

T = TypeVar("T")


class Poller(Protocol):
    """What brings news in. `sleeps`: a thread is inside `poll` and would not notice news by itself."""

    sleeps: bool

    def poll(self, timeout_s: float) -> None:
        """Reads the network once, and waits for it if it must; puts `sleeps` back when it need not any more."""

    def end_poll(self) -> None:
        """The thread that called `poll` has found what it waited for."""

    def ring(self) -> None:
        """Makes a thread inside `poll` return."""


class Board:
    """`poller`: what a waiting thread may serve; None if there is nothing."""

    def __init__(self, poller: Poller | None = None) -> None:
        self._poller = poller
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._values: dict[int, int] = {}
        self._has_poller = False
        self._num_sleepers = 0
        self.error: TransportError | None = None
        self.num_left = 0  # peers that have left in peace
        self._left_told = 0

    # -- the side of the network ------------------------------------------------------------------------------------
    def post(self, id: int, value: int) -> None:
        """A notification has come. One that is older than what is there already is late, and nobody's."""
        with self._lock:
            if id in self._values and not is_newer(value, self._values[id]):
                return
            self._values[id] = value
            must_ring = self._wake()
        if must_ring:
            self._ring()

    def change(self, act: Callable[[], None] = lambda: None) -> None:
        """Does something that waiting threads look at, and lets them look."""
        with self._lock:
            act()
            must_ring = self._wake()
        if must_ring:
            self._ring()

    def fail(self, error: TransportError) -> None:
        """From now on every call raises; the first reason stays."""

        def act() -> None:
            self.error = self.error or error

        self.change(act)

    def leave(self) -> None:
        """A peer has left in peace."""

        def act() -> None:
            self.num_left += 1

        self.change(act)

    def _wake(self) -> bool:
        """Wakes who sleeps; true if the poller does, for whom one has to ring. The lock is held."""
        if self._num_sleepers:
            self._changed.notify_all()
        return self._poller is not None and self._poller.sleeps

    def _ring(self) -> None:
        if self._poller is not None:
            self._poller.ring()

    # -- the side of the worker -------------------------------------------------------------------------------------
    def check(self) -> None:
        """Raises if somebody is lost."""
        if self.error is not None:
            raise_again(self.error)

    def waitsome(self, ids: Collection[int], timeout_s: float) -> int:
        values = self._values

        def look() -> int | None:
            for id in values:
                if id in ids:
                    return id
            return None

        return self.wait_for(look, timeout_s, ids)

    def take(self, ids: Collection[int], timeout_s: float) -> list[Note]:
        values = self._values

        def look() -> list[Note] | None:
            found = [Note(id, value) for id, value in values.items() if id in ids]
            if not found:
                if self.num_left == self._left_told and timeout_s > 0:
                    return None
                self._left_told = self.num_left
            for note in found:
                del values[note.id]
            return found

        return self.wait_for(look, timeout_s, ids)

    def reset(self, id: int) -> int:
        if self.error is not None:
            self.check()
        with self._lock:
            return self._values.pop(id, 0)

    def wait_for(self, look: Callable[[], T | None], timeout_s: float, what: str | Collection[int]) -> T:
        """What `look` finds; it is called under the board's lock, whenever something has changed.

        `what` is waited for: ids, or something else in words.
        """
        poller = self._poller
        with self._lock:
            if self.error is not None:
                self.check()
            found = look()
            if found is not None:
                return found
            if poller is None or self._has_poller:
                return self._sleep(look, time.monotonic() + timeout_s, what)
            self._has_poller = poller.sleeps = True
        deadline_s, left_s = time.monotonic() + timeout_s, timeout_s
        try:
            while True:
                poller.poll(left_s)
                with self._lock:
                    if self.error is not None:
                        self.check()
                    found = look()
                    if found is not None:
                        return found
                    left_s = _left_s(deadline_s, what)
                    poller.sleeps = True
        finally:
            self._has_poller = False
            poller.end_poll()

    def _sleep(self, look: Callable[[], T | None], deadline_s: float, what: str | Collection[int]) -> T:
        """The lock is held."""
        self._num_sleepers += 1
        try:
            while True:
                self._changed.wait(_left_s(deadline_s, what))
                if self.error is not None:
                    self.check()
                found = look()
                if found is not None:
                    return found
        finally:
            self._num_sleepers -= 1


def _left_s(deadline_s: float, what: str | Collection[int]) -> float:
    left_s = deadline_s - time.monotonic()
    if left_s <= 0:
        raise not_in_time(what)
    return left_s


def not_in_time(what: str | Collection[int]) -> TransportTimeout:
    """`what` was waited for: ids, or something else in words."""
    text = what if isinstance(what, str) else f"a notification of {_ids_text(what)}"
    return TransportTimeout(f"{text} did not come in the time given")


def _ids_text(ids: Collection[int]) -> str:
    if isinstance(ids, range) and len(ids) > 1:
        return f"ids {ids[0]} … {ids[-1]}"
    return f"id {', '.join(str(id) for id in list(ids)[:8])}{', …' if len(ids) > 8 else ''}"
