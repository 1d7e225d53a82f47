"""HingeLoss: one-versus-all hinge loss, norm L1 or L2.

    loss = 1/N Σ_nk max(0, 1 − s_nk x_nk)^norm,   s_nk = 1 for k = label_n, else −1
    x      N × …, everything behind the first axis flattened: K classes           label   N integers below K

L1's gradient at the kink is 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from poseidon.net.layer import Shape
from poseidon.net.layers.classes import class_labels, rows_of_samples
from poseidon.net.layers.loss import LossLayer
from poseidon.net.registry import register
from poseidon.spec import caffe_pb2


@register("HingeLoss")
class HingeLoss(LossLayer):
    def reshape(self, bottom_shapes: Sequence[Shape]) -> list[Shape]:
        tops = super().reshape(bottom_shapes)
        self.require_label_per_sample(*bottom_shapes)
        return tops

    def forward(self, x: Tensor, label: Tensor) -> Tensor:
        rows = rows_of_samples(x.detach())
        labels = class_labels(self, label, rows)
        squared = self.spec.hinge_loss_param.norm == caffe_pb2.HingeLossParameter.L2
        return self.graded(x, float(max(x.shape[0], 1)), partial(_hinge, rows, labels.index, squared))


def _hinge(rows: Tensor, index: Tensor, squared: bool, wants_gradient: bool) -> tuple[Tensor, Tensor | None]:
    slack = _negated_at(rows.to(torch.promote_types(rows.dtype, torch.float32), copy=True), index).add_(1).relu_()
    total = slack.square().sum() if squared else slack.sum()
    if not wants_gradient:
        return total, None
    return total, _negated_at(slack.mul_(2) if squared else slack.sign_(), index)


def _negated_at(rows: Tensor, index: Tensor) -> Tensor:
    """Changes the sign of one entry per row, in place."""
    return rows.scatter_(1, index, -rows.gather(1, index))
