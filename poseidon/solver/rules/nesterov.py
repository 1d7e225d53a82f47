"""Nesterov's accelerated gradient.

    v' = μ v + rate · g
    u  = (1 + μ) v' - μ v               history: v, then v'

The parameter stands at the look-ahead point: the step back by the old velocity and the step over by the new one are
taken together.
"""

from __future__ import annotations

import torch
from torch import Tensor

from poseidon.solver.rules.rule import Batch, Hyper, Rule


class Nesterov(Rule):
    type = "Nesterov"
    rests_when_frozen = True

    def compute(self, batch: Batch, hyper: Hyper) -> list[Tensor]:
        (velocity,) = batch.history
        update = torch._foreach_mul(velocity, -hyper.momentum)
        torch._foreach_mul_(velocity, hyper.momentum)
        torch._foreach_add_(velocity, batch.grads, alpha=batch.rate)
        torch._foreach_add_(update, velocity, alpha=1 + hyper.momentum)
        return list(update)
