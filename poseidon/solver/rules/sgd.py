"""SGD with momentum.

    v ← μ v + rate · g
    u = v                               history: v

The rate is inside the momentum: a rate that falls does not slow down what is already moving.
"""

from __future__ import annotations

import torch
from torch import Tensor

from poseidon.solver.rules.rule import Batch, Hyper, Rule


class SGD(Rule):
    type = "SGD"
    rests_when_frozen = True

    def compute(self, batch: Batch, hyper: Hyper) -> list[Tensor]:
        (velocity,) = batch.history
        torch._foreach_mul_(velocity, hyper.momentum)
        torch._foreach_add_(velocity, batch.grads, alpha=batch.rate)
        return velocity
