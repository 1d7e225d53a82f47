"""Lookout: rank 0's thread that keeps the job's status file up to date, reports an exchange that takes too long, and
declares workers lost that hang (`standstill.py`)."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from poseidon.run.standstill import Standstill
from poseidon.run.status import StatusFile, status_folder
from poseidon.run.stuck import longest_wait_s, report, waits_text
from poseidon.transport.base import Peer
from poseidon.transport.vitals import Vitals

LOOK_S = 1.0
STACKS_S = 5.0


class Watched(Protocol):
    """What a lookout looks at: a transport, or one worker that is alone."""

    peers: tuple[Peer, ...]

    def vitals(self) -> dict[int, Vitals]: ...

    def ask_stacks(self, timeout_s: float) -> dict[int, str]: ...

    def declare_lost(self, ranks: tuple[int, ...], how: str) -> None: ...


@dataclass(frozen=True, slots=True)
class Outlook:
    """`facts` about the job; `report_s`: how long an exchange may take; `prefix` of the report's file; `hang_s`: how
    long a worker may stand still while all others wait for it."""

    facts: Mapping[str, Any]
    prefix: str
    report_s: float
    hang_s: float


class Lookout:
    """As a context it looks until the end. `tell` shows the user lines."""

    def __init__(self, watched: Watched, outlook: Outlook, tell: Callable[[Sequence[str]], None]) -> None:
        self._watched, self._outlook, self._tell = watched, outlook, tell
        self._file = StatusFile(status_folder(os.environ), str(outlook.facts.get("job", "")))
        self._began = time.time()
        self._has_reported = False
        self._standstill = Standstill(outlook.hang_s)
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._look, name="lookout", daemon=True)

    def __enter__(self) -> Lookout:
        self._thread.start()
        return self

    def __exit__(self, *ended: object) -> None:
        self._is_over.set()
        self._thread.join(LOOK_S)
        self._file.remove()

    def _look(self) -> None:
        while not self._is_over.wait(LOOK_S):
            vitals = self._watched.vitals()
            self._file.write(self._status(vitals))
            waited_s = longest_wait_s(vitals)
            if waited_s <= self._outlook.report_s:
                self._has_reported = False
            elif not self._has_reported:
                self._has_reported = True
                self._report(vitals)
            hanging = self._standstill.look(vitals)
            if hanging:
                seconds = f"{self._outlook.hang_s:g} s"
                how = f"it has made no progress for {seconds} while all others wait for it, so it hangs"
                self._watched.declare_lost(hanging, how)
                return

    def _status(self, vitals: Mapping[int, Vitals]) -> dict[str, Any]:
        workers = [
            {"rank": rank, "host": self._watched.peers[rank].host, "pid": self._watched.peers[rank].pid}
            | entry.to_json()
            for rank, entry in vitals.items()
        ]
        return {**self._outlook.facts, "began": self._began, "written": time.time(), "workers": workers}

    def _report(self, vitals: Mapping[int, Vitals]) -> None:
        text = report(self._watched.peers, vitals, self._watched.ask_stacks(STACKS_S))
        clock = min(entry.clock for entry in vitals.values())
        path = Path(f"{self._outlook.prefix}_stuck_{clock}.txt")
        where = f"the stacks of all workers are in {path}"
        try:
            path.write_text(text)
        except OSError as problem:
            where = f"their stacks could not be written to {path}: {problem.strerror}"
        waited = f"an exchange has taken {longest_wait_s(vitals):.0f} s"
        with contextlib.suppress(ValueError):  # the stream was closed: the run is ending
            self._tell([f"{waited}; {where}", *waits_text(self._watched.peers, vitals).splitlines()])
