"""Upsample: planes N × C × H × W made larger, H' × W'.

    one bottom (YOLO ports)    every value repeated: y[i, j] = x[i / scale_h, j / scale_w]
    two bottoms (SegNet)       values put where max pooling found them: y[mask] = x, zeros elsewhere. The second bottom
                               is Pooling's mask: for each value the index row · W' + column

`scale`, or scale_h with scale_w, multiplies the size; pad_out_h and pad_out_w take one row or column off again (scale 2
only); upsample_h with upsample_w give H' and W' outright. The last two need the mask. Where several values have one
place, the last one in memory order stays; the gradient goes to all of them, as SegNet has it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from poseidon.net.layer import Layer, Shape, between, text_of
from poseidon.net.registry import register


@register("Upsample")
class Upsample(Layer):
    bottoms = between(1, 2)
    unforced_bottoms = frozenset({1})

    def setup(self, bottom_shapes: Sequence[Shape]) -> None:
        options = self.spec.upsample_param
        sized = options.HasField("upsample_h"), options.HasField("upsample_w")
        if sized[0] != sized[1]:
            raise self.error("upsample_h and upsample_w go together, got one of them")
        if options.HasField("scale_h") != options.HasField("scale_w"):
            raise self.error("scale_h and scale_w go together, got one of them")
        if options.HasField("scale") and options.HasField("scale_h"):
            raise self.error("give either scale or scale_h and scale_w, not both")
        scales = self._scales()
        if min(scales) < 1:
            raise self.error(f"a scale must be at least 1, got {text_of(scales)}")
        pads = options.pad_out_h, options.pad_out_w
        if len(bottom_shapes) == 1 and (any(sized) or any(pads)):
            raise self.error("upsample_h, upsample_w, pad_out_h and pad_out_w need a mask as second bottom")
        if any(pad and scale != 2 for pad, scale in zip(pads, scales, strict=True)):
            raise self.error(f"pad_out_h and pad_out_w are for scale 2, got {text_of(scales)}")

    def _scales(self) -> Shape:
        options = self.spec.upsample_param
        return (options.scale_h, options.scale_w) if options.HasField("scale_h") else (options.scale,) * 2

    def _sizes(self, sizes: Sequence[int]) -> Shape:
        options = self.spec.upsample_param
        if options.HasField("upsample_h"):
            return options.upsample_h, options.upsample_w
        pads = options.pad_out_h, options.pad_out_w
        return tuple(n * scale - pad for n, scale, pad in zip(sizes, self._scales(), pads, strict=True))

    def reshape(self, bottom_shapes: Sequence[Shape]) -> list[Shape]:
        shape = bottom_shapes[0]
        if len(shape) != 4:
            raise self.error(f"takes a bottom N x C x H x W, got {text_of(shape)}")
        if len(bottom_shapes) == 2 and bottom_shapes[1] != shape:
            raise self.error(f"needs a mask of the bottom's shape {text_of(shape)}, got {text_of(bottom_shapes[1])}")
        sizes = self._sizes(shape[2:])
        if min(sizes) < 1:
            raise self.error(f"a top of {text_of(sizes)} has no pixels, from a bottom of shape {text_of(shape)}")
        return [(*shape[:2], *sizes)]

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        if mask is None:
            scales = self._scales()
            if scales[0] == scales[1]:
                return F.interpolate(x, scale_factor=float(scales[0]), mode="nearest")
            return x.repeat_interleave(scales[0], 2).repeat_interleave(scales[1], 3)
        sizes = self._sizes(x.shape[2:])
        index = self.labels(mask).flatten(2)
        if index.numel() and not 0 <= int(index.min()) <= int(index.max()) < sizes[0] * sizes[1]:
            raise self.error(
                f"the mask names places {int(index.min())} to {int(index.max())}, expected 0 to "
                f"{sizes[0] * sizes[1] - 1} in planes of {text_of(sizes)}; do the sizes match those of the pooling?"
            )
        placed: Tensor = _Placed.apply(x, index, sizes)
        return placed


class _Placed(torch.autograd.Function):
    """Values at given places of larger planes; every value takes the whole gradient of its place."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, index: Tensor, sizes: Shape) -> Tensor:
        ctx.save_for_backward(index)
        ctx.shape = x.shape
        planes = x.new_zeros(*x.shape[:2], sizes[0] * sizes[1])
        order = torch.arange(index.shape[2], device=x.device).expand_as(index)
        # scatter_ leaves open who wins a place; its largest position in memory order must.
        winner = torch.full(planes.shape, -1, dtype=order.dtype, device=x.device)
        winner.scatter_reduce_(2, index, order, "amax")
        taken = x.flatten(2).gather(2, winner.clamp(min=0))
        return torch.where(winner >= 0, taken, planes).unflatten(2, sizes)

    @staticmethod
    def backward(ctx: Any, top_diff: Tensor) -> tuple[Tensor, None, None]:
        (index,) = ctx.saved_tensors
        return top_diff.flatten(2).gather(2, index).reshape(ctx.shape), None, None
