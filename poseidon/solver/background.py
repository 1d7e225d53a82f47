"""Background writing of snapshots: from a copy, while training goes on; one at a time, in the order they were taken.

What cannot be written (a full disk, a folder that has become read-only) is reported, and training goes on: snapshots
before it are whole. A process that ends normally waits for its last snapshot.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

from poseidon.errors import PoseidonError
from poseidon.solver.snapshot import SnapshotFiles


@dataclass(frozen=True, slots=True)
class Outcome:
    """How the writing of a snapshot ended; `problem` is empty if all its files are there."""

    iteration: int
    files: SnapshotFiles
    problem: str = ""


class BackgroundWriter:
    """Only the thread that trains calls it."""

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._outcomes: list[Outcome] = []

    def start(self, iteration: int, files: SnapshotFiles, write: Callable[[], None]) -> None:
        """Begins to write, once the snapshot before this one is over."""
        self._join()
        self._thread = threading.Thread(target=self._run, args=(iteration, files, write), name="snapshot")
        self._thread.start()

    def over(self) -> list[Outcome]:
        """What has come to an end since the last look."""
        if self._thread is not None and not self._thread.is_alive():
            self._join()
        if self._thread is not None:
            return []
        found, self._outcomes = self._outcomes, []
        return found

    def wait(self) -> list[Outcome]:
        """The same, when nothing is being written any more."""
        self._join()
        return self.over()

    def _run(self, iteration: int, files: SnapshotFiles, write: Callable[[], None]) -> None:
        problem = ""
        try:
            write()
        except (PoseidonError, OSError, MemoryError) as error:
            problem = str(error) or type(error).__name__
        self._outcomes.append(Outcome(iteration, files, problem))

    def _join(self) -> None:
        if self._thread is not None:
            self._thread.join()
            self._thread = None
