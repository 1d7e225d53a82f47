"""Works of c10d: of gloo's messages, of gloo's collectives, of NCCL's; each has to be waited for in its own way.

c10d raises RuntimeError for everything; who is lost is asked of the job's health.
"""

from __future__ import annotations

import threading
import time
from datetime import timedelta
from typing import Any, NamedTuple

from poseidon.errors import TransportError, TransportTimeout
from poseidon.transport.base import Peer, size_text
from poseidon.transport.completion import Completion
from poseidon.transport.job import Job

SLICE_S = 0.5
POLL_S = 0.001


class Note(NamedTuple):
    """What a message is, for error texts."""

    verb: str
    num_bytes: int
    peer: Peer
    tag: int

    def __str__(self) -> str:
        return f"{self.verb} {self.peer}, {size_text(self.num_bytes)}, tag {self.tag}"

    @property
    def ranks(self) -> tuple[int, ...]:
        return (self.peer.rank,)


class PointWork:
    """A send or receive of gloo, which can be waited for once only and not be interrupted; a timeout breaks the group.

    So it is one of the engine's threads that sits in gloo's wait: its own if a collective waits, another one on behalf
    of everybody else. There is one of these for every piece of a gradient: texts are made when somebody needs them.
    """

    __slots__ = ("_background", "_error", "_is_over", "_job", "_lock", "_note", "_work")

    def __init__(self, job: Job, work: Any, note: Note) -> None:
        self._job, self._work, self._note = job, work, note
        self._lock = threading.Lock()
        self._is_over = False
        self._error: TransportError | None = None
        self._background: Completion | None = None

    def wait(self, timeout_s: float | None = None) -> None:
        if self._is_over or (timeout_s is None and self._job.engine.runs_here()):
            self._end()
        else:
            self._in_background().wait(timeout_s)

    def done(self) -> bool:
        return self._is_over or self._job.health.loss is not None or self._in_background().done()

    def _in_background(self) -> Completion:
        if self._background is None:
            self._background = self._job.engine.submit(object(), self._end, str(self._note), self._note.ranks)
        if not self._background.done():
            self._job.check(self._note)  # a loss before the engine knew of this job has not interrupted it
        return self._background

    def _end(self) -> None:
        with self._lock:
            if not self._is_over:
                self._job.check(self._note)
                try:
                    self._work.wait(self._job.limit)
                except RuntimeError as error:
                    self._error = self._job.explain(str(self._note), self._note.ranks, str(error))
                self._is_over = True
        if self._error is not None:
            raise self._error


class GroupWork:
    """A collective of c10d. It is waited for in slices, since one with a lost peer may never end."""

    def __init__(self, job: Job, work: Any, what: str, ranks: tuple[int, ...]) -> None:
        self._job, self._work, self._what, self._ranks = job, work, what, ranks

    def wait(self, timeout_s: float | None = None) -> None:
        limit_s = self._job.options.limit_s if timeout_s is None else timeout_s
        deadline_s = time.monotonic() + limit_s
        while not self._ends_within(min(SLICE_S, deadline_s - time.monotonic())):
            self._job.check(self._what)
            if time.monotonic() >= deadline_s:
                raise TransportTimeout(f"{self._what}: not over after {limit_s:g} s", self._ranks)

    def done(self) -> bool:
        return self._job.health.loss is not None or bool(self._work.is_completed())

    def _ends_within(self, seconds: float) -> bool:
        try:
            self._work.wait(timedelta(seconds=max(seconds, 0.001)))  # c10d takes zero for no limit
        except RuntimeError:
            if not self._work.is_completed():
                return False
        try:
            self._work.wait()  # over: returns, or tells why not, at once
        except RuntimeError as error:
            raise self._job.explain(self._what, self._ranks, str(error)) from error
        return True


class StreamWork:
    """A collective of NCCL: waiting puts the current stream behind it and returns; only a limit makes the thread wait.

    NCCL itself must not be given the limit: it would end the group when it passes.
    """

    def __init__(self, job: Job, work: Any, what: str, ranks: tuple[int, ...]) -> None:
        self._job, self._work, self._what, self._ranks = job, work, what, ranks

    def wait(self, timeout_s: float | None = None) -> None:
        if timeout_s is not None:
            deadline_s = time.monotonic() + timeout_s
            while not self.done():
                if time.monotonic() >= deadline_s:
                    raise TransportTimeout(f"{self._what}: not over after {timeout_s:g} s", self._ranks)
                time.sleep(POLL_S)
        self._job.check(self._what)
        try:
            self._work.wait()
        except RuntimeError as error:
            raise self._job.explain(self._what, self._ranks, str(error)) from error

    def done(self) -> bool:
        return self._job.health.loss is not None or bool(self._work.is_completed())
