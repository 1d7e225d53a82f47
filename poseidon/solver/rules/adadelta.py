"""AdaDelta: the step's size comes from the running mean of past steps, over that of gradients.

    h ← μ h + (1 - μ) g²
    s = g · √((d + δ) / (h + δ))
    d ← μ d + (1 - μ) s²
    u = rate · s                        history: h, d

μ is the solver's `momentum`, here the memory of both means.
"""

from __future__ import annotations

import torch
from torch import Tensor

from poseidon.solver.rules.rule import Batch, Hyper, Rule


class AdaDelta(Rule):
    type = "AdaDelta"
    num_histories = 2

    def compute(self, batch: Batch, hyper: Hyper) -> list[Tensor]:
        gradients, steps = batch.history
        step = batch.grads
        torch._foreach_mul_(gradients, hyper.momentum)
        torch._foreach_addcmul_(gradients, batch.grads, batch.grads, value=1 - hyper.momentum)
        ratio = torch._foreach_add(steps, hyper.delta)
        torch._foreach_div_(ratio, torch._foreach_add(gradients, hyper.delta))
        torch._foreach_sqrt_(ratio)
        torch._foreach_mul_(step, ratio)
        torch._foreach_mul_(steps, hyper.momentum)
        torch._foreach_addcmul_(steps, step, step, value=1 - hyper.momentum)
        torch._foreach_mul_(step, batch.rate)
        return step
