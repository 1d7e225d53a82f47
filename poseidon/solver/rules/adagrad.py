"""AdaGrad: each element's rate falls with the sum of its squared gradients.

    h ← h + g²
    u = rate · g / (√h + δ)             history: h

There is no momentum: a solver that sets one is refused.
"""

from __future__ import annotations

import torch
from torch import Tensor

from poseidon.errors import SolverError
from poseidon.solver.rules.rule import Batch, Hyper, Rule
from poseidon.spec import caffe_pb2


class AdaGrad(Rule):
    type = "AdaGrad"

    def check(self, param: caffe_pb2.SolverParameter) -> None:
        super().check(param)
        refuse_momentum(self, param)

    def compute(self, batch: Batch, hyper: Hyper) -> list[Tensor]:
        (squares,) = batch.history
        torch._foreach_addcmul_(squares, batch.grads, batch.grads)
        return scaled_by_root(batch, squares, hyper.delta)


def refuse_momentum(rule: Rule, param: caffe_pb2.SolverParameter) -> None:
    if param.momentum:
        raise SolverError(f"{rule.type} has no momentum, got momentum: {param.momentum:g}; remove it from the solver")


def scaled_by_root(batch: Batch, squares: list[Tensor], delta: float) -> list[Tensor]:
    """rate · g / (√squares + δ), in the gradients' memory."""
    root = torch._foreach_sqrt(squares)
    torch._foreach_add_(root, delta)
    torch._foreach_div_(batch.grads, root)
    torch._foreach_mul_(batch.grads, batch.rate)
    return batch.grads
