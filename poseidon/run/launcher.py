"""Launcher: starts the workers of one host, stays with them, and leaves none behind.

    rank 0             has the launcher's own output: what it shows goes through unchanged
    the others         what they say is shown line by line, with the rank in front
    Ctrl-C, hang-up    and SIGTERM are passed on to every worker; Ctrl-Z stops and continues all of them
    a worker fails     the others get a moment to notice by themselves and say why; then they are ended
    launcher killed    the kernel kills the workers (`follow_launcher`)
    a restart          is a new job on another port, with the number of restarts in its environment

What a worker's process is: `process.py`. Workers on several hosts: `controller.py`.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import random
import selectors
import signal
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import FrameType

from poseidon.errors import UsageError
from poseidon.run.process import ANSWERED, WorkerProcess, start_process
from poseidon.run.rendezvous import FIRST_PORT, NUM_PORTS, Place, variables_of

LOCALHOST = "127.0.0.1"
NOTICE_S = 4.0  # for workers to notice that one is lost, and to say so
END_S = 1.0  # for a worker to obey SIGTERM
LOOK_S = 0.1

_PASSED_ON = (signal.SIGINT, signal.SIGHUP, signal.SIGTERM)
_PR_SET_PDEATHSIG = 1

Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class LocalJob:
    """`command` is what every worker runs, in `environ` with its place added; `program` is how messages begin."""

    program: str
    command: tuple[str, ...]
    num_workers: int
    environ: Mapping[str, str]


def launch(job: LocalJob, tell: Tell) -> int:
    """Runs a job to its end. `tell` shows the user a line.

    Returns an exit code: 0 if every worker succeeded, else that of the first to fail, 128 + n if signal n ended it.
    """
    port = free_port()
    workers: list[_Worker] = []
    with gathered_signals() as waiting:
        try:
            for rank in range(job.num_workers):
                place = Place(rank, job.num_workers, rank, job.num_workers, LOCALHOST, port, launcher_pid=os.getpid())
                workers.append(_Worker(job, place))
            return _attend(job.program, workers, waiting, tell)
        finally:
            for worker in workers:
                worker.end()
                worker.close()


class _Worker(WorkerProcess):
    """Rank 0's output goes straight to where the launcher's goes."""

    def __init__(self, job: LocalJob, place: Place) -> None:
        process = start_process(job.command, variables_of(place, job.environ), shown=place.rank == 0)
        super().__init__(place.rank, process, process.stdout)

    def show(self, tell: Tell) -> bool:
        """Shows the whole lines that have come; false at the end."""
        return self.read(lambda line: tell(f"rank {self.rank}: {line}"))

    def __str__(self) -> str:
        return f"rank {self.rank} (host {socket.gethostname()}, pid {self.pid})"


def _attend(program: str, workers: Sequence[_Worker], waiting: list[signal.Signals], tell: Tell) -> int:
    """Passes on signals and shows what workers say until all have ended; ends them when one has failed."""
    failed: _Worker | None = None
    failed_s = 0.0
    passed: set[int] = set()
    with selectors.DefaultSelector() as selector:
        for worker in workers:
            if worker.output is not None:
                selector.register(worker.output, selectors.EVENT_READ, worker)
        while any(worker.exit_code is None for worker in workers):
            _show(selector, tell, LOOK_S)
            while waiting:
                passed.add(waiting[0])
                _pass_on(waiting.pop(0), workers)
            if failed is None:
                failed, failed_s = _first_failed(workers), time.monotonic()
            elif time.monotonic() - failed_s > NOTICE_S:
                is_late = time.monotonic() - failed_s > NOTICE_S + END_S
                _pass_on(signal.SIGKILL if is_late else signal.SIGTERM, workers)
        for worker in workers:
            worker.end()
        while _show(selector, tell, 0):
            pass  # what was said last
    failed = failed or _first_failed(workers)
    code = 0 if failed is None or failed.exit_code is None else failed.exit_code
    if code < 0 and -code not in passed:  # it cannot have said so itself
        name = signal.Signals(-code).name
        guess = "; was the memory of this host used up?" if name == "SIGKILL" else ""
        tell(f"{program}: error: {failed} was ended by {name}{guess}")
    return code if code >= 0 else 128 - code


def _first_failed(workers: Sequence[_Worker]) -> _Worker | None:
    """Of several at once, one that a signal ended: the others have noticed that."""
    return min((worker for worker in workers if worker.exit_code), key=lambda w: w.exit_code or 0, default=None)


def _show(selector: selectors.BaseSelector, tell: Tell, wait_s: float) -> bool:
    """Shows what workers say within a time; false if nobody says anything."""
    if not selector.get_map():
        time.sleep(wait_s)
        return False
    ready = selector.select(wait_s)
    for key, _ in ready:
        if not key.data.show(tell):
            selector.unregister(key.fileobj)
    return bool(ready)


# -- signals ----------------------------------------------------------------------------------------------------------
@contextlib.contextmanager
def gathered_signals() -> Iterator[list[signal.Signals]]:
    """While inside, signals gather in a list; afterwards they do what they did before."""
    waiting: list[signal.Signals] = []

    def handle(number: int, _: FrameType | None) -> None:
        waiting.append(signal.Signals(number))

    before = {number: signal.signal(number, handle) for number in (*_PASSED_ON, signal.SIGTSTP)}
    try:
        yield waiting
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _pass_on(number: signal.Signals, workers: Sequence[_Worker]) -> None:
    if number is not signal.SIGTSTP:
        for worker in workers:
            worker.send(number)
        return
    for worker in workers:
        worker.send(signal.SIGSTOP)
    os.kill(os.getpid(), signal.SIGSTOP)
    for worker in workers:  # somebody has continued the launcher
        worker.send(signal.SIGCONT)


# -- in the worker ----------------------------------------------------------------------------------------------------
def follow_launcher(place: Place) -> None:
    """From now on this process does not outlive its launcher; ends at once if that is gone already."""
    follow(place.launcher_pid)


def follow(launcher_pid: int | None) -> None:
    if launcher_pid is None:
        return
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != launcher_pid:
        raise SystemExit(1)


def accept_signals() -> None:
    """The worker's handlers are in place: what the launcher passed on meanwhile is delivered now."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, ANSWERED)


# -- ports ------------------------------------------------------------------------------------------------------------
def free_port(address: str = LOCALHOST) -> int:
    """A port of this host's address that nobody listens on, and that no outgoing connection will take."""
    for port in random.sample(range(FIRST_PORT, FIRST_PORT + NUM_PORTS), 100):
        family = socket.getaddrinfo(address, port)[0][0]
        with socket.socket(family) as probe, contextlib.suppress(OSError):
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((address, port))
            return port
    raise UsageError(f"no port of {FIRST_PORT} … {FIRST_PORT + NUM_PORTS - 1} is free on this host")
