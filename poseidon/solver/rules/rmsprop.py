"""RMSProp: each element's rate follows a running mean of its squared gradients.

    h ← ρ h + (1 - ρ) g²                ρ = rms_decay, in [0, 1)
    u = rate · g / (√h + δ)             history: h

There is no momentum: a solver that sets one is refused.
"""

from __future__ import annotations

import torch
from torch import Tensor

from poseidon.errors import SolverError
from poseidon.solver.rules.adagrad import refuse_momentum, scaled_by_root
from poseidon.solver.rules.rule import Batch, Hyper, Rule
from poseidon.spec import caffe_pb2


class RMSProp(Rule):
    type = "RMSProp"

    def check(self, param: caffe_pb2.SolverParameter) -> None:
        super().check(param)
        refuse_momentum(self, param)
        if not 0 <= param.rms_decay < 1:
            raise SolverError(f"rms_decay must be at least 0 and below 1, got {param.rms_decay:g}")

    def compute(self, batch: Batch, hyper: Hyper) -> list[Tensor]:
        (squares,) = batch.history
        torch._foreach_mul_(squares, hyper.rms_decay)
        torch._foreach_addcmul_(squares, batch.grads, batch.grads, value=1 - hyper.rms_decay)
        return scaled_by_root(batch, squares, hyper.delta)
