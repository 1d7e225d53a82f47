"""Scale: y = s · x (+ b), s repeated over the axes it does not have.

    x   bottom 0, any shape
    s   blob 0, or bottom 1 where there is one; the extents of x from `axis` on: `num_axes` of them for a blob
        (-1: all the rest, 0: a scalar), as many as it has for a bottom
    b   with bias_term: the last blob, of the shape of s

A blob s starts at 1 unless `filler` says otherwise, b at 0 (`bias_filler`).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from poseidon.net.layer import Layer, Shape, between
from poseidon.net.layers.broadcast import check_operand, laid_over, operand_shape
from poseidon.net.registry import register
from poseidon.spec import caffe_pb2


@register("Scale")
class Scale(Layer):
    bottoms = between(1, 2)
    fresh_top = True

    def setup(self, bottom_shapes: Sequence[Shape]) -> None:
        options = self.spec.scale_param
        if len(bottom_shapes) == 2:
            shape = bottom_shapes[1]
        else:
            shape = operand_shape(self, bottom_shapes[0], options.axis, options.num_axes)
            one = caffe_pb2.FillerParameter(type="constant", value=1)
            self.add_param(shape, options.filler if options.HasField("filler") else one)
        if options.bias_term:
            self.add_param(shape, options.bias_filler)

    def reshape(self, bottom_shapes: Sequence[Shape]) -> list[Shape]:
        options = self.spec.scale_param
        operands = [*bottom_shapes[1:], *self.param_shapes]
        for operand in operands:
            check_operand(self, bottom_shapes[0], operand, options.axis)
        self._is_over_channels = len(operands[0]) == 1 and options.axis % len(bottom_shapes[0]) == 1
        return [bottom_shapes[0]]

    @property
    def is_per_channel_affine(self) -> bool:
        """True if blobs 0 and 1 are one factor and one shift per channel (axis 1), as a BatchNorm kernel can apply."""
        return len(self.spec.bottom) == 1 and self.spec.scale_param.bias_term and self._is_over_channels

    def forward(self, x: Tensor, scale: Tensor | None = None) -> Tensor:
        options = self.spec.scale_param
        if scale is None:
            scale = self.param(0)
        bias = self.param(self.num_params - 1) if options.bias_term else None
        return scaled(x, scale, bias, options.axis)


def scaled(x: Tensor, scale: Tensor, bias: Tensor | None, axis: int) -> Tensor:
    """scale · x + bias, with the operands' axes under those of x from `axis` on."""
    if scale.numel() in (1, x.numel()) or x.numel() == 0 or not _kernel_takes(x.dtype, scale.dtype):
        y = x * laid_over(scale, x, axis)
        return y if bias is None else y + laid_over(bias, x, axis)
    before = axis % x.dim()
    if before == 1 and scale.dim() == 1:
        return _per_channel(x, scale, bias)
    rows = x.reshape(x.shape[:before].numel(), scale.numel(), -1)
    return _per_channel(rows, scale.reshape(-1), None if bias is None else bias.reshape(-1)).view(x.shape)


def _kernel_takes(x: torch.dtype, scale: torch.dtype) -> bool:
    """Under autocast a half-precision bottom meets full-precision blobs; any other mixture is left to promotion."""
    return x == scale or (x in (torch.bfloat16, torch.float16) and scale == torch.float32)


def _per_channel(x: Tensor, scale: Tensor, bias: Tensor | None) -> Tensor:
    """scale · x + bias over axis 1, as batch normalisation with mean 0 and variance 1.

    That kernel reads x and the gradient once for all three gradients; a product and a sum read them three times.
    """
    mean, variance = torch.zeros_like(scale), torch.ones_like(scale)
    return torch.batch_norm(x, scale, bias, mean, variance, False, 0.0, 0.0, torch.backends.cudnn.enabled)
