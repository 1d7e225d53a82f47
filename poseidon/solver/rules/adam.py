"""Adam: running means of the gradient and of its square, corrected for their start at zero.

    m ← β₁ m + (1 - β₁) g               β₁ = momentum
    v ← β₂ v + (1 - β₂) g²              β₂ = momentum2
    u = rate · c · m / (√v + δ)         c = √(1 - β₂ᵗ) / (1 - β₁ᵗ),  t = iteration + 1
                                        history: m, v

δ stands outside the correction, as in Caffe; in the paper's own form it would be δ · √(1 - β₂ᵗ).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from poseidon.errors import SolverError
from poseidon.solver.rules.rule import Batch, Hyper, Rule
from poseidon.spec import caffe_pb2


class Adam(Rule):
    type = "Adam"
    num_histories = 2

    def check(self, param: caffe_pb2.SolverParameter) -> None:
        super().check(param)
        for name in ("momentum", "momentum2"):
            if not 0 <= getattr(param, name) < 1:
                raise SolverError(f"Adam needs {name} of at least 0 and below 1, got {getattr(param, name):g}")

    def compute(self, batch: Batch, hyper: Hyper) -> list[Tensor]:
        mean, square = batch.history
        torch._foreach_mul_(mean, hyper.momentum)
        torch._foreach_add_(mean, batch.grads, alpha=1 - hyper.momentum)
        torch._foreach_mul_(square, hyper.momentum2)
        torch._foreach_addcmul_(square, batch.grads, batch.grads, value=1 - hyper.momentum2)
        root = torch._foreach_sqrt(square)
        torch._foreach_add_(root, hyper.delta)
        update = torch._foreach_div(mean, root)
        torch._foreach_mul_(update, batch.rate * self._correction(hyper))
        return list(update)

    @staticmethod
    def _correction(hyper: Hyper) -> float:
        t = hyper.iteration + 1
        return math.sqrt(1 - hyper.momentum2**t) / (1 - hyper.momentum**t)
