"""caffe.get_solver and the solver classes: pycaffe's face of `poseidon.solver.Solver`, over nets one can look into."""

from __future__ import annotations

from caffe.net import Net
from poseidon.net import Stepwise
from poseidon.solver import Solver
from poseidon.solver.passes import StepwisePass


class SGDSolver:
    """A solver by its prototxt; the type named there decides the rule. After `step`, diffs hold the updates."""

    def __init__(self, path: str) -> None:
        self._solver = Solver(path, keep_update=True)
        stepwise = Stepwise(self._solver.net)
        self._solver.run = StepwisePass(stepwise)
        self.net = Net.around(stepwise)
        self.test_nets = [Net.around(Stepwise(net)) for net in self._solver.test_nets]

    @property
    def iter(self) -> int:
        return self._solver.iter

    @property
    def lr(self) -> float:
        return self._solver.lr

    def step(self, num_iterations: int) -> None:
        self._solver.step(num_iterations)

    def solve(self, resume: str | None = None) -> None:
        self._solver.solve(resume)

    def snapshot(self) -> None:
        self._solver.snapshot()

    def restore(self, path: str) -> None:
        self._solver.restore(path)


def get_solver(path: str) -> SGDSolver:
    """The solver a prototxt describes."""
    return SGDSolver(path)
