"""Births: an agent's side of its nursery (`nursery.py`): workers are asked for, and come when it is ready to make them.

A nursery that ends by itself (what it was to load crashed, or there was no memory for it) is replaced by one that loads
nothing: then workers load what they need, and say themselves what is wrong with it.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import BinaryIO

from poseidon.run.nursery import MAX_PACKET_BYTES, Birth, take_in_orphans
from poseidon.run.process import WorkerProcess


class Child:
    """A worker's process (`process.Process`): a child of this one, although a nursery has made it."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._code: int | None = None

    @property
    def pid(self) -> int:
        return self._pid

    def poll(self) -> int | None:
        if self._code is None:
            pid, status = os.waitpid(self._pid, os.WNOHANG)
            self._code = os.waitstatus_to_exitcode(status) if pid else None
        return self._code

    def wait(self) -> int:
        if self._code is None:
            self._code = os.waitstatus_to_exitcode(os.waitpid(self._pid, 0)[1])
        return self._code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self._pid, number)


@dataclass(frozen=True, slots=True)
class Answer:
    """What a nursery says: which worker, and its process; 0: none."""

    number: int
    pid: int


@dataclass(slots=True)
class Asked:
    """A worker that is not there yet. `signals` are for it; `is_wanted` no more: it is ended as soon as it is there."""

    rank: int
    birth: Birth
    output: BinaryIO
    writing: int
    signals: list[signal.Signals] = field(default_factory=list)
    is_wanted: bool = True


class Births:
    """`modules` is what the nursery loads; `environ` what it and all workers have."""

    def __init__(self, environ: Mapping[str, str], modules: Sequence[str]) -> None:
        take_in_orphans()
        self._environ, self._modules = dict(environ), tuple(modules)
        self._asked: dict[int, Asked] = {}
        self._num_asked = 0
        self.socket, other_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        words = [sys.executable, "-m", "poseidon.run.nursery", str(other_end.fileno()), str(os.getpid()), *modules]
        self._nursery = subprocess.Popen(
            words,
            env=self._environ,
            pass_fds=(other_end.fileno(),),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        other_end.close()

    def ask(self, rank: int, command: Sequence[str], environ: Mapping[str, str]) -> None:
        """A worker, please; `hear` hands it over."""
        own = {name: text for name, text in environ.items() if self._environ.get(name) != text}
        reading, writing = os.pipe()
        self._take(Asked(rank, Birth(tuple(command), own), os.fdopen(reading, "rb", 0), writing))

    def signal(self, number: signal.Signals) -> None:
        """For all that are not there yet: they get it when they are."""
        for asked in self._asked.values():
            asked.signals.append(number)

    def cancel(self) -> list[int]:
        """Nobody is wanted any more; ranks that will not come."""
        ranks = [asked.rank for asked in self._asked.values() if asked.is_wanted]
        for asked in self._asked.values():
            asked.is_wanted = False
        return ranks

    def collect_orphans(self) -> None:
        """What workers had started and left behind has become this process's to collect, once it has ended. Not while
        there are workers: their exit codes are theirs to take."""
        if not self._asked:
            with contextlib.suppress(ChildProcessError):
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass

    def hear(self) -> WorkerProcess | None:
        """The worker that has come, after `socket` has shown that there is something to hear; None if nobody wants it
        any more. Raises EOFError if the nursery has ended (`successor`)."""
        answer = self._receive()
        if answer is None:
            raise EOFError("the nursery has ended")
        if not answer.pid:
            raise OSError("no process could be made for a worker; is there memory left on this host?")
        asked = self._asked.pop(answer.number)
        os.close(asked.writing)
        worker = WorkerProcess(asked.rank, Child(answer.pid), asked.output)
        if not asked.is_wanted:
            worker.end()
            worker.close()
            return None
        for number in asked.signals:
            worker.send(number)
        return worker

    def successor(self) -> Births:
        """Another nursery, which loads nothing and makes those that this one has not made."""
        if not self._modules:
            raise OSError("no process can be started on this host; is there memory left?")
        other = Births(self._environ, ())
        for asked in self._asked.values():
            other._take(asked)
        self._asked = {}
        self.close()
        return other

    def close(self) -> None:
        """Ends the nursery, and whom it is just making."""
        self._nursery.kill()
        self._nursery.wait()
        self.cancel()
        with contextlib.suppress(OSError, EOFError):
            while True:
                self.hear()
        for asked in self._asked.values():
            os.close(asked.writing)
            asked.output.close()
        self.socket.close()

    def _take(self, asked: Asked) -> None:
        self._num_asked += 1
        self._asked[self._num_asked] = asked
        words = {"command": asked.birth.command, "environ": dict(asked.birth.environ)}
        packet = json.dumps({"number": self._num_asked, **words}).encode()
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # it has ended: `hear` finds out
            socket.send_fds(self.socket, [packet], [asked.writing])

    def _receive(self) -> Answer | None:
        """None at the end."""
        try:
            data = self.socket.recv(MAX_PACKET_BYTES)
        except ConnectionResetError:  # it ended with something unread
            return None
        return Answer(**json.loads(data)) if data else None
