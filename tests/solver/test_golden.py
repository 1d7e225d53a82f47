"""Twelve steps of every solver record from BVLC Caffe, resumed from its snapshots, and snapshots as it writes them."""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np
import pytest

from poseidon.net.stepwise import Stepwise
from poseidon.solver import Solver
from poseidon.solver.passes import StepwisePass
from tests.net.wire_reader import blob_arrays, fields, read_blobs
from tests.solver.golden import SOLVERS, TOLERANCE, check_params, copy_case, record_of

BY_NAME = pytest.mark.parametrize("folder", SOLVERS, ids=lambda folder: folder.name)
BY_FORMAT = pytest.mark.parametrize("solver_file", ["solver.prototxt", "solver_h5.prototxt"])
# Six updates' worth of rounding in values that start at zero.
HISTORY = {"rtol": 1e-3, "atol": 1e-4}


def started(solver_file: str, record) -> Solver:
    solver = Solver(solver_file)
    if int(record["copy_init"]):
        solver.net.load("init.caffemodel")
    return solver


@pytest.mark.parametrize("runs", ["fused", "stepwise"])
@BY_NAME
def test_trajectory(folder, runs, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    copy_case(folder, tmp_path, with_snapshots=False)
    record = record_of(folder)
    solver = started("solver.prototxt", record)
    if runs == "stepwise":
        solver.run = StepwisePass(Stepwise(solver.net))
    losses = []
    solver.listeners.append(lambda event: losses.append(event.loss) if hasattr(event, "smoothed_loss") else None)
    for iteration in range(1, 13):
        np.testing.assert_allclose(solver.lr, record["lr"][iteration - 1], rtol=1e-5)
        solver.step()
        assert solver.iter == iteration
        check_params(solver, record, iteration)
    if solver.param.iter_size == 1:  # the record has the last micro-batch's loss
        np.testing.assert_allclose([float(loss) for loss in losses], record["loss"], **TOLERANCE)


@BY_FORMAT
@BY_NAME
def test_resume_from_caffes_own_snapshot(folder, solver_file, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    copy_case(folder, tmp_path, with_snapshots=True)
    record = record_of(folder)
    solver = Solver(solver_file)
    solver.restore(str(record["state_h5" if "h5" in solver_file else "state"]))
    assert solver.iter == 6
    check_params(solver, record, 6)
    for iteration in range(7, 13):
        solver.step()
        check_params(solver, record, iteration)


@BY_NAME
def test_binary_snapshot_is_caffes(folder, tmp_path, monkeypatch):
    """Read off the wire, without any of our readers."""
    monkeypatch.chdir(tmp_path)
    copy_case(folder, tmp_path, with_snapshots=False)
    record = record_of(folder)
    solver = started("solver.prototxt", record)
    solver.step(6)
    solver.snapshot()
    name = str(record["state"])
    got, want = state_on_the_wire(Path(name)), state_on_the_wire(folder / name)
    assert {key: got[key] for key in (1, 2, 4)} == {key: want[key] for key in (1, 2, 4)}
    assert len(got[3]) == len(want[3])
    for mine, caffes in zip(got[3], want[3], strict=True):
        assert mine.shape == caffes.shape
        np.testing.assert_allclose(mine, caffes, **HISTORY)
    model = name.replace(".solverstate", ".caffemodel")
    mine, caffes = read_blobs(Path(model)), read_blobs(folder / model)
    assert list(mine) == list(caffes)
    for layer, blobs in caffes.items():
        for index, blob in enumerate(blobs):
            assert set(mine[layer][index]) == set(blob), "diffs only where Caffe stores them"
            for kind, values in blob.items():
                tolerance = TOLERANCE if kind == "data" else HISTORY
                np.testing.assert_allclose(mine[layer][index][kind], values, **tolerance, err_msg=f"{layer} {kind}")


def state_on_the_wire(path: Path) -> dict:
    """Field number → value; history as arrays."""
    found: dict = {3: []}
    for number, value in fields(path.read_bytes()):
        if number == 3:
            found[3].append(blob_arrays(value)["data"])
        else:
            found[number] = value
    return found


@BY_NAME
def test_hdf5_snapshot_is_caffes(folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    copy_case(folder, tmp_path, with_snapshots=False)
    record = record_of(folder)
    solver = started("solver_h5.prototxt", record)
    solver.step(6)
    solver.snapshot()
    name = str(record["state_h5"])
    compare_hdf5(Path(name), folder / name)
    model = name.replace(".solverstate", ".caffemodel")
    compare_hdf5(Path(model), folder / model)


def compare_hdf5(mine: Path, caffes: Path) -> None:
    """The same groups and datasets, with the same types and shapes and about the same values."""
    with h5py.File(mine) as got, h5py.File(caffes) as want:
        assert tree_of(got) == tree_of(want)

        def compare(name, node):
            if not isinstance(node, h5py.Dataset):
                return
            if node.dtype.kind == "f":
                np.testing.assert_allclose(got[name][()], node[()], **HISTORY, err_msg=name)
            else:
                np.testing.assert_array_equal(got[name][()], node[()])

        want.visititems(compare)


def tree_of(file: h5py.File) -> dict[str, object]:
    found: dict[str, object] = {}

    def add(name, node):
        found[name] = (node.shape, node.dtype) if isinstance(node, h5py.Dataset) else "group"

    file.visititems(add)
    return found


@BY_FORMAT
@BY_NAME
def test_resume_from_our_snapshot_is_exact(folder, solver_file, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    copy_case(folder, tmp_path, with_snapshots=False)
    record = record_of(folder)
    solver = started(solver_file, record)
    solver.step(5)  # in the middle of an epoch: the data position matters
    files = solver.snapshot()
    solver.step(7)
    resumed = Solver(solver_file)
    resumed.restore(files.state)
    resumed.step(7)
    assert resumed.iter == solver.iter == 12
    for layer, params in solver.net.params.items():
        for one, other in zip(params, resumed.net.params[layer], strict=True):
            assert one.equal(other), layer
