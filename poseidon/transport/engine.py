"""Engine: threads that carry operations forward while the thread that started them computes.

    work = engine.submit(key, job, "gathering 4 MB")

Jobs with the same key run one after another, in the order in which they came; jobs with different keys run side by
side, each on a thread of its own, so that a job which waits for a peer never holds up another. Threads block, they do
not spin, and are kept for the next job. On CUDA a job runs on a stream of its own, after everything its submitter had
queued, and is over when its stream is.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Hashable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from queue import SimpleQueue

import torch

from poseidon.errors import TransportError
from poseidon.transport.completion import Completion

JOIN_S = 2.0
JOIN_AFTER_LOSS_S = 0.2
_STOP = object()


@dataclass(frozen=True, slots=True)
class _Job:
    run: Callable[[], None]
    completion: Completion
    turn: AbstractContextManager[None]


class Engine:
    """`limit_s` bounds every wait for a job that names no limit of its own."""

    def __init__(self, name: str, limit_s: float) -> None:
        self._name, self._limit_s = name, limit_s
        self._lock = threading.Lock()
        self._lines: dict[Hashable, deque[_Job]] = {}
        self._ready: SimpleQueue[Hashable] = SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._own_idents: set[int] = set()
        self._running: set[Completion] = set()
        self._num_idle = 0
        self._join_s = JOIN_S
        self._closed = False

    def runs_here(self) -> bool:
        """True on the engine's own threads."""
        return threading.get_ident() in self._own_idents

    def submit(self, key: Hashable, run: Callable[[], None], what: str, ranks: tuple[int, ...] = ()) -> Completion:
        """Starts `run` on another thread; what it raises, waiting for the result raises."""
        job = _Job(run, Completion(what, ranks, self._limit_s), _device_turn())
        with self._lock:
            if self._closed:
                raise TransportError(f"{what}: the transport is closed")
            if key in self._lines:
                self._lines[key].append(job)
                return job.completion
            self._lines[key] = deque([job])
            if self._num_idle > 0:
                self._num_idle -= 1
            else:
                self._add_thread()
        self._ready.put(key)
        return job.completion

    def interrupt(self, error_of: Callable[[str], BaseException]) -> None:
        """Fails all jobs, running or not, with an error made from what each does.

        A thread may be unable to leave what it sits in; nobody waits for it any longer.
        """
        with self._lock:
            self._join_s = JOIN_AFTER_LOSS_S
            completions = [*self._running, *self._drop_lines()]
        for completion in completions:
            completion.fail(error_of(completion.what))

    def close(self) -> None:
        """Drops jobs that have not begun and waits a little for the others."""
        with self._lock:
            self._closed = True
            dropped = self._drop_lines()
            threads, self._threads = self._threads, []
        for completion in dropped:
            completion.fail(TransportError(f"{completion.what}: the transport was closed"))
        for _ in threads:
            self._ready.put(_STOP)
        deadline_s = time.monotonic() + self._join_s
        for thread in threads:
            if thread is not threading.current_thread():
                thread.join(max(0.0, deadline_s - time.monotonic()))

    def _drop_lines(self) -> list[Completion]:
        dropped = [job.completion for line in self._lines.values() for job in line]
        for line in self._lines.values():
            line.clear()
        return dropped

    def _add_thread(self) -> None:
        thread = threading.Thread(target=self._serve, name=f"{self._name}-{len(self._threads)}", daemon=True)
        self._threads.append(thread)
        thread.start()

    def _serve(self) -> None:
        self._own_idents.add(threading.get_ident())
        while True:
            key = self._ready.get()
            if key is _STOP:
                return
            while (job := self._next(key)) is not None:
                _carry_out(job)
                self._running.discard(job.completion)

    def _next(self, key: Hashable) -> _Job | None:
        with self._lock:
            line = self._lines[key]
            if line:
                job = line.popleft()
                self._running.add(job.completion)
                return job
            del self._lines[key]
            self._num_idle += 1
            return None


def _carry_out(job: _Job) -> None:
    try:
        with torch.no_grad(), job.turn:  # parameters travel too, and nobody differentiates a journey
            job.run()
    except BaseException as error:  # whatever it is belongs to the thread that waits for the job
        job.completion.fail(error)
    else:
        job.completion.succeed()


def _device_turn() -> AbstractContextManager[None]:
    """What puts a job behind everything its submitter has queued on the current CUDA stream."""
    if not torch.cuda.is_initialized():
        return nullcontext()
    queued = torch.cuda.Event()
    queued.record()
    return _StreamTurn(torch.cuda.Stream(), queued)


class _StreamTurn(AbstractContextManager[None]):
    def __init__(self, stream: torch.cuda.Stream, queued: torch.cuda.Event) -> None:
        self._stream, self._queued = stream, queued
        self._context = torch.cuda.stream(stream)

    def __enter__(self) -> None:
        self._context.__enter__()
        self._stream.wait_event(self._queued)

    def __exit__(self, *exc_info: object) -> None:
        self._stream.synchronize()
        self._context.__exit__(*exc_info)
