"""SigmoidCrossEntropyLoss: logistic loss of independent yes/no predictions.

    total = − Σ t log σ(x) + (1 − t) log(1 − σ(x)),   computed without overflow as  max(x, 0) − x t + log(1 + e^−|x|)
    x      scores, N × …              t   targets in [0, 1], the same count in any shape

The gradient is σ(x) − t. Targets whose integer part is ignore_label count neither in the total nor in the gradient.
Without a `normalization` the total is divided by N (BATCH_SIZE), not by the number of targets as elsewhere.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from poseidon.net.layer import Shape, count_of, text_of
from poseidon.net.layers.loss import LossLayer, Mode
from poseidon.net.registry import register


@register("SigmoidCrossEntropyLoss")
class SigmoidCrossEntropyLoss(LossLayer):
    default_normalization = Mode.BATCH_SIZE

    def reshape(self, bottom_shapes: Sequence[Shape]) -> list[Shape]:
        tops = super().reshape(bottom_shapes)
        scores, targets = bottom_shapes
        if count_of(scores) != count_of(targets):
            raise self.error(f"needs one target per score, got {text_of(scores)} scores and {text_of(targets)} targets")
        return tops

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        scores = x.detach().to(torch.promote_types(x.dtype, torch.float32))
        targets = self.constant(target, "target bottom").to(scores.dtype).reshape(x.shape)
        ignored = None if self.ignore_label is None else targets.long() == self.ignore_label
        if ignored is None:
            total = F.binary_cross_entropy_with_logits(scores, targets, reduction="sum")
        else:
            costs = F.binary_cross_entropy_with_logits(scores, targets, reduction="none")
            total = costs.masked_fill_(ignored, 0).sum()
        gradient = None
        if self.wants_gradient(x):
            gradient = torch.sigmoid(scores).sub_(targets)
            if ignored is not None:
                gradient.masked_fill_(ignored, 0)
        return self.finished(x, total, self.divisor(x.shape[0], x.numel(), ignored), gradient)
