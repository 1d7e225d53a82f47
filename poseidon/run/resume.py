"""Resume: which snapshot a run goes on from.

    --snapshot=FILE     that one
    --snapshot=auto     the newest good one under the solver's snapshot_prefix; a fresh start if there is none
    after a restart     the newest good one that this very job has written; until there is one, as at the first start

Workers of several hosts need not share a disk: the newest one that anybody has is handed to those who lack it, so it is
enough that rank 0's host keeps what it wrote.
"""

from __future__ import annotations

import json
import logging
from dataclasses import astuple, dataclass, replace
from pathlib import Path

import torch

from poseidon.errors import SnapshotError, SolverError
from poseidon.run.attempt import attempt
from poseidon.run.roundtable import Roundtable
from poseidon.solver.disk import Disk, temporary_name
from poseidon.solver.sidecar import ENDING, fingerprint_of, read_sidecar
from poseidon.solver.snapshot import newest_good, open_snapshot

AUTO = "auto"
_PIECE_BYTES = 16 << 20

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Resume:
    """`wanted`: a path, `auto`, or nothing. `job` names the job; `is_restart`: it has run before."""

    wanted: str = ""
    job: str = ""
    is_restart: bool = False

    @property
    def asked(self) -> Resume:
        """What a user has asked for, which must be the same for all workers."""
        return replace(self, is_restart=False)

    @property
    def is_search(self) -> bool:
        """True if the disk has to be looked at, and may be found otherwise on other hosts."""
        return self.wanted == AUTO or (self.is_restart and bool(self.job))

    def __str__(self) -> str:
        """What all workers must want alike; where on its host each of them has a file is its own affair."""
        start = {"": "no snapshot", AUTO: "the newest snapshot"}.get(self.wanted, "a snapshot by its name")
        return f"the newest snapshot of job {self.job}, else {start}" if self.is_restart and self.job else start


def find_snapshot(prefix: str, resume: Resume) -> str:
    """The .solverstate to go on from, as this host's disk has it; empty for a fresh start."""
    found = _Found.on_disk(prefix, resume)
    _warn_of_lost_work(prefix, resume, found)
    return found.path


def _warn_of_lost_work(prefix: str, resume: Resume, found: _Found) -> None:
    if resume.is_restart and resume.job and not found.is_own:
        start = f"goes on from {found.path}, as at its first start" if found.path else "begins anew"
        _log.warning(
            "no snapshot of this job (%s_iter_…) is on any host that is left: training %s. Rank 0's host keeps "
            "snapshots; if it may be lost, put snapshot_prefix on a disk that all hosts share",
            prefix,
            start,
        )


# -- several workers --------------------------------------------------------------------------------------------------
def agree_on_snapshot(table: Roundtable, prefix: str, resume: Resume) -> str:
    """The same for all workers, which call it together: everybody has the snapshot afterwards."""
    # Agents of torchrun count restarts each for itself: a machine that has come later knows of none.
    resume = replace(resume, is_restart=bool(table.gather(torch.tensor(resume.is_restart)).any()))
    if not resume.is_search:
        return resume.wanted
    own = attempt(table, lambda: _Found.on_disk(prefix, resume).marked())
    assert own is not None
    found = [_Found(*json.loads(text)) for text in table.gather_texts(json.dumps(astuple(own)))]
    newest = max(found, key=lambda entry: (entry.is_own, entry.iteration))
    if table.rank == 0:
        _warn_of_lost_work(prefix, resume, newest)
    if all((entry.iteration, entry.mark) == (newest.iteration, newest.mark) for entry in found):
        return own.path
    owner = found.index(newest)
    lacks = (own.iteration, own.mark) != (newest.iteration, newest.mark)
    taken = _hand_out(table, owner, newest.path, prefix, lacks=lacks)
    return taken if lacks else own.path


@dataclass(frozen=True, slots=True)
class _Found:
    """A snapshot on one worker's disk, empty if there is none. `is_own`: this job has written it, in an earlier life.
    `mark` tells its contents from others'."""

    path: str = ""
    is_own: bool = False
    iteration: int = -1
    mark: str = ""

    @classmethod
    def on_disk(cls, prefix: str, resume: Resume) -> _Found:
        own = newest_good(prefix, resume.job) if resume.is_restart and resume.job else None
        if own is not None:
            return cls(str(own), is_own=True)
        if resume.wanted != AUTO:
            return cls(resume.wanted)
        return cls(str(newest_good(prefix) or ""))

    def marked(self) -> _Found:
        """With what its files tell."""
        if not self.path:
            return self
        with open_snapshot(self.path) as snapshot:
            return replace(self, iteration=snapshot.state.iteration, mark=fingerprint_of(Path(self.path)).sha256)


def _files_of(state: Path) -> list[Path]:
    """All that the sidecar vouches for, and the state last: a snapshot is there once its state is."""
    with open_snapshot(state) as snapshot:
        model = [] if snapshot.model is None else [snapshot.model]
        has_sidecar = snapshot.continuation is not None
    if not has_sidecar:  # one of Caffe's
        return [*model, state]
    path = state.with_name(state.name.partition(".solverstate")[0] + ENDING)
    sidecar = read_sidecar(path)
    assert sidecar is not None, "it has just been read"
    vouched = [state.with_name(Path(name).name) for name in sidecar.files]
    return [*dict.fromkeys((*model, *(file for file in vouched if file != state), path)), state]


def _hand_out(table: Roundtable, owner: int, path: str, prefix: str, *, lacks: bool) -> str:
    """Copies a snapshot's files from one worker to those who lack it; where they have it then."""
    is_owner = table.rank == owner
    files = attempt(table, lambda: _files_of(Path(path)), by=owner) or []
    names = json.loads(table.gather_texts(json.dumps([[file.name, file.stat().st_size] for file in files]))[owner])
    folder, placed = Path(f"{prefix}_iter_").parent, ""
    for index, (name, size) in enumerate(names):
        target = folder / Path(name).name
        whole = _whole(table, owner, files[index] if is_owner else None, int(size))
        attempt(table, lambda whole=whole, target=target: _place(whole, target) if lacks else None)  # type: ignore[misc]
        placed = str(target)
    return placed


def _whole(table: Roundtable, owner: int, file: Path | None, size: int) -> bytes:
    """The contents of a file that one worker has, on all workers."""
    data = bytearray(file.read_bytes()) if file is not None else bytearray(size)
    if len(data) != size:
        raise SnapshotError(f"{file} changed while it was handed to the other workers; start again")
    for start in range(0, size, _PIECE_BYTES):
        piece = torch.frombuffer(data, dtype=torch.uint8, offset=start, count=min(_PIECE_BYTES, size - start))
        table.copy(piece, owner)
    return bytes(data)


def _place(data: bytes, target: Path) -> None:
    disk, temporary = Disk(), temporary_name(target)
    try:
        disk.create(temporary, lambda path: _write(path, data))
        disk.publish(temporary, target)
    except OSError as problem:
        raise SolverError(f"{target}: the snapshot to go on from cannot be written here: {problem}") from None
    finally:
        temporary.unlink(missing_ok=True)


def _write(path: Path, data: bytes) -> None:
    path.write_bytes(data)
