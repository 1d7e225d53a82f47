"""Accuracy: share of labels among the top_k best scores, over accuracy_param.axis.

    x      scores, N × C × …             label   one per position (see `classes`)
    tops   the accuracy, and (optional) the accuracy of each class: C numbers, 0 for a class that does not occur

A label is right if at least C − top_k scores are strictly below its own: equal scores count against it, and so does a
score that is not a number (Caffe would count such a label as right). Labels equal to ignore_label are left out; with
none left the accuracy is 0. It is a measure, not a loss: no gradient flows through it.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from poseidon.net.layer import Layer, Shape, between, exactly, text_of
from poseidon.net.layers.classes import class_labels, require_label_per_position, rows_of
from poseidon.net.registry import register


@register("Accuracy")
class Accuracy(Layer):
    bottoms = exactly(2)
    tops = between(1, 2)
    unforced_bottoms = frozenset({0, 1})

    def reshape(self, bottom_shapes: Sequence[Shape]) -> list[Shape]:
        options = self.spec.accuracy_param
        scores, label = bottom_shapes
        axis = self.axis(options.axis, scores, "accuracy_param.axis")
        require_label_per_position(self, scores, label, axis)
        if options.top_k > scores[axis]:
            raise self.error(
                f"accuracy_param.top_k must not exceed the number of classes, got {options.top_k} for "
                f"{scores[axis]} classes ({text_of(scores)}, axis {axis})"
            )
        return [(), (scores[axis],)][: self.num_tops]

    @torch.no_grad()
    def forward(self, x: Tensor, label: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        options = self.spec.accuracy_param
        rows = rows_of(x, options.axis % x.dim())
        ignore_label = options.ignore_label if options.HasField("ignore_label") else None
        labels = class_labels(self, label, rows, ignore_label)
        num_classes = rows.shape[1]
        num_below = (rows < rows.gather(1, labels.index)).sum(1, keepdim=True)
        right = num_below >= num_classes - options.top_k
        counted = torch.ones_like(right) if labels.ignored is None else ~labels.ignored
        dtype = torch.promote_types(x.dtype, torch.float32)
        right, counted = (right & counted).to(dtype), counted.to(dtype)
        accuracy = right.sum() / counted.sum().clamp_(min=1)
        if self.num_tops == 1:
            return accuracy
        per_class = x.new_zeros((2, num_classes), dtype=dtype)
        classes = labels.index.reshape(-1)
        per_class[0].scatter_add_(0, classes, right.reshape(-1))
        per_class[1].scatter_add_(0, classes, counted.reshape(-1))
        return accuracy, per_class[0] / per_class[1].clamp_(min=1)
