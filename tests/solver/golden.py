"""Solver records from BVLC Caffe."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np

from poseidon.solver import Solver

GOLDEN = Path(__file__).parents[1] / "golden"
SOLVERS = sorted((GOLDEN / "solvers").iterdir())
LOGS = sorted(folder for folder in (GOLDEN / "formats" / "logs").iterdir() if (folder / "solver.prototxt").exists())
TOLERANCE = {"rtol": 1e-4, "atol": 1e-5}


def record_of(folder: Path) -> np.lib.npyio.NpzFile:
    return np.load(folder / "record.npz")


def copy_case(folder: Path, target: Path, *, with_snapshots: bool) -> None:
    """The case's files; Caffe's snapshots only if asked for."""
    for path in folder.iterdir():
        if with_snapshots or "_iter_" not in path.name:
            shutil.copy(path, target)


def check_params(solver: Solver, record: np.lib.npyio.NpzFile, iteration: int) -> None:
    """Compares all parameters with those after `iteration` updates."""
    for key in record.files:
        kind, _, place = key.partition("/")
        if kind == "param":
            layer, index = place.split("/")
            got = solver.net.params[layer][int(index)].detach().numpy()
            np.testing.assert_allclose(got, record[key][iteration - 1], **TOLERANCE, err_msg=f"{iteration}: {key}")
