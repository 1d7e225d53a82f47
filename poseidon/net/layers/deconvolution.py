"""Deconvolution: the transpose of Convolution, which spreads every input over a window and adds up where they overlap.

    x   … × C × spatial
    W   C × num_output/group × kernel          b   num_output (absent without bias_term)
    y   … × num_output × inputs(spatial)       inputs = stride · (size − 1) + extent − 2 · pad

Its forward pass is Convolution's backward pass, hence the order of W's first two axes. With the `bilinear` filler,
group = C = num_output and no bias it is the usual upsampling by `stride`.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from poseidon.net.layer import Shape
from poseidon.net.layers.convolution import ConvolutionBase
from poseidon.net.layers.layout import convolved_channels_last
from poseidon.net.layers.window import Window
from poseidon.net.registry import register


@register("Deconvolution")
class Deconvolution(ConvolutionBase):
    def weight_channels(self, channels: int, num_output: int, group: int) -> Shape:
        return channels, num_output // group

    def weight_input_channels(self) -> int:
        return self.param_shapes[0][0]

    def top_sizes(self, sizes: Shape) -> Shape:
        return self.window.inputs(sizes)

    def apply_window(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return deconvolve(x, weight, bias, self.window, self.spec.convolution_param.group)


_DECONVOLUTIONS = {1: F.conv_transpose1d, 2: F.conv_transpose2d, 3: F.conv_transpose3d}


def deconvolve(x: Tensor, weight: Tensor, bias: Tensor | None, window: Window, group: int) -> Tensor:
    """Transposed convolution of N × C × spatial, with any number of spatial axes."""
    num_axes = len(window.kernel)
    if num_axes == 0:
        return deconvolve(x[..., None], weight[..., None], bias, Window((1,), (1,), (0,), (1,)), group)[..., 0]
    if num_axes not in _DECONVOLUTIONS or window.strides_far(max(x.shape[1], weight.shape[1] * group)):
        return _deconvolve_first_axis(x, weight, bias, window, group)
    run, stride, pad, dilation = _DECONVOLUTIONS[num_axes], window.stride, window.pad, window.dilation
    return convolved_channels_last(x, weight, lambda x: run(x, weight, bias, stride, pad, 0, group, dilation))


def _deconvolve_first_axis(x: Tensor, weight: Tensor, bias: Tensor | None, window: Window, group: int) -> Tensor:
    """Beyond three axes, or with strides too long for torch: every tap along the first axis spreads over the others,
    then lands at its place.

    The positions along the first axis stand beside the samples meanwhile.
    """
    stride, pad, dilation = window.stride[0], window.pad[0], window.dilation[0]
    num_samples, size = x.shape[0], x.shape[2]
    rows = x.movedim(2, 1).flatten(0, 1)
    full = stride * (size - 1) + window.extent[0]
    total: Tensor | None = None
    for tap in range(window.kernel[0]):
        part = deconvolve(rows, weight[:, :, tap], None, window.after_first(), group)
        part = part.unflatten(0, (num_samples, size)).movedim(1, 2)
        if total is None:
            total = part.new_zeros(*part.shape[:2], full, *part.shape[3:])
        start = tap * dilation
        total[:, :, start : start + stride * (size - 1) + 1 : stride] += part
    assert total is not None
    total = total[:, :, pad : full - pad]
    return total if bias is None else total + bias.view(-1, *[1] * len(window.kernel))
