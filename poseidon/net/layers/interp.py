"""Interp (DeepLab, PSPNet): planes resized bilinearly, corners kept: N × C × H × W to N × C × H' × W'.

    input position of output i = i · (h − 1) / (h' − 1)           0 where h' is 1;  likewise along the width

where h × w is what pad_beg and pad_end, zero or negative, leave of H × W. H' × W' is the size of the second bottom if
there is one; otherwise, of  shrink_factor s, zoom_factor z and height with width,  the first that applies:

    s alone      (h − 1) / s + 1                   rounded down
    z alone      h + (h − 1) · (z − 1)
    height and width
    s and z      shrunk, then zoomed

The second bottom gives its size only. interp_type "nearest_neighbor" (PSPNet) takes the value at the position rounded
to the nearest, halves up.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from poseidon.net.layer import Layer, Shape, between, text_of
from poseidon.net.registry import register

_TYPES = ("bilinear", "nearest_neighbor")


@register("Interp")
class Interp(Layer):
    bottoms = between(1, 2)
    unforced_bottoms = frozenset({1})

    def setup(self, bottom_shapes: Sequence[Shape]) -> None:
        options = self.spec.interp_param
        if options.interp_type not in _TYPES:
            raise self.error(f"interp_type must be one of {', '.join(_TYPES)}, got {options.interp_type!r}")
        if options.pad_beg > 0 or options.pad_end > 0:
            raise self.error(
                f"pad_beg and pad_end can only crop: expected at most 0, got {options.pad_beg} and {options.pad_end}"
            )
        for name in ("shrink_factor", "zoom_factor"):
            if getattr(options, name) < 1:
                raise self.error(f"{name} must be at least 1, got {getattr(options, name)}")
        sized = [name for name in ("shrink_factor", "zoom_factor", "height", "width") if options.HasField(name)]
        if len(bottom_shapes) == 2 and sized:
            raise self.error(f"takes its size from the second bottom; leave {sized[0]} out")
        if len(bottom_shapes) == 1 and not (sized and (len(sized) > 1 or sized[0].endswith("factor"))):
            raise self.error("needs a second bottom, height and width, zoom_factor or shrink_factor to size its top")

    def reshape(self, bottom_shapes: Sequence[Shape]) -> list[Shape]:
        for shape in bottom_shapes:
            if len(shape) != 4:
                raise self.error(f"takes bottoms N x C x H x W, got {text_of(shape)}")
        shape = bottom_shapes[0]
        inner = self._cropped(shape[2:])
        if min(inner) < 1:
            raise self.error(f"pad_beg and pad_end leave nothing of a bottom of shape {text_of(shape)}")
        sizes = self._sizes(inner, bottom_shapes[1][2:] if len(bottom_shapes) == 2 else None)
        if min(sizes) < 1:
            raise self.error(f"a top of {text_of(sizes)} has no pixels; height and width must be at least 1")
        return [(*shape[:2], *sizes)]

    def _cropped(self, sizes: Sequence[int]) -> Shape:
        options = self.spec.interp_param
        return tuple(size + options.pad_beg + options.pad_end for size in sizes)

    def _sizes(self, inner: Shape, reference: Sequence[int] | None) -> Shape:
        options = self.spec.interp_param
        if reference is not None:
            return tuple(reference)
        has_factor = options.HasField("shrink_factor"), options.HasField("zoom_factor")
        if has_factor.count(True) != 1 and options.HasField("height") and options.HasField("width"):
            return options.height, options.width
        shrunk = tuple((size - 1) // options.shrink_factor + 1 for size in inner)
        return tuple(size + (size - 1) * (options.zoom_factor - 1) for size in shrunk)

    def forward(self, x: Tensor, reference: Tensor | None = None) -> Tensor:
        inner = self._cropped(x.shape[2:])
        sizes = self._sizes(inner, None if reference is None else reference.shape[2:])
        begin = -self.spec.interp_param.pad_beg
        x = x[:, :, begin : begin + inner[0], begin : begin + inner[1]]
        if self.spec.interp_param.interp_type == "nearest_neighbor":
            rows, columns = (_nearest(old, new, x.device) for old, new in zip(inner, sizes, strict=True))
            return x.index_select(2, rows).index_select(3, columns)
        return x.contiguous() if inner == sizes else F.interpolate(x, sizes, mode="bilinear", align_corners=True)


def _nearest(old: int, new: int, device: torch.device) -> Tensor:
    step = (old - 1) / (new - 1) if new > 1 else 0.0
    return (torch.arange(new, dtype=torch.float64, device=device) * step + 0.5).long().clamp(max=old - 1)
