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

from poseidon.net.layer import Shape, between
from poseidon.net.layers.classes import (
    ClassLabels,
    class_labels,
    require_label_per_position,
    rows_of,
    softmax_rows,
)
from poseidon.net.layers.loss import LossLayer
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
        rows = rows_of(x.detach(), self.spec.softmax_param.axis % x.dim())
        labels = class_labels(self, label, rows, self.ignore_label)
        prob = softmax_rows(rows, torch.promote_types(x.dtype, torch.float32))
        chosen = prob.gather(1, labels.index)
        top = prob.view(x.shape) if self.num_tops > 1 else None
        gradient = None
        if self.wants_gradient(x):
            gradient = _less_one_hot(prob if top is None else prob.clone(), chosen, labels).view(x.shape)
        gains = chosen.clamp_(min=FLT_MIN).log_()
        if labels.ignored is not None:
            gains.masked_fill_(labels.ignored, 0)
        divisor = self.divisor(rows.shape[0], labels.index.numel(), labels.ignored)
        loss = self.finished(x, -gains.sum(), divisor, gradient)
        return loss if top is None else (loss, top)


def _less_one_hot(prob: Tensor, chosen: Tensor, labels: ClassLabels) -> Tensor:
    """Turns p into p − onehot(label), in place."""
    prob.scatter_(1, labels.index, chosen - 1)
    return prob if labels.ignored is None else prob.masked_fill_(labels.ignored, 0)
