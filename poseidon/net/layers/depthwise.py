"""ConvolutionDepthwise, DepthwiseConvolution (MobileNet, ShuffleNet): a convolution of each channel by itself.

    x   N × C × H × W          W   num_output × 1 × kernel          y   N × num_output × …

A Convolution with as many groups as the bottom has channels. `group` is what it is by nature: 1 (not given) or C. Both
names are in use; ConvolutionDepthwise has exactly C outputs, DepthwiseConvolution any multiple of C.
"""

from __future__ import annotations

from collections.abc import Sequence

from poseidon.net.layer import Shape, text_of
from poseidon.net.layers.convolution import Convolution
from poseidon.net.registry import register


@register("DepthwiseConvolution")
class DepthwiseConvolution(Convolution):
    def setup(self, bottom_shapes: Sequence[Shape]) -> None:
        options, shape = self.spec.convolution_param, bottom_shapes[0]
        channels = shape[self.axis(options.axis, shape)]
        if options.group not in (1, channels):
            raise self.error(
                f"group must be 1 or left out, or the {channels} channels of a bottom of shape {text_of(shape)}, "
                f"got {options.group}"
            )
        self.check_outputs(channels)
        options.group = channels
        super().setup(bottom_shapes)

    def check_outputs(self, channels: int) -> None:
        """Any multiple of the channels; `group` sees to that."""


@register("ConvolutionDepthwise")
class ConvolutionDepthwise(DepthwiseConvolution):
    def check_outputs(self, channels: int) -> None:
        num_output = self.spec.convolution_param.num_output
        if num_output != channels:
            raise self.error(f"convolution_param.num_output must be the bottom's {channels} channels, got {num_output}")
