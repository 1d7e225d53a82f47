"""InfogainLoss: SoftmaxWithLoss that weighs every class by a matrix H, over infogain_loss_param.axis.

    total = − Σ_positions Σ_k H[label, k] log max(p_k, 1e-20),   p = softmax(x)
    x      prediction, N × C × …             label   one per position (see `classes`)
    H      C × C values, from the BlobProto file `source` or as a third bottom in any shape of that count
    tops   the loss, and (optional) p in the prediction's shape

The gradient is p_k Σ_j H[label, j] − H[label, k], also where the logarithm was clipped, and 0 where the label is
ignore_label. None flows to H or through the second top. With the identity for H it is SoftmaxWithLoss.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from poseidon.errors import SpecError
from poseidon.net.layer import LayerContext, Shape, between, count_of, text_of
from poseidon.net.layers.classes import class_labels, from_rows, require_label_per_position, rows_of, softmax_rows
from poseidon.net.layers.loss import LOG_THRESHOLD, LossLayer, zero_where
from poseidon.net.registry import register
from poseidon.spec import blob_to_array, caffe_pb2, read_binary


@register("InfogainLoss")
class InfogainLoss(LossLayer):
    bottoms = between(2, 3)
    tops = between(1, 2)
    unforced_bottoms = frozenset({1, 2})
    matrix: Tensor | None

    def __init__(self, spec: caffe_pb2.LayerParameter, context: LayerContext) -> None:
        super().__init__(spec, context)
        if spec.loss_param.HasField("normalize"):
            raise self.error("does not take loss_param.normalize; say normalization: VALID or BATCH_SIZE instead")
        self.register_buffer("matrix", None, persistent=False)

    def setup(self, bottom_shapes: Sequence[Shape]) -> None:
        if len(bottom_shapes) == 3:
            return
        source = self.spec.infogain_loss_param.source
        if not source:
            raise self.error("needs its matrix as a third bottom or from a file, infogain_loss_param.source; got none")
        self.matrix = self._read(source).to(self.context.device, self.context.dtype)

    def reshape(self, bottom_shapes: Sequence[Shape]) -> list[Shape]:
        tops = super().reshape(bottom_shapes)
        prediction, label = bottom_shapes[:2]
        axis = self.axis(self.spec.infogain_loss_param.axis, prediction, "infogain_loss_param.axis")
        require_label_per_position(self, prediction, label, axis)
        num_classes = prediction[axis]
        matrix = bottom_shapes[2] if self.matrix is None else tuple(self.matrix.shape)
        if count_of(matrix) != num_classes * num_classes:
            raise self.error(
                f"needs a matrix of {num_classes} x {num_classes} values for a prediction of shape "
                f"{text_of(prediction)}, got {text_of(matrix)}"
            )
        return [*tops, prediction][: max(self.num_tops, 1)]

    def forward(self, x: Tensor, label: Tensor, matrix: Tensor | None = None) -> Tensor | tuple[Tensor, Tensor]:
        axis = self.spec.infogain_loss_param.axis % x.dim()
        rows = rows_of(x.detach(), axis)
        labels = class_labels(self, label, rows, self.ignore_label)
        prob = softmax_rows(rows, torch.promote_types(x.dtype, torch.float32))
        weights = self._gains(matrix, rows.shape[1]).to(prob.dtype)[labels.index.squeeze(1)]
        if rows.dim() == 3:
            weights = weights.transpose(1, 2)

        def compute(wants_gradient: bool) -> tuple[Tensor, Tensor | None]:
            total, gradient = _weighted_log_loss(prob, weights, labels.ignored, wants_gradient)
            return total, None if gradient is None else from_rows(gradient, x.shape, axis)

        divisor = self.divisor(count_of(x.shape, 0, axis), label.numel(), labels.ignored)
        loss = self.graded(x, divisor, compute)
        return loss if self.num_tops < 2 else (loss, from_rows(prob, x.shape, axis))

    def _gains(self, bottom: Tensor | None, num_classes: int) -> Tensor:
        matrix = self.matrix if bottom is None else self.constant(bottom, "infogain matrix")
        assert matrix is not None
        return matrix.reshape(num_classes, num_classes)

    def _read(self, source: str) -> Tensor:
        try:
            return torch.from_numpy(blob_to_array(read_binary(source, caffe_pb2.BlobProto), source))
        except SpecError as problem:
            raise self.error(f"cannot read its matrix: {problem}") from None


def _weighted_log_loss(
    prob: Tensor, weights: Tensor, ignored: Tensor | None, wants_gradient: bool
) -> tuple[Tensor, Tensor | None]:
    gains = prob.clamp(min=LOG_THRESHOLD).log_().mul_(weights)
    gradient = (prob * weights.sum(1, keepdim=True)).sub_(weights) if wants_gradient else None
    if ignored is not None:
        zero_where(ignored, gains)
        gradient = None if gradient is None else zero_where(ignored, gradient)
    return -gains.sum(), gradient
