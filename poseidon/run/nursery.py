"""Nursery: a process of a host that has loaded what workers need, and forks them: a worker begins in milliseconds.

To load PyTorch takes seconds, and it would have to be done again after every failure. `python -m poseidon.run.nursery
FD AGENT_PID MODULE …` does it once, beside a running job. It computes nothing and starts no threads: a fork is sound.

    agent → nursery   {"number", "command", "environ"} and the file for its output        (a socket, one packet each)
    nursery → agent   {"number", "pid"}; pid 0: it could not be made

    agent ── nursery ── midwife ── worker

The midwife ends at once. Then the worker is the agent's child, since the agent takes in orphans (`take_in_orphans`),
and outlives the nursery.

A worker leads a session of its own before its number is told, and does nothing before that. It runs its command as
Python would, if that is a command of this Python's (`-m module …`, `-c code …`); anything else replaces it. `environ`
is what it has besides the nursery's variables. Modules that cannot be loaded are left to the worker, which says why.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import json
import os
import runpy
import signal
import socket
import sys
import types
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from poseidon.run.launcher import follow
from poseidon.run.process import ANSWERED

MAX_PACKET_BYTES = 1 << 17
_PR_SET_NAME, _PR_SET_CHILD_SUBREAPER = 15, 36


@dataclass(frozen=True, slots=True)
class Birth:
    """A worker that was asked for: its command, and what its environment has besides the nursery's."""

    command: tuple[str, ...]
    environ: Mapping[str, str]


def take_in_orphans() -> None:
    """From now on processes whose parent ends become children of this one, if they descend from it."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1)


# -- in the nursery ---------------------------------------------------------------------------------------------------
def main(words: Sequence[str]) -> None:
    agent = socket.socket(fileno=int(words[0]))
    follow(int(words[1]))
    signal.pthread_sigmask(signal.SIG_BLOCK, ANSWERED)  # until a worker opens itself to them
    for module in words[2:]:
        with contextlib.suppress(Exception):  # whatever it is, the worker meets it again and says so
            importlib.import_module(module)
    gc.collect()
    gc.freeze()  # so that no collection touches, and thereby copies, what workers share
    birth = _serve(agent)
    if birth is not None:  # this is the worker
        _become(birth)


def _serve(agent: socket.socket) -> Birth | None:
    """Forks workers as long as the agent is there. Returns in a worker with what it is to do, in the nursery at the
    end."""
    while True:
        data, files, _, _ = socket.recv_fds(agent, MAX_PACKET_BYTES, 1)
        if not data:
            return None
        asked = json.loads(data)
        birth = Birth(tuple(asked["command"]), asked["environ"])
        if not _bear(agent, int(asked["number"])):
            _take_output(files[0])
            agent.close()
            return birth
        os.close(files[0])


def _bear(agent: socket.socket, number: int) -> bool:
    """Makes a worker and tells its pid; true in the nursery, false in the worker."""
    told, tell = os.pipe()
    may_begin, begin = os.pipe()
    midwife = _fork()
    if midwife == 0:
        if _fork():  # or the fork failed: then nobody tells a pid
            os._exit(0)
        os.setsid()
        os.write(tell, os.getpid().to_bytes(8, "little"))
        for descriptor in (told, tell, begin):
            os.close(descriptor)
        is_wanted = os.read(may_begin, 1)
        os.close(may_begin)
        if not is_wanted:  # the nursery was ended in the midst of it
            os._exit(1)
        return False
    os.close(tell)
    os.close(may_begin)
    if midwife > 0:
        os.waitpid(midwife, 0)  # from here on the worker is the agent's
    pid = int.from_bytes(os.read(told, 8), "little")
    with contextlib.suppress(OSError):  # the agent is gone: the worker finds out
        agent.send(json.dumps({"number": number, "pid": pid}).encode())
        os.write(begin, b"1")
    os.close(told)
    os.close(begin)
    return True


def _fork() -> int:
    """As os.fork; -1 if there is no memory or no process left."""
    try:
        return os.fork()
    except OSError:
        return -1


# -- in the worker ----------------------------------------------------------------------------------------------------
def _take_output(file: int) -> None:
    for stream in (1, 2):
        os.dup2(file, stream)
    os.close(file)


def _become(birth: Birth) -> None:
    """Runs a command in this process."""
    os.environ.update(birth.environ)
    python, *words = birth.command
    rank = birth.environ.get("RANK", "")
    ctypes.CDLL(None).prctl(_PR_SET_NAME, f"poseidon {rank}".strip().encode())
    if python == sys.executable and words[:1] == ["-m"]:
        sys.argv = [sys.argv[0], *words[2:]]
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
    elif python == sys.executable and words[:1] == ["-c"]:
        sys.argv = ["-c", *words[2:]]
        sys.modules["__main__"] = module = types.ModuleType("__main__")
        exec(compile(words[1], "<string>", "exec"), module.__dict__)
    else:
        os.execvpe(python, birth.command, os.environ)


if __name__ == "__main__":
    main(sys.argv[1:])
