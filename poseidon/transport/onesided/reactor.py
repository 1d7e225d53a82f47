"""Reactor: one thread that serves all links, so that puts move while the worker computes; and watches the peers.

A thread that waits for something serves the links itself, instead of sleeping until another one has (`poll`, see
board.py); the reactor's own thread stands by meanwhile. It takes over when nobody has waited for TICK_S: to wake it
each time would cost more than the work. Nobody spins.

Events are edges: what has come is announced once, and nothing has to be asked for again after a small message. Where
something was left undone, a link is *armed*: the kernel looks at it again, and announces what it finds.

    connection ends without BYE     that worker died               noticed at once
    silence for `limit_s`           it hangs, or is cut off        noticed after limit_s (+ interval_s)
    LOST                            it gives up, and says why or because of whom

Signs of life go out where nothing else has for `interval_s`. A process that was itself asleep for a while does not
blame the others.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import threading
import time
from collections.abc import Callable, Sequence
from itertools import count

from poseidon.transport.health import HealthOptions
from poseidon.transport.onesided.link import Inbox, Link
from poseidon.transport.onesided.turns import Turns
from poseidon.transport.pacing import Alarm, Pace

TICK_S = 0.004
WAKE_S = 1.0  # for a thread that waits to come out of the kernel
MOST_EVENTS = 64
_IN = select.EPOLLIN | select.EPOLLRDHUP | select.EPOLLET
_IN_OUT = _IN | select.EPOLLOUT
_OUT = select.EPOLLOUT
_READABLE = ~_OUT
_ENDS = ~(_OUT | select.EPOLLIN)

Lose = Callable[[int, str], None]


class Reactor:
    """`lose(rank, reason)` is told of lost peers."""

    def __init__(self, inbox: Inbox, lose: Lose, options: HealthOptions) -> None:
        self._inbox, self._lose, self._options = inbox, lose, options
        self._links: dict[int, Link] = {}
        self._turns = Turns()
        self._arming = threading.Lock()
        self._alarm: Alarm | None = None
        self._epoll = select.epoll()
        self._bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        # Edges: every ring wakes one thread once, and nobody has to silence the bell.
        self._epoll.register(self._bell, select.EPOLLIN | select.EPOLLET)
        self.sleeps = False
        self._has_poller = False
        self._num_polls = 0
        self._rests = False  # the reactor's thread has nothing to do as long as a poller stays
        self._back_to_work = threading.Event()
        self._is_closing = False
        self._closing_lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def start(self, links: Sequence[Link], name: str) -> None:
        numbers = count()  # of frames, over all links
        for link in links:
            link.numbers = numbers
            link.socket.setblocking(False)
            self._links[link.fd] = link
            self._epoll.register(link.fd, _IN_OUT)
        self._thread = threading.Thread(target=self._serve, name=name, daemon=True)
        self._thread.start()

    def keep_to(self, pace: Pace, name: str) -> None:
        """From now on, links to other hosts keep to a budget. The kernel takes in no more than is read soon: many
        senders would else fill its buffers before they notice."""
        self._alarm = Alarm(name)
        for link in self._links.values():
            if link.peer_file is None:
                link.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, pace.piece_bytes)
                link.pace = pace

    def arm(self, link: Link) -> None:
        """A link has something to send, when it is its turn and there is room. What can go at once does."""
        self._send(self._turns.want(link))

    def _send(self, links: list[Link]) -> None:
        """It is their turn. A link of which the kernel takes all is looked at again: it tells when there is room. Of
        one that is full it tells anyway."""
        for link in links:
            try:
                link.flush()
            except (BrokenPipeError, ConnectionResetError):
                self._rearm(link)  # what the peer said last is read first: if that was goodbye, nothing is lost
                continue
            except OSError as error:
                self._end_link(link, _broken(error))
                continue
            self._turns.sent(link)
            if link.pace is not None or not link.has_begun:
                self._rearm(link)

    def _rearm(self, link: Link) -> None:
        """Under a lock: what another thread has just decided must not be undone."""
        with self._arming, contextlib.suppress(OSError, ValueError):  # closed meanwhile
            self._epoll.modify(link.fd, _IN_OUT if link.pace is None else self._allowed(link, link.pace))

    def _allowed(self, link: Link, pace: Pace) -> int:
        """What the budget allows now; for the rest the link is looked at again in time."""
        wanted = _IN_OUT if self._turns.is_active(link) else _IN
        delays_s = {select.EPOLLIN: pace.receiving.delay(), select.EPOLLOUT: pace.sending.delay()}
        late = {event: delay_s for event, delay_s in delays_s.items() if wanted & event and delay_s > 0}
        if late and not link.is_resting and self._alarm is not None:
            link.is_resting = True
            self._alarm.after(min(late.values()), lambda: self._end_rest(link))
        for event in late:
            wanted &= ~event
        return wanted

    def _end_rest(self, link: Link) -> None:
        link.is_resting = False
        self._rearm(link)

    def ring(self) -> None:
        """Lets a thread inside `poll` look again at what it waits for."""
        with self._closing_lock:
            if not self._is_closing:
                os.eventfd_write(self._bell, 1)

    def poll(self, timeout_s: float) -> None:
        """Serves links for one round of events, on a thread that waits."""
        self._has_poller = True
        self._num_polls += 1
        try:
            events = self._epoll.poll(timeout_s, MOST_EVENTS)
        except (ValueError, OSError):  # closed meanwhile: whoever waits is told by the board
            events = []
        self.sleeps = False
        for fd, mask in events:
            if fd != self._bell:
                self._serve_link(self._links[fd], mask)

    def end_poll(self) -> None:
        """The thread that waited goes back to its work."""
        self._has_poller = self.sleeps = False
        if self._rests:
            self._back_to_work.set()

    def close(self) -> None:
        with self._closing_lock:
            self._is_closing = True
            os.eventfd_write(self._bell, 1)
        self._back_to_work.set()
        if self._alarm is not None:
            self._alarm.close()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()
        deadline_s = time.monotonic() + WAKE_S
        while self.sleeps and time.monotonic() < deadline_s:  # in a call that does not end when its file is closed
            os.eventfd_write(self._bell, 1)
            time.sleep(TICK_S)
        with self._closing_lock:
            self._epoll.close()
            os.close(self._bell)

    def _serve_link(self, link: Link, mask: int) -> None:
        try:
            if mask & _READABLE and not link.receive(self._inbox, to_the_end=bool(mask & _ENDS)):
                self._end_link(link, "is lost: the process ended, its connection closed")
                return
        except OSError as error:
            self._end_link(link, _broken(error))
            return
        except Exception as error:  # a frame that must not come: the connection is good for nothing any more
            self._end_link(link, f"is lost: {error}")
            return
        if link.has_left:
            self._end_sending(link)
            return
        if mask & _OUT and self._turns.is_active(link):
            self._send(self._turns.room(link))
        if link.has_more or link.pace is not None:
            self._rearm(link)

    def _end_link(self, link: Link, reason: str) -> None:
        """A connection is over. That is a loss, unless one of the two has said goodbye."""
        with self._arming, contextlib.suppress(OSError, ValueError):  # closed meanwhile
            self._epoll.unregister(link.fd)
        self._lose_link(link, reason)
        self._end_sending(link)

    def _lose_link(self, link: Link, reason: str) -> None:
        if not (link.has_left or link.is_told or self._is_closing):
            self._lose(link.rank, reason)

    def _end_sending(self, link: Link) -> None:
        """Others' turns come, instead of those of a link whose peer reads no more."""
        link.drop()
        self._send(self._turns.drop(link))

    def _serve(self) -> None:
        interval_s = self._options.interval_s
        looked_s = time.monotonic()
        num_polls = 0
        while not self._is_closing:
            if self._has_poller or num_polls != self._num_polls:
                num_polls = self._num_polls
                self._stand_by(num_polls, interval_s / 2)
            else:
                self._serve_once(interval_s / 2)
            now_s = time.monotonic()
            if now_s - looked_s >= interval_s / 2:
                self._watch(now_s, now_s - looked_s > 2 * interval_s)
                looked_s = now_s

    def _serve_once(self, timeout_s: float) -> None:
        for fd, mask in self._epoll.poll(timeout_s):
            if fd != self._bell:
                self._serve_link(self._links[fd], mask)
            elif self.sleeps:
                self.ring()  # that was for the one that waits

    def _stand_by(self, num_polls: int, longest_s: float) -> None:
        """Another thread serves the links; one that stays in a single wait says when it leaves."""
        time.sleep(TICK_S)
        if self._has_poller and num_polls == self._num_polls and not self._is_closing:
            self._back_to_work.clear()
            self._rests = True
            if self._has_poller:
                self._back_to_work.wait(longest_s)
            self._rests = False

    def _watch(self, now_s: float, was_asleep: bool) -> None:
        for link in self._links.values():
            if link.has_left or link.is_closed:
                continue
            if was_asleep:
                link.heard_s = now_s
            if now_s - link.said_s >= self._options.interval_s:
                self._beat(link)
            if now_s - link.heard_s >= self._options.interval_s:
                self._serve_link(link, select.EPOLLIN)  # a slow payload is not announced before it is worth it
            silent_s = now_s - link.heard_s
            if silent_s > self._options.limit_s:
                silence = f"no sign of life for {silent_s:.1f} s"
                self._lose_link(link, f"is lost: {silence}, so it hangs, or its host or network is down")

    def _beat(self, link: Link) -> None:
        with contextlib.suppress(OSError):  # a connection that is broken shows when it is read
            if not link.beat():
                self.arm(link)


def _broken(error: OSError) -> str:
    return f"is lost: its connection broke ({error.strerror or error})"
