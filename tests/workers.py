"""A pool of worker processes for tests over real sockets, forked from one that imports torch once per session.

    outcomes = worker_pool.run(jobs.ring, size=3, num_elems=100)           one Outcome per rank
    values = worker_pool.results(jobs.ring, size=3, num_elems=100)         or raises the first error

A job is a function of the test suite, sent by name, with JSON arguments; it is called as `job(seat, **arguments)` in
`size` processes (`worker_process.py`). Nothing hangs: a process that does not answer in time is killed; one that ended
is replaced when it is needed again. Tests that use the pool carry `pytestmark = pytest.mark.xdist_group("workers")`:
with `--dist loadgroup` they share one pool, otherwise there is one pool per xdist worker at most.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

ROOT = Path(__file__).resolve().parent.parent
START_S = 120.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one rank answered; `error` is the exception's type, "Silent" if it never answered, "Dead" if it ended."""

    rank: int
    value: Any
    error: str | None
    text: str
    trace: str


class WorkerProcess:
    def __init__(self, nursery: socket.socket) -> None:
        jobs_read, self._jobs = os.pipe()
        self._answers, answers_write = os.pipe()
        socket.send_fds(nursery, [b"1"], [jobs_read, answers_write])
        self._pid = int.from_bytes(nursery.recv(8), "little")
        os.close(jobs_read)
        os.close(answers_write)
        self.is_alive = True

    def ask(self, job: dict[str, Any]) -> None:
        os.write(self._jobs, json.dumps(job).encode() + b"\n")

    def answer(self, deadline_s: float) -> dict[str, Any]:
        """The answer to the last job; a process that gives none is killed."""
        data = b""
        while not data.endswith(b"\n"):
            ready, _, _ = select.select([self._answers], [], [], max(0.0, deadline_s - time.monotonic()))
            part = os.read(self._answers, 1 << 16) if ready else b""
            if not part:
                self.close()
                return {"error": "Dead" if ready else "Silent", "text": "no answer"}
            data += part
        return json.loads(data)

    def close(self) -> None:
        if self.is_alive:
            self.is_alive = False
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGKILL)
            os.close(self._jobs)
            os.close(self._answers)


class WorkerPool:
    def __init__(self) -> None:
        self._store = dist.TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 (closed with the pool)
        self._members: list[WorkerProcess] = []
        self._num_jobs = 0
        self._nursery, other_end = socket.socketpair()
        environment = dict(os.environ, OMP_NUM_THREADS="1", TORCH_CPP_LOG_LEVEL="ERROR", PYTHONPATH=str(ROOT))
        self._parent = subprocess.Popen(
            [sys.executable, "-m", "tests.worker_process", str(other_end.fileno())],
            pass_fds=(other_end.fileno(),),
            cwd=ROOT,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
        )
        other_end.close()
        self._nursery.settimeout(START_S)

    def run(
        self,
        job: Callable[..., Any],
        size: int,
        *,
        timeout_s: float = 60.0,
        lost: tuple[int, ...] = (),
        **arguments: Any,
    ) -> list[Outcome]:
        """Each rank's outcome. Ranks in `lost` are not expected to answer: they are killed when the others have."""
        members = self._seats(size)
        self._num_jobs += 1
        for rank, member in enumerate(members):
            place = {"rank": rank, "size": size, "port": self._store.port, "prefix": str(self._num_jobs)}
            member.ask({"function": f"{job.__module__}:{job.__qualname__}", "arguments": arguments, **place})
        deadline_s = time.monotonic() + timeout_s
        answers = {rank: member.answer(deadline_s) for rank, member in enumerate(members) if rank not in lost}
        answers |= {rank: members[rank].answer(time.monotonic()) for rank in lost}
        return [
            Outcome(rank, found.get("value"), found.get("error"), found.get("text", ""), found.get("trace", ""))
            for rank, found in sorted(answers.items())
        ]

    def results(self, job: Callable[..., Any], size: int, *, timeout_s: float = 60.0, **arguments: Any) -> list[Any]:
        """Each rank's value; fails with the first rank's error if there is one."""
        outcomes = self.run(job, size, timeout_s=timeout_s, **arguments)
        failed = [outcome for outcome in outcomes if outcome.error is not None]
        if failed:
            lines = [f"rank {outcome.rank}: {outcome.error} {outcome.trace or outcome.text}" for outcome in failed]
            pytest.fail("\n".join([*lines, "what the processes wrote:", self._last_words()]))
        return [outcome.value for outcome in outcomes]

    def close(self) -> None:
        for member in self._members:
            member.close()
        self._nursery.close()
        self._parent.kill()
        self._parent.wait()
        self._log.close()

    def _last_words(self) -> str:
        size = os.fstat(self._log.fileno()).st_size
        return os.pread(self._log.fileno(), 4000, max(0, size - 4000)).decode(errors="replace")

    def _seats(self, size: int) -> list[WorkerProcess]:
        for place, member in enumerate(self._members):
            if not member.is_alive:
                self._members[place] = WorkerProcess(self._nursery)
        while len(self._members) < size:
            self._members.append(WorkerProcess(self._nursery))
        return self._members[:size]


@pytest.fixture(scope="session")
def worker_pool() -> Iterator[WorkerPool]:
    pool = WorkerPool()
    yield pool
    pool.close()
