"""The names pycaffe keeps in this module, for scripts that import them from here."""

from __future__ import annotations

from caffe.nccl import NCCL
from caffe.net import Net
from caffe.solver import AdaDeltaSolver, AdaGradSolver, AdamSolver, NesterovSolver, RMSPropSolver, SGDSolver
from caffe.timer import Timer

__all__ = [
    "NCCL",
    "AdaDeltaSolver",
    "AdaGradSolver",
    "AdamSolver",
    "NesterovSolver",
    "Net",
    "RMSPropSolver",
    "SGDSolver",
    "Timer",
]
