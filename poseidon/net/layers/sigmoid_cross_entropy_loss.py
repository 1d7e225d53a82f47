"""SigmoidCrossEntropyLoss: logistic loss of independent yes/no predictions.

    total = − Σ t log σ(x) + (1 − t) log(1 − σ(x)),   computed without overflow as  max(x, 0) − x t + log(1 + e^−|x|)
    x      scores, N × …              t   targets in [0, 1], the same count in any shape

The gradient is σ(x) − t. Targets whose integer part is ignore_label count neither in the total nor in the gradient.
Without a `normalization` the total is divided by N (BATCH_SIZE), not by the number of targets as elsewhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from poseidon.net.layer import Shape, count_of, text_of
from poseidon.net.layers.loss import LossLayer, Mode, zero_where
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
        divisor = self.divisor(x.shape[0], x.numel(), ignored)
        return self.graded(x, divisor, partial(_cross_entropy, scores, targets, ignored))


def _cross_entropy(
    scores: Tensor, targets: Tensor, ignored: Tensor | None, wants_gradient: bool
) -> tuple[Tensor, Tensor | None]:
    costs = F.binary_cross_entropy_with_logits(scores, targets, reduction="none")
    gradient = torch.sigmoid(scores).sub_(targets) if wants_gradient else None
    if ignored is not None:
        zero_where(ignored, costs)
        gradient = None if gradient is None else zero_where(ignored, gradient)
    return costs.sum(), gradient
