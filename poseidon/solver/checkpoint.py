"""A solver's whole state into a snapshot, and back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from poseidon.errors import SnapshotError, SpecError, WeightsError
from poseidon.net.layer import text_of
from poseidon.net.weights import load_weights
from poseidon.net.weights_binary import net_message
from poseidon.net.weights_copy import Weights, WeightsCopy, WeightsView
from poseidon.net.weights_hdf5 import write_hdf5
from poseidon.solver import events
from poseidon.solver.background import BackgroundWriter
from poseidon.solver.continuation import net_state, restore_net
from poseidon.solver.smoothing import LossWindow
from poseidon.solver.snapshot import Snapshot, SnapshotFiles, open_snapshot, prune, with_offer, write_snapshot
from poseidon.solver.state_file import SolverState, write_state
from poseidon.spec import caffe_pb2
from poseidon.spec.binary import serialize

if TYPE_CHECKING:
    from poseidon.solver.solver import Solver


# -- saving ---------------------------------------------------------------------------------------------------------
def save(solver: Solver) -> SnapshotFiles:
    """Writes a snapshot of where the solver stands, in the format its settings name. Of a team, rank 0 writes."""
    taken = _take(solver, WeightsView())
    if solver.team.rank == 0:
        taken.write()
    solver.team.meet()
    solver.publish(events.SnapshotWritten(taken.iteration, taken.files.model, taken.files.state))
    return taken.files


def save_copy(solver: Solver, writer: BackgroundWriter) -> None:
    """The same from a copy, which is made here; rank 0's writer writes it. Nobody waits for that."""
    weights = WeightsCopy(solver.net, with_diff=solver.param.snapshot_diff) if solver.team.rank == 0 else WeightsView()
    taken = _take(solver, weights, copies=solver.team.rank == 0)
    if solver.team.rank == 0:
        writer.start(taken.iteration, taken.files, taken.write)


@dataclass(frozen=True, slots=True)
class _Taken:
    """Everything a snapshot holds; `weights` are those of the net at that moment, if they are a copy."""

    files: SnapshotFiles
    iteration: int
    state: SolverState
    continuation: dict[str, Any]
    weights: Weights
    solver: Solver

    def write(self) -> None:
        as_hdf5 = self.files.model.suffix == ".h5"
        write_snapshot(
            self.files,
            iteration=self.iteration,
            fill_model=lambda path: _write_model(self, path, as_hdf5=as_hdf5),
            fill_state=lambda path: write_state(self.state, path, as_hdf5=as_hdf5),
            continuation=self.continuation,
            disk=self.solver.disk,
        )
        if self.solver.keep:
            prune(self.solver.param.snapshot_prefix, self.solver.keep, self.iteration)


def _take(solver: Solver, weights: Weights, *, copies: bool = False) -> _Taken:
    param = solver.param
    as_hdf5 = param.snapshot_format == caffe_pb2.SolverParameter.HDF5
    files = SnapshotFiles.named(param.snapshot_prefix, solver.iter, as_hdf5=as_hdf5)
    solver.publish(events.SnapshotStarted(solver.iter, files.model, files.state, as_hdf5))
    histories = [_array(history, copies=copies) for history in solver.updates.histories()]
    state = SolverState(solver.iter, solver.current_step, str(files.model), histories)
    return _Taken(files, solver.iter, state, _continuation(solver), weights, solver)


def _write_model(taken: _Taken, path: Path, *, as_hdf5: bool) -> None:
    net, with_diff = taken.solver.net, taken.solver.param.snapshot_diff
    if as_hdf5:
        write_hdf5(net, path, with_diff=with_diff, weights=taken.weights)
        return
    try:
        path.write_bytes(serialize(net_message(net, with_diff=with_diff, weights=taken.weights), str(path)))
    except SpecError as problem:
        raise SnapshotError(f"{problem}; set snapshot_format: HDF5 in the solver") from None


def _continuation(solver: Solver) -> dict[str, Any]:
    return {
        "train": net_state(solver.net),
        "tests": [net_state(net) for net in solver.test_nets],
        "losses": solver.window.state(solver.team.mean),
        "team": solver.team.state(),
        "extra": {name: part.state() for name, part in solver.stateful.items()},
        "job": solver.job,
    }


def _array(value: Tensor, *, copies: bool) -> np.ndarray:
    dtype = torch.float64 if value.dtype == torch.float64 else torch.float32
    return value.detach().to("cpu", dtype, copy=copies).contiguous().numpy()


# -- restoring ------------------------------------------------------------------------------------------------------
def restore(solver: Solver, path: str | Path) -> None:
    """Puts the solver where a snapshot was taken. Everything is read and compared before anything changes."""
    with open_snapshot(path) as snapshot:
        history = _fitting_history(solver, snapshot, Path(path))
        _load_model(solver, snapshot, Path(path))
    solver.updates.restore_histories(history)
    solver.iter, solver.current_step = snapshot.state.iteration, snapshot.state.current_step
    if snapshot.continuation is not None:
        try:
            _continue(solver, snapshot.continuation, Path(path))
        except (KeyError, TypeError, ValueError, AttributeError) as problem:
            # The sidecar is whole, but not what this version writes.
            raise SnapshotError(f"{path}: its sidecar cannot be used: {type(problem).__name__} {problem}") from None
    solver.publish(events.Restored(str(path), solver.iter, exact=snapshot.continuation is not None))


def _fitting_history(solver: Solver, snapshot: Snapshot, path: Path) -> list[Tensor]:
    stored, shapes = snapshot.state.history, [tuple(slot.value.shape) for slot in solver.slots]
    shapes *= solver.rule.num_histories
    if len(stored) != len(shapes):
        raise SnapshotError(
            f"{path} has {len(stored)} history blob(s), expected {len(shapes)} for a solver of type "
            f"{solver.param.type} and {len(solver.slots)} parameter(s); it belongs to another net or solver"
        )
    values = []
    for index, (blob, shape) in enumerate(zip(stored, shapes, strict=True)):
        if not blob.fits(shape):
            raise SnapshotError(
                f"{path}: history {index} has shape {text_of(blob.shape)}, expected {text_of(shape)}; "
                "it belongs to another net"
            )
        try:
            values.append(torch.from_numpy(blob.read(f"{path}: history {index}")).reshape(shape))
        except WeightsError as problem:
            raise with_offer(problem, path) from None
    return values


def _load_model(solver: Solver, snapshot: Snapshot, path: Path) -> None:
    if snapshot.model is None:
        return
    try:
        load_weights(solver.net, snapshot.model, complete=True)
    except WeightsError as problem:
        raise with_offer(problem, path) from None


def _continue(solver: Solver, continuation: Mapping[str, Any], path: Path) -> None:
    tests: Sequence[Mapping[str, Any]] = continuation["tests"]
    restore_net(solver.net, continuation["train"])
    # Other test nets than at the time of the snapshot are a legitimate wish; they begin where they begin.
    if len(tests) == len(solver.test_nets):
        for net, state in zip(solver.test_nets, tests, strict=True):
            restore_net(net, state)
    solver.continue_window(LossWindow.from_state(solver.param.average_loss, continuation["losses"], solver.net.dtype))
    solver.team.restore(continuation.get("team"))
    for name, part in solver.stateful.items():
        if name not in continuation["extra"]:
            raise SnapshotError(f"{path} holds no state of {name!r}, expected one; it was taken without")
        part.restore(continuation["extra"][name])
