"""A small net on random rows of HDF5, with everything that is random or has a position: shuffled data and dropout; and
what to watch a solver on it with."""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np
import torch

from poseidon.solver import Solver, events
from poseidon.spec import caffe_pb2, parse, parse_solver

NUM_ROWS = 22  # no multiple of the batch: epochs end inside of batches


def write_data(folder: Path, name: str = "rows", num_rows: int = NUM_ROWS) -> Path:
    """A list file with one HDF5 file: x is num_rows × 3 and y = x·(1, -2, 0.5) + 0.1, as num_rows × 1."""
    x = np.random.RandomState(num_rows).standard_normal((num_rows, 3)).astype(np.float32)
    with h5py.File(folder / f"{name}.h5", "w") as file:
        file["x"] = x
        file["y"] = (x @ np.float32([[1], [-2], [0.5]]) + 0.1).astype(np.float32)
    listing = folder / f"{name}.txt"
    listing.write_text(f"{folder / name}.h5\n")
    return listing


def net_text(listing: Path, *, batch: int = 4, shuffle: bool = False, dropout: float = 0.0, head: str = "") -> str:
    """x → fc1 (5) → tanh → [dropout] → fc2 (1) → Euclidean loss against y. `head` comes first in the net."""
    drop = f"""layer {{ name: "drop" type: "Dropout" bottom: "h" top: "h"
                 dropout_param {{ dropout_ratio: {dropout} }} }}"""
    return f"""
        name: "small" {head}
        layer {{ name: "rows" type: "HDF5Data" top: "x" top: "y"
                 hdf5_data_param {{ source: "{listing}" batch_size: {batch} shuffle: {str(shuffle).lower()} }} }}
        layer {{ name: "fc1" type: "InnerProduct" bottom: "x" top: "h" param {{ lr_mult: 1 }} param {{ lr_mult: 2 }}
                 inner_product_param {{ num_output: 5 weight_filler {{ type: "xavier" }} }} }}
        layer {{ name: "tanh" type: "TanH" bottom: "h" top: "h" }}
        {drop if dropout else ""}
        layer {{ name: "fc2" type: "InnerProduct" bottom: "h" top: "out"
                 inner_product_param {{ num_output: 1 weight_filler {{ type: "xavier" }} }} }}
        layer {{ name: "loss" type: "EuclideanLoss" bottom: "out" bottom: "y" top: "loss" }}
    """


def net_message(listing: Path, **options) -> caffe_pb2.NetParameter:
    return parse(net_text(listing, **options), caffe_pb2.NetParameter(), "small.prototxt")


def solver_message(net: caffe_pb2.NetParameter, text: str = "") -> caffe_pb2.SolverParameter:
    """SGD with momentum on this net; fields in `text` are added, or override."""
    param = parse_solver(
        'base_lr: 0.05 lr_policy: "fixed" momentum: 0.9 weight_decay: 0.001 max_iter: 10 random_seed: 3 '
        "snapshot_after_train: false"
    )
    param.MergeFrom(parse_solver(text))
    param.net_param.CopyFrom(net)
    return param


class Recorder:
    """A listener that keeps events."""

    def __init__(self) -> None:
        self.all: list[events.Event] = []

    def __call__(self, event: events.Event) -> None:
        self.all.append(event)

    def of(self, kind: type) -> list:
        return [event for event in self.all if type(event) is kind]


def made(param, **options) -> tuple[Solver, Recorder]:
    recorder = Recorder()
    return Solver(param, listeners=[recorder], **options), recorder


def values(solver: Solver) -> list[torch.Tensor]:
    return [entry.value.detach().clone() for entry in solver.net.learnable]


def losses(recorder: Recorder) -> list[float]:
    return [float(event.loss) for event in recorder.of(events.IterationDone)]
