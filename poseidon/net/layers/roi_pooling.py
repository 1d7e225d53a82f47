"""ROIPooling (Fast R-CNN): the maxima of each region on a grid of pooled_h × pooled_w cells.

    bottoms   features N × C × H × W, regions R × 5: image, x₁, y₁, x₂, y₂ in pixels of the image
    top       R × C × pooled_h × pooled_w

A region is scaled by spatial_scale and rounded (halves away from zero), both ends included, at least 1 × 1. Cell i of n
along an extent e spans  [start + ⌊i · e / n⌋, start + ⌈(i + 1) · e / n⌉),  cut to the feature map; neighbours overlap
where they do not divide evenly. An empty cell is 0. Of equal maxima the first takes the gradient; regions get none.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from poseidon.net.layer import Layer, Shape, count_of, exactly, text_of
from poseidon.net.registry import register


@register("ROIPooling")
class ROIPooling(Layer):
    bottoms = exactly(2)
    unforced_bottoms = frozenset({1})
    fresh_top = True

    def setup(self, bottom_shapes: Sequence[Shape]) -> None:
        options = self.spec.roi_pooling_param
        if options.pooled_h < 1 or options.pooled_w < 1:
            raise self.error(f"pooled_h and pooled_w must be at least 1, got {options.pooled_h} and {options.pooled_w}")
        if not options.spatial_scale > 0:
            raise self.error(f"spatial_scale must be above 0, got {options.spatial_scale:g}")

    def reshape(self, bottom_shapes: Sequence[Shape]) -> list[Shape]:
        features, regions = bottom_shapes
        options = self.spec.roi_pooling_param
        if len(features) != 4 or min(features[1:]) < 1:
            raise self.error(f"takes features N x C x H x W that have pixels, got {text_of(features)}")
        if len(regions) < 2 or count_of(regions, 1) != 5:
            raise self.error(f"takes regions R x 5 (image, x1, y1, x2, y2), got {text_of(regions)}")
        return [(regions[0], features[1], options.pooled_h, options.pooled_w)]

    def forward(self, features: Tensor, regions: Tensor) -> Tensor:
        options = self.spec.roi_pooling_param
        if regions.requires_grad and torch.is_grad_enabled():
            raise self.error("cannot back-propagate to its regions; set propagate_down to false for them")
        # In the precision of the net: where a cell ends can hang on how a quotient was rounded.
        rois = regions.detach().reshape(-1, 5).to("cpu", torch.promote_types(regions.dtype, torch.float32))
        images = rois[:, 0].nan_to_num(-1).long()
        wrong = images[(images < 0) | (images >= len(features))]
        if len(wrong):
            raise self.error(f"a region names image {int(wrong[0])}, expected 0 to {len(features) - 1}")
        corners = _rounded(rois[:, 1:] * options.spatial_scale)
        rows = _spans(corners[:, 1], corners[:, 3], options.pooled_h, features.shape[2])
        columns = _spans(corners[:, 0], corners[:, 2], options.pooled_w, features.shape[3])
        tops = [_pooled(features[image], rows[r], columns[r]) for r, image in enumerate(images.tolist())]
        return torch.stack(tops) if tops else features.new_zeros(self.reshape([features.shape, regions.shape])[0])


def _rounded(values: Tensor) -> Tensor:
    """C's round, for numbers that may be anything."""
    bounded = values.nan_to_num(0).clamp(-(2.0**30), 2.0**30)
    return (bounded.abs() + 0.5).floor() * bounded.sign()


def _spans(first: Tensor, last: Tensor, num_cells: int, size: int) -> list[list[list[int]]]:
    """Start and end of each cell of each region."""
    cell = torch.arange(num_cells + 1, dtype=first.dtype)
    edges = cell * ((last - first + 1).clamp(min=1) / num_cells)[:, None]
    start = edges[:, :-1].floor() + first[:, None]
    end = edges[:, 1:].ceil() + first[:, None]
    spans: list[list[list[int]]] = torch.stack((start, end), -1).clamp(0, size).long().tolist()
    return spans


def _pooled(planes: Tensor, rows: list[list[int]], columns: list[list[int]]) -> Tensor:
    """C × pooled_h × pooled_w maxima of planes C × H × W. Along the columns first: so the first of equal maxima in
    memory order is chosen."""
    top, bottom = rows[0][0], rows[-1][1]
    strips = torch.stack([_largest(planes[:, top:bottom, left:right], 2) for left, right in columns], 2)
    return torch.stack([_largest(strips[:, start - top : end - top], 1) for start, end in rows], 1)


def _largest(x: Tensor, axis: int) -> Tensor:
    """The maximum along an axis, 0 of nothing."""
    if x.shape[axis] == 0:
        return x.new_zeros([n for i, n in enumerate(x.shape) if i != axis])
    return x.max(axis).values
