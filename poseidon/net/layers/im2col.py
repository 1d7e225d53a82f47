"""Im2col: every window of the bottom as a column, what Convolution multiplies its weights with.

    x   … × C × spatial         y   … × C·∏kernel × outputs(spatial)

y[…, (c, k₁, k₂, …), o₁, o₂, …] = x[…, c, o₁ · stride − pad + k₁ · dilation, …], zero outside the bottom. Any number of
spatial axes from one on; `axis` is where C stands.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch.nn.functional as F
from torch import Tensor

from poseidon.net.layer import Layer, Shape, count_of, text_of
from poseidon.net.layers.window import Window, check_plane, read_window
from poseidon.net.registry import register


@register("Im2col")
class Im2col(Layer):
    fresh_top = True

    window: Window

    def setup(self, bottom_shapes: Sequence[Shape]) -> None:
        shape = bottom_shapes[0]
        axis = self.axis(self.spec.convolution_param.axis, shape)
        if axis == len(shape) - 1:
            raise self.error(f"needs spatial axes after axis {axis}, got a bottom of shape {text_of(shape)}")
        self.window = read_window(self, len(shape) - axis - 1)

    def reshape(self, bottom_shapes: Sequence[Shape]) -> list[Shape]:
        shape = bottom_shapes[0]
        axis = self.axis(self.spec.convolution_param.axis, shape)
        spatial = shape[axis + 1 :]
        if len(spatial) != len(self.window.kernel):
            raise self.error(
                f"was built for {len(self.window.kernel)} spatial axes, got a bottom of shape {text_of(shape)} "
                f"with {len(spatial)} after axis {axis}"
            )
        outputs = self.window.outputs(spatial)
        if min(outputs) < 1:
            raise self.error(
                f"a kernel of extent {text_of(self.window.extent)} with pad {text_of(self.window.pad)} leaves nothing "
                f"of a bottom of shape {text_of(shape)}: the top would be {text_of(outputs)}"
            )
        check_plane(self, shape, axis, self.window, outputs)
        return [(*shape[:axis], shape[axis] * count_of(self.window.kernel), *outputs)]

    def forward(self, x: Tensor) -> Tensor:
        axis = self.spec.convolution_param.axis % x.dim()
        lead = x.shape[:axis]
        y = columns(x.reshape(count_of(lead), *x.shape[axis:]), self.window)
        return y.reshape(*lead, *y.shape[1:])


def columns(x: Tensor, window: Window) -> Tensor:
    """The windows of N × C × spatial."""
    num_axes, sizes = len(window.kernel), x.shape[2:]
    overhang = window.overhang(sizes)
    if num_axes == 2 and not any(overhang):
        flat = F.unfold(x, window.kernel, window.dilation, window.pad, window.stride)
        return flat.view(*flat.shape[:2], *window.outputs(sizes))
    sides = reversed([(pad, pad + over) for pad, over in zip(window.pad, overhang, strict=True)])
    x = F.pad(x, [n for side in sides for n in side])
    for i in range(num_axes):
        x = x.unfold(2 + i, window.extent[i], window.stride[i])[..., :: window.dilation[i]]
    # N, C, outputs…, kernel…  ->  N, C, kernel…, outputs…
    x = x.permute(0, 1, *range(2 + num_axes, 2 + 2 * num_axes), *range(2, 2 + num_axes))
    return x.flatten(1, 1 + num_axes)
