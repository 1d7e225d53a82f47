"""Workers that nobody stays with, as under a scheduler: one is lost, and each of the others ends by itself."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from bench.netlab import Lab, Links
from tests.faults.case import MAX_ITER, write_case
from tests.faults.ssh_lab import ROOT, Running

HOSTS, PER_HOST = 2, 2
REACH = 300  # a second or more: workers tell where they stand once a second
END_S = 60.0


@dataclass(frozen=True, slots=True)
class End:
    """How a survivor ended: exit code, last words, seconds after the harm."""

    code: int
    text: str
    seconds: float
    victim_pid: int


def lose_one(folder: Path, victim: int, number: signal.Signals, words: tuple[str, ...]) -> dict[int, End]:
    """By rank of the survivors. The worker is lost when training is well under way."""

    def harm(lab: Lab, workers: list[_Worker]) -> int:
        os.kill(workers[victim].process.pid, number)
        return workers[victim].process.pid

    return _ends(folder, words, harm, but=victim)


def cut_off(folder: Path, host: int, words: tuple[str, ...]) -> dict[int, End]:
    """By rank, of all workers: the cable of a host is pulled, and nobody on either side is ended by anybody."""

    def harm(lab: Lab, workers: list[_Worker]) -> int:
        lab.cut(host)
        return 0

    return _ends(folder, words, harm)


def _ends(
    folder: Path, words: tuple[str, ...], harm: Callable[[Lab, list[_Worker]], int], but: int | None = None
) -> dict[int, End]:
    write_case(folder)
    solver = folder / "solver.prototxt"
    solver.write_text(solver.read_text().replace(f"max_iter: {MAX_ITER}", "max_iter: 1000000"))
    with Lab(f"sv{os.getpid()}", HOSTS, Links(("none",))) as lab, contextlib.ExitStack() as stack:
        workers = [_start(lab, rank, folder, words) for rank in range(HOSTS * PER_HOST)]
        for worker in workers:
            stack.callback(worker.process.kill)
        workers[0].wait_for(f"Iteration {REACH} (")
        struck_s = time.monotonic()
        pid = harm(lab, workers)
        ends = {}
        for rank, worker in enumerate(workers):
            if rank != but:
                code = worker.wait(END_S)
                worker.reader.join()
                ends[rank] = End(code, worker.text[-4000:], worker.ended_s - struck_s, pid)
    return ends


class _Worker(Running):
    """One process; it is known when it ended, whoever is looked at first."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        super().__init__(process)
        self.ended_s = 0.0
        self.reader = threading.Thread(target=self._stay, daemon=True)
        self.reader.start()

    def _stay(self) -> None:
        self.read()
        self.process.wait()
        self.ended_s = time.monotonic()


def _start(lab: Lab, rank: int, folder: Path, words: tuple[str, ...]) -> _Worker:
    host, local = divmod(rank, PER_HOST)
    place = [f"RANK={rank}", f"WORLD_SIZE={HOSTS * PER_HOST}", f"LOCAL_RANK={local}", f"LOCAL_WORLD_SIZE={PER_HOST}"]
    command = ["env", "-u", "GLOO_SOCKET_IFNAME", *place, "POSEIDON_SECRET=" + "s" * 32, f"PYTHONPATH={ROOT}"]
    command += [sys.executable, "-m", "poseidon", "train", "--solver=solver.prototxt", "--plain", *words]
    process = lab.start(
        host, command, cwd=folder, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    return _Worker(process)  # type: ignore[arg-type] (text: its output is str)
