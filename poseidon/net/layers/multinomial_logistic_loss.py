"""MultinomialLogisticLoss: loss = − 1/N Σ log max(p_label, 1e-20), for predictions that are probabilities already.

    p       N × …, everything behind the first axis flattened: K classes          label   N integers below K

The gradient at the label is −1 / (N max(p_label, 1e-20)), also where the value was clipped; elsewhere it is 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from poseidon.net.layer import Shape
from poseidon.net.layers.classes import class_labels, rows_of_samples
from poseidon.net.layers.loss import LOG_THRESHOLD, LossLayer
from poseidon.net.registry import register


@register("MultinomialLogisticLoss")
class MultinomialLogisticLoss(LossLayer):
    def reshape(self, bottom_shapes: Sequence[Shape]) -> list[Shape]:
        tops = super().reshape(bottom_shapes)
        self.require_label_per_sample(*bottom_shapes)
        return tops

    def forward(self, p: Tensor, label: Tensor) -> Tensor:
        rows = rows_of_samples(p.detach()).to(torch.promote_types(p.dtype, torch.float32))
        labels = class_labels(self, label, rows)
        return self.graded(p, float(max(p.shape[0], 1)), partial(_log_loss, rows, labels.index))


def _log_loss(prob: Tensor, index: Tensor, wants_gradient: bool) -> tuple[Tensor, Tensor | None]:
    chosen = prob.gather(1, index).clamp_(min=LOG_THRESHOLD)
    gradient = torch.zeros_like(prob).scatter_(1, index, -1 / chosen) if wants_gradient else None
    return -chosen.log_().sum(), gradient
