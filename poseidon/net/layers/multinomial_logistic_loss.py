"""MultinomialLogisticLoss: loss = − 1/N Σ log max(p_label, 1e-20), for predictions that are probabilities already.

    p       N × …, everything behind the first axis flattened: K classes          label   N integers below K

The gradient at the label is −1 / (N max(p_label, 1e-20)), also where the value was clipped; elsewhere it is 0.
"""

from __future__ import annotations

from collections.abc import Sequence

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
        rows = rows_of_samples(p.detach())
        labels = class_labels(self, label, rows)
        chosen = rows.gather(1, labels.index).to(torch.promote_types(p.dtype, torch.float32)).clamp_(min=LOG_THRESHOLD)
        gradient = None
        if self.wants_gradient(p):
            gradient = (
                torch.zeros_like(rows, dtype=chosen.dtype).scatter_(1, labels.index, -1 / chosen).reshape(p.shape)
            )
        return self.finished(p, -chosen.log().sum(), float(max(p.shape[0], 1)), gradient)
