"""PriorBox (SSD): the boxes that are looked at around each position of a feature map.

    bottoms   the feature map N × C × h × w, and the image N × C × H × W; only their sizes count
    top       1 × 2 × (h · w · K · 4): corners as fractions of the image, then the variances of each

Around the centre ((j + offset) · step_w, (i + offset) · step_h) of cell i, j there are, for each min_size m:

    m × m,  then √(m · M) × √(m · M) for its max_size M if there is one,  then  m√r × m/√r  for each aspect ratio r ≠ 1

with 1/r after r where `flip` is set; ratios within 1e-6 of an earlier one are left out. Sizes are whole pixels: 30.5
counts as 30. Steps are the image's size over the map's unless given; img_size, or img_h and img_w, stand in for the
image's size. `clip` keeps corners in [0, 1]. One variance serves all four codes, 0.1 if there is none.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from poseidon.net.layer import Layer, Shape, exactly, text_of
from poseidon.net.registry import register


@register("PriorBox")
class PriorBox(Layer):
    bottoms = exactly(2)
    unforced_bottoms = frozenset({0, 1})

    def setup(self, bottom_shapes: Sequence[Shape]) -> None:
        options = self.spec.prior_box_param
        lows, highs = list(options.min_size), list(options.max_size)
        if not lows or min(lows) <= 0:
            raise self.error(f"needs at least one min_size, all above 0, got {lows}")
        if highs and (len(highs) != len(lows) or any(high <= low for low, high in zip(lows, highs, strict=True))):
            raise self.error(f"needs one max_size above each min_size, or none, got {highs} for {lows}")
        if min(options.aspect_ratio, default=1) <= 0:
            raise self.error(f"aspect_ratio must be above 0, got {min(options.aspect_ratio)}")
        variances = list(options.variance)
        if len(variances) not in (0, 1, 4) or min(variances, default=1) <= 0:
            raise self.error(f"needs no, one or 4 values of variance, all above 0, got {variances}")
        for name in ("img", "step"):
            self._check_pair(name)

    def _check_pair(self, name: str) -> None:
        options = self.spec.prior_box_param
        whole = "img_size" if name == "img" else "step"
        given = [options.HasField(f"{name}_{side}") for side in "hw"]
        if any(given) and (not all(given) or options.HasField(whole)):
            raise self.error(f"give either {whole} or both {name}_h and {name}_w")
        for field in (whole, f"{name}_h", f"{name}_w"):
            if options.HasField(field) and getattr(options, field) <= 0:
                raise self.error(f"{field} must be above 0, got {getattr(options, field):g}")

    def reshape(self, bottom_shapes: Sequence[Shape]) -> list[Shape]:
        for shape in bottom_shapes:
            if len(shape) != 4 or min(shape[2:]) < 1:
                raise self.error(f"takes two bottoms N x C x H x W that have pixels, got {text_of(shape)}")
        height, width = bottom_shapes[0][2:]
        return [(1, 2, height * width * len(self._box_sizes()) * 4)]

    def _box_sizes(self) -> list[tuple[float, float]]:
        """Width and height of the boxes of one cell, in pixels."""
        options = self.spec.prior_box_param
        found = []
        for position, low in enumerate(int(size) for size in options.min_size):
            found.append((float(low), float(low)))
            if options.max_size:
                side = math.sqrt(low * int(options.max_size[position]))
                found.append((side, side))
            found += [(low * math.sqrt(ratio), low / math.sqrt(ratio)) for ratio in self._ratios()]
        return found

    def _ratios(self) -> list[float]:
        """The aspect ratios besides 1."""
        options = self.spec.prior_box_param
        ratios = [1.0]
        for ratio in options.aspect_ratio:
            if all(abs(ratio - other) >= 1e-6 for other in ratios):
                ratios += [ratio, 1 / ratio] if options.flip else [ratio]
        return [ratio for ratio in ratios if abs(ratio - 1) >= 1e-6]

    def _pair(self, name: str, whole: str, default: Sequence[float]) -> Sequence[float]:
        """A height and a width, from an option for both or from one for each."""
        options = self.spec.prior_box_param
        if options.HasField(f"{name}_h"):
            return getattr(options, f"{name}_h"), getattr(options, f"{name}_w")
        return (getattr(options, whole),) * 2 if options.HasField(whole) else default

    @torch.no_grad()
    def forward(self, feature_map: Tensor, image: Tensor) -> Tensor:
        options = self.spec.prior_box_param
        cells = feature_map.shape[2:]
        pixels = self._pair("img", "img_size", image.shape[2:])
        steps = self._pair("step", "step", [n / m for n, m in zip(pixels, cells, strict=True)])
        y, x = (
            (torch.arange(count, dtype=torch.float64) + options.offset) * step / size
            for count, step, size in zip(cells, steps, pixels, strict=True)
        )
        centres = torch.stack((x.expand(len(y), -1), y[:, None].expand(-1, len(x))), -1)
        half = torch.tensor(self._box_sizes(), dtype=torch.float64) / torch.tensor(tuple(pixels)[::-1]) / 2
        corners = torch.cat((centres[:, :, None] - half, centres[:, :, None] + half), -1).flatten()
        if options.clip:
            corners = corners.clamp(0, 1)
        variances = torch.tensor(list(options.variance) or [0.1], dtype=torch.float64)
        spread = variances.expand(4) if len(variances) == 1 else variances
        top = torch.stack((corners, spread.repeat(len(corners) // 4)))[None]
        return top.to(feature_map.device, torch.promote_types(feature_map.dtype, torch.float32))
