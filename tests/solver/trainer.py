"""A process that trains on command, to be killed. Started once (importing torch takes seconds), it forks for each run.

    python -m tests.solver.trainer

Commands and answers are JSON, one per line, on standard input and output:

    ← {"folder": where to run, "solver": prototxt, "net": prototxt, "dies_at": 7 or null, "how": before, torn or after}
    → {"pid": …}                    the child's
    → {"started": iteration}        after restoring the newest good snapshot, if there is one
    → {"op": 3}                     the child begins its 3rd disk operation
    → {"iteration": 5}              an iteration is done
    → {"written": 6}                a snapshot is on the disk
    → {"exit": -9}                  minus the signal, or the exit code

With `dies_at` the child sends itself SIGKILL at that disk operation: before it, with the file half written, or after.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from poseidon.solver import Solver, events, newest_good
from poseidon.solver.disk import Disk
from poseidon.spec import parse, parse_solver


def tell(**facts: Any) -> None:
    os.write(1, (json.dumps(facts) + "\n").encode())  # one write: lines of parent and child never mix


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class DeadlyDisk(Disk):
    def __init__(self, dies_at: int | None, how: str) -> None:
        self._num_ops = 0
        self._dies_at = dies_at
        self._how = how

    def create(self, path: Path, fill: Callable[[Path], None]) -> None:
        def torn() -> None:
            fill(path)
            os.truncate(path, path.stat().st_size // 2)

        self._operate(lambda: super(DeadlyDisk, self).create(path, fill), torn)

    def publish(self, temporary: Path, path: Path) -> None:
        self._operate(lambda: super(DeadlyDisk, self).publish(temporary, path))

    def settle(self, folder: Path) -> None:
        self._operate(lambda: super(DeadlyDisk, self).settle(folder))

    def _operate(self, whole: Callable[[], None], torn: Callable[[], None] = lambda: None) -> None:
        tell(op=self._num_ops)
        is_last = self._num_ops == self._dies_at
        self._num_ops += 1
        if is_last and self._how == "before":
            die()
        if is_last and self._how == "torn":
            torn()
            die()
        whole()
        if is_last:
            die()


def train(command: dict[str, Any]) -> None:
    os.chdir(command["folder"])
    param = parse_solver(command["solver"])
    parse(command["net"], param.net_param, "net.prototxt")
    solver = Solver(param, listeners=[listener], disk=DeadlyDisk(command["dies_at"], command["how"]))
    good = newest_good(param.snapshot_prefix)
    if good is not None:
        solver.restore(good)
    tell(started=solver.iter)
    solver.solve()


def listener(event: events.Event) -> None:
    if isinstance(event, events.IterationDone):
        tell(iteration=event.iteration)
    elif isinstance(event, events.SnapshotWritten):
        tell(written=event.iteration)


def main() -> None:
    torch.set_num_threads(1)
    for line in sys.stdin:
        command = json.loads(line)
        pid = os.fork()
        if pid == 0:
            train(command)
            os._exit(0)
        tell(pid=pid)
        _, status = os.waitpid(pid, 0)
        tell(exit=-os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status))


if __name__ == "__main__":
    main()
