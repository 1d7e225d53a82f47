"""Processes of the test worker pool: a parent that imports torch once and forks workers, and what a worker does.

    python -m tests.worker_process SOCKET_FD       for each pair of pipe ends that arrives: forks, answers with the pid

A worker reads jobs, one JSON object per line, calls the named function and answers alike:

    {"function": "tests.transport.jobs:ring", "rank": 1, "size": 3, "port": 4711, "prefix": "7", "arguments": {…}}
    {"value": …}   or   {"error": "PeerLost", "text": "rank 2 (host …) is lost: …", "trace": "…"}

It ends when its pipe does. Only functions of this test suite can be called.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import signal
import socket
import sys
import traceback
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch._dynamo  # which makers of optimizers import: seconds, so not in every worker again
import torch.distributed as dist


@dataclass(frozen=True, slots=True)
class Seat:
    """A process's part in one job, and the store through which the processes of the job meet."""

    rank: int
    size: int
    store: dist.Store


def answer(job: dict[str, Any]) -> dict[str, Any]:
    module, name = job["function"].split(":")
    assert module.startswith("tests."), module
    try:
        server = dist.TCPStore("127.0.0.1", job["port"], None, False, timedelta(seconds=30))
        seat = Seat(job["rank"], job["size"], dist.PrefixStore(job["prefix"], server))
        return {"value": getattr(importlib.import_module(module), name)(seat, **job["arguments"])}
    except Exception as error:  # told to the test that asked
        return {"error": type(error).__name__, "text": str(error), "trace": traceback.format_exc()}


def serve(jobs_fd: int, answers_fd: int) -> None:
    torch.set_num_threads(1)
    with os.fdopen(jobs_fd, "r") as jobs, os.fdopen(answers_fd, "w") as answers:
        for line in jobs:
            answers.write(json.dumps(answer(json.loads(line))) + "\n")
            answers.flush()
            gc.collect()  # transports have cycles, and threads that wake up now and then


def main() -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # workers that end leave nothing behind
    gc.collect()
    gc.freeze()
    with socket.socket(fileno=int(sys.argv[1])) as requests:
        while True:
            message, fds, _, _ = socket.recv_fds(requests, 1, 2)
            if not message:
                return
            pid = os.fork()
            if pid == 0:
                requests.close()
                serve(*fds)
                os._exit(0)
            for fd in fds:
                os.close(fd)
            requests.sendall(pid.to_bytes(8, "little"))


if __name__ == "__main__":
    main()
