"""What is trained while faults happen: a small net on HDF5 data, with enough iterations to be disturbed in."""

from __future__ import annotations

import shutil
from pathlib import Path

from poseidon.spec import caffe_pb2

CASE = Path(__file__).parents[1] / "golden" / "formats" / "logs" / "train"
MAX_ITER = 240
SNAPSHOT = 30
BASE = SNAPSHOT  # the snapshot from which disturbed runs begin: it brings the plan of the undisturbed one


def write_case(folder: Path, settings: str = "") -> None:
    for name in ("train.h5", "train.txt", "test.h5", "test.txt"):
        shutil.copy(CASE / name, folder)
    shutil.copy(CASE / "net.prototxt", folder)
    (folder / "solver.prototxt").write_text(
        f'net: "net.prototxt" test_iter: 3 test_interval: 60 base_lr: 0.1 lr_policy: "fixed" momentum: 0.9 '
        f'weight_decay: 0.001 snapshot_prefix: "snap" random_seed: 7 max_iter: {MAX_ITER} snapshot: {SNAPSHOT} '
        f"display: 10 {settings}\n"
    )


def files_of(folder: Path, iteration: int) -> list[Path]:
    return sorted(folder.glob(f"snap_iter_{iteration}.*"))


def copy_base(source: Path, target: Path) -> None:
    for path in files_of(source, BASE):
        shutil.copy(path, target)


def blobs(folder: Path, iteration: int) -> dict[str, list[bytes]]:
    """The parameters of a snapshot, bit for bit."""
    model = caffe_pb2.NetParameter.FromString((folder / f"snap_iter_{iteration}.caffemodel").read_bytes())
    return {layer.name: [blob.SerializeToString() for blob in layer.blobs] for layer in model.layer if layer.blobs}


def history(folder: Path, iteration: int) -> list[bytes]:
    state = caffe_pb2.SolverState.FromString((folder / f"snap_iter_{iteration}.solverstate").read_bytes())
    return [blob.SerializeToString() for blob in state.history]
