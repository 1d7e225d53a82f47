"""Normalize (SSD): y = s · x / √(Σ x² + eps).

x   N × C × …
Σ   over a sample (across_spatial), or over the channels at each position
s   one number, a scalar parameter (channel_shared), or C of them, one per channel; 1 unless scale_filler says
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from poseidon.net.layer import Layer, Shape, text_of
from poseidon.net.registry import register
from poseidon.spec import caffe_pb2

_ONES = caffe_pb2.FillerParameter(type="constant", value=1)


@register("Normalize")
class Normalize(Layer):
    fresh_top = True

    def setup(self, bottom_shapes: Sequence[Shape]) -> None:
        options = self.spec.norm_param
        self._check_axes(bottom_shapes[0])
        filler = options.scale_filler if options.HasField("scale_filler") else _ONES
        self.add_param(() if options.channel_shared else (bottom_shapes[0][1],), filler)

    def reshape(self, bottom_shapes: Sequence[Shape]) -> list[Shape]:
        (shape,) = bottom_shapes
        self._check_axes(shape)
        num_scales = self.param_shapes[0]
        if num_scales and num_scales[0] != shape[1]:
            raise self.error(f"was built for {num_scales[0]} channels, got a bottom of shape {text_of(shape)}")
        return [shape]

    def _check_axes(self, shape: Shape) -> None:
        if len(shape) < 2:
            raise self.error(f"needs a bottom with at least 2 axes, N x C x ..., got {text_of(shape)}")

    def forward(self, x: Tensor) -> Tensor:
        options = self.spec.norm_param
        axes = tuple(range(1, x.dim())) if options.across_spatial else (1,)
        inverse = (x.square().sum(axes, keepdim=True) + options.eps).rsqrt()
        scale = self.param(0)
        return x * inverse * (scale if scale.dim() == 0 else scale.view(-1, *[1] * (x.dim() - 2)))
