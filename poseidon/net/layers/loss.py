"""LossLayer: what the losses share: two bottoms (prediction, label), one scalar top, and how a sum is normalised.

    loss = total / divisor

Caffe's divisor, for a loss over `num_samples` with `num_labels` labels in all (samples × positions):

    FULL         num_labels
    VALID        number of labels that are not ignore_label (FULL where none is ignored)
    BATCH_SIZE   num_samples
    NONE         1

and never below 1, so that a batch without a valid label has loss 0. The old boolean `normalize` stands for VALID
(true) or BATCH_SIZE (false) where `normalization` is not given. Losses that know no such choice divide by num_samples.

Most losses know the gradient of their total better than autograd does: Caffe clips values without clipping gradients,
and one pass over the prediction is enough. They compute it beside the total (`LossLayer.graded`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from poseidon.errors import UsageError
from poseidon.net.layer import Layer, LayerContext, Shape, count_of, exactly, text_of
from poseidon.spec import caffe_pb2

Mode = caffe_pb2.LossParameter

# compute(wants_gradient) -> the total, and its gradient with respect to the prediction if wanted
Compute = Callable[[bool], tuple[Tensor, Tensor | None]]

LOG_THRESHOLD = 1e-20  # probabilities below it count as this much, in losses that take a logarithm


class LossLayer(Layer):
    bottoms = exactly(2)
    auto_tops = True
    is_loss = True
    unforced_bottoms = frozenset({1})
    default_normalization: ClassVar[int] = Mode.VALID

    def __init__(self, spec: caffe_pb2.LayerParameter, context: LayerContext) -> None:
        super().__init__(spec, context)
        options = spec.loss_param
        self.ignore_label: int | None = options.ignore_label if options.HasField("ignore_label") else None
        self.normalization = self._normalization()
        self._num_parts = 1.0
        self._sum_over_workers: Callable[[Tensor], Tensor] | None = None

    def reshape(self, bottom_shapes: Sequence[Shape]) -> list[Shape]:
        prediction, label = bottom_shapes[:2]
        if not prediction or prediction[:1] != label[:1]:
            raise self.error(
                f"prediction and label need the same number of samples (first axis), "
                f"got {text_of(prediction)} and {text_of(label)}"
            )
        return [()]

    def require_label_per_sample(self, prediction: Shape, label: Shape) -> None:
        if count_of(label) != prediction[0]:
            raise self.error(
                f"needs one label per sample: {prediction[0]} for a prediction of shape {text_of(prediction)}, "
                f"got {count_of(label)} ({text_of(label)})"
            )

    def constant(self, bottom: Tensor, what: str) -> Tensor:
        """A bottom that no gradient flows to; Caffe aborts where one is asked for."""
        if bottom.requires_grad and torch.is_grad_enabled() and self.training_phase:
            raise self.error(f"cannot back-propagate to its {what}; set propagate_down to false for it")
        return bottom.detach()

    # -- normalisation ----------------------------------------------------------------------------------------------
    def count_over_workers(self, num_parts: float, sum_over_workers: Callable[[Tensor], Tensor] | None) -> None:
        """Divides as one worker with the batches of all would, given that the workers' gradients are averaged.

        `num_parts` is how many batches like this worker's that would be: the number of workers, if all have as many
        samples, and if not, the mean is weighted by their numbers. `sum_over_workers` adds a count over all of them. It
        is called once per forward pass, by every worker or none: only options decide, never data. One worker needs
        none, as in the beginning.
        """
        self._num_parts = num_parts
        self._sum_over_workers = sum_over_workers

    def divisor(self, num_samples: int, num_labels: int, ignored: Tensor | None) -> Tensor | float:
        """What the total is divided by. `ignored` marks the labels left out (None: there is no ignore_label)."""
        if self.normalization == Mode.VALID and ignored is not None:
            num_valid = ignored.numel() - ignored.sum()
            if self._sum_over_workers is None:
                return num_valid.clamp(min=1)
            return self._sum_over_workers(num_valid).clamp(min=1).double() / self._num_parts
        if self.normalization == Mode.NONE:
            return 1.0 / self._num_parts
        return float(max(num_samples if self.normalization == Mode.BATCH_SIZE else num_labels, 1))

    def _normalization(self) -> int:
        options = self.spec.loss_param
        if options.HasField("normalization"):
            return options.normalization
        if options.HasField("normalize"):
            return Mode.VALID if options.normalize else Mode.BATCH_SIZE
        return self.default_normalization

    # -- gradient ---------------------------------------------------------------------------------------------------
    @staticmethod
    def graded(x: Tensor, divisor: Tensor | float, compute: Compute) -> Tensor:
        """total / divisor, of a total that comes with its gradient."""
        if isinstance(divisor, Tensor):  # a count's own type must not decide that of the loss
            divisor = divisor.to(torch.promote_types(x.dtype, torch.float32))
        if x.requires_grad and torch.is_grad_enabled():
            loss: Tensor = _Graded.apply(x, divisor, compute)
            return loss
        return compute(False)[0] / divisor


def zero_where(mask: Tensor, values: Tensor) -> Tensor:
    """Zeroes values in place where a bool mask (broadcast over them) is true, whatever they were.

    The same as masked_fill_, by clearing bits: that one takes 6 times as long to broadcast a mask over classes.
    """
    bits = {4: torch.int32, 8: torch.int64}[values.element_size()]
    values.view(bits).bitwise_and_(mask.to(bits) - 1)
    return values


class _Graded(torch.autograd.Function):
    """A scalar whose gradient is worked out in the forward pass; backward only scales it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, divisor: Tensor | float, compute: Compute) -> Tensor:
        total, gradient = compute(True)
        assert gradient is not None
        ctx.save_for_backward(gradient if gradient.shape == x.shape else gradient.reshape(x.shape))
        ctx.divisor = divisor
        return total / divisor

    @staticmethod
    def backward(ctx: Any, top_diff: Tensor) -> tuple[Tensor, None, None]:
        if torch.is_grad_enabled():  # only so under create_graph; autograd would take the gradient for a constant
            raise UsageError("a loss layer has no second derivative; call backward without create_graph")
        (gradient,) = ctx.saved_tensors
        return gradient * (top_diff / ctx.divisor), None, None
