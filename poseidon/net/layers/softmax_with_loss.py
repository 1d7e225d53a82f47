"""SoftmaxWithLoss: multinomial logistic loss of a softmax, over softmax_param.axis.

    total = − Σ log max(p_label, FLT_MIN),   p = softmax(x)
    x      prediction, N × C × …             label   one per position (see `classes`)
    tops   the loss, and (optional) p in the prediction's shape

The gradient is p − onehot(label), also where the logarithm was clipped, and 0 where the label is ignore_label. None
flows through the second top. See `loss` for the normalisation.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from poseidon.net.layer import Shape, between, count_of
from poseidon.net.layers.classes import (
    ClassLabels,
    class_labels,
    from_rows,
    require_label_per_position,
    rows_of,
    softmax_rows,
)
from poseidon.net.layers.loss import LossLayer, zero_where
from poseidon.net.registry import register

FLT_MIN = torch.finfo(torch.float32).tiny


@register("SoftmaxWithLoss")
class SoftmaxWithLoss(LossLayer):
    tops = between(1, 2)

    def reshape(self, bottom_shapes: Sequence[Shape]) -> list[Shape]:
        prediction, label = bottom_shapes
        axis = self.axis(self.spec.softmax_param.axis, prediction, "softmax_param.axis")
        require_label_per_position(self, prediction, label, axis)
        return [*super().reshape(bottom_shapes), prediction][: max(self.num_tops, 1)]

    def forward(self, x: Tensor, label: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        axis = self.spec.softmax_param.axis % x.dim()
        rows = rows_of(x.detach(), axis)
        labels = class_labels(self, label, rows, self.ignore_label)
        prob = softmax_rows(rows, torch.promote_types(x.dtype, torch.float32))
        top = from_rows(prob.clone(), x.shape, axis) if self.num_tops > 1 else None

        def compute(wants_gradient: bool) -> tuple[Tensor, Tensor | None]:
            total, gradient = _log_loss(prob, labels, wants_gradient)
            return total, None if gradient is None else from_rows(gradient, x.shape, axis)

        divisor = self.divisor(count_of(x.shape, 0, axis), label.numel(), labels.ignored)
        loss = self.graded(x, divisor, compute)
        return loss if top is None else (loss, top)


def _log_loss(prob: Tensor, labels: ClassLabels, wants_gradient: bool) -> tuple[Tensor, Tensor | None]:
    """− Σ log p_label, and p − onehot(label) in the memory of p."""
    chosen = prob.gather(1, labels.index)
    if wants_gradient:
        prob.scatter_(1, labels.index, chosen - 1)
    gains = chosen.clamp_(min=FLT_MIN).log_()
    if labels.ignored is not None:
        zero_where(labels.ignored, gains)
        if wants_gradient:
            zero_where(labels.ignored, prob)
    return -gains.sum(), prob if wants_gradient else None
