"""Convolution: y = W * x + b, over any number of spatial axes.

    x   … × C × spatial       `axis` is where C stands; all axes before it count samples
    W   num_output × C/group × kernel          b   num_output (absent without bias_term)
    y   … × num_output × outputs(spatial)      see window.py for the arithmetic and for kernels beyond the bottom

Output channels of group g see the input channels of group g only. Several bottoms, all of one shape, give as many tops
with the same W and b. Without spatial axes it is a matrix product along C.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from poseidon.net.layer import Layer, Shape, at_least, count_of, text_of
from poseidon.net.layers.layout import channels_last, convolved_channels_last
from poseidon.net.layers.pointwise import convolve_pointwise
from poseidon.net.layers.window import Window, check_plane, read_window
from poseidon.net.registry import register


class ConvolutionBase(Layer):
    """What Convolution and its transpose share: parameters, checks, folding of the axes before C."""

    bottoms = at_least(1)
    tops = at_least(1)
    same_count = True
    fresh_top = True

    window: Window

    def setup(self, bottom_shapes: Sequence[Shape]) -> None:
        options = self.spec.convolution_param
        shape = bottom_shapes[0]
        axis = self.axis(options.axis, shape)
        self.window = read_window(self, len(shape) - axis - 1)
        channels, num_output, group = shape[axis], options.num_output, options.group
        if num_output < 1:
            raise self.error(f"convolution_param.num_output must be at least 1, got {num_output}")
        if group < 1 or channels % group or num_output % group:
            raise self.error(
                f"group must divide the channels of bottom and top, got group {group} for {channels} input channels "
                f"and num_output {num_output}"
            )
        self.add_param((*self.weight_channels(channels, num_output, group), *self.window.kernel), options.weight_filler)
        if options.bias_term:
            self.add_param((num_output,), options.bias_filler)

    def reshape(self, bottom_shapes: Sequence[Shape]) -> list[Shape]:
        options = self.spec.convolution_param
        shape = bottom_shapes[0]
        axis = self.axis(options.axis, shape)
        spatial = shape[axis + 1 :]
        if len(spatial) != len(self.window.kernel):
            raise self.error(
                f"was built for {len(self.window.kernel)} spatial axes, got a bottom of shape {text_of(shape)} "
                f"with {len(spatial)} after axis {axis}"
            )
        channels = self.weight_input_channels()
        if shape[axis] != channels:
            raise self.error(f"was built for {channels} input channels, got a bottom of shape {text_of(shape)}")
        for other in bottom_shapes[1:]:
            if other != shape:
                raise self.error(f"all bottoms need one shape, got {text_of(shape)} and {text_of(other)}")
        outputs = self.top_sizes(spatial)
        if min(outputs, default=1) < 1:
            raise self.error(
                f"a kernel of extent {text_of(self.window.extent)} with pad {text_of(self.window.pad)} leaves nothing "
                f"of a bottom of shape {text_of(shape)}: the top would be {text_of(outputs)}"
            )
        check_plane(self, shape, axis, self.window, outputs)
        return [(*shape[:axis], options.num_output, *outputs)] * len(bottom_shapes)

    def forward(self, *bottoms: Tensor) -> Tensor | tuple[Tensor, ...]:
        tops = tuple(self._folded(x) for x in bottoms)
        return tops[0] if len(tops) == 1 else tops

    def _folded(self, x: Tensor) -> Tensor:
        """`apply` on a bottom whose axes before C are folded into one."""
        options = self.spec.convolution_param
        bias = self.param(1) if options.bias_term else None
        axis = options.axis % x.dim()
        if axis == 1:
            return self.apply_window(x, self.param(0), bias)
        lead = x.shape[:axis]
        y = self.apply_window(x.reshape(count_of(lead), *x.shape[axis:]), self.param(0), bias)
        return y.reshape(*lead, *y.shape[1:])

    # -- to be written by each of the two ---------------------------------------------------------------------------
    @abstractmethod
    def weight_channels(self, channels: int, num_output: int, group: int) -> Shape:
        """The first two axes of W."""

    @abstractmethod
    def weight_input_channels(self) -> int:
        """The bottom's channels, read off W."""

    @abstractmethod
    def top_sizes(self, sizes: Shape) -> Shape: ...

    @abstractmethod
    def apply_window(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """N × C × spatial to N × num_output × spatial."""


@register("Convolution")
class Convolution(ConvolutionBase):
    def weight_channels(self, channels: int, num_output: int, group: int) -> Shape:
        return num_output, channels // group

    def weight_input_channels(self) -> int:
        return self.param_shapes[0][1] * self.spec.convolution_param.group

    def top_sizes(self, sizes: Shape) -> Shape:
        return self.window.outputs(sizes)

    def apply_window(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        overhang = self.window.overhang(x.shape[2:])
        if any(overhang):
            x = F.pad(x, [n for over in reversed(overhang) for n in (0, over)])
        return convolve(x, weight, bias, self.window, self.spec.convolution_param.group)


@register("HoleConvolution")
class HoleConvolution(Convolution):
    """PSPNet's and DeepLab's name for a convolution with `hole`, which is dilation."""


_CONVOLUTIONS = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}


def convolve(x: Tensor, weight: Tensor, bias: Tensor | None, window: Window, group: int) -> Tensor:
    """Convolution of N × C × spatial, with any number of spatial axes."""
    num_axes = len(window.kernel)
    if num_axes == 0:
        return convolve(x[..., None], weight[..., None], bias, Window((1,), (1,), (0,), (1,)), group)[..., 0]
    if num_axes not in _CONVOLUTIONS or window.strides_far(max(x.shape[1], len(weight))):
        return _convolve_first_axis(x, weight, bias, window, group)
    if num_axes == 2 and group == 1 and window.is_pointwise and x.is_cpu and not torch.is_autocast_enabled("cpu"):
        return convolve_pointwise(channels_last(x), weight, bias)
    run, stride, pad, dilation = _CONVOLUTIONS[num_axes], window.stride, window.pad, window.dilation
    return convolved_channels_last(x, weight, lambda x: run(x, weight, bias, stride, pad, dilation, group))


def _convolve_first_axis(x: Tensor, weight: Tensor, bias: Tensor | None, window: Window, group: int) -> Tensor:
    """Beyond three axes, or with strides too long for torch: a sum over the taps along the first axis, each a
    convolution over the others.

    The positions along the first axis stand beside the samples meanwhile.
    """
    stride, pad, dilation = window.stride[0], window.pad[0], window.dilation[0]
    num_samples, outputs = x.shape[0], window.outputs(x.shape[2:])[0]
    x = F.pad(x, [0, 0] * (x.dim() - 3) + [pad, pad])
    total: Tensor | None = None
    for tap in range(window.kernel[0]):
        start = tap * dilation
        rows = x[:, :, start : start + (outputs - 1) * stride + 1 : stride].movedim(2, 1).flatten(0, 1)
        part = convolve(rows, weight[:, :, tap], bias if total is None else None, window.after_first(), group)
        total = part if total is None else total + part
    assert total is not None
    return total.unflatten(0, (num_samples, outputs)).movedim(1, 2)
