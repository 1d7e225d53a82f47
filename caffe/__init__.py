"""The `caffe` module as pycaffe users know it: a thin face over poseidon.

    import caffe
    net = caffe.Net("deploy.prototxt", caffe.TEST, weights="model.caffemodel")
    net.blobs["data"].data[...] = image
    net.forward()["prob"]

Nothing is computed here. Nets run layer by layer (`poseidon.net.Stepwise`), so that every blob's data and diff can be
seen and edited; solvers are `poseidon.solver.Solver`. What is the same and what differs: docs/from-caffe.md.
"""

from __future__ import annotations

from caffe import io, proto
from caffe.classifier import Classifier
from caffe.detector import Detector
from caffe.logs import init_log, log, set_logging_disabled
from caffe.nccl import NCCL, has_nccl
from caffe.net import Net
from caffe.net_spec import NetSpec, layers, params, to_proto
from caffe.settings import (
    set_device,
    set_mode_cpu,
    set_mode_gpu,
    set_multiprocess,
    set_random_seed,
    set_solver_count,
    set_solver_rank,
    solver_count,
    solver_rank,
)
from caffe.solver import (
    AdaDeltaSolver,
    AdaGradSolver,
    AdamSolver,
    NesterovSolver,
    RMSPropSolver,
    SGDSolver,
    Solver,
    get_solver,
    get_solver_from_file,
)
from caffe.timer import Timer
from poseidon.net.array_blob import ArrayBlob as Blob
from poseidon.net.layers.python import PythonLayerBase as Layer
from poseidon.net.registry import layer_types as layer_type_list
from poseidon.spec.caffe_pb2 import TEST, TRAIN, LayerParameter

__version__ = "1.0.0"  # of Caffe, whose behaviour this is

__all__ = [
    "NCCL",
    "TEST",
    "TRAIN",
    "AdaDeltaSolver",
    "AdaGradSolver",
    "AdamSolver",
    "Blob",
    "Classifier",
    "Detector",
    "Layer",
    "LayerParameter",
    "NesterovSolver",
    "Net",
    "NetSpec",
    "RMSPropSolver",
    "SGDSolver",
    "Solver",
    "Timer",
    "get_solver",
    "get_solver_from_file",
    "has_nccl",
    "init_log",
    "io",
    "layer_type_list",
    "layers",
    "log",
    "params",
    "proto",
    "set_device",
    "set_logging_disabled",
    "set_mode_cpu",
    "set_mode_gpu",
    "set_multiprocess",
    "set_random_seed",
    "set_solver_count",
    "set_solver_rank",
    "solver_count",
    "solver_rank",
    "to_proto",
]
