"""Leftovers: processes of jobs on this host, found by what they are, and ended.

A process belongs to a job if its environment names the job and it runs Poseidon, or was started by one that does: the
variable alone is inherited by anything, an editor in the same shell too. Before a signal is sent it is made sure that
the number still means the process that was found.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import signal
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from poseidon.run.rendezvous import JOB
from poseidon.run.status import read_statuses, started_at, status_folder

END_S = 2.0
LOOK_S = 0.1

_PROGRAMS = ("poseidon", "caffe", "caffe_main")
_MODULE = re.compile(r"poseidon(\.[\w.]+)?")


@dataclass(frozen=True, slots=True)
class Found:
    """A process of this user's whose environment names a job. `started` tells it from a later one with its number."""

    pid: int
    parent: int
    started: int
    job: str
    is_poseidon: bool

    def send(self, number: signal.Signals) -> None:
        """If it is still there."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            handle = os.pidfd_open(self.pid)
            try:
                if started_at(self.pid) == self.started:  # and stays so while the handle is open
                    signal.pidfd_send_signal(handle, number)
            finally:
                os.close(handle)


def kill_jobs(job: str) -> list[dict[str, Any]]:
    """Ends the user's workers on this host, with what they started: those of a job, or all. Tells which.

    Launchers of this host go first, lest they start others.
    """
    for facts in read_statuses(status_folder(os.environ)):
        launcher = _process(facts["pid"]) if facts.get("is_launcher") and job in ("", facts.get("job")) else None
        if launcher is not None and launcher.is_poseidon:
            launcher.send(signal.SIGTERM)
    ended: dict[tuple[int, int], str] = {}
    deadline_s = time.monotonic() + END_S
    number = signal.SIGTERM
    while found := job_processes(job, ended.keys()):
        for process in found:
            ended[process.pid, process.started] = process.job
            process.send(number)
        time.sleep(LOOK_S)
        if time.monotonic() > deadline_s:
            if number is signal.SIGKILL:
                break
            number, deadline_s = signal.SIGKILL, time.monotonic() + END_S
    return [{"pid": pid, "job": name} for (pid, _), name in ended.items()]


def job_processes(job: str, known: Collection[tuple[int, int]] = ()) -> list[Found]:
    """Processes of a job (""; of any), without this one and those that have started it. `known`, by number and start,
    are counted although who started them may be gone already."""
    numbers = [int(folder.name) for folder in Path("/proc").iterdir() if folder.name.isdecimal()]
    named = {process.pid: process for process in map(_process, numbers) if process is not None and process.job}
    own = set(_line_of(os.getpid()))
    return [
        process
        for process in named.values()
        if job in ("", process.job)
        and process.pid not in own
        and ((process.pid, process.started) in known or _descends_from_poseidon(process, named))
    ]


def _descends_from_poseidon(process: Found, named: Mapping[int, Found]) -> bool:
    current: Found | None = process
    while current is not None:
        if current.is_poseidon and current.job == process.job:
            return True
        current = named.get(current.parent)
    return False


def _line_of(pid: int) -> list[int]:
    """A process, the one that has started it, and so on."""
    found = []
    while pid > 0:
        found.append(pid)
        try:
            pid = int(_stat(pid)[1])
        except OSError:
            break
    return found


def _process(pid: int) -> Found | None:
    """None if it is somebody else's, or dead."""
    folder = Path(f"/proc/{pid}")
    try:
        words = (folder / "cmdline").read_bytes().decode(errors="replace").split("\0")
        if folder.stat().st_uid != os.getuid() or words == [""]:
            return None
        variables = (folder / "environ").read_bytes().decode(errors="replace").split("\0")
        fields = _stat(pid)
    except OSError:
        return None
    job = next((entry.partition("=")[2] for entry in variables if entry.startswith(f"{JOB}=")), "")
    return Found(pid, int(fields[1]), int(fields[19]), job, is_poseidon(words))


def is_poseidon(words: Sequence[str]) -> bool:
    """True for a command line that runs Poseidon: one of its programs or modules, by itself or by torchrun."""
    names = [os.path.basename(word) for word in words[:2]]
    if names[0] in _PROGRAMS or (names[0].startswith("python") and names[-1] in _PROGRAMS):
        return True
    return any(
        (flag == "-m" and _MODULE.fullmatch(word)) or (flag == "-c" and "from poseidon.cli import" in word)
        for flag, word in itertools.pairwise(words)
    )


def _stat(pid: int) -> list[str]:
    """The fields of a process's line after its name."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
