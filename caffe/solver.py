"""caffe.get_solver and the solver classes: pycaffe's face of `poseidon.solver.Solver`, over nets one can look into.

A class decides the rule, whatever the prototxt says; `get_solver` goes by the prototxt. After `step`, the diffs of the
parameters hold what was subtracted.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from typing import ClassVar

from caffe import settings
from caffe.failures import OwnExceptions, need_file
from caffe.logs import FaceLog
from caffe.net import Net
from poseidon.net import Stepwise
from poseidon.solver import Solver as PoseidonSolver
from poseidon.solver.passes import StepwisePass
from poseidon.spec import caffe_pb2, read_solver, upgrade_solver

Source = str | os.PathLike[str] | caffe_pb2.SolverParameter


class _Callback:
    """Two functions as the solver wants them."""

    def __init__(self, on_start: Callable[[], object], on_gradients_ready: Callable[[], object]) -> None:
        self._on_start = on_start
        self._on_gradients_ready = on_gradients_ready

    def on_start(self) -> None:
        self._on_start()

    def on_gradients_ready(self) -> None:
        self._on_gradients_ready()


class Solver:
    """A solver by its prototxt (or by a SolverParameter), with the rule named there."""

    rule: ClassVar[str | None] = None

    def __init__(self, source: Source) -> None:
        param = _param_of(source)
        if self.rule is not None:
            if param.HasField("type") and param.type != self.rule:
                warnings.warn(
                    f"the solver asks for type {param.type!r}, {type(self).__name__} uses {self.rule!r}; "
                    "caffe.get_solver goes by the file",
                    stacklevel=2,
                )
            param.type = self.rule
        if param.random_seed < 0:
            param.random_seed = settings.next_seed() or -1
        with OwnExceptions():
            self._solver = PoseidonSolver(param, listeners=[FaceLog()], keep_update=True)
            stepwise = Stepwise(self._solver.net)
            tests = [Stepwise(net) for net in self._solver.test_nets]
        self._solver.run = StepwisePass(stepwise)
        self._solver.test_runs = [StepwisePass(test) for test in tests]
        self.net = Net.around(stepwise)
        self.test_nets = [Net.around(test) for test in tests]

    @property
    def param(self) -> caffe_pb2.SolverParameter:
        return self._solver.param

    @property
    def iter(self) -> int:
        return self._solver.iter

    @property
    def lr(self) -> float:
        return self._solver.lr

    def step(self, num_iterations: int) -> None:
        """Trains for a number of iterations, with the tests and snapshots that fall into them."""
        with OwnExceptions():
            self._solver.step(int(num_iterations))

    def solve(self, resume: str | None = None) -> None:
        """Trains up to max_iter, from a .solverstate if one is given."""
        with OwnExceptions():
            self._solver.solve(resume)

    def apply_update(self) -> None:
        """One update from the parameters' diffs as they are; counts as an iteration."""
        self._solver.apply_update()

    def snapshot(self) -> None:
        self._solver.snapshot()

    def restore(self, path: str) -> None:
        need_file(path, "a solver state")
        self._solver.restore(path)

    def share_weights(self, net: Net) -> None:
        """Makes another net use the parameters of this solver's: the same memory."""
        net.share_with(self.net)

    def add_callback(self, on_start: Callable[[], object], on_gradients_ready: Callable[[], object]) -> None:
        """Calls the first before the passes of every iteration, the second when all gradients are there."""
        self._solver.callbacks.append(_Callback(on_start, on_gradients_ready))


class SGDSolver(Solver):
    rule = "SGD"


class NesterovSolver(Solver):
    rule = "Nesterov"


class AdaGradSolver(Solver):
    rule = "AdaGrad"


class RMSPropSolver(Solver):
    rule = "RMSProp"


class AdaDeltaSolver(Solver):
    rule = "AdaDelta"


class AdamSolver(Solver):
    rule = "Adam"


_CLASSES = (SGDSolver, NesterovSolver, AdaGradSolver, RMSPropSolver, AdaDeltaSolver, AdamSolver)


def get_solver(source: Source) -> Solver:
    """The solver a prototxt describes."""
    param = _param_of(source)
    return next((known for known in _CLASSES if known.rule == param.type), Solver)(param)


def get_solver_from_file(path: str) -> Solver:
    """`get_solver` under its older name."""
    return get_solver(path)


def _param_of(source: Source) -> caffe_pb2.SolverParameter:
    if isinstance(source, caffe_pb2.SolverParameter):
        param = caffe_pb2.SolverParameter()
        param.CopyFrom(source)
        upgrade_solver(param)
        return param
    need_file(source, "the solver")
    return read_solver(os.fspath(source))
