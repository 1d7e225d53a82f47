"""LossLayer: what the losses share: two bottoms (prediction, label), one scalar top, and how a sum is normalised.

Caffe's normalizer, for a loss over `outer` samples × `inner` positions:

    FULL         outer · inner
    VALID        number of positions whose label is not ignore_label (FULL where none is ignored)
    BATCH_SIZE   outer
    NONE         1

and never below 1. The old boolean `normalize` stands for VALID (true) or BATCH_SIZE (false) where `normalization`
is not given.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor

from poseidon.net.layer import Layer, Shape, exactly, text_of
from poseidon.spec import caffe_pb2


class LossLayer(Layer):
    bottoms = exactly(2)
    auto_tops = True
    is_loss = True
    unforced_bottoms = frozenset({1})
    default_normalization: ClassVar[int] = caffe_pb2.LossParameter.VALID

    def reshape(self, bottom_shapes: Sequence[Shape]) -> list[Shape]:
        prediction, label = bottom_shapes[:2]
        if prediction[:1] != label[:1]:
            raise self.error(
                f"prediction and label need the same number of samples, got {text_of(prediction)} and {text_of(label)}"
            )
        return [()]

    @property
    def ignore_label(self) -> int | None:
        options = self.spec.loss_param
        return options.ignore_label if options.HasField("ignore_label") else None

    @property
    def normalization(self) -> int:
        options = self.spec.loss_param
        if options.HasField("normalization") or not options.HasField("normalize"):
            return options.normalization if options.HasField("normalization") else self.default_normalization
        return caffe_pb2.LossParameter.VALID if options.normalize else caffe_pb2.LossParameter.BATCH_SIZE

    def normalizer(self, outer: int, inner: int, valid: Tensor | None) -> Tensor | float:
        """What the summed loss is divided by. `valid` counts the labels in use (None: all of them)."""
        mode = self.normalization
        if mode == caffe_pb2.LossParameter.VALID and valid is not None:
            return torch.clamp(valid, min=1)
        number = {caffe_pb2.LossParameter.BATCH_SIZE: outer, caffe_pb2.LossParameter.NONE: 1}.get(mode, outer * inner)
        return float(max(number, 1))
