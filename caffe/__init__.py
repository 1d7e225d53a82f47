"""The `caffe` module as pycaffe users know it: a thin face over poseidon."""

from __future__ import annotations

from caffe.net import Net
from caffe.solver import SGDSolver, get_solver
from poseidon.net.layers.python import PythonLayerBase as Layer
from poseidon.spec.caffe_pb2 import TEST, TRAIN

__all__ = ["TEST", "TRAIN", "Layer", "Net", "SGDSolver", "get_solver"]
