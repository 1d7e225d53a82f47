"""Training: learning-rate policies, update rules, the step loop, snapshots and Caffe's log.

from poseidon.solver import Solver
"""

from __future__ import annotations

from poseidon.solver.action import Action
from poseidon.solver.nets import NetOptions
from poseidon.solver.snapshot import newest_good
from poseidon.solver.solver import Callback, Solver

__all__ = ["Action", "Callback", "NetOptions", "Solver", "newest_good"]
