"""ContrastiveLoss: pulls similar pairs together and pushes others a margin apart (siamese nets).

    loss = 1/(2N) Σ_n  s_n d_n² + (1 − s_n) max(margin − d_n, 0)²,    d_n = ‖a_n − b_n‖
    legacy_version:                      … max(margin − d_n², 0)
    a, b   N × C (× 1 × 1)           s   N labels, similar where the integer part is not 0

Gradient with respect to a_n (the opposite for b_n), as Caffe has it, with 1e-4 guarding the division at d = 0:

    similar      (a_n − b_n) / N
    other        −(margin − d_n) / (d_n + 1e-4) · (a_n − b_n) / N    while d_n < margin    (legacy: −(a_n − b_n) / N)
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from poseidon.net.layer import Shape, count_of, exactly, text_of
from poseidon.net.layers.classes import rows_of_samples
from poseidon.net.layers.loss import LossLayer
from poseidon.net.registry import register
from poseidon.spec import caffe_pb2


@register("ContrastiveLoss")
class ContrastiveLoss(LossLayer):
    bottoms = exactly(3)
    unforced_bottoms = frozenset({2})

    def reshape(self, bottom_shapes: Sequence[Shape]) -> list[Shape]:
        tops = super().reshape(bottom_shapes)
        a, b, label = bottom_shapes
        if count_of(a, 2) != 1 or count_of(b, 2) != 1 or count_of(a, 1) != count_of(b, 1):
            raise self.error(
                f"needs two bottoms of features of the same shape N x C (x 1 x 1), got {text_of(a)} and {text_of(b)}"
            )
        self.require_label_per_sample(a, label)
        return tops

    def forward(self, a: Tensor, b: Tensor, label: Tensor) -> Tensor:
        difference = rows_of_samples(a - b.reshape(a.shape))
        rows = difference.detach().to(torch.promote_types(difference.dtype, torch.float32))
        similar = self.labels(label).reshape(-1) != 0
        compute = partial(_contrast, rows, similar, self.spec.contrastive_loss_param)
        return self.graded(difference, 2.0 * max(a.shape[0], 1), compute)


def _contrast(
    rows: Tensor, similar: Tensor, options: caffe_pb2.ContrastiveLossParameter, wants_gradient: bool
) -> tuple[Tensor, Tensor | None]:
    squared = rows.square().sum(1)
    distance = squared if options.legacy_version else squared.sqrt()
    gap = (options.margin - distance).clamp_(min=0)
    total = torch.where(similar, squared, gap if options.legacy_version else gap.square()).sum()
    if not wants_gradient:
        return total, None
    push = gap.sign() if options.legacy_version else gap / (distance + 1e-4)
    return total, rows * torch.where(similar, 2.0, -2.0 * push).unsqueeze(1)
