"""One worker's process, as whoever starts it sees it: signals, lines of output, and an end that leaves nothing behind.

Workers have sessions of their own: a terminal's Ctrl-C reaches each of them once, through the launcher. It may come
before a worker can answer it; so such signals are blocked at birth, and wait until the worker opens itself to them
(`launcher.accept_signals`).
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from typing import IO, Protocol

ANSWERED = (signal.SIGINT, signal.SIGHUP, signal.SIGUSR1)
MAX_LINE_BYTES = 1 << 16

Say = Callable[[str], None]


class Process(Protocol):
    """A child of this process's; `poll` gives its exit code, None while it runs, -n if signal n ended it."""

    @property
    def pid(self) -> int: ...

    def poll(self) -> int | None: ...

    def wait(self) -> int: ...

    def send_signal(self, number: int) -> None: ...


class WorkerProcess:
    """Leads a session of its own. `output` is read line by line; None: it is the launcher's own."""

    def __init__(self, rank: int, process: Process, output: IO[bytes] | None) -> None:
        self.rank, self.output, self._process = rank, output, process
        self._unread = b""

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """None while it runs; -n if signal n ended it."""
        return self._process.poll()

    def send(self, number: signal.Signals) -> None:
        if self.exit_code is None:
            self._process.send_signal(number)

    def read(self, say: Say) -> bool:
        """Says the whole lines that have come; false at the end."""
        assert self.output is not None
        data = os.read(self.output.fileno(), 1 << 16)
        *lines, self._unread = (self._unread + data).split(b"\n")
        if self._unread and (not data or len(self._unread) > MAX_LINE_BYTES):
            lines, self._unread = [*lines, self._unread], b""
        for line in lines:
            say(line.decode(errors="replace"))
        return bool(data)

    def end(self) -> None:
        """Nothing of it runs after this, nor of what it has started."""
        with contextlib.suppress(ProcessLookupError):  # the usual case: nobody is left
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def close(self) -> None:
        if self.output is not None:
            self.output.close()


def start_process(
    command: Sequence[str], environ: Mapping[str, str], *, shown: bool = False
) -> subprocess.Popen[bytes]:
    """A worker's process. `shown`: its output is the launcher's own; otherwise it is read."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ANSWERED)
    try:
        return subprocess.Popen(
            command,
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=None if shown else subprocess.PIPE,
            stderr=None if shown else subprocess.STDOUT,
            start_new_session=True,
        )
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
