"""The .solverstate file: where training stands, apart from the weights.

    binary      a SolverState message: iter, learned_net, history (BlobProtos), current_step
    HDF5        int32 datasets `iter` and `current_step` of shape (1,), a string `learned_net`, a group `history` with
                a dataset 0, 1, … per blob

`learned_net` names the weights file that belongs to it. History blobs come in the order of the net's parameters; a rule
with two histories has all the first ones, then all the second ones. Files are told apart by their contents.

What is read may be damaged or made to harm: history is handed out unread, with its shape, so that nobody reads more
than he has room for.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import h5py
import numpy as np

from poseidon.errors import SnapshotError, SpecError, WeightsError
from poseidon.net.weights_binary import ProtoBlob
from poseidon.net.weights_hdf5 import H5_ERRORS, H5Blob, hdf5_member, is_hdf5
from poseidon.net.weights_stored import StoredBlob
from poseidon.spec import caffe_pb2
from poseidon.spec.binary import read_binary, serialize
from poseidon.spec.blobs import array_to_blob

_MAX_NAME_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class SolverState:
    """Contents of a .solverstate to be written."""

    iteration: int
    current_step: int
    learned_net: str
    history: Sequence[np.ndarray]


@dataclass(frozen=True, slots=True)
class StoredState:
    """Contents of a .solverstate as read; `learned_net` None: it names no weights."""

    iteration: int
    current_step: int
    learned_net: str | None
    history: Sequence[StoredBlob]


def write_state(state: SolverState, path: Path, *, as_hdf5: bool) -> None:
    """Writes the file, not atomically: that is the caller's."""
    if as_hdf5:
        _write_hdf5(state, path)
    else:
        _write_binary(state, path)


@contextmanager
def open_state(path: Path) -> Iterator[StoredState]:
    """The state in a file, which stays open while its history is read."""
    if is_hdf5(str(path)):
        with _open_hdf5(path) as state:
            yield state
    else:
        yield _read_binary(path)


# -- binary ---------------------------------------------------------------------------------------------------------
def _write_binary(state: SolverState, path: Path) -> None:
    message = caffe_pb2.SolverState(
        iter=state.iteration, learned_net=state.learned_net, current_step=state.current_step
    )
    try:
        for blob in state.history:
            message.history.append(array_to_blob(blob))
        path.write_bytes(serialize(message, str(path)))
    except SpecError as problem:
        raise SnapshotError(f"{problem}; set snapshot_format: HDF5 in the solver") from None


def _read_binary(path: Path) -> StoredState:
    try:
        message = read_binary(path, caffe_pb2.SolverState)
    except SpecError as problem:
        raise SnapshotError(str(problem)) from None
    if not message.HasField("iter"):
        raise SnapshotError(f"{path}: names no iteration, expected a solver state; is this a .solverstate?")
    return StoredState(
        message.iter,
        message.current_step,
        message.learned_net if message.HasField("learned_net") else None,
        [ProtoBlob(blob) for blob in message.history],
    )


# -- HDF5 -----------------------------------------------------------------------------------------------------------
def _write_hdf5(state: SolverState, path: Path) -> None:
    with h5py.File(path, "w") as file:
        file.create_dataset("iter", data=np.array([state.iteration], np.int32))
        _write_c_string(file, "learned_net", state.learned_net)
        file.create_dataset("current_step", data=np.array([state.current_step], np.int32))
        history = file.create_group("history")
        for index, blob in enumerate(state.history):
            history.create_dataset(str(index), data=blob)


def _write_c_string(file: h5py.File, name: str, text: str) -> None:
    """A scalar of fixed length with a closing zero, which is how Caffe writes and reads it."""
    data = text.encode() + b"\0"
    kind = h5py.h5t.C_S1.copy()
    kind.set_size(len(data))
    options = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    options.set_obj_track_times(False)  # the same state gives the same bytes
    dataset = h5py.h5d.create(file.id, name.encode(), kind, h5py.h5s.create(h5py.h5s.SCALAR), options)
    dataset.write(h5py.h5s.ALL, h5py.h5s.ALL, np.array(data, f"S{len(data)}"), kind)


@contextmanager
def _open_hdf5(path: Path) -> Iterator[StoredState]:
    try:
        file = h5py.File(path, "r", locking="best-effort")
    except H5_ERRORS as problem:
        raise SnapshotError(f"{path}: not a readable HDF5 file: {problem}") from None
    with file:
        try:
            state = _stored(file, path)
        except WeightsError as problem:
            raise SnapshotError(str(problem)) from None
        except H5_ERRORS as problem:
            raise SnapshotError(f"{path}: damaged HDF5 file: {problem}") from None
        yield state


def _stored(file: h5py.File, path: Path) -> StoredState:
    history = hdf5_member(file, "history", str(path)) if "history" in file else None
    if not isinstance(history, h5py.Group) or "iter" not in file:
        raise SnapshotError(f"{path}: found no `iter` and `history`; is this a .solverstate.h5?")
    blobs = []
    for index in range(len(history)):
        blob = hdf5_member(history, str(index), str(path)) if str(index) in history else None
        if not isinstance(blob, h5py.Dataset):
            raise SnapshotError(f"{path}: found no history/{index}, expected datasets 0 to {len(history) - 1}")
        blobs.append(H5Blob(blob))
    current_step = _integer(file, "current_step", path) if "current_step" in file else 0
    learned_net = _text(file, "learned_net", path) if "learned_net" in file else None
    return StoredState(_integer(file, "iter", path), current_step, learned_net, blobs)


def _integer(file: h5py.File, name: str, path: Path) -> int:
    dataset = hdf5_member(file, name, str(path))
    if not isinstance(dataset, h5py.Dataset) or dataset.dtype.kind not in "iu" or dataset.size != 1:
        raise SnapshotError(f"{path}: `{name}` holds something else, expected one whole number")
    return int(np.asarray(dataset[()]).reshape(-1)[0])


def _text(file: h5py.File, name: str, path: Path) -> str:
    dataset = hdf5_member(file, name, str(path))
    wrong = SnapshotError(f"{path}: `{name}` holds something else, expected the name of a file")
    if not isinstance(dataset, h5py.Dataset) or dataset.size != 1 or dataset.dtype.itemsize > _MAX_NAME_BYTES:
        raise wrong
    value = np.asarray(dataset[()]).reshape(-1)[0]
    if not isinstance(value, (bytes, str)):
        raise wrong
    try:
        return (value.decode() if isinstance(value, bytes) else value).rstrip("\0")
    except UnicodeDecodeError:
        raise wrong from None
