"""Snapshots: weights, solver state and sidecar on the disk, and back.

    PREFIX_iter_N.caffemodel[.h5]      weights                                   Caffe reads and writes
    PREFIX_iter_N.solverstate[.h5]     iteration, step, history; names the weights     both of these
    PREFIX_iter_N.poseidon.json        checksums, data positions, random draws
    PREFIX_iter_N.poseidon.safetensors     tensors that these need (attached.py); mostly there are none

All are written under temporary names first. Then they take their names: weights, tensors, sidecar, and the state last.
A snapshot is there once its state is, so a kill at any moment leaves the last one whole, and a state never names
weights that are not there. What a killed process left under temporary names is removed at the next start.

Restoring checks before it changes anything. A damaged snapshot is named, and the newest good one in the same folder is
offered. Snapshots of Caffe have no sidecar: they are read, and found good if both files can be.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from poseidon.errors import SnapshotError, WeightsError
from poseidon.net.layer import count_of
from poseidon.net.weights_binary import stored_in_binary
from poseidon.net.weights_hdf5 import is_hdf5, stored_in_hdf5
from poseidon.net.weights_stored import StoredBlob
from poseidon.solver.attached import ENDING as TENSORS_ENDING
from poseidon.solver.attached import put_back, taken_out, write_attached
from poseidon.solver.disk import Disk, remove_leftovers, temporary_name
from poseidon.solver.sidecar import (
    ENDING,
    Sidecar,
    find_damage,
    fingerprint_of,
    read_sidecar,
    write_sidecar,
)
from poseidon.solver.state_file import StoredState, open_state

_STATE_NAME = re.compile(r"(?P<base>.*)_iter_(?P<iteration>\d+)\.solverstate(\.h5)?", re.DOTALL)


@dataclass(frozen=True, slots=True)
class SnapshotFiles:
    """Where one snapshot is, or will be."""

    model: Path
    state: Path
    sidecar: Path

    @property
    def tensors(self) -> Path:
        return _tensors_beside(self.sidecar)

    @classmethod
    def named(cls, prefix: str, iteration: int, *, as_hdf5: bool) -> SnapshotFiles:
        stem, tail = f"{prefix}_iter_{iteration}", ".h5" if as_hdf5 else ""
        return cls(Path(f"{stem}.caffemodel{tail}"), Path(f"{stem}.solverstate{tail}"), Path(f"{stem}{ENDING}"))


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A snapshot found good: its state, the weights that belong to it, and what the sidecar adds."""

    state: StoredState
    model: Path | None
    continuation: dict[str, Any] | None


# -- writing --------------------------------------------------------------------------------------------------------
def write_snapshot(
    files: SnapshotFiles,
    *,
    iteration: int,
    fill_model: Callable[[Path], None],
    fill_state: Callable[[Path], None],
    continuation: dict[str, Any],
    disk: Disk,
) -> None:
    """Writes the files. `fill_…` write the contents to a path they are given."""
    named = (files.model, files.state, files.tensors, files.sidecar)
    model, state, attached, sidecar = temporary = [temporary_name(path) for path in named]
    noted, tensors = taken_out(continuation)
    try:
        disk.create(model, fill_model)
        disk.create(state, fill_state)
        prints = {files.model.name: fingerprint_of(model), files.state.name: fingerprint_of(state)}
        if tensors:
            disk.create(attached, lambda path: write_attached(tensors, path))
            prints[files.tensors.name] = fingerprint_of(attached)
        disk.create(sidecar, lambda path: write_sidecar(Sidecar(iteration, prints, noted), path))
        disk.publish(model, files.model)
        if tensors:
            disk.publish(attached, files.tensors)
        disk.publish(sidecar, files.sidecar)
        # The state must not get its name before the others surely have theirs.
        disk.settle(files.state.parent)
        disk.publish(state, files.state)
        disk.settle(files.state.parent)
    except OSError as problem:
        raise SnapshotError(f"{files.state}: cannot be written: {problem}; the snapshots before it are whole") from None
    finally:
        for path in temporary:
            path.unlink(missing_ok=True)


def check_writable(prefix: str) -> None:
    """Raises if there can be no snapshots under this prefix."""
    probe = temporary_name(Path(f"{prefix}_iter_0.probe"))
    try:
        probe.touch()
        probe.unlink(missing_ok=True)  # workers that are threads of one process all have this name for it
    except OSError as problem:
        raise SnapshotError(
            f"cannot write to snapshot_prefix {prefix!r}: {problem.strerror}; the folder must exist and be writable"
        ) from None


def clean(prefix: str) -> list[Path]:
    """Removes what killed processes left of unfinished snapshots, and tells what."""
    start = Path(f"{prefix}_iter_")
    return remove_leftovers(start.parent, start.name)


# -- reading --------------------------------------------------------------------------------------------------------
@contextmanager
def open_snapshot(path: str | os.PathLike[str]) -> Iterator[Snapshot]:
    """The snapshot a .solverstate belongs to, checked. Damage raises, with the newest good one beside it on offer."""
    state_path = Path(path)
    with ExitStack() as opened:
        try:
            snapshot = opened.enter_context(_opened(state_path))
        except SnapshotError as problem:
            raise with_offer(problem, state_path) from None
        yield snapshot


def with_offer(problem: Exception, state_path: Path) -> SnapshotError:
    """The problem of a snapshot, with what to restore instead; if the files are good, it is not their problem."""
    match = _STATE_NAME.fullmatch(state_path.name)
    good = _newest_good(state_path.parent, match["base"]) if match else None
    if state_path.is_file() and is_good(state_path):
        return SnapshotError(f"{problem}; the files are whole, so it belongs to another net")
    if good is None:
        return SnapshotError(f"{problem}; there is no good snapshot beside it")
    return SnapshotError(f"{problem}; the newest good snapshot beside it is {good}: restore that one")


def newest_good(prefix: str, job: str = "") -> Path | None:
    """The .solverstate with the highest iteration that can be restored, or None; of a job, if one is named."""
    start = Path(f"{prefix}_iter_")
    return _newest_good(start.parent, start.name.removesuffix("_iter_"), job)


def prune(prefix: str, keep: int, newest: int) -> list[Path]:
    """Of the snapshots up to iteration `newest`, removes all but the last `keep`, and tells which.

    The state goes first: without it nobody takes the rest for a snapshot.
    """
    start = Path(f"{prefix}_iter_")
    found = [entry for entry in _found(start.parent, start.name.removesuffix("_iter_")) if entry[0] <= newest]
    iterations = sorted({iteration for iteration, _ in found}, reverse=True)
    removed = []
    for iteration, state in found:
        if iteration in iterations[keep:]:
            stem, tail = f"{prefix}_iter_{iteration}", ".h5" if state.suffix == ".h5" else ""
            sidecar = Path(f"{stem}{ENDING}")
            for path in (state, Path(f"{stem}.caffemodel{tail}"), sidecar, _tensors_beside(sidecar)):
                path.unlink(missing_ok=True)
            removed.append(state)
    return removed


def is_good(state_path: Path) -> bool:
    """True if this snapshot can be restored, as far as its files tell."""
    try:
        with _opened(state_path) as snapshot:
            # A sidecar has vouched for the contents already. Caffe's own files can only be read.
            if snapshot.continuation is None:
                _read_whole(snapshot, state_path)
    except (SnapshotError, WeightsError):
        return False
    return True


def _newest_good(folder: Path, base: str, job: str = "") -> Path | None:
    newest_first = (path for _, path in _found(folder, base))
    return next((path for path in newest_first if is_good(path) and (not job or _job_of(path) == job)), None)


def _found(folder: Path, base: str) -> list[tuple[int, Path]]:
    """Iterations and states of the snapshots of a prefix, the newest first."""
    matches = [(path, _STATE_NAME.fullmatch(path.name)) for path in _listed(folder)]
    found = [(int(match["iteration"]), path) for path, match in matches if match and match["base"] == base]
    return sorted(found, key=lambda entry: (-entry[0], str(entry[1])))


def _job_of(state_path: Path) -> str:
    """The job that wrote a snapshot; empty if nobody said."""
    with _opened(state_path) as snapshot:
        return "" if snapshot.continuation is None else str(snapshot.continuation.get("job", ""))


@contextmanager
def _opened(state_path: Path) -> Iterator[Snapshot]:
    if not state_path.is_file():
        raise SnapshotError(f"{state_path}: no such file")
    sidecar = _checked_sidecar(state_path)
    with open_state(state_path) as state:
        if state.iteration < 0:
            raise SnapshotError(f"snapshot {state_path} is damaged: iteration {state.iteration}, expected 0 or more")
        model = _model_of(state, state_path, sidecar)
        yield Snapshot(state, model, None if sidecar is None else _whole_continuation(sidecar, state_path))


def _checked_sidecar(state_path: Path) -> Sidecar | None:
    """The sidecar once the files it vouches for are found whole; None if there is none for this state."""
    match = _STATE_NAME.fullmatch(state_path.name)
    if match is None:
        return None
    sidecar = read_sidecar(state_path.with_name(f"{match['base']}_iter_{match['iteration']}{ENDING}"))
    if sidecar is None or state_path.name not in sidecar.files:
        return None
    for name, expected in sidecar.files.items():
        damage = find_damage(state_path.with_name(Path(name).name), expected)
        if damage is not None:
            raise SnapshotError(f"snapshot {state_path} is damaged: {damage}")
    return sidecar


def _whole_continuation(sidecar: Sidecar, state_path: Path) -> dict[str, Any]:
    names = [name for name in sidecar.files if name.endswith(TENSORS_ENDING)]
    found = put_back(sidecar.continuation, state_path.with_name(names[0] if names else "missing"))
    return dict(found)


def _tensors_beside(sidecar: Path) -> Path:
    return sidecar.with_name(sidecar.name.removesuffix(ENDING) + TENSORS_ENDING)


def _model_of(state: StoredState, state_path: Path, sidecar: Sidecar | None) -> Path | None:
    """Beside the state if the sidecar has vouched for it there; else where the state says, as Caffe takes it."""
    if state.learned_net is None:
        return None
    named = Path(state.learned_net)
    beside = state_path.with_name(named.name or "unnamed")
    if sidecar is not None and named.name in sidecar.files:
        return beside
    for path in (named, beside):
        if path.is_file():
            return path
    raise SnapshotError(f"snapshot {state_path} is incomplete: its weights {state.learned_net} are missing")


def _read_whole(snapshot: Snapshot, state_path: Path) -> None:
    for index, blob in enumerate(snapshot.state.history):
        _read_bounded(blob, state_path, f"history {index}")
    model = snapshot.model
    if model is None:
        return
    with stored_in_hdf5(str(model)) if is_hdf5(str(model)) else stored_in_binary(str(model)) as layers:
        for layer in layers:
            for name, blob in layer.blobs.items():
                _read_bounded(blob, model, f"layer {layer.name!r}, blob {name}")


def _read_bounded(blob: StoredBlob, path: Path, what: str) -> None:
    """Reads it to see whether that works, unless it claims more values than the file has bytes."""
    if count_of(blob.shape) > path.stat().st_size:
        raise SnapshotError(f"{path}: {what} claims {count_of(blob.shape)} values in a file smaller than that")
    blob.read(f"{path}: {what}")


def _listed(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except OSError:
        return []
