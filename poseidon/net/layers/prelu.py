"""PReLU: y = max(x, 0) + a_c · min(x, 0) with a learned slope per channel (axis 1), or one for all.

    X   N × C × …, at least two axes        a   C, or a scalar () with channel_shared; starts at 0.25

At 0 the derivative is a_c, as x > 0 is what passes the gradient unchanged.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch.nn.functional as F
from torch import Tensor

from poseidon.net.layer import Shape, text_of
from poseidon.net.layers.neuron import NeuronLayer
from poseidon.net.registry import register
from poseidon.spec import caffe_pb2


@register("PReLU")
class PReLU(NeuronLayer):
    fresh_top = True

    def setup(self, bottom_shapes: Sequence[Shape]) -> None:
        options = self.spec.prelu_param
        self.check_axes(bottom_shapes[0])
        filler = options.filler if options.HasField("filler") else caffe_pb2.FillerParameter(value=0.25)
        self.add_param(() if options.channel_shared else (bottom_shapes[0][1],), filler)

    def reshape(self, bottom_shapes: Sequence[Shape]) -> list[Shape]:
        shape = bottom_shapes[0]
        self.check_axes(shape)
        if not self.spec.prelu_param.channel_shared and (shape[1],) != self.param_shapes[0]:
            raise self.error(
                f"was built for {self.param_shapes[0][0]} channels, got a bottom of shape {text_of(shape)}; "
                "the number of channels cannot change"
            )
        return [shape]

    def check_axes(self, shape: Shape) -> None:
        if len(shape) < 2:
            raise self.error(f"needs a bottom of at least 2 axes, channels on axis 1, got shape {text_of(shape)}")

    def forward(self, x: Tensor) -> Tensor:
        return F.prelu(x, self.param(0).to(x.dtype))
